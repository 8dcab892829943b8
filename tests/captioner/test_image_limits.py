"""Limits of images: size, expansion, scans, and memory at the same time."""

import io
import pathlib
import runpy
import threading
import zlib

import numpy as np
import pytest
from keras_attention_apps.captioner import images as limits
from keras_attention_apps.captioner import images as reading
from keras_attention_apps.captioner.images import (
    MemoryBudget,
    count_scans,
    image_to_array,
    read_array,
    read_image,
)
from PIL import Image

from .image_files import encode, fails, noise, png

pytestmark = pytest.mark.usefixtures("warnings_are_errors")
BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
COSTLY = runpy.run_path(str(BENCHMARKS / "costly_images.py"))
FEWER_PARTS = "expected an image of fewer parts"
FEWER_TAGS = "expected tags of "


def test_a_side_has_a_limit(monkeypatch):
    fails(
        png(170_000_000, 1, 8, 0),
        "sides of at most 65535 pixels, got 170000000 x 1 pixel",
    )
    fails(png(1, 65_536, 8, 0), "sides of at most 65535 pixels, got 1 x 65536 pixels")
    monkeypatch.setattr(limits, "MAX_SIDE", 12)
    fails(noise(13, 3), "expected sides of at most 12 pixels")


def test_a_large_image_must_not_come_from_few_bytes(monkeypatch):
    one_colour = encode(Image.new("RGB", (500, 400)), "WEBP", lossless=True)
    assert len(one_colour) < 60
    assert read_array(one_colour, 3).shape == (3, 3, 3)
    monkeypatch.setattr(limits, "FEW_PIXELS", 500 * 400 - 1)
    monkeypatch.setattr(limits, "MAX_PIXELS_PER_BYTE", 3000)
    fails(one_colour, "at most 3000 pixels for each byte, got 500 x 400 pixels in")
    assert read_array(Image.new("RGB", (500, 400)), 3).shape == (3, 3, 3)


def with_scans(count):
    """Return a progressive JPEG whose last scan is repeated `count` times."""
    jpeg = encode(noise(), "JPEG", progressive=True)
    start = jpeg.rindex(b"\xff\xda")
    scan = jpeg[start:-2]
    return jpeg[:start] + scan * count + jpeg[-2:]


def test_scans_are_counted_in_the_image_alone():
    few = count_scans(with_scans(1))
    assert 5 < few < 20
    assert count_scans(with_scans(31)) == few + 30
    assert count_scans(encode(noise(), "JPEG")) == 1
    # A thumbnail in a segment, and a video after the end.
    jpeg, inner = encode(noise(), "JPEG"), encode(noise(), "JPEG")
    length = (len(inner) + 2).to_bytes(2)
    assert count_scans(jpeg[:2] + b"\xff\xe1" + length + inner + jpeg[2:]) == 1
    assert count_scans(jpeg + b"\xff\xda" * 200) == 1
    assert count_scans(b"\xff\xd8" + b"\xff\xda\0\0" * 10**5) == limits.MAX_SCANS + 1


def test_a_jpeg_has_a_limit_of_scans():
    fails(with_scans(101), "expected a JPEG of at most 100 scans and 1000 segments")
    assert read_image(with_scans(2)).size == (noise().shape[1], noise().shape[0])


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
    for seed in range(3):
        fails(COSTLY[kind](np.random.default_rng(seed), size), message)


def test_tags_of_a_jpeg_are_limited():
    jpeg = encode(noise(), "JPEG")
    segment = b"\xff\xe1\xff\xffExif\0\0".ljust(65_537, b"\0")
    assert read_image(jpeg[:2] + segment * 60 + jpeg[2:]).size == noise().shape[1::-1]
    fails(jpeg[:2] + segment * 65 + jpeg[2:], "expected at most 4194304 bytes of tags")


def test_scans_are_limited_by_their_pixels(monkeypatch):
    monkeypatch.setattr(limits, "MAX_SCANNED_PIXELS", 35 * count_scans(with_scans(2)))
    assert read_image(with_scans(2)).size == (5, 7)
    fails(with_scans(3), "expected a JPEG of at most 100 scans")


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

    assert limits.problem_of_tags(COSTLY["_tags"](tags)) is None
    assert limits.problem_of_tags(COSTLY["_tags"](tags[1:] * 9)).startswith(FEWER_TAGS)


def test_tags_in_the_text_of_a_png_turn_it():
    exif = Image.Exif()
    exif[0x0112] = 6
    text = f"\nexif\n      9\n{exif.tobytes().hex()}\n".encode()
    profile = b"Raw profile type exif\0\0" + zlib.compress(text)

    assert read_image(png(2, 1, 8, 0, b"ab", zTXt=profile)).size == (1, 2)


@pytest.mark.parametrize("kind", ["ppm", "bmp"])
def test_images_that_pillow_decodes_in_python(kind, monkeypatch):
    # Such an image needs a read for every pixel, which others must not have.
    monkeypatch.setattr(limits, "MAX_IMAGE_READS", 0)
    if kind == "ppm":
        data = b"P6 40 50 100\n" + bytes([50, 100, 0]) * 2000
        expected = (128, 255, 0)
    else:
        data = COSTLY["_bitmap"](40, 50, (b"\x28\1\0\0" * 50))
        expected = (9, 9, 9)

    assert np.all(np.asarray(read_image(data)) == expected)


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
    monkeypatch.setattr(reading, "_PART", 3 * image.width)

    np.testing.assert_array_equal(read_image(image), expected)


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
def test_a_large_photograph_is_decoded_at_half_its_size(kind, monkeypatch):
    waves = np.sin(np.mgrid[:101, :83].sum(0) / 20)
    data = encode(np.uint8(127.5 + 100 * waves[..., None].repeat(3, -1)), kind)
    whole = read_array(data, 16)
    monkeypatch.setattr(limits, "HALVED_PIXELS", 101 * 83 - 1)

    assert read_image(data).size == (42, 51)
    assert np.abs(read_array(data, 16).astype(int) - whole).max() < 8


@pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
@pytest.mark.parametrize("draft", [False, True])
def test_a_given_photograph_is_not_reduced(kind, draft, monkeypatch):
    monkeypatch.setattr(limits, "HALVED_PIXELS", 1)
    data = encode(noise(101, 83), kind)
    image, expected = (Image.open(io.BytesIO(data)) for _ in range(2))

    assert read_image(image, draft=draft).size == image.size == (101, 83)
    np.testing.assert_array_equal(image, expected)


def test_a_rectangle_of_fractions_is_cropped():
    image = Image.fromarray(noise(40, 20))
    expected = image_to_array(image, 7, (10, 5, 20, 15))
    width, height = image.size
    box = 10 / width, 5 / height, 20 / width, 15 / height

    np.testing.assert_array_equal(read_array(image, 7, box), expected)


def test_memory_is_shared_and_given_back():
    budget, most, running = MemoryBudget(10), [], []

    def work(amount):
        with budget.reserve(amount):
            running.append(amount)
            most.append(sum(min(x, 10) for x in running))
            running.remove(amount)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 40, 4, 7, 9) * 9]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)

    assert len(most) == len(threads) and max(most) <= 10 and budget.used == 0


def test_memory_of_a_broken_image_is_given_back():
    fails(encode(noise(), "PNG")[:60], "the image cannot be decoded")
    assert limits.MEMORY_BUDGET.used == 0


def test_an_image_takes_more_memory_if_it_is_progressive(monkeypatch):
    asked = []
    monkeypatch.setattr(limits, "MEMORY_BUDGET", MemoryBudget(1))
    reserve = limits.MEMORY_BUDGET.reserve
    monkeypatch.setattr(
        limits.MEMORY_BUDGET, "reserve", lambda x: asked.append(x) or reserve(x)
    )
    for options in ({}, {"progressive": True}):
        read_image(encode(noise(), "JPEG", **options))
    read_image(encode(noise(), "PNG"))

    pixels = noise()[..., 0].size
    assert asked == [16 * pixels, 22 * pixels, 8 * pixels]
