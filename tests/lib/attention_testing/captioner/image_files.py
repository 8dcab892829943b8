"""Image files for tests, and how they are read."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from keras_attention_apps.captioner.images import ImageError, read_image

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
    chunks = {"IHDR": header, **chunks, "IDAT": zlib.compress(b"\0" + row), "IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(name.encode(), data) for name, data in chunks.items()
    )


def with_scans(jpeg, count):
    """Repeat the last scan of a progressive JPEG, so that there are `count` of it."""
    start = jpeg.rindex(b"\xff\xda")
    return jpeg[:start] + jpeg[start:-2] * count + jpeg[-2:]


def turned(orientation=6):
    """The tags of Exif of a photograph that is stored turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


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
