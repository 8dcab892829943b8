"""Images: reading, folders, the limits, and broken files."""

import contextlib
import io
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from attention_testing.captioner.image_files import (
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
    turned,
    with_scans,
)
from attention_testing.repository import module_of
from keras_attention_apps.captioner import image_headers, images
from keras_attention_apps.captioner.image_headers import check_tags, inspect
from keras_attention_apps.captioner.images import (
    ImageError,
    MemoryBudget,
    find_images,
    has_images_below,
    image_to_array,
    read_array,
    read_image,
)

pytestmark = pytest.mark.usefixtures("warnings_are_errors")


class TestSources:
    @pytest.mark.parametrize("wrap", [bytes, memoryview, lazy_image])
    def test_content(self, wrap):
        np.testing.assert_array_equal(read_image(wrap(encode(noise()))), noise())

    @pytest.mark.parametrize("name", ["b.JPG", "d", "é \n.webp"])
    def test_path_with_any_extension(self, tmp_path, name):
        path = tmp_path / name
        path.write_bytes(encode(noise()))

        np.testing.assert_array_equal(read_image(path), noise())
        np.testing.assert_array_equal(read_image(str(path)), noise())

    def test_file_is_read_from_its_start(self):
        file = io.BytesIO(encode(noise()))
        file.read(11)
        np.testing.assert_array_equal(read_image(file), noise())

    def test_given_pillow_image_is_unchanged(self):
        image = Image.fromarray(noise())
        image.getexif()[0x0112] = 6

        upright = read_image(image)

        assert upright.size == (HEIGHT, WIDTH)
        assert image.size == (WIDTH, HEIGHT)
        np.testing.assert_array_equal(image, noise())
        np.testing.assert_array_equal(read_image(upright), upright)

    @pytest.mark.parametrize("source", [None, 3, ["a.png"], np.float32(1)], ids=str)
    def test_sources_of_other_types(self, source):
        fails(source, "expected a path, bytes", f"got {type(source).__name__}")


class TestArrays:
    @pytest.mark.parametrize(
        ("array", "expected"),
        [
            (np.array([[[2], [3], [5]]], "uint8"), [2, 3, 5]),
            # 257 k becomes k, and from 257 k + 128.5 on k + 1; 771 is 3 * 257.
            (np.array([[0, 771, 771 + 128, 771 + 129]], ">u2"), [0, 3, 3, 4]),
            (np.array([[0, 0.2, 1]], "float16"), [0, 51, 255]),
            (np.array([[0, 0.2, 1]])[:, ::-2], [255, 0]),
        ],
    )
    def test_values_of_every_type(self, array, expected):
        assert greys(array) == expected

    @pytest.mark.parametrize(
        ("array", "expected", "received"),
        [
            (np.zeros(3, "uint8"), "(height, width)", "(3,)"),
            (np.zeros((2, 3, 2), "uint8"), "1, 3 or 4", "(2, 3, 2)"),
            (np.zeros((2, 0, 3), "uint8"), "(height, width)", "(2, 0, 3)"),
            (np.zeros((2, 3), "int64"), "uint8, uint16 or floats", "int64"),
            (np.array([[-0.5, 1.0]]), "[0, 1]", "-0.5 to 1.0"),
            (np.array([[0.25, np.nan]]), "[0, 1]", "nan"),
        ],
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
        stored = Image.fromarray(letters(UPRIGHT[1])).convert("RGB")
        data = encode(stored, format, exif=turned(orientation), lossless=True)

        expected = letters(UPRIGHT[orientation])
        np.testing.assert_array_equal(np.asarray(read_image(data))[..., 0], expected)

    def test_avif(self):
        if "AVIF" not in Image.SAVE:
            pytest.skip("this Pillow does not write AVIF")
        data = encode(Image.new("RGB", (64, 32)), "AVIF", exif=turned())

        assert read_image(data).size == (32, 64)

    @pytest.mark.parametrize("tag", [0x011A, 0x0128])
    def test_another_tag_of_a_wrong_type_changes_nothing(self, tag):
        exif = turned()
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

    def test_palette(self):
        image = Image.frombytes("P", (3, 1), bytes([2, 0, 1]))
        image.putpalette([*RED, *BLUE, 2, 3, 5])

        assert pixels(encode(image)) == [(2, 3, 5), RED, BLUE]
        # One transparent colour, and one alpha for each colour: 51 is a fifth.
        assert pixels(encode(image, transparency=1)) == [(2, 3, 5), RED, WHITE]
        assert pixels(encode(image, "GIF", transparency=0))[1] == WHITE
        data = encode(image, transparency=bytes([51, 255, 0]))
        assert pixels(data) == [WHITE, (255, 204, 204), BLUE]

    def test_alpha_shows_white(self):
        row = [(10, 20, 30, 0), (0, 0, 0, 51), (10, 20, 30, 255)]
        image = Image.fromarray(np.array([row], "uint8"))

        for format in ("PNG", "TIFF", "WEBP"):
            data = encode(image, format, lossless=True, exact=True)
            assert pixels(data) == [WHITE, (204, 204, 204), (10, 20, 30)]
        assert pixels(np.asarray(image)) == [WHITE, (204, 204, 204), (10, 20, 30)]

    def test_transparent_colour(self):
        grey, colour = struct.pack(">H", 7), struct.pack(">HHH", 2, 3, 5)

        assert greys(png(2, 1, 8, 0, bytes([7, 11]), tRNS=grey)) == [255, 11]
        data = png(2, 1, 8, 2, bytes([2, 3, 5, 2, 3, 7]), tRNS=colour)
        assert pixels(data) == [WHITE, (2, 3, 7)]

    def test_cmyk(self):
        # Full cyan leaves no red, full black leaves nothing.
        inks = bytes([255, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0])
        image = Image.frombytes("CMYK", (3, 1), inks)

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

    @pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
    def test_first_frame_of_an_animation(self, format):
        first, second = (Image.new("RGB", (2, 3), colour) for colour in (RED, BLUE))
        options = {"save_all": True, "append_images": [second], "lossless": True}
        data = encode(first, format, **options)

        assert lazy_image(data).n_frames == 2
        assert pixels(data) == [RED, RED]


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

    @pytest.mark.parametrize(("largest", "white"), [(255, 255), (256, 65535)])
    def test_grey_of_32_bits_may_have_the_values_of_8(self, largest, white):
        values = np.array([[0, 128, largest]], "int32")

        expected = [round(x * 255 / white) for x in (0, 128, largest)]
        assert greys(encode(Image.fromarray(values), "TIFF")) == expected

    def test_transparent_grey_of_16_bits(self):
        row = struct.pack(">HHH", 257 * 7, 257 * 7 + 1, 257 * 11)

        data = png(3, 1, 16, 0, row, tRNS=struct.pack(">H", 257 * 7))

        assert greys(data) == [255, 7, 11]

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


class TestImageToArray:
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

    def test_errors_name_the_mode_and_the_size(self):
        with pytest.raises(ValueError, match=r"mode RGB.*got mode L and size 3"):
            image_to_array(Image.new("L", (3, 3)), 3)
        with pytest.raises(ValueError, match=r"positive size.*mode RGB and size 0"):
            image_to_array(Image.new("RGB", (3, 3)), 0)


class TestFindImages:
    def test_images_directly_inside_a_folder(self, tmp_path):
        folder = tmp_path / "folder"
        (folder / "c.png").mkdir(parents=True)
        names = ["b.JPG", "a.png", "d.jpeg", "e.WebP", "f.tiff", "g.gif", "h.mpo"]
        for name in [*names, ".hidden.jpg", "notes.txt", "jpg"]:
            (folder / name).touch()
        (folder / "c.png" / "deeper.png").touch()
        missing = tmp_path / "missing.jpg"
        (folder / "link.png").symlink_to(missing)
        (folder / "round.png").symlink_to("round.png")
        for name in ("b.HEIC", "a.heic", ".c.heic", "i.tga", "j.pcx", "k.ico"):
            (folder / name).touch()

        inside = [folder / name for name in sorted([*names, "link.png", "round.png"])]
        others = [folder / x for x in ("a.heic", "b.HEIC", "i.tga", "j.pcx", "k.ico")]
        assert find_images(folder) == (inside, others)
        with pytest.raises(ImageError, match=r"Cannot list .*missing.jpg': No such"):
            find_images(missing)

    def test_images_in_the_folders_inside_a_folder(self, tmp_path):
        names = ["a.png", "b/c.jpg", "b/d/e.webp", "f.d/g.heic", ".h/i.png", "b/.j.png"]
        for name in [*names, "k/notes.txt"]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        (tmp_path / "k/round").symlink_to(tmp_path)

        images, others = find_images(tmp_path, recursive=True)
        assert images == [tmp_path / name for name in names[:3]]
        assert others == [tmp_path / names[3]]
        assert find_images(tmp_path)[0] == images[:1]
        assert has_images_below(tmp_path) and has_images_below(tmp_path / "b")
        assert not has_images_below(tmp_path / "b/d")
        assert not has_images_below(tmp_path / "k")
        (tmp_path / "a.png").unlink()
        with pytest.raises(ImageError, match="which --recursive searches, have images"):
            find_images(tmp_path)

    def test_folder_without_images(self, tmp_path):
        (tmp_path / "notes.txt").touch()
        (tmp_path / ".a.png").touch()

        message = "expected files of AVIF.*, got 2 others"
        with pytest.raises(ImageError, match=message) as caught:
            find_images(tmp_path)

        assert str(tmp_path) in str(caught.value)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ImageError, match="got an empty folder"):
            find_images(tmp_path / "empty")


COSTLY = vars(module_of("benchmarks/costly_images.py"))
FEWER_PARTS = "expected an image of fewer parts"
FEWER_TAGS = "expected tags of "


def test_a_side_has_a_limit(monkeypatch):
    message = "sides of at most 65535 pixels, got"
    fails(png(80_000_000, 1, 8, 0), f"{message} 80000000 x 1 pixels")
    fails(png(1, 65_536, 8, 0), f"{message} 1 x 65536 pixels")
    monkeypatch.setattr(images, "MAX_SIDE", 12)
    fails(noise(13, 3), "expected sides of at most 12 pixels")


def test_a_large_image_must_not_come_from_few_bytes(monkeypatch):
    one_colour = encode(Image.new("RGB", (500, 400)), "WEBP", lossless=True)
    assert len(one_colour) < 60
    assert read_array(one_colour, 3).shape == (3, 3, 3)
    monkeypatch.setattr(images, "FEW_PIXELS", 500 * 400 - 1)
    monkeypatch.setattr(images, "MAX_PIXELS_PER_BYTE", 3000)
    fails(one_colour, "at most 3000 pixels for each byte, got 500 x 400 pixels in")
    assert read_array(Image.new("RGB", (500, 400)), 3).shape == (3, 3, 3)


PROGRESSIVE = encode(noise(), "JPEG", progressive=True)


def test_scans_are_counted_in_the_image_alone():
    few = inspect(PROGRESSIVE).scans
    assert 5 < few < 20
    assert inspect(with_scans(PROGRESSIVE, 31)).scans == few + 30
    assert inspect(encode(noise(), "JPEG")).scans == 1
    # A thumbnail in a segment, and a video after the end.
    jpeg, inner = encode(noise(), "JPEG"), encode(noise(), "JPEG")
    length = (len(inner) + 2).to_bytes(2)
    assert inspect(jpeg[:2] + b"\xff\xe1" + length + inner + jpeg[2:]).scans == 1
    assert inspect(jpeg + b"\xff\xda" * 200).scans == 1
    message = "expected a JPEG of at most 100 scans and 1000 segments"
    fails(with_scans(PROGRESSIVE, 101), message)
    fails(jpeg[:2] + b"\xff\xfe\0\2" * 1001 + jpeg[2:], message)
    fails(b"\xff\xd8" + b"\xff\xda\0\0" * 10**5, message)


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("bitmap_of_short_rows", 20_000, "expected at most 9000000 values and bytes"),
        ("bitmap_of_empty_runs", 9_000_000, "expected at most 9000000 values and"),
        ("netpbm_of_comments", 3_000, "expected at most 1000 comments, got"),
        ("gif_of_comments", 60_000, FEWER_PARTS),
        ("jpeg_of_padding", 20_000, FEWER_PARTS),
        ("jpeg_of_overlapping_tags", 50_000, FEWER_TAGS),
        ("png_of_chunks", 2_000_000, FEWER_PARTS),
        ("tiff_of_overlapping_tags", 50_000, FEWER_TAGS),
        ("tiff_of_strips", 600_000, "at most 131072 strips or tiles, got 150000"),
    ],
)
def test_costs_that_the_size_hides_are_limited(kind, size, message):
    # Pillow warns of more than half of its limit.
    warnings.simplefilter("ignore")
    for seed in range(3):
        fails(COSTLY[kind](np.random.default_rng(seed), size), message)


def test_tags_of_a_jpeg_are_limited():
    jpeg = encode(noise(), "JPEG")
    segment = b"\xff\xe1\xff\xffExif\0\0".ljust(65_537, b"\0")
    assert read_image(jpeg[:2] + segment * 60 + jpeg[2:]).size == noise().shape[1::-1]
    fails(jpeg[:2] + segment * 65 + jpeg[2:], "expected at most 4194304 bytes of tags")


def test_scans_are_limited_by_their_pixels(monkeypatch):
    pixels = WIDTH * HEIGHT * inspect(PROGRESSIVE).scans
    monkeypatch.setattr(image_headers, "MAX_SCANNED_PIXELS", pixels)
    assert read_image(PROGRESSIVE).size == (WIDTH, HEIGHT)
    fails(with_scans(PROGRESSIVE, 2), "expected a JPEG of at most 100 scans")


@pytest.mark.parametrize("kind", ["AVIF", "WEBP", "PNG"])
def test_overlapping_tags_have_no_orientation(kind, monkeypatch):
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    loaded = []
    monkeypatch.setattr(Image.Exif, "load", lambda _, data: loaded.append(len(data)))
    random = np.random.default_rng(0)
    hostile = COSTLY[f"{kind.lower()}_of_overlapping_tags"](random, 40_000)
    # Those that Pillow reads when it writes the file.
    loaded.clear()

    assert read_image(hostile).size == (16, 16)
    assert not loaded


def test_tags_behind_a_damaged_one_are_not_counted():
    # The size of the first value exceeds the file, as after damage.
    tags = [(0x927C, 7, 2**31, 8), *[(0x9286, 7, 30, 8)] * 3]

    check_tags(COSTLY["_tags"](tags))
    with pytest.raises(ImageError, match=FEWER_TAGS):
        check_tags(COSTLY["_tags"](tags[1:] * 9))


def test_tags_in_the_text_of_a_png_turn_it():
    text = f"\nexif\n      9\n{turned().tobytes().hex()}\n".encode()
    profile = b"Raw profile type exif\0\0" + zlib.compress(text)

    assert read_image(png(2, 1, 8, 0, b"ab", zTXt=profile)).size == (1, 2)


@pytest.mark.parametrize(
    ("data", "colour"),
    [
        (b"P6 40 50 100\n" + bytes([50, 100, 0]) * 2000, (128, 255, 0)),
        (COSTLY["_bitmap"](40, 50, b"\x28\1\0\0" * 50), (9, 9, 9)),
    ],
    ids=["ppm", "bmp"],
)
def test_images_that_pillow_decodes_in_python(data, colour, monkeypatch):
    # Such an image needs a read for every pixel, which others must not have.
    monkeypatch.setattr(images, "MAX_IMAGE_READS", 0)

    assert np.all(np.asarray(read_image(data)) == colour)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1", "I", "F", "I;16"])
def test_parts_are_converted_as_a_whole_is(mode, monkeypatch):
    if mode in ("I", "F", "I;16"):
        kind = {"I": "int32", "F": "float32", "I;16": "uint16"}[mode]
        image = Image.fromarray(noise()[..., 0].astype(kind) * 200)
    else:
        image = Image.fromarray(np.dstack([noise(), noise()[..., 0]])).convert(mode)
        if mode == "P":
            image.info["transparency"] = 3
    expected = np.asarray(read_image(image))
    monkeypatch.setattr(images, "_PART", 3 * image.width)

    np.testing.assert_array_equal(read_image(image), expected)


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
def test_a_large_photograph_is_decoded_at_half_its_size(kind, monkeypatch):
    waves = np.sin(np.mgrid[:101, :83].sum(0) / 20)
    data = encode(np.uint8(127.5 + 100 * waves[..., None].repeat(3, -1)), kind)
    whole = read_array(data, 16)
    monkeypatch.setattr(images, "HALVED_PIXELS", 101 * 83 - 1)

    assert read_image(data).size == (42, 51)
    assert np.abs(read_array(data, 16).astype(int) - whole).max() < 8


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
@pytest.mark.parametrize("draft", [False, True])
def test_a_given_photograph_is_not_reduced(kind, draft, monkeypatch):
    monkeypatch.setattr(images, "HALVED_PIXELS", 1)
    data = encode(noise(101, 83), kind)
    image, expected = (Image.open(io.BytesIO(data)) for _ in range(2))

    assert read_image(image, draft=draft).size == image.size == (101, 83)
    np.testing.assert_array_equal(image, expected)


def test_a_rectangle_of_fractions_is_cropped():
    expected = image_to_array(Image.fromarray(noise(40, 20)), 7, (10, 5, 20, 15))

    actual = read_array(noise(40, 20), 7, (0.25, 0.25, 0.5, 0.75))
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("mode", "halved", "expected"),
    [
        # The image of 800 pixels, its copy in mode RGB, and 32 bytes a pixel for parts.
        ("RGB", 800, 800 * (4 + 4 + 32)),
        ("L", 800, 800 * (1 + 4 + 32)),
        # Of a larger image, the copy has half of the width and height.
        ("RGB", 799, 800 * (4 + 1 + 32)),
    ],
)
def test_an_image_reserves_the_memory_that_it_needs(
    mode, halved, expected, monkeypatch
):
    reserved = []

    class Budget:
        def reserve(self, amount):
            reserved.append(amount)
            return contextlib.nullcontext()

    monkeypatch.setattr(images, "MEMORY_BUDGET", Budget())
    monkeypatch.setattr(images, "HALVED_PIXELS", halved)
    buffer = io.BytesIO()
    Image.new(mode, (40, 20)).save(buffer, "PNG")
    read_array(buffer.getvalue(), 8)

    assert reserved == [expected]


def test_memory_is_shared_and_given_back():
    budget, totals, running = MemoryBudget(10), [], []

    def work(amount):
        with budget.reserve(amount):
            running.append(amount)
            totals.append(sum(min(x, 10) for x in running))
            running.remove(amount)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 40, 4, 7, 9) * 9]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert len(totals) == len(threads) and max(totals) <= 10 and budget.used == 0


def test_memory_of_a_broken_image_is_given_back():
    fails(encode(noise(), "PNG")[:60], "the image cannot be decoded")
    assert images.MEMORY_BUDGET.used == 0


def test_an_image_takes_more_memory_if_it_is_progressive(monkeypatch):
    asked = []
    reserve = images.MEMORY_BUDGET.reserve
    monkeypatch.setattr(
        images.MEMORY_BUDGET, "reserve", lambda x: asked.append(x) or reserve(x)
    )
    simple, plain = encode(noise(), "JPEG"), encode(noise())
    files = simple, PROGRESSIVE, plain
    for data in files:
        read_image(data)

    # Two bytes for each coefficient of four, one and one blocks.
    used = [
        x - len(data)
        for x, data in zip(asked, (simple, PROGRESSIVE, plain), strict=True)
    ]
    assert np.subtract(used, used[2]).tolist() == [0, 2 * 64 * 6, 0]


class TestUnopenableSources:
    def test_sources_without_an_image(self, tmp_path):
        fails("none.jpg", "'none.jpg'", ": No such file or directory")
        fails("a\0b.png", "'a\\x00b.png'", "null byte")
        fails("a\nb.png", "'a\\nb.png'", ": No such file")
        fails(tmp_path, str(tmp_path), "expected an image file", "got a folder")
        fails(b"", "the given bytes", "expected an image", "got no data (0 bytes)")
        fails(io.StringIO("text"), "the given StringIO", "(TypeError: ", "str")
        (tmp_path / "a.jpg").write_text("<html>404")
        fails(tmp_path / "a.jpg", "JPEG", "got 9 bytes that begin with b'<html>404'")
        # Programs are not run.
        data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 3\n%%EndComments\n"
        fails(data, "JPEG", "%!PS-Adobe")
        stream, image = io.BytesIO(encode(noise())), Image.fromarray(noise())
        stream.close()
        image.close()
        fails(stream, "the given BytesIO", "closed file")
        fails(image, "the given Image", "closed image")

    @pytest.mark.parametrize(
        ("brands", "message"),
        [
            (b"heic\0\0\0\0mif1heic", "a HEIC image; save it as JPEG"),
            (b"mif1\0\0\0\0mif1heix", "a HEIC image; save it as JPEG"),
            (b"avif\0\0\0\0mif1avif", "an AVIF image that is damaged, or"),
        ],
    )
    def test_heic_and_avif_named_jpg(self, tmp_path, brands, message):
        path = tmp_path / "phone.jpg"
        path.write_bytes(b"\0\0\0\x18ftyp" + brands + bytes(100))

        fails(path, "expected an image of", f"got {message}")


class TestBrokenImages:
    @pytest.mark.parametrize("format", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF"])
    def test_truncated(self, tmp_path, format):
        path = tmp_path / "a.jpg"
        data = encode(noise(23, 29), format)
        path.write_bytes(data[: len(data) * 2 // 3])

        fails(path, str(path), "the image cannot be decoded (", "Error: ", "truncated")

    @pytest.mark.parametrize("format", [*LOSSLESS, "JPEG"])
    def test_a_damaged_image_is_read_or_gives_an_image_error(self, format, monkeypatch):
        monkeypatch.setattr(images, "MAX_PIXELS", 10_007)
        # Pillow warns about some damaged files that it reads.
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

    @pytest.mark.parametrize("kind", [OSError, SyntaxError, struct.error, KeyError])
    def test_any_exception_of_pillow_is_an_image_error(self, monkeypatch, kind):
        def load(self):
            raise kind("bad\nheader")

        monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)

        message = f"the image cannot be decoded ({kind.__name__}: "
        fails(encode(noise()), "the given bytes", message, "bad", "header")

    @pytest.mark.parametrize("place", ["_reduce", "_to_rgb"])
    def test_bugs_of_the_program_keep_their_type(self, monkeypatch, place):
        def fail(*_):
            raise AttributeError("no such attribute")

        monkeypatch.setattr(f"{read_image.__module__}.{place}", fail)

        with pytest.raises(AttributeError, match="no such attribute"):
            read_image(encode(noise()))


class TestLimit:
    def test_header_that_claims_too_much(self):
        # 30011 x 30011 = 900 660 121; 13399 x 13357 is above by a little.
        fails(png(30011, 30011, 8, 2), "at most 178956970", "900660121 pixels")
        fails(png(13399, 13357, 8, 2), "at most 178956970", "178970443 pixels")

    @pytest.mark.parametrize("of_process", [35, 10**12, None])
    def test_exact_border(self, monkeypatch, of_process):
        data = encode(noise())
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", of_process)

        monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT)
        np.testing.assert_array_equal(read_image(data), noise())
        monkeypatch.setattr(images, "MAX_PIXELS", WIDTH * HEIGHT - 1)
        for source in (data, lazy_image(data)):
            fails(source, "expected at most 34 pixels", "5 x 7 pixels")

    def test_threads(self):
        sources = [encode(noise(), format) for format in ("TIFF", "PNG")] * 101

        with ThreadPoolExecutor(7) as pool:
            for image in pool.map(read_image, sources):
                np.testing.assert_array_equal(image, noise())
