"""Limits on what the headers of image files declare, checked before decoding.

A few bytes can declare millions of code-blocks, layers, tiles, items or scans, for each
of which a decoder takes memory and time, however few pixels the image has. `inspect`
follows the headers as the decoders do, and refuses a file that declares more than the
limits below. Cameras, scanners and editors stay far below them.
"""

import contextlib
import dataclasses
import itertools
import math
import re
import struct
from collections.abc import Iterator

import numpy as np

from keras_attention_apps.common.errors import UserError

# Maximum number of pixels, which is Pillow's own.
MAX_PIXELS = 178_956_970
# Maximum memory for one image in bytes: its pixels, and what its decoder needs.
MAX_MEMORY = 10**9
# Maximum number of scans of a JPEG, each of the whole image. Up to twenty are usual.
MAX_SCANS = 100
# Maximum number of segments of a JPEG, and of comments in a Netpbm file of text.
MAX_SEGMENTS = 1_000
# Maximum number of pixels of a JPEG, times the number of its scans.
MAX_SCANNED_PIXELS = 2**31
# A scan with arithmetic coding takes up to as long as this number of other scans.
ARITHMETIC_SCANS = 12
# Maximum number of bytes of the tags of a JPEG. Pillow copies them for each segment.
MAX_TAG_BYTES = 2**22
# Maximum number of strips or tiles of a TIFF.
MAX_STRIPS = 2**17
# Strips of a TIFF may overlap by this number of bytes in all, and by the whole file.
MAX_OVERLAP = 2**24
# Maximum numbers in a JPEG 2000: of components, which Pillow limits too, tiles, parts
# of tiles, and segments, of code-blocks and precincts in all tiles, each times the
# number of layers, and of positions of precincts, which a progression may visit.
MAX_COMPONENTS = 4
MAX_TILES = 2**14
MAX_TILE_PARTS = 2**16
MAX_MARKS = 2**19
MAX_BLOCKS = 2**23
MAX_PACKETS = 2**22
MAX_POSITIONS = 2**26
# Maximum number of coefficients that are decoded, times their declared bits.
MAX_COEFFICIENT_BITS = 2**29
# Maximum numbers in an AVIF: of items, tracks and frames, of the properties and
# references of all items, of boxes, and of pixels of all items and hidden frames.
MAX_ITEMS = 4_096
MAX_ENTRIES = 2**16
MAX_CODED_PIXELS = 2**28

END, SCAN = 0xD9, 0xDA
TOO_MANY_SCANS = (
    f"expected a JPEG of at most {MAX_SCANS} scans and {MAX_SEGMENTS} segments, and of "
    f"at most {MAX_SCANNED_PIXELS} pixels in all scans, got more"
)
# The beginning of a segment of a JPEG; in the data of a scan, 0xff is followed by 0 or
# by the mark of a restart.
_SEGMENT = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


class ImageError(UserError):
    """An image that cannot be read; the message is one line with the reason."""


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Resources that the decoder of a file needs, besides the pixels.

    Attributes:
        memory: Bytes for an image at its own size, at half of its width and height, and
            so on, as far as the decoder reduces images. Infinite for a size that takes
            too long.
        scans: Number of scans of a JPEG, otherwise 0.
    """

    memory: tuple[float, ...] = (0,)
    scans: int = 0


def inspect(data: bytes) -> Decoding:
    """Return what a file needs, or raise an `ImageError` if it declares too much.

    The file itself is part of the memory.
    """
    decoding = _inspect(data)
    memory = tuple(len(data) + x for x in decoding.memory)
    if min(memory) > MAX_MEMORY:
        raise ImageError(
            f"expected an image that takes at most {MAX_MEMORY // 10**6} MB to decode, "
            f"got one whose headers declare {min(memory) / 10**6:.0f} MB"
        )
    return dataclasses.replace(decoding, memory=memory)


def _inspect(data: bytes) -> Decoding:
    if data.startswith(b"\xff\xd8"):
        return _jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data)
    if data[4:8] == b"ftyp":
        return _avif(data)
    if data.startswith((b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP  ")):
        return _jpeg2000(data)
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return _tiff(data)
    comments = data.count(b"#") if re.match(b"P[123]", data) else 0
    _check(comments, MAX_SEGMENTS, "comments")
    # Pillow also accepts other beginnings of a TIFF.
    check_tags(data)
    return Decoding()


def _check(number: int, limit: int, what: str) -> None:
    if number > limit:
        raise ImageError(f"expected at most {limit} {what}, got {number}")


def too_many_pixels(size: str, max_pixels: int) -> str:
    return f"expected at most {max_pixels} pixels, got {size} pixels"


# JPEG
#
# Frames have the marks 0xc0 to 0xcf, except for three of them.
_NO_FRAMES = 0xC4, 0xC8, 0xCC
_PROGRESSIVE = 0xC2, 0xC6, 0xCA, 0xCE
_ARITHMETIC = 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF
# JPEGs are decoded at 1, 1/2, 1/4 or 1/8 of their size.
_JPEG_SIZES = 4


def _jpeg(data: bytes) -> Decoding:
    # Pillow joins the segments of a kind.
    tags = {b"\xe1Exif\0\0": b"", b"\xe2MPF\0": b""}
    scans = pixels = coefficients = components = kind = 0
    keeps = False
    for number, (mark, start) in enumerate(_segments(data)):
        if mark == SCAN:
            scans += 1
            # The coefficients of all components are kept until the last scan.
            keeps |= kind in _PROGRESSIVE or components > int(data[start + 2])
        elif 0xC0 <= mark <= 0xCF and mark not in _NO_FRAMES:
            kind = mark
            pixels, components, coefficients = _frame(data[start + 2 :][:1_000])
        if scans > MAX_SCANS or number == MAX_SEGMENTS:
            raise ImageError(TOO_MANY_SCANS)
        for prefix in () if scans else tags:
            begin = start + 1 + len(prefix)
            if mark == prefix[0] and data[start + 2 : begin] == prefix[1:]:
                end = start + int.from_bytes(data[start : start + 2])
                tags[prefix] += data[begin:end]
                if len(tags[prefix]) > MAX_TAG_BYTES:
                    raise ImageError(
                        f"expected at most {MAX_TAG_BYTES} bytes of tags, got more"
                    )
    for block in tags.values():
        check_tags(block)
    cost = ARITHMETIC_SCANS if kind in _ARITHMETIC else 1
    if scans * cost * pixels > MAX_SCANNED_PIXELS:
        raise ImageError(TOO_MANY_SCANS)
    return Decoding((2 * coefficients * keeps,) * _JPEG_SIZES, scans)


def _frame(frame):
    """Return the numbers of pixels, components and coefficients of a JPEG."""
    with contextlib.suppress(struct.error, ValueError, ZeroDivisionError):
        _, height, width, components = struct.unpack_from(">BHHB", frame)
        sampling = [frame[7 + 3 * n] for n in range(components)]
        across = max(x >> 4 for x in sampling)
        down = max(x & 15 for x in sampling)
        # Components have blocks of 8 x 8 coefficients in whole units of all components.
        units = -(-width // (8 * across)) * -(-height // (8 * down))
        blocks = sum((x >> 4) * (x & 15) for x in sampling) * units
        return width * height, components, 64 * blocks
    return 0, 0, 0


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the mark of each segment of a JPEG, and the position of its length.

    Segments are followed from one to the next, since the data of one, such as a
    thumbnail, may look like a scan.
    """
    position = 2
    while segment := _SEGMENT.search(data, position):
        if segment[0][1] == END:
            return
        start = segment.end()
        yield segment[0][1], start
        # The length counts itself.
        position = start + int.from_bytes(data[start : start + 2])


# Tags of Exif and TIFF
#
# Bytes of a value of each type, and the tags of further directories.
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4}
_VALUE_BYTES |= {12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_DIRECTORIES = 330, 34665, 34853, 40965
_MAX_DIRECTORIES = 64


def check_tags(tags: bytes) -> None:
    """Raise an `ImageError` for overlapping values of tags, all of which Pillow copies.

    Another format, or a truncated file, has no tags to check.
    """
    for _ in _tags(tags.removeprefix(b"Exif\0\0")):
        pass


def _tags(data: bytes) -> Iterator[tuple[int, int, list[int]]]:
    """Yield depth, tag and integers of all tags of a file in TIFF's format.

    The first directory has depth 0. Integers are at most `MAX_STRIPS`, and none for
    tags of other types.
    """
    block = memoryview(data)
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        return
    is_big = 43 in block[2:4]
    offset, counted, entry = ("Q", "Q", "HHQQ") if is_big else ("I", "H", "HHII")
    inline = struct.calcsize(offset)
    total, directories = 0, 0
    with contextlib.suppress(OverflowError, struct.error):
        waiting = [(0, *struct.unpack_from(order + offset, block, 8 if is_big else 4))]
        while waiting:
            depth, position = waiting.pop()
            directories += 1
            _check(directories, _MAX_DIRECTORIES, "directories of tags")
            (count,) = struct.unpack_from(order + counted, block, position)
            position += struct.calcsize(order + counted)
            for _ in range(count):
                tag, kind, values, begin = struct.unpack_from(
                    order + entry, block, position
                )
                size = values * _VALUE_BYTES.get(kind, 0)
                if size <= inline:
                    begin = position + struct.calcsize(order + entry) - inline
                elif begin + size > len(block):
                    # Pillow ignores this tag and all that follow.
                    break
                position += struct.calcsize(order + entry)
                total += size
                if total > 2 * len(block):
                    raise ImageError(
                        f"expected tags of {len(block)} bytes in all, got more"
                    )
                if tag in _STRIPS:
                    _check(values, MAX_STRIPS, "strips or tiles")
                code = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}.get(kind, "")
                shape = f"{order}{min(values, MAX_STRIPS)}{code}" if code else ""
                numbers = list(struct.unpack_from(shape, block, begin))
                yield depth, tag, numbers
                if tag in _DIRECTORIES and depth < 3:
                    waiting += [(depth + 1, x) for x in numbers]


# TIFF
#
# Tags of the places and the sizes of strips and tiles.
_STRIPS = (273, 279, 324, 325)
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_SAMPLES, _ROWS, _PLANES, _TILE_WIDTH, _TILE_HEIGHT = 277, 278, 284, 322, 323
_LAYOUT = {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _SAMPLES}
_LAYOUT |= {_ROWS, _PLANES, _TILE_WIDTH, _TILE_HEIGHT, *_STRIPS}
_YCBCR, _JPEGS = 6, (6, 7)
# Logarithmic and PixarLog compression, which expand a strip to integers.
_EXPANDED = 32909, 34676, 34677


def _tiff(data: bytes) -> Decoding:
    layout: dict[int, list[int]] = {}
    for depth, tag, numbers in _tags(data):
        if depth == 0 and tag in _LAYOUT:
            # Pillow takes the last of equal tags, and libtiff the first.
            if tag in layout:
                raise ImageError(f"expected every tag once, got tag {tag} twice")
            layout[tag] = numbers

    def first(tag, default):
        return next(iter(layout.get(tag, ())), default)

    width, height = first(_WIDTH, 0), first(_HEIGHT, 0)
    if not width or not height:
        return Decoding()
    compression = first(_COMPRESSION, 1)
    is_tiled = _TILE_WIDTH in layout
    tile_width = first(_TILE_WIDTH, 0) if is_tiled else width
    rows = first(_TILE_HEIGHT, 0) if is_tiled else min(first(_ROWS, height), height)
    tile_height = rows or height
    columns, lines = -(-width // (tile_width or width)), -(-height // tile_height)
    samples = max(first(_SAMPLES, 1), len(layout.get(_BITS, ())))
    planes = samples if first(_PLANES, 1) == 2 else 1
    _check(columns * lines * planes, MAX_STRIPS, "strips or tiles")
    padded = columns * tile_width * lines * tile_height
    _check(padded, 2 * (width * height + MAX_OVERLAP), "pixels in all tiles")
    if compression == 1:
        return Decoding()
    # libtiff takes the whole file where it has no size.
    offsets = layout.get(324 if is_tiled else 273, [])
    sizes = [x or len(data) for x in layout.get(325 if is_tiled else 279, [])]
    sizes += [len(data)] * (len(offsets) - len(sizes))
    used = sum(min(size, len(data)) for size in sizes)
    _check(used, 2 * len(data) + MAX_OVERLAP, "bytes in all strips")
    if compression in _JPEGS:
        pairs = set(zip(offsets, sizes, strict=False))
        scans = max((data.count(b"\xff\xda", a, a + n) for a, n in pairs), default=0)
        if scans * padded > MAX_SCANNED_PIXELS:
            raise ImageError(TOO_MANY_SCANS)
    pixel = samples * max(layout.get(_BITS, [8])) / 8
    if compression in _JPEGS or first(_PHOTOMETRIC, 0) == _YCBCR:
        # As RGBA, beside the decoded samples.
        pixel = 4 + 2 * pixel
    elif compression in _EXPANDED:
        pixel *= 3
    return Decoding((math.ceil(tile_width * tile_height * max(pixel, 1)),))


# WebP
#
# Bytes of each pixel of a canvas: of the image before and after a frame, of a copy, and
# of a lossless image.
_WEBP_BYTES = 12


def _webp(data: bytes) -> Decoding:
    """Return what libwebp needs, which decodes all images as animations."""
    kind, width, height = data[12:16], 0, 0
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        height = int.from_bytes(data[28:30], "little") & 0x3FFF
    return Decoding((_WEBP_BYTES * width * height + len(data),))


# AVIF
#
# Bytes of each pixel of all planes in 16 bits, and of the result and its copy.
_AVIF_BYTES = 14
# Reference frames that a decoder keeps.
_KEPT_FRAMES = 8
_CONTAINERS = (b"meta", b"iprp", b"ipco", b"moov", b"trak", b"mdia", b"minf", b"stbl")
_SAMPLE_TABLES = (b"stsz", b"stco", b"co64", b"stsc", b"stts", b"stss")


def _avif(data: bytes) -> Decoding:
    """Return what libavif needs for all images in a file.

    Alpha is one of them, and so are thumbnails, which are small.
    """
    boxes: dict[bytes, list[tuple[int, int]]] = {}
    for number, (kind, begin, end) in enumerate(_boxes(data, 0, len(data))):
        _check(number, MAX_ENTRIES, "boxes")
        boxes.setdefault(kind, []).append((begin, end))
    sizes = [
        struct.unpack_from(">II", data, begin + 4)
        for begin, end in boxes.get(b"ispe", [])
        if end - begin >= 12
    ]
    kinds: dict[int, bytes] = {}
    for begin, end in boxes.get(b"infe", []):
        content = data[begin:end]
        width = {2: 2, 3: 4}.get(content[0] if content else 0, 0)
        if width:
            number = int.from_bytes(content[4 : 4 + width])
            kinds[number] = content[6 + width : 10 + width]
    _check(len(boxes.get(b"infe", [])), MAX_ITEMS, "items")
    entries = 0
    for kind in (b"ipma", b"iref"):
        entries += sum(end - begin for begin, end in boxes.get(kind, []))
    _check(entries, 4 * MAX_ENTRIES, "bytes of properties and references of items")
    for kind in _SAMPLE_TABLES:
        for begin, _ in boxes.get(kind, []):
            position = begin + (8 if kind == b"stsz" else 4)
            count = int.from_bytes(data[position : position + 4])
            _check(count, MAX_ENTRIES, "frames of an animation")
    frames, pixels, largest = 0, 0, max((w * h for w, h in sizes), default=0)
    canvas = largest
    items = [*_items(data, boxes), *_first_frames(data, boxes)]
    _check(len(items), MAX_ITEMS, "items and tracks")
    used = sum(len(part) for _, parts in items for part in parts)
    _check(used, 2 * len(data) + MAX_OVERLAP, "bytes of all items")
    for number, parts in items:
        content = b"".join(parts)
        if kinds.get(number) == b"grid" and len(content) >= 8:
            shape = ">II" if content[1] & 1 else ">HH"
            with contextlib.suppress(struct.error):
                width, height = struct.unpack_from(shape, content, 4)
                canvas = max(canvas, width * height)
        elif kinds.get(number, b"av01") == b"av01":
            count, size = _coded_frames(content)
            frames = max(frames, count)
            pixels += count * size
            largest = max(largest, size)
    _check(pixels, MAX_CODED_PIXELS, "pixels in all frames of all items")
    held = largest * max(min(frames, _KEPT_FRAMES) - 1, 0) * 6
    return Decoding((_AVIF_BYTES * max(canvas, largest) + held + len(data),))


def _boxes(data: bytes, begin: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, begin and end of the content of all boxes, also inside of others."""
    while begin + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, begin)
        content = begin + 8
        if size == 1:
            size = int.from_bytes(data[content : content + 8])
            content += 8
        after = end if size == 0 else min(begin + size, end)
        if after < content:
            return
        yield kind, content, after
        if kind in _CONTAINERS:
            yield from _boxes(data, content + 4 * (kind == b"meta"), after)
        elif kind == b"iinf":
            wide = 4 if data[content : content + 1] != b"\0" else 2
            yield from _boxes(data, content + 4 + wide, after)
        begin = after


def _items(data, boxes):
    """Yield the number and the parts of each item of a file."""
    storage = next(iter(boxes.get(b"idat", [])), (0, 0))
    extents = 0
    for begin, end in boxes.get(b"iloc", []):
        take = _Fields(data[begin:end]).take
        version, _, sizes = take(1), take(3), take(2)
        offset_width, length_width = sizes >> 12, sizes >> 8 & 15
        base_width, index_width = sizes >> 4 & 15, sizes & 15 if version else 0
        number_width = 4 if version == 2 else 2
        count = take(number_width)
        _check(count, MAX_ITEMS, "items")
        for _ in range(count):
            number = take(number_width)
            method = take(2) & 15 if version else 0
            take(2)
            base = take(base_width) + (storage[0] if method else 0)
            parts = []
            for _ in range(take(2)):
                extents += 1
                _check(extents, MAX_ENTRIES, "parts of items")
                take(index_width)
                start, length = base + take(offset_width), take(length_width)
                stop = start + length if length else len(data)
                parts.append(memoryview(data)[start:stop])
            yield number, parts


class _Fields:
    """Integers of several bytes, one after the other."""

    def __init__(self, content: bytes):
        self.content, self.position = content, 0

    def take(self, width: int) -> int:
        self.position += width
        if self.position > len(self.content):
            raise ImageError("expected whole boxes of an AVIF, got a damaged one")
        return int.from_bytes(self.content[self.position - width : self.position])


def _first_frames(data, boxes):
    """Yield the content of the first frame of each track, which has no number."""
    tables = (boxes.get(kind, []) for kind in (b"stsz", b"stco", b"co64"))
    sizes, *offset_tables = ([begin for begin, _ in table] for table in tables)
    for size, (offsets, width) in zip(
        sizes,
        [(x, 4) for x in offset_tables[0]] + [(x, 8) for x in offset_tables[1]],
        strict=False,
    ):
        # The size of all frames, or 0 and a table of sizes.
        length = int.from_bytes(data[size + 4 : size + 8])
        length = length or int.from_bytes(data[size + 12 : size + 16])
        start = int.from_bytes(data[offsets + 8 : offsets + 8 + width])
        yield None, [memoryview(data)[start : start + length]]


def _coded_frames(data: bytes) -> tuple[int, int]:
    """Return how many frames a stream of AV1 has, and the pixels of the largest one."""
    position = frames = pixels = 0
    while position < len(data):
        head = data[position]
        kind = head >> 3 & 15
        position += 2 if head & 4 else 1
        size = len(data) - position
        if head & 2:
            size = shift = 0
            for byte in data[position : position + 8]:
                size |= (byte & 127) << shift
                shift += 7
                position += 1
                if byte < 128:
                    break
        if kind == 1:
            pixels = max(
                pixels, _sequence_pixels(data[position : position + size][:1_000])
            )
        frames += kind in (3, 6)
        position += size
    return frames, pixels


def _sequence_pixels(header: bytes) -> int:
    """Return the largest size of a frame that a sequence header of AV1 allows."""
    text = "".join(f"{byte:08b}" for byte in header)
    bits = iter(text.ljust(8 * 1_000, "0"))

    def take(count):
        return int("0" + "".join(itertools.islice(bits, count)), 2)

    def take_exponential():
        zeros = 0
        while zeros < 32 and not take(1):
            zeros += 1
        return take(zeros)

    take(4)
    if take(1):  # A reduced header, of a still image.
        take(5)
    else:
        delay_bits = has_model = 0
        if take(1):  # Timing.
            take(64)
            if take(1):
                take_exponential()
            if has_model := take(1):
                delay_bits = 1 + take(5)
                take(42)
        has_delays = take(1)
        for _ in range(1 + take(5)):
            take(12)
            if take(5) > 7:
                take(1)
            if has_model and take(1):
                take(2 * delay_bits + 1)
            if has_delays and take(1):
                take(4)
    width, height = 1 + take(4), 1 + take(4)
    return (1 + take(width)) * (1 + take(height))


# JPEG 2000
#
# The marks of segments, and those that OpenJPEG knows, which skips to them from others.
_SOT, _SOD, _SIZ, _COD, _COC = 0xFF90, 0xFF93, 0xFF51, 0xFF52, 0xFF53
_QCD, _QCC, _POC, _EOC = 0xFF5C, 0xFF5D, 0xFF5F, 0xFFD9
_KNOWN_MARKS = (*range(0xFF50, 0xFF66), *range(0xFF74, 0xFF79), 0xFF90, 0xFF93, 0xFFD9)
_CODESTREAM = re.compile(rb"\xff\x4f\xff\x51")
_MAX_LEVELS, _MAX_STYLES, _MAX_ORDERS = 32, 64, 33
# Bytes of the structures of OpenJPEG for a tile, a component of a tile, a code-block,
# and a precinct of a band.
_TILE_BYTES, _COMPONENT_BYTES, _BLOCK_BYTES, _PRECINCT_BYTES = 10_000, 1_200, 900, 350


def _jpeg2000(data: bytes) -> Decoding:
    # A file in boxes may have several codestreams, and OpenJPEG decodes one of them.
    codestreams = [
        _codestream(data, match.start())
        for match in itertools.islice(_CODESTREAM.finditer(data), MAX_SEGMENTS)
    ]
    codestreams = [memory for memory in codestreams if memory]
    if not codestreams:
        return Decoding()
    return Decoding(tuple(map(max, zip(*codestreams, strict=False))))


@dataclasses.dataclass
class _Grid:
    """The first and last coordinates of all tiles, along one side of the image."""

    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, start, end, tile_start, tile):
        count = -(-(end - tile_start) // tile)
        edges = tile_start + tile * np.arange(count + 1, dtype="int64")
        return cls(np.maximum(edges[:-1], start), np.minimum(edges[1:], end))

    def reduced(self, step):
        return _Grid(-(-self.first // step), -(-self.last // step))

    def cells(self, exponent):
        """Return the number of cells of a finer grid that each tile has."""
        step = 1 << exponent
        cells = -(-self.last // step) - self.first // step
        return np.where(self.last > self.first, cells, 0)


def _codestream(data: bytes, start: int) -> tuple[float, ...] | None:
    """Return the memory of a codestream at each size, or None if it is none."""
    size = data[start + 4 : start + 42]
    if len(size) < 38:
        return None
    length, _, x1, y1, x0, y0, tile_x, tile_y, tile_x0, tile_y0, count = struct.unpack(
        ">HHIIIIIIIIH", size
    )
    if length != 38 + 3 * count or not (tile_x and tile_y and x1 > x0 and y1 > y0):
        return None
    _check(count, MAX_COMPONENTS, "components of a JPEG 2000")
    steps = [data[start + 42 + 3 * n :][:3] for n in range(count)]
    tiles = -(-(x1 - tile_x0) // tile_x) * -(-(y1 - tile_y0) // tile_y)
    _check(tiles, MAX_TILES, "tiles of a JPEG 2000")
    across = _Grid.of(x0, x1, tile_x0, tile_x)
    down = _Grid.of(y0, y1, tile_y0, tile_y)
    styles, bits, layers, orders = _coding(data, start)
    if not styles or any(len(step) < 3 or not step[1] * step[2] for step in steps):
        return None
    levels = min(style.levels for _, style in styles)
    resolutions = 1 + max(style.levels for _, style in styles)
    numbers = [
        _structure(across, down, step, [x for n, x in styles if n in (None, component)])
        for component, step in enumerate(steps)
    ]
    totals = map(sum, zip(*numbers, strict=True))
    blocks, precincts, tile_blocks, tile_precincts = totals
    _check(precincts * layers, MAX_PACKETS, "precincts in all layers of a JPEG 2000")
    _check(blocks * layers, MAX_BLOCKS, "code-blocks in all layers of a JPEG 2000")
    # A progression by position visits all multiples of the smallest precincts.
    visited = count * resolutions * orders
    for n, grid in ((1, across), (2, down)):
        stride = min(
            step[n] * style.strides[n - 1] for step in steps for _, style in styles
        )
        visited *= int(((grid.last - grid.first) // stride + 1).sum())
    _check(visited, MAX_POSITIONS, "positions of the precincts of a JPEG 2000")
    fixed = tiles * (_TILE_BYTES + count * _COMPONENT_BYTES) + len(data)
    fixed += tile_blocks * _BLOCK_BYTES + tile_precincts * _PRECINCT_BYTES
    # The packets that have been read.
    fixed += 2 * (layers + 1) * resolutions * tile_precincts
    memory = []
    for reduction in range(levels + 1):
        whole = largest = 0
        for step in steps:
            x, y = (
                grid.reduced(step[n] or 1).reduced(1 << reduction)
                for grid, n in ((across, 1), (down, 2))
            )
            lengths, heights = x.last - x.first, y.last - y.first
            whole += int(lengths.sum()) * int(heights.sum())
            bytes_each = 4 + -(-(1 + (step[0] & 127)) // 8)
            largest += int(lengths.max()) * int(heights.max()) * bytes_each
        too_long = whole * bits > MAX_COEFFICIENT_BITS
        memory.append(math.inf if too_long else fixed + largest)
    if math.isinf(memory[-1]):
        _check(
            whole * bits,
            MAX_COEFFICIENT_BITS,
            "bits of the coefficients of a JPEG 2000",
        )
    return tuple(memory)


@dataclasses.dataclass(frozen=True)
class _Style:
    """How a component is coded.

    Code-blocks and precincts have powers of two as sizes, `(x, y)`; precincts differ
    by resolution, from the smallest one on.
    """

    levels: int
    block: tuple[int, int]
    precincts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, content, has_precincts):
        levels = content[0]
        _check(levels, _MAX_LEVELS, "levels of a JPEG 2000")
        precincts = content[5 : 6 + levels] if has_precincts else b""
        # Without sizes, a precinct is as large as possible.
        precincts = precincts.ljust(1 + levels, b"\xff")
        return cls(
            levels,
            (2 + (content[1] & 15), 2 + (content[2] & 15)),
            tuple((size & 15, size >> 4) for size in precincts),
        )

    @property
    def strides(self):
        """The smallest precinct in pixels of the component, for each side."""
        sizes = enumerate(self.precincts)
        exponents = [(x + self.levels - n, y + self.levels - n) for n, (x, y) in sizes]
        return tuple(1 << min(side) for side in zip(*exponents, strict=True))


def _structure(across, down, step, styles):
    """Return numbers of code-blocks and precincts in all tiles, and in the largest one.

    Of several styles, tiles may have any, so that each number is that of the worst one.
    The precincts of a tile are counted for each band, as OpenJPEG allocates them.
    """
    counts_by_style = []
    for style in styles:
        numbers = np.zeros(4, "int64")
        for resolution, (x, y) in enumerate(style.precincts):
            left = style.levels - resolution
            is_lowest = resolution == 0
            bands = 1 if is_lowest else 3
            counts = []
            for n, grid, exponent in ((0, across, x), (1, down, y)):
                grid = grid.reduced(step[1 + n])
                precincts = grid.reduced(1 << left).cells(exponent)
                band = grid.reduced(1 << (left if is_lowest else left + 1))
                inner = exponent if is_lowest else max(exponent - 1, 0)
                counts.append((precincts, band.cells(min(inner, style.block[n]))))
            (wide, wide_blocks), (tall, tall_blocks) = counts
            numbers += (
                bands * wide_blocks.sum() * tall_blocks.sum(),
                wide.sum() * tall.sum(),
                bands * wide_blocks.max() * tall_blocks.max(),
                bands * wide.max() * tall.max(),
            )
        counts_by_style.append(numbers)
    return np.max(counts_by_style, 0).tolist()


def _coding(data, start):
    """Return how a codestream is coded, in its main header and in those of its tiles.

    Returns pairs of a component, or None for all, and a `_Style`; the number of bits
    of a coefficient; the number of layers; and the number of orders of the packets.
    """
    styles, bits, layers, orders = set(), 0, 1, 1
    for mark, content in _segments_of_codestream(data, start):
        if mark == _COD and len(content) >= 10:
            layers = max(layers, int.from_bytes(content[2:4]))
            styles.add((None, _Style.of(content[5:], content[0] & 1)))
        elif mark == _COC and len(content) >= 7:
            styles.add((content[0], _Style.of(content[2:], content[1] & 1)))
        elif mark in (_QCD, _QCC):
            content = content[mark == _QCC :]
            is_exponent = content[:1] and not content[0] & 31
            exponents = [x >> 3 for x in content[1 :: 1 if is_exponent else 2]]
            if exponents:
                bits = max(bits, (content[0] >> 5) + max(exponents) - 1)
        elif mark == _POC:
            orders = min(orders + len(content) // 7, _MAX_ORDERS)
        _check(len(styles), _MAX_STYLES, "coding styles of a JPEG 2000")
    return styles, bits, layers, orders


def _segments_of_codestream(data, start):
    """Yield mark and content of the segments in all headers of a codestream."""
    position, part, size = start + 2, 0, 0
    parts = 0
    for number in itertools.count():
        _check(number, MAX_MARKS, "segments of a JPEG 2000")
        if position + 4 > len(data):
            return
        mark, length = struct.unpack_from(">HH", data, position)
        if mark == _SOT:
            parts += 1
            _check(parts, MAX_TILE_PARTS, "parts of the tiles of a JPEG 2000")
            part, size = position, int.from_bytes(data[position + 6 : position + 10])
        elif mark == _SOD:
            # Without a size, a part is the last one.
            position = part + size
            if size < 14 or data[position : position + 2] != b"\xff\x90":
                return
            continue
        elif mark == _EOC or length < 2:
            return
        elif mark not in _KNOWN_MARKS:
            # OpenJPEG looks for the next mark that it knows.
            position += 2
            continue
        else:
            yield mark, data[position + 4 : position + 2 + length]
        position += 2 + length
