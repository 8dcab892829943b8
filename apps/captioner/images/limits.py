"""Limits of the images that are read, the same in every runtime.

All of them are checked from the header of a file, before it is decoded.
"""

import contextlib
import re
import threading

MAX_PIXELS = 178_956_970
# The largest side of a JPEG. Resizing a longer side needs gigabytes for its weights.
MAX_SIDE = 65_535
# For images of more pixels, the number of pixels per byte of the file is limited.
FEW_PIXELS = 2**24
MAX_PIXELS_PER_BYTE = 10_000
# Maximum number of scans of a JPEG, each of the whole image. Up to twenty are usual.
MAX_SCANS = 100
# Maximum number of segments of a JPEG that are searched for scans.
MAX_SEGMENTS = 1_000
# JPEGs of more pixels are decoded at half their width and height.
HALVED_PIXELS = 2**26

# Memory of all images that are decoded at the same time, in bytes. A larger image
# waits until it is alone.
MEMORY = 2**31

# The beginning of a segment of a JPEG; in the data of a scan, 0xff is followed by 0 or
# by the mark of a restart.
_SEGMENT = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
END, SCAN = 0xD9, 0xDA

TOO_MANY_SCANS = (
    f"expected a JPEG of at most {MAX_SCANS} scans and {MAX_SEGMENTS} segments, "
    "got more"
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


def problem_of_scans(data):
    """Return an error message for the number of scans of a JPEG, or `None`."""
    return TOO_MANY_SCANS if count_scans(data) > MAX_SCANS else None


def count_scans(data):
    """Return the number of scans of a JPEG, or one too many if a limit is exceeded.

    Segments are followed from one to the next, since the data of one, such as a
    thumbnail, may look like a scan.
    """
    position, scans = 2, 0
    for _ in range(MAX_SEGMENTS):
        segment = _SEGMENT.search(data, position)
        if segment is None or segment[0][1] == END or scans > MAX_SCANS:
            return scans
        scans += segment[0][1] == SCAN
        # The length, which follows the mark, counts itself.
        start = segment.end()
        position = start + int.from_bytes(data[start : start + 2])
    return MAX_SCANS + 1


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
