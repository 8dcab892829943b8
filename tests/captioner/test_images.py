"""Images of every source, mode and orientation become the same pixels."""

import io
import pathlib
import struct

import numpy as np
import pytest
from keras_attention_apps.captioner.images import read_image
from PIL import Image

from .image_files import (
    BLUE,
    HEIGHT,
    LOSSLESS,
    RED,
    WHITE,
    WIDTH,
    encode,
    fails,
    greys,
    lazy_image,
    noise,
    pixels,
    png,
)

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


class TestSources:
    @pytest.mark.parametrize(
        "wrap",
        [
            bytes,
            bytearray,
            memoryview,
            io.BytesIO,
            lazy_image,
        ],
        ids=["bytes", "bytearray", "memoryview", "file", "PIL"],
    )
    def test_content(self, wrap):
        np.testing.assert_array_equal(read_image(wrap(encode(noise()))), noise())

    @pytest.mark.parametrize("name", ["a.png", "b.JPG", "c.txt", "d", "é \n.webp"])
    @pytest.mark.parametrize("kind", [str, pathlib.Path])
    def test_path_with_any_extension(self, tmp_path, name, kind):
        path = tmp_path / name
        path.write_bytes(encode(noise()))

        np.testing.assert_array_equal(read_image(kind(path)), noise())

    def test_file_is_read_from_its_start(self, tmp_path):
        path = tmp_path / "a.png"
        path.write_bytes(encode(noise()))

        with path.open("rb") as file:
            file.read(11)
            np.testing.assert_array_equal(read_image(file), noise())

    def test_file_that_cannot_seek(self):
        class Pipe(io.BytesIO):
            def seek(self, *_):
                raise io.UnsupportedOperation("seek")

        np.testing.assert_array_equal(read_image(Pipe(encode(noise()))), noise())

    def test_given_pillow_image_is_unchanged(self):
        image = Image.fromarray(noise())
        exif = image.getexif()
        exif[0x0112] = 6

        turned = read_image(image)

        assert turned.size == (HEIGHT, WIDTH)
        assert image.size == (WIDTH, HEIGHT)
        np.testing.assert_array_equal(image, noise())
        np.testing.assert_array_equal(read_image(turned), turned)

    def test_given_pillow_image_of_floats_is_unchanged(self):
        image = Image.fromarray(np.full((2, 3), 0.2, "float32"))
        before = dict(image.info)

        assert greys(image)[0] == 51
        assert (image.info, image.mode) == (before, "F")

    @pytest.mark.parametrize(
        "source", [None, 3, ["a.png"], np.float32(1)], ids=lambda value: str(value)
    )
    def test_sources_of_other_types(self, source):
        fails(source, "expected a path, bytes", f"got {type(source).__name__}")


class TestArrays:
    def test_uint8(self):
        np.testing.assert_array_equal(read_image(noise()), noise())

    @pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1)])
    def test_grey(self, shape):
        array = np.array([[2, 3, 5], [7, 11, 13]], "uint8").reshape(shape)

        image = read_image(array)

        assert image.size == (3, 2)
        assert greys(array) == [2, 3, 5]

    def test_alpha(self):
        array = np.array([[[10, 20, 30, 255], [10, 20, 30, 0]]], "uint8")

        assert pixels(array) == [(10, 20, 30), WHITE]

    @pytest.mark.parametrize("dtype", ["<u2", ">u2"])
    def test_uint16(self, dtype):
        # 257 k becomes k, and from 257 k + 128.5 on k + 1.
        array = np.array([[0, 257 * 3, 257 * 3 + 128, 257 * 3 + 129, 65535]], dtype)

        assert greys(array) == [0, 3, 3, 4, 255]

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_floats(self, dtype):
        assert greys(np.array([[0, 0.2, 1]], dtype)) == [0, 51, 255]

    def test_view_that_is_not_contiguous(self):
        array = noise(WIDTH * 2, HEIGHT * 2)[::-2, ::2]

        np.testing.assert_array_equal(read_image(array), array)

    @pytest.mark.parametrize(
        ("array", "expected", "received"),
        [
            (np.zeros(3, "uint8"), "(height, width)", "(3,)"),
            (np.zeros((2, 3, 2), "uint8"), "1, 3 or 4", "(2, 3, 2)"),
            (np.zeros((1, 2, 3, 3), "uint8"), "1, 3 or 4", "(1, 2, 3, 3)"),
            (np.zeros((0, 3), "uint8"), "(height, width)", "(0, 3)"),
            (np.zeros((2, 0, 3), "uint8"), "(height, width)", "(2, 0, 3)"),
            (np.zeros((2, 3), "int64"), "uint8, uint16 or floats", "int64"),
            (np.zeros((2, 3), bool), "uint8, uint16 or floats", "bool"),
            (np.array([[0.25, 1.5]]), "[0, 1]", "0.25 to 1.5"),
            (np.array([[-0.5, 1.0]]), "[0, 1]", "-0.5 to 1.0"),
            (np.array([[0.25, np.nan]]), "[0, 1]", "nan"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_invalid_arrays(self, array, expected, received):
        fails(array, "the given ndarray", expected, received)


# The stored image has two columns and three rows: ab / cd / ef.
UPRIGHT = {
    1: ["ab", "cd", "ef"],
    2: ["ba", "dc", "fe"],
    3: ["fe", "dc", "ba"],
    4: ["ef", "cd", "ab"],
    5: ["ace", "bdf"],
    6: ["eca", "fdb"],
    7: ["fdb", "eca"],
    8: ["bdf", "ace"],
}


def letters(rows):
    return np.array([[ord(letter) for letter in row] for row in rows], "uint8")


class TestOrientation:
    @pytest.mark.parametrize("orientation", UPRIGHT)
    @pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
    def test_value_worked_by_hand(self, format, orientation):
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = Image.fromarray(letters(UPRIGHT[1]))
        data = encode(stored.convert("RGB"), format, exif=exif, lossless=True)

        image = read_image(data)

        expected = letters(UPRIGHT[orientation])
        np.testing.assert_array_equal(np.asarray(image)[..., 0], expected)

    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    def test_grey(self, dtype):
        exif = Image.Exif()
        exif[0x0112] = 6
        stored = letters(UPRIGHT[1]).astype(dtype) * (257 if dtype == "uint16" else 1)

        image = read_image(encode(stored, exif=exif))

        np.testing.assert_array_equal(np.asarray(image)[..., 0], letters(UPRIGHT[6]))

    def test_avif(self):
        if "AVIF" not in Image.SAVE:
            pytest.skip("this Pillow does not write AVIF")
        exif = Image.Exif()
        exif[0x0112] = 6
        data = encode(Image.new("RGB", (64, 32)), "AVIF", exif=exif)

        assert read_image(data).size == (32, 64)

    def test_jpeg(self):
        # The left half of the file is the top of the image. Both halves consist of
        # blocks of 8, so that the compression keeps them flat.
        exif = Image.Exif()
        exif[0x0112] = 6
        stored = np.zeros((16, 48), "uint8")
        stored[:, 16:] = 255

        upright = np.asarray(read_image(encode(stored, "JPEG", exif=exif)))

        assert upright.shape == (48, 16, 3)
        assert upright[:16].max() <= 2
        assert upright[16:].min() >= 253

    @pytest.mark.parametrize("tag", [0x011A, 0x0128])
    def test_another_tag_of_a_wrong_type_changes_nothing(self, tag):
        exif = Image.Exif()
        exif[0x0112] = 6
        exif[tag] = 2
        data = bytearray(encode(Image.new("RGB", (8, 16)), "JPEG", exif=exif))
        # The tag now has the type of a text.
        order = "big" if b"Exif\0\0MM" in data else "little"
        entry = data.index(tag.to_bytes(2, order), data.index(b"Exif"))
        data[entry + 2 : entry + 4] = (2).to_bytes(2, order)
        assert read_image(bytes(data)).size == (16, 8)

    def test_damaged_exif_is_ignored(self):
        data = encode(noise(), "JPEG", exif=b"Exif\0\0no header")

        assert read_image(data).size == (WIDTH, HEIGHT)


class TestModes:
    @pytest.mark.parametrize(("format", "options"), LOSSLESS.items(), ids=LOSSLESS)
    def test_formats(self, format, options):
        data = encode(noise(), format, **options)

        np.testing.assert_array_equal(read_image(data), noise())

    @pytest.mark.parametrize("format", ["JPEG", "AVIF"])
    def test_lossy_formats(self, format):
        if format not in Image.SAVE:
            pytest.skip(f"this Pillow does not write {format}")
        image = read_image(encode(Image.new("RGB", (13, 17), (50, 100, 200)), format))

        assert image.size == (13, 17)
        assert np.abs(np.asarray(image) - np.array([50.0, 100, 200])).max() <= 4

    def test_one_bit(self):
        image = Image.new("1", (2, 1))
        image.putpixel((1, 0), 1)

        assert greys(encode(image)) == [0, 255]

    def test_palette(self):
        image = Image.new("P", (3, 1))
        image.putpalette([*RED, *BLUE, 2, 3, 5])
        for x, index in enumerate([2, 0, 1]):
            image.putpixel((x, 0), index)

        assert pixels(encode(image)) == [(2, 3, 5), RED, BLUE]
        # One transparent colour, and one alpha for each colour: 51 is a fifth.
        assert pixels(encode(image, transparency=1)) == [(2, 3, 5), RED, WHITE]
        assert pixels(encode(image, "GIF", transparency=0))[1] == WHITE
        alphas = bytes([51, 255, 0])
        data = encode(image, transparency=alphas)
        assert pixels(data) == [WHITE, (255, 204, 204), BLUE]

    def test_alpha_shows_white(self):
        image = Image.new("RGBA", (3, 1))
        image.putpixel((0, 0), (10, 20, 30, 0))
        image.putpixel((1, 0), (0, 0, 0, 51))
        image.putpixel((2, 0), (10, 20, 30, 255))

        for format in ("PNG", "TIFF", "WEBP"):
            data = encode(image, format, lossless=True, exact=True)
            assert pixels(data) == [WHITE, (204, 204, 204), (10, 20, 30)]

    def test_grey_with_alpha(self):
        image = Image.new("LA", (3, 1))
        for x, value in enumerate([(90, 0), (0, 51), (90, 255)]):
            image.putpixel((x, 0), value)

        assert greys(encode(image)) == [255, 204, 90]

    def test_transparent_colour(self):
        grey, colour = struct.pack(">H", 7), struct.pack(">HHH", 2, 3, 5)

        assert greys(png(2, 1, 8, 0, bytes([7, 11]), tRNS=grey)) == [255, 11]
        data = png(2, 1, 8, 2, bytes([2, 3, 5, 2, 3, 7]), tRNS=colour)
        assert pixels(data) == [WHITE, (2, 3, 7)]

    def test_cmyk(self):
        # Full cyan leaves no red, full black leaves nothing.
        image = Image.new("CMYK", (3, 1))
        for x, ink in enumerate([(255, 0, 0, 0), (0, 0, 0, 255), (0, 0, 0, 0)]):
            image.putpixel((x, 0), ink)

        assert pixels(encode(image, "TIFF")) == [(0, 255, 255), (0, 0, 0), WHITE]

    def test_cmyk_of_adobe_is_stored_inverted(self):
        data = encode(Image.new("CMYK", (13, 17), (255, 0, 0, 0)), "JPEG")
        assert b"Adobe" in data

        cyan = np.array([0.0, 255, 255])
        assert np.abs(np.asarray(read_image(data)) - cyan).max() <= 4

    @pytest.mark.parametrize("mode", ["YCbCr", "HSV", "RGBX", "RGBa", "PA"])
    def test_other_modes_of_pillow(self, mode):
        # Pillow cannot convert RGB to PA directly.
        white = Image.new("RGBA", (2, 3), WHITE).convert(mode)

        assert pixels(white) == [WHITE, WHITE]


DEEP = np.array([[0, 257 * 3, 257 * 3 + 129, 65535]], "uint16")
SHALLOW = [0, 3, 4, 255]


class TestDeepModes:
    @pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
    def test_grey_of_16_bits(self, format):
        assert greys(encode(DEEP, format)) == SHALLOW

    @pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I"])
    def test_modes(self, mode):
        kind = {"I;16B": ">u2", "I": "<i4"}.get(mode, "<u2")
        image = Image.frombytes(mode, (4, 1), DEEP.astype(kind).tobytes())

        assert greys(image) == SHALLOW
        if mode != "I;16L":
            assert greys(encode(image, "TIFF")) == SHALLOW

    def test_integers_beyond_16_bits_are_clipped(self):
        image = Image.fromarray(np.array([[-5, 257 * 7, 70000]], "int32"))

        assert image.mode == "I"
        assert greys(image) == [0, 7, 255]

    def test_transparent_grey_of_16_bits(self):
        row = struct.pack(">HHH", 257 * 7, 257 * 7 + 1, 257 * 11)

        data = png(3, 1, 16, 0, row, tRNS=struct.pack(">H", 257 * 7))

        assert greys(data) == [255, 7, 11]

    def test_colour_of_16_bits(self):
        row = struct.pack(">HHH", 257 * 2, 257 * 3, 257 * 5)

        assert pixels(png(1, 1, 16, 2, row)) == [(2, 3, 5)]

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([0, 0.2, 1], [0, 51, 255]),
            ([-3, 0.2, 0.4], [0, 51, 102]),
            ([0, 0.2, 51, 300], [0, 0, 51, 255]),
            ([np.nan, 0.2], [0, 51]),
            ([np.inf, 51, -np.inf], [255, 51, 0]),
        ],
    )
    def test_floats(self, values, expected):
        image = Image.fromarray(np.array([values], "float32"))

        assert image.mode == "F"
        assert greys(encode(image, "TIFF")) == expected


class TestAnimations:
    @pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
    def test_first_frame(self, format):
        first, second = (Image.new("RGB", (2, 3), colour) for colour in (RED, BLUE))
        options = {"save_all": True, "append_images": [second], "lossless": True}
        data = encode(first, format, **options)

        assert lazy_image(data).n_frames == 2
        assert pixels(data) == [RED, RED]
