"""Image files that take long or much memory to decode, whatever their size.

Each kind of file declares much in its headers: pixels, scans, strips, tiles, layers,
code-blocks, items, frames. Prints for each kind how many files were read and refused,
and the peak memory and the CPU time of the most costly one. Also prints how many
violated a limit: a gigabyte, ten seconds of CPU time, or an error that is not one line.

    python benchmarks/costly_images.py --count 10 --seed 1
    python benchmarks/costly_images.py --kinds jpeg2000_of_precincts avif_of_items
"""

import collections
import functools
import io
import itertools
import multiprocessing
import os
import resource
import struct
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

# What a file may take at most.
MAX_MEGABYTES, MAX_SECONDS = 1_000, 10
# Pixels of the largest images that the programs read.
MAX_PIXELS = 178_956_970


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
    position = gif.index(b",\0\0\0\0")
    if random.random() < 0.5:
        blocks = b"!\xfe" + b"\x01 " * (size // 2) + b"\0"
    else:
        blocks = b"!\xfe\x01 \0" * (size // 5)
    return gif[:position] + blocks + gif[position:]


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
    position = avif.rindex(b"II*\0") if b"II*\0" in avif else avif.rindex(b"MM\0*")
    return (
        avif[:position] + block[: len(avif) - position] + avif[position + len(block) :]
    )


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
    position = png.index(b"IEND" if after else b"IDAT") - 4
    return png[:position] + chunks + png[position:]


def tiff_of_overlapping_tags(random, size):
    tiff = bytearray(_encoded("TIFF"))
    first = int.from_bytes(tiff[4:8], "little")
    count = int.from_bytes(tiff[first : first + 2], "little")
    original_entries = tiff[first + 2 : first + 2 + 12 * count]
    more = min(size // 24, 60_000)
    entries = b"".join(
        struct.pack("<HHII", 40_000 + n % 20_000, 7, size // 2, 0) for n in range(more)
    )
    tiff[4:8] = struct.pack("<I", len(tiff))
    directory = struct.pack("<H", count + more) + original_entries + entries + bytes(4)
    return bytes(tiff) + directory + bytes(size // 2)


def tiff_of_strips(random, size):
    """More strips than rows, all of one place."""
    count = size // 4
    width, height = 8, 64
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, 1, 8), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 1), (273, 4, count, 256), (277, 3, 1, 1), (278, 3, 1, 1)]
    tags += [(279, 4, count, 256)]
    return _tags(tags).ljust(256, b"\0") + bytes(4 * count)


# Large images of few bytes


def _sides(random, pixels=None):
    """Return width and height of an image, with up to as many pixels as are allowed."""
    pixels = pixels or int(MAX_PIXELS * random.uniform(0.3, 1))
    width = int(min(np.sqrt(pixels) * random.uniform(0.5, 2), 65_000))
    return width, pixels // width


def _zeros(size):
    """Return zero bytes that are compressed by deflate."""
    count, rest = divmod(size, 2**20)
    stream = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = stream.compress(bytes(2**20)) + stream.flush(zlib.Z_FULL_FLUSH)
    last = zlib.compressobj(9, zlib.DEFLATED, -15)
    end = last.compress(bytes(rest)) + last.flush()
    checksum = struct.pack(">HH", size % 65_521, 1)
    return b"\x78\x9c" + block * count + end + checksum


def png_of_many_pixels(random, size):
    """All colour types, with transparency, interlaced, and as an animation."""
    width, height = _sides(random)
    colour, depth = [(0, 1), (0, 16), (2, 8), (3, 8), (4, 8), (6, 8)][
        random.integers(6)
    ]
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = 1 + -(-width * samples * depth // 8)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = _chunk(b"IHDR", header)
    if random.random() < 0.5:
        chunks += _chunk(b"acTL", struct.pack(">II", 2, 0))
        control = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 9, 1, 0)
        chunks += _chunk(b"fcTL", control)
    if colour == 3:
        chunks += _chunk(b"PLTE", bytes(range(9)))
    if colour in (0, 2, 3) and random.random() < 0.5:
        chunks += _chunk(b"tRNS", bytes({0: 2, 2: 6, 3: 1}[colour]))
    if random.random() < 0.5:
        chunks += _chunk(b"eXIf", _tags([(0x0112, 3, 1, 6)]))
    # There is a limit of pixels for each byte.
    chunks += _chunk(b"IDAT", _zeros(row * height)) + _chunk(b"teSt", bytes(20_000))
    return b"\x89PNG\r\n\x1a\n" + chunks + _chunk(b"IEND", b"")


def gif_of_disposal(random, size):
    """A large screen with a frame that is to be disposed of."""
    width, height = _sides(random)
    gif = bytearray(_encoded("GIF", (512, 512), "P"))
    gif[6:10] = struct.pack("<HH", width, height)
    position = gif.index(b",\0\0\0\0")
    if random.random() < 0.5:
        gif[position + 5 : position + 9] = struct.pack("<HH", width, height)
    control = b"!\xf9\x04" + bytes([int(random.integers(32)) * 4 + 1, 0, 0, 0, 0])
    return bytes(gif[:position]) + control + bytes(gif[position:]) + bytes(20_000)


def bitmap_of_many_pixels(random, size):
    """Pixels of 32 bits, which end early."""
    width, height = _sides(random)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 32, 0, 0, 1, 1, 0, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54) + info + bytes(20_000)


def netpbm_of_many_pixels(random, size):
    width, height = _sides(random)
    kind = [b"P6", b"P5", b"Pf", b"PF"][random.integers(4)]
    maximum = b"1.0" if kind[1:] in b"fF" else b"65535"
    return b"%s %d %d %s\n" % (kind, width, height, maximum) + bytes(20_000)


def jpeg_of_coefficients(random, size):
    """Progressive images, and scans of single components, which keep coefficients."""
    width, height = _sides(random)
    components = int(random.choice([1, 3, 4]))
    mark = bytes(random.choice([b"\xc0", b"\xc1", b"\xc2", b"\xc9", b"\xca"]))
    sampling = int(random.choice([0x11, 0x22, 0x41, 0x44]))
    frame = struct.pack(">BHHB", 8, height, width, components)
    for n in range(components):
        frame += bytes([n + 1, 0x11 if n else sampling, 0])
    jpeg = _encoded("JPEG")
    tables = jpeg[jpeg.index(b"\xff\xdb") : jpeg.index(b"\xff\xc0")]
    codes = jpeg[jpeg.index(b"\xff\xc4") : jpeg.index(b"\xff\xda")]
    content = b"\xff\xd8" + tables + b"\xff" + mark
    content += struct.pack(">H", 2 + len(frame)) + frame + codes
    spectrum = bytes([0, 0, 0]) if mark in b"\xc2\xca" else bytes([0, 63, 0])
    scan = b"\1\1\0" + spectrum
    content += b"\xff\xda" + struct.pack(">H", 2 + len(scan)) + scan
    noise = random.integers(0, 255, 20_000, "uint8").tobytes()
    return content + noise.replace(b"\xff", b"\0") + b"\xff\xd9"


def jpeg_of_arithmetic_scans(random, size):
    """Scans with arithmetic coding, whose decoder does not notice that data end."""
    width, height = _sides(random, int(10 ** random.uniform(6, 8.25)))
    is_progressive = random.random() < 0.7
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    content = b"\xff\xd8\xff\xdb\0\x43\0" + b"\1" * 64
    content += b"\xff\xca" if is_progressive else b"\xff\xc9"
    content += struct.pack(">H", 2 + len(frame)) + frame
    noise = random.integers(0, 255, max(size // 20, 18_000), "uint8").tobytes()
    scans = [b"\0\0\1", b"\1\x3f\2", b"\1\x3f\x21", b"\1\x3f\x10", b"\0\0\x10"]
    scans = scans[: random.integers(1, 6)] if is_progressive else [b"\0\x3f\0"]
    for scan in scans:
        content += b"\xff\xda\0\x08\1\1\0" + scan + noise.replace(b"\xff", b"\0")
    return content + b"\xff\xd9"


# TIFF


def _tiff(tags, content=b"", start=None):
    """Return a TIFF; values of several numbers are after the directory."""
    tags = sorted(tags)
    offset = start or 8 + 2 + 12 * len(tags) + 4
    entries, behind = b"", b""
    for tag, kind, values in tags:
        packed = struct.pack(f"<{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(packed) > 4:
            where, behind = offset + len(behind), behind + packed
            packed = struct.pack("<I", where)
        entries += struct.pack("<HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)
    return head + behind + content


def _layout(width, height, compression, samples=3, bits=8):
    photometric = {1: 1, 3: 2, 4: 5}[samples]
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * samples)]
    return [
        *tags,
        (259, 3, [compression]),
        (262, 3, [photometric]),
        (277, 3, [samples]),
    ]


def tiff_of_many_pixels(random, size):
    """One strip or many of zeros, turned or not."""
    width, height = _sides(random)
    samples = int(random.choice([1, 3, 4]))
    rows = int(random.choice([height, 16, 1_000]))
    strips = -(-height // rows)
    row = width * samples
    whole, rest = _zeros(row * rows), _zeros(row * (height - rows * (strips - 1)))
    tags = _layout(width, height, 8, samples)
    tags += [(278, 4, [rows]), (274, 3, [int(random.integers(1, 9))])]
    sizes = [len(whole)] * (strips - 1) + [len(rest)]
    start = len(_tiff([*tags, (273, 4, sizes), (279, 4, sizes)]))
    offsets = [start] * (strips - 1) + [start + len(whole)]
    tags += [(273, 4, offsets), (279, 4, sizes)]
    return _tiff(tags, whole + rest + bytes(20_000))


def tiff_of_tiles(random, size):
    """Tiles much larger than the image, or much smaller."""
    if random.random() < 0.5:
        width = height = int(random.choice([1, 64, 1_000]))
        tile = int(random.choice([4_096, 16_384, 40_000]))
    else:
        width, height = _sides(random)
        tile = int(random.choice([1, 16, 2]))
    compression = int(random.choice([1, 5, 8, 7, 32773]))
    tags = _layout(width, height, compression, int(random.choice([1, 3])))
    tags += [(322, 4, [tile]), (323, 4, [tile])]
    tags += [(324, 4, [8] * 9), (325, 4, [size] * 9)]
    return _tiff(tags, bytes(size))


def tiff_of_idle_strips(random, size):
    """Many strips at one place, whose data expand to nothing."""
    height = int(random.choice([1_000, 60_000]))
    compression, idle = [(32773, b"\x80"), (8, b"\0\0\0\xff\xff"), (5, b"\x80\0")][
        random.integers(3)
    ]
    data = idle * (size // len(idle))
    sizes = [len(data) if random.random() < 0.7 else 0] * height
    tags = [*_layout(16, height, compression, 1), (278, 4, [1])]
    start = len(_tiff([*tags, (273, 4, sizes), (279, 4, sizes)]))
    return _tiff([*tags, (273, 4, [start] * height), (279, 4, sizes)], data)


def tiff_of_scans(random, size):
    """Strips at one place that are progressive JPEGs of many scans."""
    side = int(random.choice([512, 1_024]))
    jpeg = _encoded("JPEG", (side, side), "L", progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    jpeg = jpeg[:last] + jpeg[last:-2] * int(random.choice([5, 90])) + b"\xff\xd9"
    count = int(random.choice([4, 12]))
    tags = [*_layout(side * count, side * count, 7, 1), (322, 4, [side])]
    tags += [(323, 4, [side]), (325, 4, [len(jpeg)] * count**2)]
    start = len(_tiff([*tags, (324, 4, [0] * count**2)]))
    return _tiff([*tags, (324, 4, [start] * count**2)], jpeg)


def tiff_of_directories(random, size):
    """Directories of tags inside of tags, whose values overlap."""
    count = min(size // 24, 60_000)
    values = [(40_000 + n % 20_000, 7, size // 2, 8) for n in range(count)]
    inner = _tags(values)[8:]
    tag = int(random.choice([34665, 34853, 330]))
    tags = [*_layout(16, 16, 1, 1), (273, 4, [8]), (279, 4, [256]), (tag, 4, [0])]
    start = len(_tiff(tags))
    tags[-1] = (tag, 4, [start])
    return _tiff(tags, inner + bytes(size))


# WebP


def _webp(chunks):
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WEBP" + chunks


def webp_of_a_large_canvas(random, size):
    """A small frame of an animation on a large canvas."""
    width, height = _sides(random)
    frame = _encoded("WEBP", (16, 16), lossless=bool(random.integers(2)))[12:]
    head = bytes(6) + bytes([15, 0, 0, 15, 0, 0]) + b"\x64\0\0\0"
    frames = b"ANMF" + struct.pack("<I", len(head + frame)) + head + frame
    canvas = bytes([2, 0, 0, 0]) + struct.pack("<I", width - 1)[:3]
    canvas += struct.pack("<I", height - 1)[:3]
    chunks = b"VP8X" + struct.pack("<I", 10) + canvas + b"ANIM\6\0\0\0" + bytes(6)
    return _webp(chunks + frames * int(random.integers(1, 5)) + bytes(20_000))


def webp_of_one_colour(random, size):
    """A lossless image whose pixels take no bits, so that it may have any size."""
    pixels = int(MAX_PIXELS * random.uniform(0.2, 1))
    width = int(min(np.sqrt(pixels) * random.uniform(0.9, 1.1), 16_383))
    height = min(pixels // width, 16_383)
    webp = bytearray(_encoded("WEBP", (16, 16), lossless=True))
    bits = int.from_bytes(webp[21:25], "little") >> 28 << 28
    webp[21:25] = struct.pack("<I", bits | height - 1 << 14 | width - 1)
    return bytes(webp) + bytes(20_000)


# AVIF


def _box(kind, content, version=None, flags=0):
    if version is not None:
        content = struct.pack(">I", version << 24 | flags) + content
    return struct.pack(">I4s", 8 + len(content), kind) + content


@functools.lru_cache(8)
def _coded(sides=(64, 64)):
    """Return the stream of AV1 of an image, and the box that describes it."""
    avif = _encoded("AVIF", sides, speed=10)
    position = avif.index(b"av1C")
    return avif[avif.index(b"mdat") + 4 :], avif[position - 4 : position + 8]


def _avif(items, references=(), sides=(64, 64), cell=None):
    """Return a file of items, pairs of a kind and a content; the first is shown.

    It has a size, and all others have that of a cell. Equal contents are stored once.
    """
    properties = _box(b"ispe", struct.pack(">II", *sides), 0)
    properties += _box(b"ispe", struct.pack(">II", *(cell or sides)), 0)
    properties += _box(b"pixi", b"\3\10\10\10", 0) + _coded()[1]
    primary = _box(b"pitm", struct.pack(">H", 1), 0)
    names = b"".join(
        _box(b"infe", struct.pack(">HH4sB", n, 0, kind, 0), 2)
        for n, (kind, _) in enumerate(items, 1)
    )
    information = _box(b"iinf", struct.pack(">H", len(items)) + names, 0)
    associations = b"".join(
        struct.pack(">HB3s", n, 3, bytes([1 + (n > 1), 3, 0x84]))
        for n in range(1, len(items) + 1)
    )
    associations = struct.pack(">I", len(items)) + associations
    shape = _box(b"ipco", properties) + _box(b"ipma", associations, 0)
    links = _box(b"iref", b"".join(references), 0) if references else b""
    handler = _box(b"hdlr", bytes(4) + b"pict" + bytes(13), 0)
    head = _box(b"ftyp", b"avif" + bytes(4) + b"avifmif1miaf")
    contents = {content: 0 for _, content in items}

    def meta(start):
        starts = itertools.accumulate(map(len, contents), initial=start)
        offsets = dict(zip(contents, starts, strict=False))
        table = b"".join(
            struct.pack(">HHHII", n, 0, 1, offsets[content], len(content))
            for n, (_, content) in enumerate(items, 1)
        )
        table = struct.pack(">HH", 0x4400, len(items)) + table
        inner = handler + primary + _box(b"iloc", table, 0) + information
        return _box(b"meta", inner + _box(b"iprp", shape) + links, 0)

    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + _box(b"mdat", b"".join(contents))


def _references(kind, source, targets):
    numbers = struct.pack(f">HH{len(targets)}H", source, len(targets), *targets)
    return _box(kind, numbers)


def _grid(rows, columns, width, height):
    return struct.pack(">BBBBII", 0, 1, rows - 1, columns - 1, width, height)


def avif_of_items(random, size):
    """Many items, with references and properties."""
    stream, _ = _coded()
    count = int(min(size / 45, 60_000))
    items = [(b"av01", stream)] + [(b"av01", stream)] * count
    return _avif(items, [_references(b"thmb", 2, [1])] * int(random.integers(9)))


def avif_of_grid_cells(random, size):
    """A grid whose cells are one image, or are larger than the grid."""
    if random.random() < 0.5:
        rows = columns = int(random.choice([4, 32, 63, 100, 240]))
        side, output = 64, 64 * rows
    else:
        rows = columns = 1
        side, output = int(random.choice([2_048, 8_192])), 64
    stream, _ = _coded((side, side))
    items = [(b"grid", _grid(rows, columns, output, output))]
    items += [(b"av01", stream)] * (rows * columns)
    cells = _references(b"dimg", 1, range(2, rows * columns + 2))
    return _avif(items, [cells], (output, output), (side, side)) + bytes(20_000)


def avif_of_large_frames(random, size):
    """A stream of large frames in a file that declares small ones, or the reverse."""
    side = int(random.choice([1_024, 4_096, 8_192]))
    declared = int(random.choice([64, side, 13_000, 16_000]))
    stream, _ = _coded((side, side))
    return _avif([(b"av01", stream)], sides=(declared, declared)) + bytes(20_000)


def avif_of_frames(random, size):
    """A stream that repeats its frame."""
    side = int(random.choice([64, 1_024, 4_096]))
    stream, _ = _coded((side, side))
    # The frame follows the delimiter and the header of the sequence.
    position = 2 + 2 + stream[3]
    repeated = stream + stream[position:] * int(random.choice([10, 100, 1_000]))
    return _avif([(b"av01", repeated)], sides=(side, side))


def avif_of_samples(random, size):
    """An animation that declares many frames of one size, without a table of sizes."""
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "AVIF", save_all=True, append_images=frames[1:])
    avif = bytearray(file.getvalue())
    count = int(10 ** random.uniform(3, 9))
    offsets = {kind: avif.index(kind) + 8 for kind in (b"stsz", b"stts", b"stsc")}
    length = avif[offsets[b"stsz"] + 8 : offsets[b"stsz"] + 12]
    avif[offsets[b"stsz"] : offsets[b"stsz"] + 8] = length + struct.pack(">I", count)
    where = offsets[b"stts"] + 4
    avif[where : where + 4] = struct.pack(">I", count)
    where = offsets[b"stsc"] + 8
    avif[where : where + 4] = struct.pack(">I", count)
    return bytes(avif)


def avif_of_properties(random, size):
    """Items that have the same properties many times."""
    avif = bytearray(_avif([(b"av01", _coded()[0])]))
    position = avif.index(b"ipma")
    count = min(size // 258, 60_000)
    more = b"".join(struct.pack(">HB", n + 2, 255) + b"\1" * 255 for n in range(count))
    table = struct.pack(">I", 1 + count) + avif[position + 12 : position + 18] + more
    box = _box(b"ipma", table, 0)
    added = len(box) - 22
    avif[position - 4 : position + 18] = box
    for kind in (b"iprp", b"meta"):
        where = avif.index(kind) - 4
        length = int.from_bytes(avif[where : where + 4])
        avif[where : where + 4] = struct.pack(">I", length + added)
    return bytes(avif)


# JPEG 2000


def _marked(mark, content):
    return struct.pack(">BBH", 0xFF, mark, 2 + len(content)) + content


def _jpeg2000(
    sides,
    *,
    components=3,
    tile=None,
    levels=5,
    block=(6, 6),
    precincts=None,
    layers=1,
    order=0,
    guard=2,
    exponent=8,
    more=b"",
    tile_header=b"",
    data=b"\x80" * 100,
    parts=1,
    origin=(0, 0),
):
    """Return a codestream of one coded tile; sizes are exponents."""
    width, height = sides
    tile = tile or (width, height)
    size = struct.pack(
        ">HIIIIIIIIH",
        *(0, width + origin[0], height + origin[1], *origin, *tile, 0, 0, components),
    )
    size += bytes([7, 1, 1]) * components
    style = bytes([precincts is not None, order]) + struct.pack(">HB", layers, 0)
    style += bytes([levels, block[0] - 2, block[1] - 2, 0, 1]) + bytes(precincts or b"")
    steps = bytes([guard << 5]) + bytes([exponent << 3] * (3 * levels + 1))
    content = b"\xff\x4f" + _marked(0x51, size) + _marked(0x52, style)
    content += _marked(0x5C, steps) + more
    head = tile_header + b"\xff\x93" + data
    coded = (
        _marked(0x90, struct.pack(">HIBB", n & 0xFFFF, 12 + len(head), 0, 1)) + head
        for n in range(parts)
    )
    return content + b"".join(coded) + b"\xff\xd9"


def _in_boxes(random, stream, sides, components):
    """Return a codestream, or a JP2 file that contains it."""
    if random.random() < 0.5:
        return stream
    head = struct.pack(">IIHBBBB", sides[1], sides[0], components, 7, 7, 0, 0)
    colour = struct.pack(">BBBI", 1, 0, 0, 16 if components == 3 else 17)
    boxes = b"\0\0\0\x0cjP  \r\n\x87\n" + _box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
    boxes += _box(b"jp2h", _box(b"ihdr", head) + _box(b"colr", colour))
    return boxes + _box(b"jp2c", stream)


def jpeg2000_of_precincts(random, size):
    """Small precincts in the main header, for one component, or in a tile's header."""
    side = int(random.choice([1_024, 4_096, 13_000]))
    components = int(random.choice([1, 3]))
    levels = int(random.integers(1, 6))
    exponent = int(random.integers(1, 7))
    sizes = bytes([exponent * 17] * (levels + 1))
    coding = bytes([levels, 4, 4, 0, 1]) + sizes
    main = _marked(0x53, b"\0\1" + coding)
    tile = _marked(0x52, b"\1\0\0\1\0" + coding)
    where = int(random.integers(3))
    stream = _jpeg2000(
        (side, side),
        components=components,
        levels=levels,
        precincts=sizes if where == 0 else None,
        more=main if where == 1 else b"",
        tile_header=tile if where == 2 else b"",
    )
    return _in_boxes(random, stream + bytes(20_000), (side, side), components)


def jpeg2000_of_code_blocks(random, size):
    side = int(random.choice([2_048, 8_192, 13_000]))
    block = [(2, 2), (2, 10), (10, 2), (3, 3), (4, 4)][random.integers(5)]
    levels = int(random.integers(0, 6))
    stream = _jpeg2000((side, side), block=block, levels=levels)
    return _in_boxes(random, stream + bytes(20_000), (side, side), 3)


def jpeg2000_of_layers(random, size):
    """As many quality layers as the format allows."""
    side = int(random.choice([64, 1_000, 4_000, 13_000]))
    layers = int(random.choice([100, 5_000, 65_535]))
    stream = _jpeg2000((side, side), layers=layers, block=(6, 6), data=b"\x80" * size)
    return _in_boxes(random, stream, (side, side), 3)


def jpeg2000_of_tiles(random, size):
    """Many tiles, or many parts of tiles."""
    side = int(random.choice([256, 4_096, 13_000]))
    tile = max(side // int(random.choice([16, 100, 255])), 1)
    parts = int(random.choice([1, 100, 60_000]))
    stream = _jpeg2000((side, side), tile=(tile, tile), parts=parts, data=b"\x80")
    return _in_boxes(random, stream + bytes(20_000), (side, side), 3)


def jpeg2000_of_positions(random, size):
    """Precincts that are narrow in one resolution and low in another one."""
    side = int(random.choice([4_096, 13_000]))
    order = int(random.integers(2, 5))
    stream = _jpeg2000(
        (side, side),
        levels=1,
        precincts=bytes([0xF1, 0x1F]),
        order=order,
        layers=int(random.choice([1, 20])),
        more=_marked(
            0x5F, bytes([0, 0, 0, 1, 2, 3, order]) * int(random.choice([1, 30]))
        ),
    )
    return _in_boxes(random, stream + bytes(20_000), (side, side), 3)


def jpeg2000_at_a_far_place(random, size):
    """An image far from the origin of the grid of tiles."""
    side = int(random.choice([64, 4_096]))
    far = int(random.choice([2**20, 2**30]))
    tile = int(random.choice([side, far, 2**31]))
    return _jpeg2000((side, side), tile=(tile, tile), origin=(far, far))


def jpeg2000_of_one_tile(random, size):
    """A large tile without smaller resolutions."""
    sides = _sides(random)
    stream = _jpeg2000(sides, levels=int(random.integers(0, 3)), exponent=12)
    return _in_boxes(random, stream + bytes(20_000), sides, 3)


class _Bits:
    """Bits of a packet header: a byte of ones is followed by a zero bit."""

    def __init__(self):
        self.content, self.byte, self.left = bytearray(), 0, 8

    def put(self, value, count):
        for n in range(count - 1, -1, -1):
            self.left -= 1
            self.byte |= (value >> n & 1) << self.left
            if not self.left:
                self.content.append(self.byte)
                self.left = 7 if self.byte == 255 else 8
                self.byte = 0

    def end(self):
        if self.left < 8:
            self.content.append(self.byte)
        return bytes(self.content)


def jpeg2000_of_passes(random, size):
    """Code-blocks of few bytes that have as many coding passes as possible."""
    side = int(random.choice([1_024, 4_096, 6_144]))
    blocks, planes = side // 64, 30
    passes, length = 3 * planes - 2, int(random.choice([4, 100]))
    bits = _Bits()
    bits.put(1, 1)
    seen = set()
    for y, x in itertools.product(range(blocks), repeat=2):
        # A one for each new node of both trees: included at once, no plane is missing.
        nodes = {(n, y >> n, x >> n) for n in range((blocks - 1).bit_length() + 1)}
        new = len(nodes - seen)
        seen |= nodes
        bits.put((1 << new) - 1, new)
        bits.put((1 << new) - 1, new)
        bits.put(0b111111111 << 7 | passes - 37, 16)
        bits.put(0, 1)
        bits.put(length, 3 + passes.bit_length() - 1)
    data = random.integers(0, 255, (blocks**2, length), "uint8")
    data = bits.end() + np.minimum(data, 250).tobytes()
    guard, exponent = 1, planes
    stream = _jpeg2000(
        (side, side), components=1, levels=0, guard=guard, exponent=exponent, data=data
    )
    return _in_boxes(random, stream, (side, side), 1)


KINDS = [
    value
    for name, value in list(globals().items())
    if {"of", "at"} & set(name.split("_")) and not name.startswith("_")
]


def costly_images(random):
    """Yield names and contents of image files."""
    while True:
        kind = KINDS[random.integers(len(KINDS))]
        size = int(10 ** random.uniform(4, 6.7))
        yield f"{kind.__name__}, {size} bytes", kind(random, size)


def measure(path):
    """Read a file in a process of its own.

    Returns the outcome, megabytes, and seconds of CPU time.
    """
    from keras_attention_apps.captioner.images import ImageError, read_array

    before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    receiver, sender = os.pipe()
    if not (process := os.fork()):
        # A file may ask for more memory than this computer has.
        resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        warnings.simplefilter("ignore")
        try:
            read_array(path, 224)
            outcome = "read"
        except ImageError as error:
            outcome = "refused" if "\n" not in str(error) else "traceback"
            outcome += f": {error}"
        except BaseException as error:
            outcome = f"traceback: {error!r}"
        os.write(sender, outcome.encode("utf-8", "replace")[:4_000])
        os._exit(0)
    os.close(sender)
    with open(receiver, "rb") as file:
        outcome = file.read().decode() or "crash"
    _, _, usage = os.wait4(process, 0)
    peak = usage.ru_maxrss * 1024 - before
    return outcome, peak / 1e6, usage.ru_utime + usage.ru_stime


def _serve(connection):
    """Measure files in a process that has not used much memory itself."""
    while path := connection.recv():
        connection.send(measure(path))


def main():
    import workers  # Tests import the kinds of files alone.

    parser = workers.command_line(__doc__)
    names = {kind.__name__: kind for kind in KINDS}
    parser.add_argument("--count", type=int, default=10, help="files of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(names))
    parser.add_argument("--verbose", action="store_true", help="print every file")
    options = parser.parse_args()
    workers.check_names(parser, options.kinds, names)
    context = multiprocessing.get_context("spawn")
    connection, other = context.Pipe()
    process = context.Process(target=_serve, args=(other,), daemon=True)
    process.start()
    print("| kind | read | refused | peak memory | CPU time | violations |")
    print("|---|---:|---:|---:|---:|---:|", flush=True)
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        for name in options.kinds:
            counts, peak, longest = collections.Counter(), 0, 0
            # A kind has the same files, whatever other kinds are tried.
            random = np.random.default_rng([options.seed, zlib.crc32(name.encode())])
            for _ in range(options.count):
                size = int(10 ** random.uniform(4, 6.7))
                path.write_bytes(names[name](random, size))
                connection.send(str(path))
                outcome, megabytes, seconds = connection.recv()
                kind = outcome.split(":")[0]
                is_costly = megabytes > MAX_MEGABYTES or seconds > MAX_SECONDS
                is_wrong = is_costly or kind not in ("read", "refused")
                counts.update([kind, *["violations"] * is_wrong])
                peak, longest = max(peak, megabytes), max(longest, seconds)
                if options.verbose or is_wrong:
                    line = f"{name}: {megabytes:.0f} MB, {seconds:.1f} s, {outcome}"
                    print(line, file=sys.stderr, flush=True)
            total.update(counts)
            print(
                f"| {name} | {counts['read']} | {counts['refused']} | {peak:.0f} MB | "
                f"{longest:.1f} s | {counts['violations']} |",
                flush=True,
            )
    connection.send("")
    process.join()
    print(f"{total['violations']} violations in {options.count * len(options.kinds)}")


if __name__ == "__main__":
    main()
