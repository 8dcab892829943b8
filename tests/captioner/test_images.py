import io
import os
import pathlib
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from keras_attention_apps.captioner.images import reading as images
from keras_attention_apps.captioner.images.reading import (
    ImageError,
    find_images,
    find_unreadable,
    image_to_array,
    read_image,
)
from PIL import Image

WIDTH, HEIGHT = 5, 7
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
LOSSLESS = {
    "BMP": {},
    "GIF": {},
    "JPEG2000": {},
    "PNG": {},
    "PPM": {},
    "TIFF": {"compression": "tiff_deflate"},
    "WEBP": {"lossless": True, "exact": True},
}


@pytest.fixture(autouse=True)
def _warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def noise(width=WIDTH, height=HEIGHT):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), "uint8")


def encode(image, format="PNG", **options):
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def png(width, height, depth, colour, row=b"", **chunks):
    """A PNG of one row that Pillow would not write."""

    def chunk(name, data):
        checksum = zlib.crc32(name + data)
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    extra = b"".join(chunk(name.encode(), data) for name, data in chunks.items())
    rows = chunk(b"IDAT", zlib.compress(b"\0" + row))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + rows
        + chunk(b"IEND", b"")
    )


def pixels(source):
    """The first row, as a list of colours."""
    image = read_image(source)
    assert image.mode == "RGB"
    return [tuple(map(int, colour)) for colour in np.asarray(image)[0]]


def greys(source):
    """The first row of a picture that must be grey."""
    colours = pixels(source)
    assert all(len(set(colour)) == 1 for colour in colours)
    return [colour[0] for colour in colours]


def fails(source, *texts):
    with pytest.raises(ImageError) as caught:
        read_image(source)
    message = str(caught.value)
    assert "\n" not in message
    for text in texts:
        assert text in message, message


def lazy_image(data):
    return Image.open(io.BytesIO(data))


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

    def test_picture_of_the_caller_stays_as_it_is(self):
        image = Image.fromarray(noise())
        exif = image.getexif()
        exif[0x0112] = 6

        turned = read_image(image)

        assert turned.size == (HEIGHT, WIDTH)
        assert image.size == (WIDTH, HEIGHT)
        np.testing.assert_array_equal(image, noise())
        np.testing.assert_array_equal(read_image(turned), turned)

    @pytest.mark.parametrize(
        "source", [None, 3, ["a.png"], np.float32(1)], ids=lambda value: str(value)
    )
    def test_no_picture_at_all(self, source):
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
        # 257 k is k; half of 257 more is the border to k + 1.
        array = np.array([[0, 257 * 3, 257 * 3 + 128, 257 * 3 + 129, 65535]], dtype)

        assert greys(array) == [0, 3, 3, 4, 255]

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_floats(self, dtype):
        assert greys(np.array([[0, 0.2, 1]], dtype)) == [0, 51, 255]

    def test_view_that_is_not_contiguous(self):
        array = noise(WIDTH * 2, HEIGHT * 2)[::-2, ::2]

        np.testing.assert_array_equal(read_image(array), array)

    @pytest.mark.parametrize(
        ("array", "expected", "came"),
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
    def test_what_is_no_picture(self, array, expected, came):
        fails(array, "the given ndarray", expected, came)


# The stored picture has two columns and three rows: ab / cd / ef.
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

    def test_jpeg(self):
        # What is stored at the left belongs to the top. Both halves are whole blocks
        # of 8, so that the compression keeps them flat.
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
        # Its entry in the table of tags now says that it is a text.
        order = "big" if b"Exif\0\0MM" in data else "little"
        entry = data.index(tag.to_bytes(2, order), data.index(b"Exif"))
        data[entry + 2 : entry + 4] = (2).to_bytes(2, order)
        assert read_image(bytes(data)).size == (16, 8)

    def test_damaged_exif_does_not_lose_the_picture(self):
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
        # PA has no direct way from RGB.
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


class TestWhatCannotBeOpened:
    def test_missing(self, tmp_path):
        path = tmp_path / "none.jpg"

        fails(path, str(path), "expected a picture", "got No such file or directory")
        fails("", "''", "got No such file or directory")

    def test_folder(self, tmp_path):
        fails(tmp_path, str(tmp_path), "expected a picture file", "got a folder")

    def test_no_permission(self, tmp_path, monkeypatch):
        # Staged, since the superuser may read everything.
        def deny(path, _):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(images, "open", deny, raising=False)

        fails(tmp_path / "a.png", "a.png", "got Permission denied")

    def test_impossible_paths(self):
        fails("a\0b.png", "'a\\x00b.png'", "null byte")
        fails("a\nb.png", "'a\\nb.png'", "got No such file")

    def test_empty(self, tmp_path):
        path = tmp_path / "empty.png"
        path.touch()

        fails(path, str(path), "expected a picture", "got no data (0 bytes)")
        fails(b"", "the given bytes", "got no data (0 bytes)")

    def test_text_named_jpg(self, tmp_path):
        path = tmp_path / "page.jpg"
        path.write_text("<html>404")

        fails(path, str(path), "JPEG", "got 9 bytes that begin with b'<html>404'")

    def test_text_files(self, tmp_path):
        path = tmp_path / "a.png"
        path.write_bytes(encode(noise()))

        fails(io.StringIO("text"), "the given StringIO", "got TypeError", "'str'")
        with path.open(encoding="utf-8") as file:
            fails(file, "the given TextIOWrapper", "got UnicodeDecodeError")

    def test_closed(self):
        stream, image = io.BytesIO(encode(noise())), Image.fromarray(noise())
        stream.close()
        image.close()

        fails(stream, "the given BytesIO", "closed file")
        fails(image, "the given Image", "closed image")

    def test_programs_are_not_run(self):
        data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 3\n%%EndComments\n"

        fails(data, "JPEG", "%!PS-Adobe")


class TestWhatIsBroken:
    @pytest.mark.parametrize("format", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF"])
    def test_truncated(self, tmp_path, format):
        path = tmp_path / "a.jpg"
        data = encode(noise(23, 29), format)
        path.write_bytes(data[: len(data) * 2 // 3])

        fails(path, str(path), "expected a whole picture", "Error: ", "truncated")

    def test_truncated_webp(self):
        data = encode(noise(23, 29), "WEBP")

        fails(data[: len(data) // 2], "the given bytes")

    @pytest.mark.parametrize("format", [*LOSSLESS, "JPEG"])
    def test_damages_give_a_picture_or_one_kind_of_error(self, format, monkeypatch):
        monkeypatch.setattr(images, "MAX_PIXELS", 10_007)
        # Pillow warns of some damages that it survives.
        warnings.simplefilter("ignore")
        data = encode(noise(), format)
        damaged = [data[:length] for length in range(0, len(data), 3)]
        for position in range(min(len(data), 199)):
            for value in (b"\0", b"\xff"):
                damaged.append(data[:position] + value + data[position + 1 :])

        outcomes = set()
        for source in damaged:
            try:
                outcomes.add(read_image(source).mode)
            except ImageError as error:
                assert "\n" not in str(error)
                outcomes.add("error")

        assert outcomes == {"RGB", "error"}

    @pytest.mark.parametrize(
        "error",
        [
            OSError("bad\nheader"),
            SyntaxError("bad header"),
            ValueError("bad header"),
            struct.error("bad header"),
            ZeroDivisionError("bad header"),
            OverflowError("bad header"),
            KeyError("bad header"),
            EOFError("bad header"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_whatever_pillow_raises(self, monkeypatch, error):
        def load(self):
            raise error

        data = encode(noise())
        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)

        fails(data, "expected a whole picture", f"got {type(error).__name__}")
        fails(data, "the given bytes", "bad header")


class TestLimit:
    @pytest.mark.parametrize("of_process", [1, 89_478_485, 10**12, None])
    @pytest.mark.parametrize("action", ["error", "always", "ignore"])
    def test_header_that_claims_too_much(self, monkeypatch, of_process, action):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_process)

        with warnings.catch_warnings(record=True) as leaked:
            warnings.simplefilter(action)
            # 30011 x 30011 = 900 660 121; 13399 x 13357 is above by a little.
            fails(png(30011, 30011, 8, 2), "at most 178956970", "900660121 pixels")
            fails(png(13399, 13357, 8, 2), "at most 178956970", "178970443 pixels")

        assert not leaked
        assert of_process == Image.MAX_IMAGE_PIXELS

    @pytest.mark.parametrize("of_process", [1, 34, 10**12, None])
    @pytest.mark.parametrize(("format", "options"), LOSSLESS.items(), ids=LOSSLESS)
    def test_exact_border(self, monkeypatch, format, options, of_process):
        data = encode(noise(), format, **options)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_process)

        monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT)
        np.testing.assert_array_equal(read_image(data), noise())
        monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT - 1)
        fails(data, "expected at most 34 pixels", "35 pixels")

        assert of_process == Image.MAX_IMAGE_PIXELS

    def test_picture_of_the_caller(self, monkeypatch):
        monkeypatch.setattr(images, "MAX_PIXELS", 34)

        fails(lazy_image(encode(noise())), "at most 34 pixels, got 5 x 7")

    def test_reader_inside_a_reader(self, monkeypatch):
        data = encode(noise(), "TIFF")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)

        class File:
            def read(self):
                read_image(data)
                return data

        np.testing.assert_array_equal(read_image(File()), noise())
        assert Image.MAX_IMAGE_PIXELS == 1

    def test_threads(self, monkeypatch):
        sources = [encode(noise(), format) for format in ("TIFF", "PNG")] * 101
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)

        with ThreadPoolExecutor(7) as pool:
            for image in pool.map(read_image, sources):
                np.testing.assert_array_equal(image, noise())

        assert Image.MAX_IMAGE_PIXELS == 1


class TestImageToArray:
    def test_picture_of_that_size_is_untouched(self):
        array = image_to_array(Image.fromarray(noise(7, 7)), 7)

        np.testing.assert_array_equal(array, noise(7, 7))
        assert array.dtype == np.uint8
        assert array.flags.writeable

    @pytest.mark.parametrize(("width", "height"), [(5, 7), (2, 3), (13, 3), (3, 17)])
    def test_shape(self, width, height):
        array = image_to_array(Image.fromarray(noise(width, height)), 3)

        assert array.shape == (3, 3, 3)
        assert array.dtype == np.uint8

    @pytest.mark.parametrize("axis", [0, 1])
    def test_value_worked_by_hand(self, axis):
        # Shrunk from 7 to 1, the triangle weighs the pixels 4 5 6 7 6 5 4 out of 37:
        # without antialiasing, or cropped, the outermost pixel would not be seen.
        line = np.zeros((7, 3), "uint8")
        line[0] = 255
        picture = np.expand_dims(line, axis)

        array = image_to_array(Image.fromarray(picture), 1)

        assert array.ravel().tolist() == [28] * 3
        assert round(255 * 4 / 37) == 28

    def test_aspect_ratio_is_given_up(self):
        # Twice as wide as high; the mean of two columns and one row.
        picture = Image.new("RGB", (2, 1), RED)
        picture.putpixel((1, 0), (55, 100, 0))

        assert image_to_array(picture, 1).ravel().tolist() == [155, 50, 0]

    def test_only_the_box_is_kept(self):
        picture = noise(7, 5)

        array = image_to_array(Image.fromarray(picture), 3, box=(2, 1, 5, 4))

        np.testing.assert_array_equal(array, picture[1:4, 2:5])

    @pytest.mark.parametrize("box", [None, (3.5, 2, 30, 20.5)])
    def test_the_longer_side_comes_first(self, box):
        turned = box and (*box[1::-1], *box[:1:-1])

        array = image_to_array(Image.fromarray(noise(41, 27)), 13, box)
        picture = Image.fromarray(noise(41, 27).swapaxes(0, 1))

        expected = image_to_array(picture, 13, turned).swapaxes(0, 1)
        np.testing.assert_array_equal(array, expected)

    def test_what_came_is_told(self):
        with pytest.raises(ValueError, match=r"mode RGB.*got mode L and size 3"):
            image_to_array(Image.new("L", (3, 3)), 3)
        with pytest.raises(ValueError, match=r"positive size.*mode RGB and size 0"):
            image_to_array(Image.new("RGB", (3, 3)), 0)


class TestFindImages:
    def test_folders_are_replaced(self, tmp_path):
        folder = tmp_path / "folder"
        (folder / "c.png").mkdir(parents=True)
        names = ["b.JPG", "a.png", "d.jpeg", "e.WebP", "f.tiff", "g.gif", "h.bmp"]
        for name in [*names, ".hidden.jpg", "notes.txt", "jpg"]:
            (folder / name).touch()
        (folder / "c.png" / "deeper.png").touch()
        missing = tmp_path / "missing.jpg"
        (folder / "link.png").symlink_to(missing)
        (folder / "round.png").symlink_to("round.png")

        found = find_images([str(missing), folder, tmp_path / "notes.txt"])

        inside = [folder / name for name in sorted([*names, "link.png", "round.png"])]
        assert found == [missing, *inside, tmp_path / "notes.txt"]
        assert all(isinstance(path, pathlib.Path) for path in found)

    def test_nothing(self):
        assert find_images([]) == []

    def test_folder_without_picture(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        (tmp_path / ".a.png").touch()

        with pytest.raises(ImageError) as caught:
            find_images([tmp_path])

        assert str(tmp_path) in str(caught.value)
        assert "expected files of AVIF" in str(caught.value)
        assert "got 2 other entries" in str(caught.value)

    def test_folder_that_cannot_be_listed(self, tmp_path, monkeypatch):
        def iterdir(self):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)

        with pytest.raises(ImageError, match="got Permission denied") as caught:
            find_images([tmp_path])
        assert str(tmp_path) in str(caught.value)

    def test_folder_that_cannot_be_entered(self, tmp_path, monkeypatch):
        (tmp_path / "a.jpg").touch()
        stat = os.stat

        def denied(path, *args, **kwargs):
            if str(path) != str(tmp_path):
                raise PermissionError(13, "Permission denied")
            return stat(path, *args, **kwargs)

        monkeypatch.setattr(os, "stat", denied)

        assert find_images([tmp_path]) == [tmp_path / "a.jpg"]


class TestFindUnreadable:
    def test_pictures_of_other_formats(self, tmp_path):
        for name in ("b.HEIC", "a.heic", ".c.heic", "d.jpg"):
            (tmp_path / name).touch()

        found = find_unreadable(str(tmp_path))

        assert found == [tmp_path / "a.heic", tmp_path / "b.HEIC"]

    def test_what_is_no_folder(self, tmp_path):
        assert find_unreadable(tmp_path / "missing") == []
        assert find_unreadable("a" * 300) == []
