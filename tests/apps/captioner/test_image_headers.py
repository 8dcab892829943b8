"""What the headers of image files declare: the limits, and files that stay below."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image

from attention_testing.captioner.image_files import encode, fails, noise, turned
from attention_testing.repository import module_of
from keras_attention_apps.captioner import image_headers, images
from keras_attention_apps.captioner.image_headers import ImageError, inspect
from keras_attention_apps.captioner.images import read_array, read_image

pytestmark = pytest.mark.usefixtures("warnings_are_errors")

COSTLY = module_of("benchmarks/costly_images.py")
stream = COSTLY._jpeg2000
SIDES = (4096, 4096)


def marked(mark, *content):
    return COSTLY._marked(mark, bytes(content))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            stream(SIDES, precincts=bytes([0x11] * 6)),
            "at most 4194304 precincts in all layers of a JPEG 2000, got",
        ),
        # The precincts of one component, and those of one tile.
        (
            stream(SIDES, more=marked(0x53, 2, 1, 1, 4, 4, 0, 1, 0x11, 0x11)),
            "precincts in all layers",
        ),
        (
            stream(SIDES, tile_header=marked(0x52, 1, 0, 0, 1, 0, 0, 4, 4, 0, 1, 0)),
            "precincts in all layers",
        ),
        (stream(SIDES, block=(2, 2)), "at most 1000 MB to decode, got one whose"),
        (stream((64, 64), layers=65_535, block=(3, 3)), "8388608 code-blocks in all"),
        (stream(SIDES, tile=(8, 8)), "16384 tiles of a JPEG 2000, got 262144"),
        (stream((64, 64), components=5), "4 components of a JPEG 2000, got 5"),
        (stream((64, 64), levels=33), "32 levels of a JPEG 2000, got 33"),
        (stream((64, 64), parts=70_000), "65536 parts of the tiles of a JPEG 2000"),
        (
            stream((13_000, 9_000), levels=1, precincts=b"\xf1\x1f", order=2),
            "67108864 positions of the precincts of a JPEG 2000, got",
        ),
        (
            stream((9_000, 9_000), levels=0, exponent=14),
            "536870912 bits of the coefficients of a JPEG 2000, got 3645000000",
        ),
        (
            stream((64, 64), more=b"".join(marked(0x53, n % 3, 0, 5, 4, n // 3, 0, 1)
                                           for n in range(30)) * 1),
            None,
        ),
        (b"\xff\x4f" + stream((64, 64))[2:6] + b"\0\0", None),
    ],
    ids=range(13),
)  # fmt: skip
@pytest.mark.parametrize("is_in_boxes", [False, True])
def test_jpeg_2000_declares_too_much(data, message, is_in_boxes):
    if is_in_boxes:
        random = np.random.default_rng(4)
        boxed = COSTLY._in_boxes(random, data, (64, 64), 3)
        while boxed == data:
            boxed = COSTLY._in_boxes(random, data, (64, 64), 3)
        data = boxed
    if message is None:
        inspect(data)
    else:
        with pytest.raises(ImageError, match=message):
            inspect(data)


def test_a_progression_may_be_changed_for_positions():
    options = {"components": 1, "levels": 1, "precincts": b"\xf2\x2f", "order": 2}
    inspect(stream((9_000, 9_000), **options))
    # A comment changes nothing.
    inspect(stream((9_000, 9_000), **options, more=marked(0x64, *[0] * 7 * 32)))
    changes = marked(0x5F, *[0, 0, 0, 1, 2, 3, 2] * 32)
    with pytest.raises(ImageError, match="positions of the precincts"):
        inspect(stream((9_000, 9_000), **options, more=changes))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tile_size": (64, 64), "num_resolutions": 3},
        {"tile_size": (100, 60), "tile_offset": (3, 5), "offset": (7, 9)},
        {"precinct_size": (64, 64), "codeblock_size": (16, 16), "progression": "RPCL"},
        {"quality_layers": [40, 20, 5], "irreversible": True},
        {"num_resolutions": 1},
        {"no_jp2": True, "comment": b"a comment"},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_jpeg_2000_of_usual_structure(options, mode):
    image = Image.fromarray(noise(211, 157)).convert(mode)
    if mode == "L" and options.get("irreversible"):
        image = image.convert("L")
    data = encode(image, "JPEG2000", **options)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))

    memory = inspect(data).memory
    assert len(memory) == min(options.get("num_resolutions", 6), 6)
    assert list(memory) == sorted(memory, reverse=True)
    actual = np.asarray(read_image(data))
    assert actual.shape == (157, 211, 3)
    if mode != "RGBA":
        np.testing.assert_array_equal(actual, expected)


def test_code_blocks_and_precincts_are_counted_exactly():
    # 100 x 60 coefficients, of which the first resolution has 50 x 30.
    options = {"components": 1, "levels": 1, "block": (3, 4)}
    data = stream((100, 60), **options, precincts=b"\x54\x65")
    limits = {
        # 7 x 2 blocks of 8 x 16 in each of four bands.
        "MAX_BLOCKS": 4 * 7 * 2,
        # 4 x 1 precincts of 16 x 32, and 4 x 1 of 32 x 64.
        "MAX_PACKETS": 8,
    }
    for name, limit in limits.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(image_headers, name, limit)
            inspect(data)
            patch.setattr(image_headers, name, limit - 1)
            with pytest.raises(ImageError, match=f"at most {limit - 1} .*got {limit}$"):
                inspect(data)


def test_jpeg_2000_is_reduced_until_it_fits(monkeypatch):
    data = encode(noise(301, 203), "JPEG2000")
    memory = inspect(data).memory
    monkeypatch.setattr(images, "MAX_MEMORY", memory[2] + 76 * 51 * 4)

    assert read_image(data).size == (76, 51)
    # Later resolutions fit, too, until one does not.
    monkeypatch.setattr(images, "MAX_MEMORY", memory[-1])
    fails(data, "expected an image that takes at most 0 MB to decode, got 301 x 203")


def test_cells_and_reduced_sizes_of_tiles():
    # Tiles of 5 from -2 on, of an image from 0 to 8: 0 to 3, and 3 to 8.
    grid = image_headers._Grid.of(0, 8, -2, 5)
    assert (grid.first.tolist(), grid.last.tolist()) == ([0, 3], [3, 8])
    # Cells of two: 0 and 1, and 1 to 3.
    assert grid.cells(1).tolist() == [2, 3]
    reduced = grid.reduced(2)
    assert (reduced.first.tolist(), reduced.last.tolist()) == ([0, 2], [2, 4])


def avif(**options):
    return COSTLY._avif([(b"av01", COSTLY._coded()[0])], **options)


def test_avif_declares_too_much(monkeypatch):
    still, _ = COSTLY._coded()
    grid = COSTLY._grid(3, 3, 192, 192)
    cells = [COSTLY._references(b"dimg", 1, range(2, 11))]
    tiled = COSTLY._avif(
        [(b"grid", grid)] + [(b"av01", still)] * 9, cells, (192, 192), (64, 64)
    )

    assert read_array(avif(), 7).shape == read_array(tiled, 7).shape == (7, 7, 3)
    monkeypatch.setattr(image_headers, "MAX_CODED_PIXELS", 9 * 64 * 64)
    assert read_array(tiled, 7).shape == (7, 7, 3)
    repeated = COSTLY._avif([(b"av01", still + still * 9)])
    fails(repeated, "at most 36864 pixels in all frames of all items, got 40960")
    monkeypatch.setattr(image_headers, "MAX_ITEMS", 9)
    fails(tiled, "expected at most 9 items, got 10")
    monkeypatch.setattr(image_headers, "MAX_ENTRIES", 20)
    fails(avif(references=[b"a" * 100]), "80 bytes of properties and references of")
    fails(COSTLY._avif([(b"av01", still)] * 9), "expected at most 20 boxes, got 21")


def test_the_size_of_an_avif_is_that_of_its_stream():
    large, _ = COSTLY._coded((1024, 512))
    decoding = inspect(COSTLY._avif([(b"av01", large)]))

    assert decoding.memory[0] > image_headers._AVIF_BYTES * 1024 * 512
    assert image_headers._coded_frames(large) == (1, 1024 * 512)


@pytest.mark.parametrize("is_animated", [False, True])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_streams_of_pillow_are_followed(mode, is_animated):
    frames = [Image.new(mode, (70, 90), n) for n in range(1 + 4 * is_animated)]
    more = {"append_images": frames[1:], "save_all": True} if is_animated else {}
    data = encode(frames[0], "AVIF", **more)
    boxes = {}
    for kind, begin, end in image_headers._boxes(data, 0, len(data)):
        boxes.setdefault(kind, []).append((begin, end))
    tracks = list(image_headers._first_frames(data, boxes))
    items = list(image_headers._items(data, boxes))

    assert len(tracks) == is_animated * (1 + (mode == "RGBA"))
    for _, parts in [*tracks, *items[: 1 + (mode == "RGBA")]]:
        frames, pixels = image_headers._coded_frames(b"".join(parts))
        assert frames >= 1
        assert 70 * 90 <= pixels <= 72 * 96
    assert read_image(data).size == (70, 90)


def test_webp_declares_a_large_canvas():
    random = np.random.default_rng(1)
    fails(COSTLY.webp_of_a_large_canvas(random, 0), "at most 1000 MB to decode, got")
    fails(COSTLY.webp_of_one_colour(random, 0), "at most 1000 MB to decode, got one")
    assert inspect(encode(noise(), "WEBP")).memory[0] < 3_000


def tags(width, height, compression, **others):
    numbers = {"rows": 278, "planes": 284, "tile_width": 322, "tile_height": 323}
    layout = COSTLY._layout(width, height, compression)
    return layout + [(numbers[name], 4, [value]) for name, value in others.items()]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (tags(9_000, 9_000, 8, tile_width=16, tile_height=16), "131072 strips or"),
        (tags(9, 70_000, 1, rows=1, planes=2), "131072 strips or tiles, got 210000"),
        (tags(9, 9, 8, tile_width=20_000, tile_height=20_000), "pixels in all tiles"),
        (tags(13_000, 13_000, 7), "at most 1000 MB to decode, got"),
        (tags(9, 9, 8) + tags(900, 900, 8), "expected every tag once, got tag 256"),
        ([*tags(9, 9, 8), (273, 4, [8] * 99), (279, 4, [2**20] * 99)], None),
        ([*tags(9, 9, 8), (273, 4, [8] * 9**5), (279, 4, [2**20] * 9**5)],
         "bytes in all strips, got"),
    ],
    ids=range(7),
)  # fmt: skip
def test_tiff_declares_too_much(layout, message):
    data = COSTLY._tiff(layout, bytes(20_000))
    if message is None:
        inspect(data)
    else:
        fails(data, message)


def test_tiff_of_jpegs_of_many_scans(monkeypatch):
    data = encode(noise(64, 64), "TIFF", compression="jpeg")
    assert read_image(data).size == (64, 64)
    monkeypatch.setattr(image_headers, "MAX_SCANNED_PIXELS", 64 * 64 - 1)
    fails(data, "expected a JPEG of at most 100 scans")


@pytest.mark.parametrize("tag", [34665, 34853, 330])
def test_tags_inside_of_tags_are_limited(tag):
    inner = COSTLY._tags([(40_000 + n, 7, 30_000, 8) for n in range(99)])[8:]
    layout = [*COSTLY._layout(16, 16, 1, 1), (273, 4, [8]), (279, 4, [256])]
    start = len(COSTLY._tiff([*layout, (tag, 4, [0])]))
    data = COSTLY._tiff([*layout, (tag, 4, [start])], inner + bytes(30_000))

    fails(data, "expected tags of")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_a_tiff_is_turned_as_other_images(orientation, compression):
    array = noise(31, 23)
    expected = read_image(encode(array, "PNG", exif=turned(orientation)))
    exif = turned(orientation)
    data = encode(array, "TIFF", exif=exif, compression=compression)

    np.testing.assert_array_equal(read_image(data), expected)


def test_the_pages_of_a_tiff_give_the_first():
    pages = [Image.fromarray(noise(31 + n, 23)) for n in range(9)]
    data = encode(
        pages[0], "TIFF", save_all=True, append_images=pages[1:], compression="tiff_lzw"
    )

    np.testing.assert_array_equal(read_image(data), pages[0])


@pytest.mark.parametrize("scans", ["progressive", "separate"])
def test_coefficients_of_several_scans_are_counted(scans):
    data = encode(noise(64, 48), "JPEG", progressive=scans == "progressive")
    # Blocks of four, one and one components in twelve units.
    coefficient_bytes = 2 * 64 * 6 * 12
    if scans == "separate":
        position = data.index(b"\xff\xda")
        assert inspect(data).memory == (len(data),) * 4
        data = data[:position] + b"\xff\xda\0\x08\1\1\0\0\x3f\0" + data[position + 14 :]
    assert inspect(data).memory == (len(data) + coefficient_bytes,) * 4


def test_scans_with_arithmetic_coding_take_longer(monkeypatch):
    random = np.random.default_rng(1)
    data = COSTLY.jpeg_of_arithmetic_scans(random, 10_000)
    scans = inspect(data).scans
    assert scans > 1
    with Image.open(io.BytesIO(data)) as image:
        pixels = image.width * image.height
    limit = scans * pixels * image_headers.ARITHMETIC_SCANS
    monkeypatch.setattr(image_headers, "MAX_SCANNED_PIXELS", limit - 1)
    with pytest.raises(ImageError, match="expected a JPEG of at most 100 scans"):
        inspect(data)
    monkeypatch.setattr(image_headers, "MAX_SCANNED_PIXELS", limit)
    inspect(data)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "I;16", "F"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_large_images_are_halved_in_parts(mode, orientation, monkeypatch):
    grey = np.add.outer(np.arange(101), 2 * np.arange(83)) % 251
    array = {"I;16": np.uint16(grey) * 250, "F": np.float32(grey) / 250}.get(
        mode, np.uint8(grey)
    )
    image = Image.fromarray(array)
    if mode not in ("I;16", "F"):
        image = image.convert(mode)
    data = encode(image, "TIFF", exif=turned(orientation))
    whole = read_image(data)
    monkeypatch.setattr(images, "HALVED_PIXELS", 101 * 83 - 1)
    monkeypatch.setattr(images, "_PART", 83 * 7)

    halved = read_image(data)
    assert halved.size == (-(-whole.width // 2), -(-whole.height // 2))
    if orientation == 1:
        np.testing.assert_array_equal(halved, whole.reduce(2))


def test_an_animated_png_has_no_second_image():
    frames = [Image.fromarray(noise(9 + 0 * n, 7)) for n in range(3)]
    data = encode(
        frames[0], "PNG", save_all=True, append_images=frames[1:], disposal=1, loop=0
    )
    assert b"acTL" in data
    np.testing.assert_array_equal(read_image(data), frames[0])


def large(width, height):
    """A photograph of many pixels that is encoded fast."""
    small = Image.fromarray(noise(64, 48))
    return small.resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("kind", "sides", "options"),
    [
        ("JPEG", (8_688, 5_792), {"quality": 90}),
        ("JPEG", (8_688, 5_792), {"quality": 90, "progressive": True}),
        ("JPEG", (14_600, 11_100), {"subsampling": 0}),
        ("JPEG2000", (6_000, 4_000), {"tile_size": (1024, 1024)}),
        ("JPEG2000", (8_688, 5_792), {"quality_layers": [60], "irreversible": True}),
        ("TIFF", (8_688, 5_792), {"compression": "tiff_lzw"}),
        ("TIFF", (8_688, 5_792), {"compression": "jpeg"}),
        ("PNG", (14_600, 11_100), {"compress_level": 1}),
        ("WEBP", (8_000, 6_000), {"method": 0}),
        ("AVIF", (8_000, 6_000), {"speed": 10}),
    ],
    ids=str,
)
def test_large_photographs_are_read(kind, sides, options):
    warnings.simplefilter("ignore")
    image = large(*sides)
    expected = images.image_to_array(image, 64).astype(int)
    data = encode(image, kind, **options)
    del image

    assert np.abs(read_array(data, 64) - expected).mean() < 3


def test_the_size_of_an_av1_sequence_is_behind_its_timing():
    # The sequence header of the specification of AV1, section 5.5.
    fields = [
        *("000", "0", "0"),  # profile, still_picture, reduced_still_picture_header
        *(
            "1",
            f"{1:032b}",
            f"{30:032b}",
            "1",
            "00101",
        ),  # timing_info, uvlc of two zeros
        *("1", f"{9:05b}", "1" * 42),  # decoder_model_info, delays of ten bits
        *("1", f"{1:05b}"),  # initial_display_delay, two operating points
        *("1" * 12, f"{8:05b}", "1", "1", "1" * 21, "1", "0110"),
        *("1" * 12, f"{7:05b}", "0", "0"),
        *(f"{9:04b}", f"{8:04b}", f"{639:010b}", f"{359:09b}"),
    ]
    bits = "".join(fields)
    header = int(bits.ljust(8 * 40, "1"), 2).to_bytes(40)

    assert image_headers._sequence_pixels(header) == 640 * 360
    # An open bitstream unit of kind 1 or 6 without a size goes on to the end.
    assert image_headers._coded_frames(bytes([1 << 3]) + header) == (0, 640 * 360)
    assert image_headers._coded_frames(bytes([6 << 3]) + bytes(9)) == (1, 0)
