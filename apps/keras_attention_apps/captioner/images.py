"""Images as upright RGB arrays: reading, the limits of time and memory, and folders.

All limits are checked before an image is decoded, except for the number of reads.
"""

import contextlib
import functools
import io
import itertools
import math
import os
import pathlib
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from keras_attention_apps.captioner.image_headers import (
    MAX_MEMORY,
    MAX_PIXELS,
    Decoding,
    ImageError,
    check_tags,
    inspect,
    too_many_pixels,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_open, read_file

# The largest side of a JPEG. Resizing a longer side needs gigabytes for its weights.
MAX_SIDE = 65_535
# For images of more pixels, the number of pixels per byte of the file is limited.
FEW_PIXELS = 2**24
MAX_PIXELS_PER_BYTE = 10_000
# Maximum number of values, and of bytes, of an image that Pillow decodes in Python.
MAX_PYTHON_VALUES = 9_000_000
# Maximum number of reads of the header of a file, and of the image after it. The image
# may be read once more for every `BYTES_PER_READ`.
MAX_READS = 10_000
MAX_IMAGE_READS = 2**17
BYTES_PER_READ = 128
# Images of more pixels are read at half of their width and height.
HALVED_PIXELS = 2**26
# Memory of all images that are decoded at the same time, in bytes. A larger image
# waits until it is alone.
MEMORY = 2**31


def is_folder_of(folder: os.PathLike[str], paths: Iterable[pathlib.Path]) -> bool:
    """Return whether a folder, or an image in it, is among the given paths."""
    folders = [x if os.path.isdir(x) else x.parent for x in paths if not is_open(x)]
    return os.path.realpath(folder) in map(os.path.realpath, folders)


# Fewer than Pillow supports: its reader of EPS, for example, runs Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# Bytes per pixel of the modes of Pillow that have fewer than four.
_MODE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
# Pixels of the parts in which a large image is converted, and bytes that each needs.
_PART = 2**20
_PART_BYTES = 32

# Suffixes of common image formats that are not supported.
UNSUPPORTED_SUFFIXES = (
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"),
    *(".cur", ".dds", ".emf", ".eps", ".exr", ".hdr", ".heic", ".heif", ".icns"),
    *(".ico", ".jxl", ".jxr", ".pcx", ".psd", ".qoi", ".svg", ".tga", ".wmf", ".xcf"),
)
# Number of folders that are searched for images that a command leaves out.
_FOLDERS_LOOKED_AT = 1000
_ORIENTATION = 0x0112
# The text of a PNG that contains the tags of Exif in hexadecimal digits.
_RAW_EXIF = "Raw profile type exif"
# The entry of the tags of Exif in the list of the items of an AVIF file.
_EXIF_ITEM = re.compile(rb"(infe[\2\3]...(?:..|....)..)Exif", re.DOTALL)
# The chunk that makes a PNG an animation, for which Pillow keeps a second image.
_ANIMATION = re.compile(rb"\0\0\0\x08acTL.{12}", re.DOTALL)
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


def read_image(
    source: Any, *, draft: bool = False, max_pixels: int | None = None
) -> Image.Image:
    """Read an image as an upright RGB image, or raise an `ImageError`.

    The EXIF orientation is applied, transparent parts become white, and an animation
    gives its first frame. White is 65535 in images of 16 bits. In Pillow's mode `I` it
    is 255, or 65535 if any value exceeds 255; in mode `F` 1, or 255 if any exceeds 1.

    Args:
        source: Path, `ArchivedFile`, `OpenFile`, `bytes`, binary file (read from its
            start if it can seek), `PIL.Image.Image`, or array. An array has the shape
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
    # Several threads may read the same image object or open file.
    shared = isinstance(source, Image.Image) or hasattr(source, "read")
    with contextlib.ExitStack() as stack:
        try:
            if shared:
                stack.enter_context(_source_lock)
            image, decoding = _open(source, max_pixels)
            memory = _reduce(image, draft, decoding)
            stack.enter_context(MEMORY_BUDGET.reserve(memory))
            # Each step reuses the name, so that the image of the step before is freed.
            image, turn = _loaded(image, decoding is not None)
            is_large = image.width * image.height > HALVED_PIXELS
            image = _to_rgb(image, is_large and decoding is not None)
            image = image if turn is None else image.transpose(turn)
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


def _reduce(image: Any, draft: bool, decoding: Decoding | None) -> int:
    """Choose the size to decode, if the format supports smaller ones.

    An image object that was given is left as it is. Returns the bytes of memory that
    the image needs, at most, until it is resized.
    """
    width, height = image.size
    each = _MODE_BYTES.get(image.mode, 4)
    # The image beside its copy in mode RGB.
    if decoding is None:
        return width * height * (each + 4)
    first, last = 0, len(decoding.memory) - 1
    if draft and image.format == "JPEG":
        first = last
    elif width * height > HALVED_PIXELS:
        first = min(1, last)
    for reduction in range(first, last + 1):
        scale = 1 << reduction
        pixels = -(-width // scale) * -(-height // scale)
        decoded = decoding.memory[reduction] + pixels * each
        if decoded > MAX_MEMORY:
            continue
        if image.format == "JPEG2000":
            image.reduce = reduction
            # Pillow rounds the smaller size, which the decoder rounds up.
            image._size = tuple(-(-side // scale) * scale for side in image.size)
        elif reduction:
            image.draft("RGB", (max(width // scale, 1), max(height // scale, 1)))
        converted = pixels * (each + (1 if pixels > HALVED_PIXELS else 4))
        return int(max(decoded, converted)) + min(pixels, _PART) * _PART_BYTES
    raise ImageError(
        f"expected an image that takes at most {MAX_MEMORY // 10**6} MB to decode, got "
        f"{width} x {height} pixels in {image.format}, which take "
        f"{decoded / 10**6:.0f} MB"
    )


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


def find_images(
    folder: pathlib.Path, *, recursive: bool = False
) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Return the images in a folder, and those of formats that are not supported.

    Both are lists of paths, sorted by name. The images in the folders inside it count
    if `recursive`; hidden files and folders never do.
    """
    try:
        if recursive:
            entries = sorted(_files_below(folder))
        else:
            entries = sorted(folder.iterdir())
    except OSError as error:
        name = str(error.filename or folder)
        raise ImageError(f"Cannot list {name!r}: {_reason(error)}") from error
    visible = [x for x in entries if not x.name.startswith(".")]
    images = [x for x in visible if _is_image(x)]
    # Broken links and files without permission are reported when they are read.
    images = [x for x in images if os.path.isfile(x) or not os.path.exists(x)]
    if not images:
        actual = f"{len(entries)} others" if entries else "an empty folder"
        if not recursive and has_images_below(folder):
            actual += "; the folders inside it, which --recursive searches, have images"
        raise ImageError(
            f"No image in {str(folder)!r}: expected files of {', '.join(FORMATS)}, "
            f"got {actual}"
        )
    return images, [x for x in visible if x.suffix.lower() in UNSUPPORTED_SUFFIXES]


def has_images_below(folder: pathlib.Path) -> bool:
    """Return whether the folders inside a folder have images.

    Of a large tree, only the first folders are looked at.
    """
    walk = itertools.islice(_walk(folder), 1, _FOLDERS_LOOKED_AT)
    return any(_is_image(x) for _, paths in walk for x in paths)


def _files_below(folder):
    """Yield all files in a folder and those inside it."""

    def refuse(error):
        raise error

    for _, paths in _walk(folder, refuse):
        yield from paths


def _walk(folder, onerror=None):
    """Yield each folder that is not hidden, the given one first, and its files.

    Links to folders are not followed.
    """
    for path, folders, names in os.walk(folder, onerror=onerror):
        folders[:] = sorted(x for x in folders if not x.startswith("."))
        yield path, [pathlib.Path(path, name) for name in names]


def _is_image(path):
    """Return whether the name of a file is that of an image that can be read."""
    is_hidden = path.name.startswith(".")
    return not is_hidden and path.suffix.lower() in image_suffixes()


_source_lock = threading.Lock()
# Errors of an image, of its file, or of memory; other exceptions are bugs.
_ERRORS = (OSError, ValueError, MemoryError, Image.DecompressionBombError)


def _open(source, max_pixels):
    """Return an image that is not yet decoded, and what the decoder of a file needs."""
    if isinstance(source, np.ndarray):
        source = _array_to_image(source)
    if isinstance(source, Image.Image):
        check_size(*source.size, max_pixels=max_pixels)
        return source, None
    data = _read_bytes(source)
    image, decoding = _open_file(data)
    width, height = image.size
    check_size(width, height, len(data), max_pixels)
    if any(tile[0] in Image.DECODERS for tile in image.tile):
        values = width * height * len(image.getbands())
        if max(values, len(data)) > MAX_PYTHON_VALUES:
            raise ImageError(
                f"expected at most {MAX_PYTHON_VALUES} values and bytes in a bitmap "
                "with run lengths, or a Netpbm file of text or with an unusual "
                f"maximum, got {values} values in {len(data)} bytes"
            )
        image.fp.reads = math.inf
    return image, decoding


def _open_file(data):
    """Open an image file whose headers declare nothing that takes long to decode."""
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]
    with _errors_of_pillow():
        decoding = inspect(data)
        is_iso = data[4:8] == b"ftyp"
        if is_iso:
            # Pillow would read the tags, although they are not used for AVIF.
            data = _EXIF_ITEM.sub(rb"\1skip", data)
        elif data.startswith(b"\x89PNG"):
            data = _ANIMATION.sub(b"", data)
        file = BoundedFile(data)
        try:
            image = Image.open(file, formats=formats)
        except UnidentifiedImageError as error:
            actual = f"{len(data)} bytes that begin with {data[:16]!r}"
            if is_iso and b"avi" in data[8:64]:
                actual = (
                    "an AVIF image that is damaged, or that Pillow does not support"
                )
            elif is_iso and _HEIC.search(data[8:64]):
                actual = "a HEIC image; save it as JPEG"
            raise ImageError(
                f"expected an image of {', '.join(formats)}, got {actual}"
            ) from error
    file.reads = MAX_IMAGE_READS + len(data) // BYTES_PER_READ
    return image, decoding


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


def _loaded(image, is_file):
    """Decode an image; returns it, and how it is turned, or None."""
    with _errors_of_pillow():
        # Loading a TIFF would turn it, so that it is in memory twice.
        if image.format == "TIFF" and is_file:
            turn = image.getexif().pop(_ORIENTATION, None)
            image.load()
            return image._new(image.im), _TURNS.get(turn)
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
    # The same pixels, without the file and its decoder, which keeps its own.
    return (image._new(image.im) if is_file else image), turn


def _to_rgb(image, is_halved):
    """Return an image in mode RGB, converted in parts so that none is copied whole."""
    maximum = 65535
    if image.mode == "I":
        # Programs write photographs of 8 bits into TIFF files of 32, too.
        largest = max(np.asarray(part).max() for _, part in _parts(image))
        maximum = 255 if largest <= 255 else 65535
    elif image.mode == "F":
        largest = max(_finite(part).max() for _, part in _parts(image))
        maximum = 1 if largest <= 1 else 255
    if image.width * image.height <= _PART and not is_halved:
        return _part_to_rgb(image, maximum)
    if image.mode == "RGB" and "transparency" not in image.info and not is_halved:
        return image
    step = 2 if is_halved else 1
    rgb = Image.new("RGB", (-(-image.width // step), -(-image.height // step)))
    for top, part in _parts(image):
        rgb.paste(_part_to_rgb(part, maximum).reduce(step), (0, top // step))
    return rgb


def _parts(image):
    """Yield the first row of every part of an image, and the part."""
    # An even number, of which parts can be halved.
    rows = max(_PART // image.width // 2, 1) * 2
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
            numbers = re.findall("[0-9]+ x [0-9]+|[0-9]+", str(error))
            return too_many_pixels(numbers[0], MAX_PIXELS)
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
    pixels, limit = width * height, max_pixels or MAX_PIXELS
    expands = pixels > MAX_PIXELS_PER_BYTE * length
    return [
        (pixels > limit, too_many_pixels("{} x {}", limit), (width, height)),
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
