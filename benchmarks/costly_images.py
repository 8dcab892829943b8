"""Small image files that take long to decode, although they have few pixels.

`size` is roughly the size of a file in bytes.
"""

import functools
import io
import struct
import zlib

from PIL import Image


@functools.lru_cache(32)
def _encoded(kind, sides=(16, 16), mode="RGB", **options):
    file = io.BytesIO()
    Image.new(mode, sides).save(file, kind, **options)
    return file.getvalue()


def bitmap_of_short_rows(random, size):
    """Rows that end at once: every pixel is padding."""
    width = int(random.integers(1_000, 65_536))
    height = min(size // 4, 170_000_000 // width)
    # There is a limit of pixels for each byte.
    return _bitmap(width, height, (b"\1\0\0\0" * height).ljust(17_500, b"\0"))


def bitmap_of_empty_runs(random, size):
    return _bitmap(32, 60_000, b"\2\0" * 16 + b"\2\0" * (size // 2))


def _bitmap(width, height, rows):
    info = struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(rows), 1, 1, 2, 0
    )
    palette, start = bytes(4) + b"\t\t\t\0", 14 + len(info) + 8
    head = struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start)
    return head + info + palette + rows


def netpbm_of_comments(random, size):
    comments = b"#\n" * (size // 2)
    kind = random.integers(3)
    if kind == 0:
        return b"P6 " + comments + b"2 2 255\n" + bytes(12)
    return b"P3 2 2 255\n" + comments + b"1 " * 12


def netpbm_of_text(random, size):
    side = int((size / 6) ** 0.5)
    return b"P3 %d %d 255\n" % (side, side) + b"1 " * (side * side * 3)


def netpbm_of_an_odd_maximum(random, size):
    side = int((size / 3) ** 0.5)
    return b"P6 %d %d 100\n" % (side, side) + bytes(side * side * 3)


def gif_of_comments(random, size):
    gif = _encoded("GIF")
    # The comments precede the first image.
    place = gif.index(b",\0\0\0\0")
    if random.random() < 0.5:
        blocks = b"!\xfe" + b"\x01 " * (size // 2) + b"\0"
    else:
        blocks = b"!\xfe\x01 \0" * (size // 5)
    return gif[:place] + blocks + gif[place:]


def jpeg_of_segments(random, size):
    length = int(random.choice([8, 100, 60_000]))
    head = bytes(random.choice([b"\xff\xe1", b"\xff\xe0", b"\xff\xfe"]))
    segment = head + struct.pack(">H", length + 2) + b"Exif\0\0".ljust(length, b"\0")
    jpeg = _encoded("JPEG")
    return jpeg[:2] + segment * (size // len(segment)) + jpeg[2:]


def jpeg_of_padding(random, size):
    jpeg = _encoded("JPEG")
    return jpeg[:2] + b"\xff" * size + jpeg[2:]


def jpeg_of_scans(random, size):
    """A progressive image of which the last scan is repeated."""
    side = int(random.choice([2_000, 4_000, 12_000]))
    jpeg = _encoded("JPEG", (side, side), progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    return jpeg[:last] + jpeg[last:-2] * int(random.choice([10, 90])) + b"\xff\xd9"


def _tags(tags):
    """Return a block in TIFF's format: tag, type, number of values, place or value."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


def _overlapping_tags(size):
    """Return tags in TIFF's format, each of which has most of the block as value."""
    count = min(size // 24, 65_000)
    tags = [(40_000 + n % 20_000, 7, size - 8, 8) for n in range(count)]
    return _tags(tags).ljust(size, b"\0")


def jpeg_of_overlapping_tags(random, size):
    if random.random() < 0.3:
        block = b"MPF\0" + _overlapping_tags(60_000)
        segments, mark = [block], b"\xff\xe2"
    else:
        block, mark = _overlapping_tags(min(size, 2_000_000)), b"\xff\xe1"
        parts = range(0, len(block), 60_000)
        segments = [b"Exif\0\0" + block[part : part + 60_000] for part in parts]
    jpeg = _encoded("JPEG")
    inserted = b"".join(mark + struct.pack(">H", len(x) + 2) + x for x in segments)
    return jpeg[:2] + inserted + jpeg[2:]


def webp_of_overlapping_tags(random, size):
    return _encoded("WEBP", exif=b"Exif\0\0" + _overlapping_tags(min(size, 1_000_000)))


def avif_of_overlapping_tags(random, size):
    # Pillow reads the tags that it writes, so a placeholder is replaced.
    block = _overlapping_tags(min(size, 1_000_000))
    placeholder = Image.Exif()
    placeholder[0x9C9B] = bytes(len(block))
    avif = _encoded("AVIF", exif=placeholder.tobytes())
    place = avif.rindex(b"II*\0") if b"II*\0" in avif else avif.rindex(b"MM\0*")
    return avif[:place] + block[: len(avif) - place] + avif[place + len(block) :]


def png_of_overlapping_tags(random, size):
    block = _overlapping_tags(min(size, 400_000))
    if random.random() < 0.5:
        return _png_with(_chunk(b"eXIf", block))
    text = f"\nexif\n{len(block)}\n{block.hex()}".encode()
    return _png_with(
        _chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))
    )


def png_of_chunks(random, size):
    kind = bytes(random.choice([b"IDAT", b"teSt", b"tEXt"]))
    content = b"a\0b" if kind == b"tEXt" else b""
    chunk = _chunk(kind, content)
    return _png_with(chunk * (size // len(chunk)), after=bool(random.integers(2)))


def _chunk(kind, content):
    checksum = zlib.crc32(kind + content)
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
    )


def _png_with(chunks, after=False):
    png = _encoded("PNG")
    place = png.index(b"IEND" if after else b"IDAT") - 4
    return png[:place] + chunks + png[place:]


def tiff_of_overlapping_tags(random, size):
    tiff = bytearray(_encoded("TIFF"))
    first = int.from_bytes(tiff[4:8], "little")
    count = int.from_bytes(tiff[first : first + 2], "little")
    own = tiff[first + 2 : first + 2 + 12 * count]
    more = min(size // 24, 60_000)
    entries = b"".join(
        struct.pack("<HHII", 40_000 + n % 20_000, 7, size // 2, 0) for n in range(more)
    )
    tiff[4:8] = struct.pack("<I", len(tiff))
    directory = struct.pack("<H", count + more) + own + entries + bytes(4)
    return bytes(tiff) + directory + bytes(size // 2)


def tiff_of_strips(random, size):
    """More strips than rows, all of one place."""
    count = size // 4
    width, height = 8, 64
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, 1, 8), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 1), (273, 4, count, 256), (277, 3, 1, 1), (278, 3, 1, 1)]
    tags += [(279, 4, count, 256)]
    return _tags(tags).ljust(256, b"\0") + bytes(4 * count)


def jpeg2000_of_layers(random, size):
    """As many quality layers as the format allows."""
    side = int(random.choice([64, 1_000, 4_000]))
    content = bytearray(_encoded("JPEG2000", (side, side), no_jp2=True))
    place = content.index(b"\xff\x52")
    content[place + 6 : place + 8] = struct.pack(">H", 65_535)
    return bytes(content)


KINDS = [
    value
    for name, value in list(globals().items())
    if "_of_" in name and not name.startswith("_")
]


def costly_images(random):
    """Yield names and contents of image files."""
    while True:
        kind = KINDS[random.integers(len(KINDS))]
        size = int(10 ** random.uniform(4, 6.7))
        yield f"{kind.__name__}, {size} bytes", kind(random, size)
