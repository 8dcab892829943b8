"""Images as upright RGB arrays: reading, the limits of time and memory, and folders.

All limits are checked before an image is decoded, except for the number of reads.
"""

import contextlib
import functools
import io
import math
import os
import pathlib
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import OPEN_FILES, STANDARD_INPUT, read_file
from PIL import Image, UnidentifiedImageError

# Maximum number of pixels, which is Pillow's own.
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


class OpenFile(os.PathLike[str]):
    """An open file of the process, which may be a pipe: it is read only once."""

    def __init__(self, path: os.PathLike[str]):
        self.path = path
        self._content: bytes | None = None
        # Several threads may read it at the same time.
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    __fspath__ = __str__

    def read_bytes(self) -> bytes:
        with self._lock:
            if self._content is None:
                self._content = read_file(self.path)
            return self._content


def is_open(path: object) -> bool:
    """Return whether a path is that of an open file, whose content differs by run."""
    return str(path) == STANDARD_INPUT or str(path).startswith(OPEN_FILES)


def is_folder_of(folder: os.PathLike[str], given: Iterable[pathlib.Path]) -> bool:
    """Return whether a folder, or an image in it, is among the given paths."""
    folders = [x if os.path.isdir(x) else x.parent for x in given if not is_open(x)]
    return os.path.realpath(folder) in map(os.path.realpath, folders)


def with_open_files(paths: Iterable[os.PathLike[str]]) -> list[os.PathLike[str]]:
    """Return paths, with one `OpenFile` in place of each path of an open file."""
    found = {path: OpenFile(path) for path in paths if is_open(path)}
    return [found.get(path, path) for path in paths]


# Fewer than Pillow supports: its reader of EPS, for example, runs Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# Formats that need less memory than others.
_LIGHT_FORMATS = ("BMP", "GIF", "PNG", "PPM", "TIFF")
# Maximum bytes per pixel while an image of these, or another format, is decoded and
# converted.
_LIGHT_BYTES, _OTHER_BYTES = 8, 16
# Bytes per pixel of the coefficients of a progressive JPEG.
_COEFFICIENT_BYTES = 6
# Pixels of the parts in which a large image is converted.
_PART = 2**22

# Suffixes of common image formats that are not supported.
UNSUPPORTED_SUFFIXES = (
    *(".arw", ".cr2", ".dng", ".heic", ".heif"),
    *(".jxl", ".nef", ".psd", ".svg"),
)
_ORIENTATION = 0x0112
# The text of a PNG that contains the tags of Exif in hexadecimal digits.
_RAW_EXIF = "Raw profile type exif"
# The entry of the tags of Exif in the list of the items of an AVIF file.
_EXIF_ITEM = re.compile(rb"(infe[\2\3]...(?:..|....)..)Exif", re.DOTALL)
# The brands of HEIC files, which also have the suffixes of JPEGs.
_HEIC = re.compile(b"he(?:ic|ix|im|is|vc|vx)|mif1|msf1")

# For each EXIF orientation, the operation that makes an image upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(UserError):
    """An image that cannot be read; the message is one line with the reason."""


def read_image(
    source: Any, *, draft: bool = False, max_pixels: int | None = None
) -> Image.Image:
    """Read an image as an upright RGB image, or raise an `ImageError`.

    The EXIF orientation is applied, transparent parts become white, and an animation
    gives its first frame. White is 65535 in images of 16 bits and of Pillow's mode `I`.
    In mode `F` it is 1, or 255 if any value exceeds 1.

    Args:
        source: Path, `ArchivedFile`, `OpenFile`, `bytes`, binary file (read from its
            start if it can seek), `PIL.Image.Image`, or array of shape
            `(height, width)` or `(height, width, channels)` with 1, 3 or 4 channels, of
            uint8, uint16 or floats in [0, 1].
        draft: Whether a JPEG may be decoded at an eighth of its size, which is much
            faster.
        max_pixels: Maximum number of pixels; `MAX_PIXELS` if omitted.
    """
    with _decoded(source, draft, max_pixels) as image:
        return image.copy() if image is source else image


def read_array(
    source: Any, size: int, box: Sequence[float] | None = None
) -> np.ndarray:
    """Read an image, and resize it to a square `(size, size, 3)` of uint8.

    With a `box`, `(left, top, right, bottom)` as fractions of width and height, only
    this rectangle. All threads share the memory budget `MEMORY`: an image waits until
    the memory that it needs is free.
    """
    with _decoded(source) as image:
        pixels = None if box is None else np.multiply(box, image.size * 2).tolist()
        return image_to_array(image, size, pixels)


@contextlib.contextmanager
def _decoded(source, draft=False, max_pixels=None):
    """Yield an image as an upright RGB image, in memory that is reserved for it."""
    is_given = isinstance(source, Image.Image)
    # Several threads may read the same image object or open file.
    shared = is_given or hasattr(source, "read")
    with contextlib.ExitStack() as stack:
        try:
            if shared:
                stack.enter_context(_source_lock)
            image = _open(source, max_pixels)
            memory = _reduce(image, draft, is_given)
            stack.enter_context(MEMORY_BUDGET.reserve(memory))
            # Each step reuses the name, so that the image of the step before is freed.
            image = _upright(image)
            image = _to_rgb(image)
        except _ERRORS as error:
            is_file = isinstance(source, (str, os.PathLike))
            is_file |= hasattr(source, "read_bytes")
            name = repr(str(source)) if is_file else f"the given {_type(source)}"
            reason = " ".join(_reason(error).split())
            raise ImageError(f"Cannot read {name}: {reason}") from error
        yield image


@contextlib.contextmanager
def _errors_of_pillow() -> Iterator[None]:
    """Turn all errors of Pillow, which may have any type, into `ImageError`s."""
    try:
        yield
    except Exception as error:
        raise ImageError(_reason(error)) from error


def _reduce(image, draft, is_given):
    """Choose a smaller size to decode, if the format supports one.

    An image object that was given is left as it is. Returns the bytes of memory that
    the image then needs, at most, until it is resized.
    """
    pixels = image.width * image.height
    is_large = pixels > HALVED_PIXELS and not is_given
    # A progressive JPEG keeps all its coefficients, whatever size is decoded.
    kept = pixels * _COEFFICIENT_BYTES if "progressive" in image.info else 0
    if draft and not is_given:
        image.draft("RGB", (1, 1))
    elif is_large and image.format == "JPEG2000":
        image.reduce = 1
    elif is_large:
        image.draft("RGB", (image.width // 2, image.height // 2))
    light = image.format in _LIGHT_FORMATS or image.format is None
    return kept + image.width * image.height * (_LIGHT_BYTES if light else _OTHER_BYTES)


def image_to_array(
    image: Image.Image, size: int, box: Sequence[float] | None = None
) -> np.ndarray:
    """Resize an RGB image, or a rectangle of it in pixels, to a square of uint8.

    The longer side is resized first, and the result is rounded: which side Pillow
    resizes first depends on its version.
    """
    if image.mode != "RGB" or size < 1:
        raise ValueError(
            "expected an image of mode RGB and a positive size, "
            f"got mode {image.mode} and size {size}"
        )
    width, height = image.size
    left, top, right, bottom = box or (0, 0, width, height)
    bilinear = Image.Resampling.BILINEAR
    if height > width:
        image = image.resize((width, size), bilinear, (0, top, width, bottom))
        image = image.resize((size, size), bilinear, (left, 0, right, size))
    else:
        image = image.resize((size, height), bilinear, (left, 0, right, height))
        image = image.resize((size, size), bilinear, (0, top, size, bottom))
    return np.array(image)


@functools.cache
def image_suffixes() -> frozenset[str]:
    """Return the set of the suffixes of images that can be read, in lower case."""
    known = Image.registered_extensions()
    # Pillow opens files of several JPEGs as the first of them.
    formats = (*FORMATS, "MPO")
    return frozenset(suffix for suffix, name in known.items() if name in formats)


def find_images(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Return the images directly inside a folder, and those of formats not supported.

    Both are lists of paths, sorted by name.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ImageError(f"Cannot list {str(folder)!r}: {_reason(error)}") from error
    shown = [x for x in entries if not x.name.startswith(".")]
    images = [x for x in shown if x.suffix.lower() in image_suffixes()]
    # Broken links and files without permission are reported when they are read.
    images = [x for x in images if os.path.isfile(x) or not os.path.exists(x)]
    if not images:
        found = f"{len(entries)} others" if entries else "an empty folder"
        raise ImageError(
            f"No image in {str(folder)!r}: expected files of {', '.join(FORMATS)}, "
            f"got {found}"
        )
    return images, [x for x in shown if x.suffix.lower() in UNSUPPORTED_SUFFIXES]


_source_lock = threading.Lock()
# Errors of an image, of its file, or of memory; other exceptions are bugs.
_ERRORS = (OSError, ValueError, MemoryError, Image.DecompressionBombError)


def _open(source, max_pixels):
    if isinstance(source, np.ndarray):
        source = _array_to_image(source)
    if isinstance(source, Image.Image):
        check_size(*source.size, max_pixels=max_pixels)
        return source
    data = _read_bytes(source)
    image, scans = _open_file(data)
    width, height = image.size
    check_size(width, height, len(data), max_pixels)
    pixels = width * height
    if scans * pixels > MAX_SCANNED_PIXELS:
        raise ImageError(TOO_MANY_SCANS)
    if any(tile[0] in Image.DECODERS for tile in image.tile):
        values = pixels * len(image.getbands())
        if max(values, len(data)) > MAX_PYTHON_VALUES:
            raise ImageError(
                f"expected at most {MAX_PYTHON_VALUES} values and bytes in a bitmap "
                "with run lengths, or a Netpbm file of text or with an unusual "
                f"maximum, got {values} values in {len(data)} bytes"
            )
        image.fp.reads = math.inf
    return image


def _open_file(data):
    """Open an image file whose header does not take long to read.

    Returns the image, and the number of scans of a JPEG; 0 for other formats.
    """
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    with _errors_of_pillow():
        scans = check_file(data)
        is_iso = data[4:8] == b"ftyp"
        if is_iso:
            # Pillow would read the tags, although they are not used for AVIF.
            data = _EXIF_ITEM.sub(rb"\1skip", data)
        file = BoundedFile(data)
        try:
            image = Image.open(file, formats=formats)
        except UnidentifiedImageError as error:
            found = f"{len(data)} bytes that begin with {data[:16]!r}"
            if is_iso and b"avi" in data[8:64]:
                found = "an AVIF image that is damaged, or that Pillow does not support"
            elif is_iso and _HEIC.search(data[8:64]):
                found = "a HEIC image; save it as JPEG"
            raise ImageError(
                f"expected an image of {', '.join(formats)}, got {found}"
            ) from error
    file.reads = MAX_IMAGE_READS + len(data) // BYTES_PER_READ
    return image, scans


def _read_bytes(source):
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    # An `OpenFile` or an `ArchivedFile`.
    elif hasattr(source, "read_bytes") and not isinstance(source, pathlib.PurePath):
        data = source.read_bytes()
    elif isinstance(source, (str, os.PathLike)):
        # On Windows, the error would be one of permissions.
        if os.path.isdir(source):
            raise ImageError("expected an image file, got a folder")
        data = read_file(source)
    elif hasattr(source, "read"):
        with contextlib.suppress(AttributeError, OSError):
            source.seek(0)
        data = source.read()
    else:
        raise ImageError(
            "expected a path, bytes, a binary file, a PIL image or a NumPy array, "
            f"got {_type(source)}"
        )
    if not data:
        raise ImageError("expected an image, got no data (0 bytes)")
    return data


def _array_to_image(array):
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.shape[2:] not in ((), (3,), (4,)) or array.ndim < 2 or not array.size:
        raise ImageError(
            "expected shape (height, width), or (height, width, 1, 3 or 4 channels), "
            f"got {array.shape}"
        )
    if array.dtype.kind == "f":
        low, high = array.min(), array.max()
        # Comparisons with NaN are false.
        if not (low >= 0 and high <= 1):
            raise ImageError(f"expected floats in [0, 1], got {low} to {high}")
        array = _to_8_bits(array, 1)
    elif array.dtype.name == "uint16":
        array = _to_8_bits(array, 65535)
    elif array.dtype.name != "uint8":
        raise ImageError(f"expected uint8, uint16 or floats, got {array.dtype}")
    return Image.fromarray(array)


def _upright(image):
    # Loading a TIFF turns it upright and updates its orientation.
    with _errors_of_pillow():
        image.load()
    # Pillow's own function also rewrites the other tags, which may be broken.
    try:
        exif = image.info.get("exif")
        raw = image.info.get(_RAW_EXIF)
        if exif is None and raw:
            exif = bytes.fromhex("".join(raw.split("\n")[3:]))
        check_tags(exif or b"")
        turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    except Exception:
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image):
    """Return an image in mode RGB, converted in parts so that none is copied whole."""
    maximum = 65535
    if image.mode == "F":
        most = max(_finite(part).max() for _, part in _parts(image))
        maximum = 1 if most <= 1 else 255
    if image.width * image.height <= _PART:
        return _part_to_rgb(image, maximum)
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    rgb = Image.new("RGB", image.size)
    for top, part in _parts(image):
        rgb.paste(_part_to_rgb(part, maximum), (0, top))
    return rgb


def _parts(image):
    """Yield the first row of every part of an image, and the part."""
    rows = max(_PART // image.width, 1)
    for top in range(0, image.height, rows):
        bottom = min(top + rows, image.height)
        yield top, image.crop((0, top, image.width, bottom))


def _part_to_rgb(image, maximum):
    """Return a part in mode RGB; `maximum` is that of the integer and float modes."""
    if image.mode.startswith("I"):
        values = np.asarray(image)
        grey = _to_8_bits(values, maximum)
        # Pillow would compare a transparent grey of 16 bits with values of 8 bits.
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        image = Image.fromarray(grey)
    elif image.mode == "F":
        image = Image.fromarray(_to_8_bits(_finite(image), maximum))
    with _errors_of_pillow():
        if image.has_transparency_data:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        return image.convert("RGB")


def _finite(image):
    return np.nan_to_num(np.asarray(image))


def _to_8_bits(values, maximum):
    scaled = np.clip(values, 0, maximum).astype("float32") * (255 / maximum)
    return np.rint(scaled).astype("uint8")


def _type(value: object) -> str:
    return type(value).__name__


def _reason(error: Exception) -> str:
    match error:
        case UserError():
            return str(error)
        case Image.DecompressionBombError():
            found = re.findall("[0-9]+ x [0-9]+|[0-9]+", str(error))
            return too_many_pixels(found[0], MAX_PIXELS)
        case OSError(strerror=str(reason)):
            return reason
        case _:
            return f"the image cannot be decoded ({_type(error)}: {error})"


def check_size(
    width: int, height: int, length: int | None = None, max_pixels: int | None = None
) -> None:
    """Raise an `ImageError` for an image that is too large, in a file of a length."""
    # Without a file, the limit of pixels per byte does not apply.
    checks = checks_of_size(width, height, length or width * height, max_pixels)
    for exceeds, message, values in checks:
        if exceeds:
            raise ImageError(message.format(*values))


def checks_of_size(width, height, length, max_pixels=None):
    """Return the checks of the size of an image, the most important one first.

    They are triples: whether a limit is exceeded, a message with fields `{}`, and the
    numbers of the fields. In a graph, sizes and numbers are tensors.
    """
    pixels, most = width * height, max_pixels or MAX_PIXELS
    expands = pixels > MAX_PIXELS_PER_BYTE * length
    return [
        (pixels > most, too_many_pixels("{} x {}", most), (width, height)),
        (
            (width > MAX_SIDE) | (height > MAX_SIDE),
            f"expected sides of at most {MAX_SIDE} pixels, got {{}} x {{}} pixels",
            (width, height),
        ),
        (
            expands & (pixels > FEW_PIXELS),
            f"expected at most {MAX_PIXELS_PER_BYTE} pixels for each byte, "
            "got {} x {} pixels in {} bytes",
            (width, height, length),
        ),
    ]


def too_many_pixels(size: str, max_pixels: int) -> str:
    return f"expected at most {max_pixels} pixels, got {size} pixels"


def check_file(data: bytes) -> int:
    """Raise an `ImageError` for a file that takes long to open.

    Pillow reads the comments and the tags of a file, whatever their number, before the
    size of the image is known. Returns the number of scans of a JPEG, otherwise 0.
    """
    if data.startswith(b"\xff\xd8"):
        return _check_segments(data)
    comments = data.count(b"#") if re.match(b"P[123]", data) else 0
    if comments > MAX_SEGMENTS:
        raise ImageError(f"expected at most {MAX_SEGMENTS} comments, got {comments}")
    check_tags(data)
    return 0


def _check_segments(data: bytes) -> int:
    """Check the number of the segments of a JPEG, and its tags; return the scans."""
    # Pillow joins the segments of a kind.
    found, scans = {b"\xe1Exif\0\0": b"", b"\xe2MPF\0": b""}, 0
    for number, (mark, start) in enumerate(_segments(data)):
        scans += mark == SCAN
        if scans > MAX_SCANS or number == MAX_SEGMENTS:
            raise ImageError(TOO_MANY_SCANS)
        for kind in () if scans else found:
            begin = start + 1 + len(kind)
            if mark == kind[0] and data[start + 2 : begin] == kind[1:]:
                end = start + int.from_bytes(data[start : start + 2])
                found[kind] += data[begin:end]
                if len(found[kind]) > MAX_TAG_BYTES:
                    raise ImageError(
                        f"expected at most {MAX_TAG_BYTES} bytes of tags, got more"
                    )
    for block in found.values():
        check_tags(block)
    return scans


def check_tags(tags: bytes) -> None:
    """Raise an `ImageError` for overlapping values of tags, all of which Pillow copies.

    Another format, or a truncated file, has no tags to check.
    """
    block = memoryview(tags.removeprefix(b"Exif\0\0"))
    is_big = 43 in block[2:4]
    order = {b"II": "<", b"MM": ">"}.get(bytes(block[:2]))
    if order is None:
        return
    offset, counted, entry = ("Q", "Q", "HHQQ") if is_big else ("I", "H", "HHII")
    total = 0
    with contextlib.suppress(OverflowError, struct.error):
        (first,) = struct.unpack_from(order + offset, block, 8 if is_big else 4)
        (count,) = struct.unpack_from(order + counted, block, first)
        place = first + struct.calcsize(order + counted)
        for _ in range(count):
            tag, kind, values, begin = struct.unpack_from(order + entry, block, place)
            place += struct.calcsize(order + entry)
            size = values * _VALUE_BYTES.get(kind, 0)
            if size > struct.calcsize(offset) and begin + size > len(block):
                # Pillow ignores this tag and all that follow.
                return
            total += size
            if total > 2 * len(block):
                raise ImageError(
                    f"expected tags of {len(block)} bytes in all, got more"
                )
            if tag in _STRIPS and values > MAX_STRIPS:
                raise ImageError(
                    f"expected at most {MAX_STRIPS} strips or tiles, got {values}"
                )


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


class BoundedFile(io.BytesIO):
    """A file in memory of which the number of reads is limited.

    Pillow reads at least once for each comment, chunk or strip.
    """

    # Number of reads that are left, at first those of the header.
    reads = MAX_READS

    def read(self, size: int | None = -1) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise UserError(
                "expected an image of fewer parts, such as comments, chunks or strips"
            )
        return super().read(size)


class MemoryBudget:
    """Memory that concurrent tasks reserve, in the order of their requests."""

    def __init__(self, size: int):
        self.size = size
        self.used = 0
        self._change = threading.Condition()
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
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
