"""`decode_images` against `read_array`, over files that the tests write in memory."""

import functools
import io
import re
import struct

import numpy as np
import pytest
from PIL import Image

# ruff: noqa: E402
tf = pytest.importorskip("tensorflow")

from attention_testing.captioner.image_files import encode, noise, png, with_scans
from keras_attention_apps.captioner import image_headers, images
from keras_attention_apps.captioner.commands import export
from keras_attention_apps.captioner.commands.export import decode_images, problem_of
from keras_attention_apps.captioner.images import read_array

HEIGHT, WIDTH, SIZE = 37, 53, 41
TURNED = 6  # EXIF's orientation of a camera held upright


@functools.cache
def compile_decoder(size):
    strings = tf.TensorSpec([None], tf.string)
    return tf.function(lambda files: decode_images(files, size), [strings])


def decode(files, size=SIZE):
    squares, problems = compile_decoder(size)(tf.constant(files, tf.string))
    assert not any(problems.numpy())
    return squares.numpy()


def draw_smooth(width, height):
    down, across = np.mgrid[:height, :width]
    waves = [np.sin(down / 5), np.cos(across / 7), np.sin(down / 11 + across / 13)]
    return np.uint8(127.5 + 127 * np.stack(waves, -1))


def write_deep_png(samples, colour_type):
    """A PNG of 16 bits; Pillow writes none but grey ones."""
    # Each row begins with its filter, 0.
    rows = b"\0".join(row.astype(">u2").tobytes() for row in samples)
    return png(*samples.shape[1::-1], 16, colour_type, rows)


def write_tiff(*entries, order="<", start=8, count=None):
    """A TIFF header and a directory of (tag, type, value), as EXIF wraps it."""
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    number = len(entries) if count is None else count
    tiff = mark + struct.pack(order + "I", start) + bytes(max(start - 8, 0))
    tiff += struct.pack(order + "H", number)
    for tag, kind, value in entries:
        code = {3: "HHIHxx", 4: "HHII"}[kind]
        tiff += struct.pack(order + code, tag, kind, 1, value)
    return tiff + bytes(4)


def insert_segment(jpeg, content, marker=0xE1, length=None):
    length = len(content) + 2 if length is None else length
    head = struct.pack(">BBH", 0xFF, marker, length)
    return jpeg[:2] + head + content + jpeg[2:]


def insert_exif(jpeg, tiff):
    return insert_segment(jpeg, b"Exif\0\0" + tiff)


def write_ycck():
    # Adobe's marker gives the meaning of four channels: 0 is CMYK, 2 is YCCK.
    jpeg = encode(Image.fromarray(NOISE).convert("CMYK"), "JPEG")
    flag = jpeg.index(b"Adobe") + 11
    assert jpeg[flag] == 0
    return jpeg[:flag] + b"\2" + jpeg[flag + 1 :]


# An image of the final size is not resized, so that its pixels test the decoder alone.
NOISE = noise(SIZE, SIZE)
DEEP = np.random.default_rng(0).integers(0, 2**16, (SIZE, SIZE, 4), "uint16")
CLEAR = DEEP.astype("uint8")
RGB = Image.fromarray(NOISE)
PALETTE = RGB.quantize(17)
FEW = RGB.quantize(3)
FILES = {
    "jpeg": encode(RGB, "JPEG"),
    "jpeg-fine": encode(RGB, "JPEG", quality=97, subsampling="4:4:4"),
    "jpeg-progressive": encode(RGB, "JPEG", progressive=True, subsampling="4:2:2"),
    "jpeg-grey": encode(RGB.convert("L"), "JPEG"),
    "jpeg-cmyk": encode(RGB.convert("CMYK"), "JPEG"),
    "jpeg-ycck": write_ycck(),
    "png": encode(RGB, "PNG"),
    "png-colour-key": encode(RGB, "PNG", transparency=tuple(NOISE[2, 3].tolist())),
    "png-alpha": encode(CLEAR, "PNG"),
    "png-grey": encode(RGB.convert("L"), "PNG"),
    "png-grey-key": encode(RGB.convert("L"), "PNG", transparency=7),
    "png-grey-alpha": encode(Image.fromarray(CLEAR).convert("LA"), "PNG"),
    "png-1-bit": encode(RGB.convert("1"), "PNG"),
    "png-1-bit-key": encode(RGB.convert("1"), "PNG", transparency=0),
    "png-palette": encode(PALETTE, "PNG", bits=8),
    "png-palette-key": encode(PALETTE, "PNG", transparency=5),
    "png-palette-alpha": encode(PALETTE, "PNG", transparency=bytes(range(0, 255, 15))),
    "png-palette-2-bits": encode(FEW, "PNG", bits=2),
    "png-palette-2-bits-alpha": encode(FEW, "PNG", bits=2, transparency=b"\0\7\xf0"),
    "png-deep": write_deep_png(DEEP[..., :3], 2),
    "png-deep-alpha": write_deep_png(DEEP, 6),
    "png-deep-grey-alpha": write_deep_png(DEEP[..., :2], 4),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_those_of_python(name):
    expected = read_array(FILES[name], SIZE)
    np.testing.assert_array_equal(decode([FILES[name]])[0], expected)


def test_16_bits_of_grey_are_cut_to_8():
    file = write_deep_png(DEEP[..., 0], 0)
    expected = read_array(file, SIZE).astype("int16")

    assert np.abs(decode([file])[0] - expected).max() <= 1


@pytest.mark.parametrize("draw", [draw_smooth, noise])
@pytest.mark.parametrize(
    "width, height", [(307, 211), (23, 29), (331, 17), (5, 113), (123, 82), (90, 90)]
)
def test_resizing_is_that_of_python(width, height, draw):
    file = encode(draw(width, height))

    np.testing.assert_array_equal(decode([file])[0], read_array(file, SIZE))


@pytest.mark.parametrize("pixels", [1000, 1])
@pytest.mark.exhaustive
def test_parts_have_the_pixels_of_the_whole(pixels, monkeypatch):
    files = [FILES["png-alpha"], TURNED_PHOTOGRAPH]
    files += [
        encode(noise(width, height))
        for width, height in ((307, 211), (17, 331), (113, 5), (90, 90))
    ]
    expected = decode(files)
    monkeypatch.setattr(export, "_PART", pixels)

    squares, _ = decode_images(tf.constant(files), SIZE)
    np.testing.assert_array_equal(squares, expected)


PHOTOGRAPH = encode(noise(WIDTH, HEIGHT), "JPEG", quality=95)
TURNED_PHOTOGRAPH = insert_exif(PHOTOGRAPH, write_tiff((0x0112, 3, TURNED)))
SQUARE = encode(noise(WIDTH, WIDTH), "JPEG", quality=95)


@pytest.mark.parametrize("photograph", [PHOTOGRAPH, SQUARE], ids=["wide", "square"])
@pytest.mark.parametrize("order", "<>")
def test_exif_orientations(order, photograph):
    files = [
        insert_exif(photograph, write_tiff((0x0112, 3, orientation), order=order))
        for orientation in range(1, 9)
    ]

    expected = [read_array(file, SIZE) for file in files]
    np.testing.assert_array_equal(decode(files), expected)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    "entries, options",
    [
        ([(0x010F, 4, 0x01120112), (0x0112, 3, TURNED)], {}),
        ([(0x0112, 3, TURNED), (0x011A, 4, 3)], {"start": 19}),
        ([(0x0112, 4, TURNED)], {}),
        ([(0x0112, 3, TURNED)], {"count": 65535}),
    ],
    ids=["second-entry", "later-directory", "long", "too-high-count"],
)
def test_exif_layouts(entries, options, order):
    file = insert_exif(PHOTOGRAPH, write_tiff(*entries, order=order, **options))

    expected = read_array(TURNED_PHOTOGRAPH, SIZE)
    np.testing.assert_array_equal(decode([file])[0], expected)


@pytest.mark.parametrize("order", "<>")
def test_exif_cut_anywhere(order):
    tiff = write_tiff((0x0112, 3, TURNED), order=order)
    complete = 8 + 2 + 12
    files = [insert_exif(PHOTOGRAPH, tiff[:size]) for size in range(complete + 2)]

    squares = decode([PHOTOGRAPH, *files])

    upright, cut, whole = squares[0], squares[1 : complete + 1], squares[complete + 1 :]
    np.testing.assert_array_equal(cut, np.broadcast_to(upright, cut.shape))
    assert len(whole) == 2
    assert (whole != upright).any(axis=(1, 2, 3)).all()


def test_exif_nonsense_is_ignored():
    entry = (0x0112, 3, TURNED)
    tiff = write_tiff(entry)
    marked = b"Exif\0\0" + tiff
    nonsense = [
        *(write_tiff((0x0112, 3, value)) for value in (0, 9, 65535)),
        *(write_tiff((0x0112, 4, value)) for value in (0, 65536 + TURNED)),
        *(write_tiff(entry, start=start) for start in (0, 1)),
        write_tiff((0x0113, 3, TURNED)),
        write_tiff(entry, count=0),
        tiff[:4] + b"\xff\xff\xff\xff" + tiff[8:],
        b"MM" + tiff[2:],
        b"XX" + tiff[2:],
        b"XX" + write_tiff(entry, order=">")[2:],
    ]
    files = [
        *(insert_exif(PHOTOGRAPH, tiff) for tiff in nonsense),
        insert_segment(PHOTOGRAPH, marked, marker=0xE2),
        insert_segment(PHOTOGRAPH, b"exif\0\0" + tiff),
        insert_segment(PHOTOGRAPH, marked, length=len(marked) - 12),
        insert_segment(PHOTOGRAPH, marked, length=2),
    ]

    upright, *squares = decode([PHOTOGRAPH, *files])
    np.testing.assert_array_equal(squares, [upright] * len(files))


def test_saved_model(tmp_path):
    module = tf.Module()
    module.decode = compile_decoder(SIZE)
    tf.saved_model.save(module, tmp_path, signatures=module.decode)
    files = [TURNED_PHOTOGRAPH, FILES["png-alpha"], FILES["png-palette"]]

    loaded = tf.saved_model.load(tmp_path)

    squares, problems = loaded.decode(tf.constant([*files, files[0][:300]]))
    np.testing.assert_array_equal(squares[:3], decode(files))
    assert [bool(problem) for problem in problems.numpy()] == [False] * 3 + [True]
    assert loaded.decode(tf.constant([], tf.string))[0].shape == (0, SIZE, SIZE, 3)


DAMAGED = "the image cannot be decoded"


@pytest.mark.parametrize(
    "file, problem",
    [
        (b"", r"expected a JPEG or PNG file, got a file of the bytes \[\]; convert "),
        (b"text", r"expected a JPEG or PNG .* of the bytes \[116 101 120 116\]; "),
        (b"\xff\n\xc4", r"expected .*\[255 10 196\]"),
        (encode(RGB, "GIF"), r"expected a JPEG or PNG file, .* bytes \[71 73 70 "),
        (encode(RGB, "WEBP"), r"expected a JPEG or PNG file, .* bytes \[82 73 70"),
        (FILES["jpeg"][:500], DAMAGED),
        (b"\xff\xd8\xff", DAMAGED),
        (FILES["png"][:20], DAMAGED),
    ],
    ids=lambda value: None if isinstance(value, str) else repr(value[:4]),
)
def test_an_unreadable_file_leaves_the_others(file, problem):
    files = tf.constant([PHOTOGRAPH, file, PHOTOGRAPH])
    squares, problems = compile_decoder(SIZE)(files)
    first, second, third = (text.decode() for text in problems.numpy())

    assert first == third == "" and re.match(problem, second)
    whole = read_array(PHOTOGRAPH, SIZE)
    np.testing.assert_array_equal(squares, [whole, np.zeros_like(whole), whole])


def problem_in_python(file):
    with pytest.raises(images.ImageError) as caught:
        images.read_image(file)
    return str(caught.value).removeprefix("Cannot read the given bytes: ")


def problem_in_graph(file, problem_of=problem_of):
    return problem_of(tf.constant(file))[0].numpy().decode()


@pytest.mark.parametrize("kind", ["jpeg-cmyk", "jpeg-progressive", "png"])
def test_the_size_is_read_from_the_header_of(kind, monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", SIZE * SIZE - 1)

    assert problem_in_graph(FILES[kind]) == problem_in_python(FILES[kind])


@pytest.mark.parametrize("limit", ["MAX_SIDE", "FEW_PIXELS"])
def test_other_limits_are_those_of_python(limit, monkeypatch):
    file = encode(Image.new("RGB", (WIDTH, HEIGHT)), "PNG")
    monkeypatch.setattr(images, "MAX_PIXELS_PER_BYTE", 1)
    monkeypatch.setattr(images, limit, HEIGHT)

    assert problem_in_graph(file) == problem_in_python(file)


def test_a_jpeg_of_many_scans_is_not_decoded():
    jpeg = FILES["jpeg-progressive"]
    # Eagerly, the loop over segments would be slow.
    compiled = tf.function(problem_of, [tf.TensorSpec([], tf.string)])
    commented = jpeg[:2] + b"\xff\xfe\0\2" * (image_headers.MAX_SEGMENTS + 1) + jpeg[2:]
    for file in (with_scans(jpeg, 101), commented):
        assert problem_in_python(file) == image_headers.TOO_MANY_SCANS
        assert problem_in_graph(file, compiled) == image_headers.TOO_MANY_SCANS
    assert problem_in_graph(jpeg + b"\xff\xda" * 200, compiled) == ""


@pytest.mark.parametrize("less", [0, 1])
def test_scans_are_limited_by_their_pixels(less, monkeypatch):
    jpeg = FILES["jpeg-progressive"]
    width, height = Image.open(io.BytesIO(jpeg)).size
    limit = width * height * image_headers.inspect(jpeg).scans - less
    monkeypatch.setattr(image_headers, "MAX_SCANNED_PIXELS", limit)
    if less:
        assert problem_in_python(jpeg) == image_headers.TOO_MANY_SCANS
    assert problem_in_graph(jpeg) == (image_headers.TOO_MANY_SCANS if less else "")


def test_large_photographs_are_halved_as_in_python(monkeypatch):
    file = encode(draw_smooth(307, 211), "JPEG", quality=95)
    monkeypatch.setattr(images, "HALVED_PIXELS", 211 * 307 - 1)
    squares, _ = decode_images(tf.constant([file]), SIZE)

    np.testing.assert_array_equal(squares[0], read_array(file, SIZE))
