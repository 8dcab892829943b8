"""Limits of the images that are read, the same in every runtime.

All of them are checked before an image is decoded, except for the number of reads.
"""

import contextlib
import io
import re
import struct
import threading

from keras_attention_apps.common.cli import UserError

MAX_PIXELS = 178_956_970
# The largest side of a JPEG. Resizing a longer side needs gigabytes for its weights.
MAX_SIDE = 65_535
# For images of more pixels, the number of pixels per byte of the file is limited.
FEW_PIXELS = 2**24
MAX_PIXELS_PER_BYTE = 10_000
# Maximum number of scans of a JPEG, each of the whole image. Up to twenty are usual.
MAX_SCANS = 100
# Maximum number of segments of a JPEG, and of comments in a Netpbm file of text.
MAX_SEGMENTS = 1_000
# Maximum number of pixels of a JPEG, times the number of its scans.
MAX_SCANNED_PIXELS = 2**31
# Maximum number of bytes of the tags of a JPEG. Pillow copies them for each segment.
MAX_TAG_BYTES = 2**22
# Maximum number of strips or tiles of a TIFF.
MAX_STRIPS = 2**17
# Maximum number of values, and of bytes, of an image that Pillow decodes in Python.
MAX_PYTHON_VALUES = 9_000_000
# Maximum number of reads of the header of a file, and of the image after it. The image
# may be read once more for every `BYTES_PER_READ`.
MAX_READS = 10_000
MAX_IMAGE_READS = 2**17
BYTES_PER_READ = 128
# JPEGs of more pixels are decoded at half their width and height.
HALVED_PIXELS = 2**26

# Memory of all images that are decoded at the same time, in bytes. A larger image
# waits until it is alone.
MEMORY = 2**31

# The beginning of a segment of a JPEG; in the data of a scan, 0xff is followed by 0 or
# by the mark of a restart.
_SEGMENT = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
END, SCAN = 0xD9, 0xDA

# Bytes of a value of each type in TIFF's format, and the tags of the places and sizes
# of strips and tiles.
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4}
_VALUE_BYTES |= {12: 8, 13: 4, 16: 8}
_STRIPS = (273, 279, 324, 325)

TOO_MANY_SCANS = (
    f"expected a JPEG of at most {MAX_SCANS} scans and {MAX_SEGMENTS} segments, and of "
    f"at most {MAX_SCANNED_PIXELS} pixels in all scans, got more"
)


def problem_of_size(width, height, length=None, max_pixels=None):
    """Return an error message for the size of an image, or `None` if it is allowed.

    Args:
        width, height: Its sides in pixels.
        length: Bytes of its file, if there is one.
        max_pixels: Maximum number of pixels, by default `MAX_PIXELS`.
    """
    # Without a file, the limit of pixels per byte does not apply.
    checks = checks_of_size(width, height, length or width * height, max_pixels)
    for exceeds, message in checks:
        if exceeds:
            return message.format(size=f"{width} x {height}", length=length)
    return None


def checks_of_size(width, height, length, max_pixels=None):
    """Return the checks of the size of an image, the most important one first.

    Args:
        width, height, length: Numbers, or integer tensors in a graph.
        max_pixels: As for `problem_of_size`.

    Returns:
        Pairs of whether a limit is exceeded, and the message if so, which has the
        fields `{size}` and `{length}`.
    """
    pixels = width * height
    expands = pixels > MAX_PIXELS_PER_BYTE * length
    return [
        (
            pixels > (max_pixels or MAX_PIXELS),
            too_many_pixels("{size}", max_pixels or MAX_PIXELS),
        ),
        (
            (width > MAX_SIDE) | (height > MAX_SIDE),
            f"expected sides of at most {MAX_SIDE} pixels, got {{size}} pixels",
        ),
        (
            expands & (pixels > FEW_PIXELS),
            f"expected at most {MAX_PIXELS_PER_BYTE} pixels for each byte, "
            "got {size} pixels in {length} bytes",
        ),
    ]


def too_many_pixels(size, max_pixels):
    """Return the error message for the number of pixels, `size`."""
    return f"expected at most {max_pixels} pixels, got {size} pixels"


def problem_of_file(data):
    """Return an error message for a file that takes long to open, or `None`.

    Pillow reads the comments and the tags of a file, whatever their number, before the
    size of the image is known.

    Args:
        data: The bytes of the file.
    """
    if data.startswith(b"\xff\xd8"):
        return _problem_of_segments(data)
    comments = data.count(b"#") if re.match(b"P[123]", data) else 0
    if comments > MAX_SEGMENTS:
        return f"expected at most {MAX_SEGMENTS} comments, got {comments}"
    return problem_of_tags(data)


def _problem_of_segments(data):
    """Return an error message for the segments before the first scan, or `None`."""
    # Pillow joins the segments of a kind.
    found = {b"\xe1Exif\0\0": b"", b"\xe2MPF\0": b""}
    for number, (mark, start) in enumerate(_segments(data)):
        if mark == SCAN:
            break
        if number == MAX_SEGMENTS:
            return TOO_MANY_SCANS
        for kind in found:
            begin = start + 1 + len(kind)
            if mark == kind[0] and data[start + 2 : begin] == kind[1:]:
                end = start + int.from_bytes(data[start : start + 2])
                found[kind] += data[begin:end]
                if len(found[kind]) > MAX_TAG_BYTES:
                    return f"expected at most {MAX_TAG_BYTES} bytes of tags, got more"
    return next(filter(None, map(problem_of_tags, found.values())), None)


def problem_of_tags(block):
    """Return an error message for overlapping values of tags, or `None`.

    Pillow copies the values of all tags.

    Args:
        block: Bytes in TIFF's format, which may follow the mark of Exif. In another
            format, there are no tags.
    """
    block = memoryview(block.removeprefix(b"Exif\0\0"))
    is_big = 43 in block[2:4]
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    offset, counted, entry = ("Q", "Q", "HHQQ") if is_big else ("I", "H", "HHII")
    total = 0
    try:
        (first,) = struct.unpack_from(order + offset, block, 8 if is_big else 4)
        (count,) = struct.unpack_from(order + counted, block, first)
        place = first + struct.calcsize(order + counted)
        for _ in range(count):
            tag, kind, values, begin = struct.unpack_from(order + entry, block, place)
            place += struct.calcsize(order + entry)
            size = values * _VALUE_BYTES.get(kind, 0)
            if size > struct.calcsize(offset) and begin + size > len(block):
                # Pillow ignores this tag and all that follow.
                break
            total += size
            if total > 2 * len(block):
                return f"expected tags of {len(block)} bytes in all, got more"
            if tag in _STRIPS and values > MAX_STRIPS:
                return f"expected at most {MAX_STRIPS} strips or tiles, got {values}"
    except (TypeError, OverflowError, struct.error):
        # Another format, or a truncated file.
        return None
    return None


def problem_of_python(values, length):
    """Return an error message for an image that Pillow decodes in Python, or `None`.

    Args:
        values: Number of its values, those of all channels.
        length: Bytes of its file.
    """
    if max(values, length) <= MAX_PYTHON_VALUES:
        return None
    return (
        f"expected at most {MAX_PYTHON_VALUES} values and bytes in a bitmap with run "
        f"lengths, or a Netpbm file of text or with an unusual maximum, got {values} "
        f"values in {length} bytes"
    )


def problem_of_scans(pixels, data):
    """Return an error message for the scans of a JPEG, or `None`.

    Args:
        pixels: Number of its pixels.
        data: The bytes of the file.
    """
    scans = count_scans(data)
    exceeds = scans > MAX_SCANS or scans * pixels > MAX_SCANNED_PIXELS
    return TOO_MANY_SCANS if exceeds else None


def count_scans(data):
    """Return the number of scans of a JPEG, or one too many if a limit is exceeded."""
    scans = 0
    for number, (mark, _) in enumerate(_segments(data)):
        scans += mark == SCAN
        if scans > MAX_SCANS or number == MAX_SEGMENTS:
            return MAX_SCANS + 1
    return scans


def _segments(data):
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


class BoundedFile(io.BytesIO):
    """A file in memory of which the number of reads is limited.

    Pillow reads at least once for each comment, chunk or strip.

    Attributes:
        reads: Number of reads that are left, at first those of the header.
    """

    reads = MAX_READS

    def read(self, size=-1):
        self.reads -= 1
        if self.reads < 0:
            raise UserError(
                "expected an image of fewer parts, such as comments, chunks or strips"
            )
        return super().read(size)


def image_reads(length):
    """Return the maximum number of reads of an image after its header.

    Args:
        length: Bytes of its file.
    """
    return MAX_IMAGE_READS + length // BYTES_PER_READ


class MemoryBudget:
    """Memory shared by concurrent tasks, reserved in the order of their requests.

    Args:
        size: Number of bytes.
    """

    def __init__(self, size):
        self.size = size
        self.used = 0
        self._change = threading.Condition()
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def reserve(self, amount):
        """Wait until this number of bytes is free, and reserve them in the context.

        An `amount` above the size of the budget reserves the whole budget.
        """
        amount = min(amount, self.size)
        # Others wait for their turn, so that small images do not pass a large one.
        with self._turn, self._change:
            self._change.wait_for(lambda: self.used + amount <= self.size)
            self.used += amount
        try:
            yield
        finally:
            with self._change:
                self.used -= amount
                self._change.notify_all()


MEMORY_BUDGET = MemoryBudget(MEMORY)
