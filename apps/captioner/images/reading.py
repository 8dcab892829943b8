"""Reads the pictures that people really have into upright RGB images."""

import contextlib
import io
import os
import pathlib
import re
import threading

import numpy as np
from keras_attention_apps.captioner.data.archives import ArchivedFile
from keras_attention_apps.common.cli import UserError
from PIL import Image, UnidentifiedImageError

MAX_PIXELS = 178_956_970

# Not all that Pillow knows: its reader of EPS, for one, runs Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# Suffixes of others that telephones, cameras and programs write.
UNREAD = (".arw", ".cr2", ".dng", ".heic", ".heif", ".jxl", ".nef", ".psd", ".svg")

_ORIENTATION = 0x0112
# What makes a picture of that EXIF orientation upright.
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
    """A picture cannot be read; the message is one line that says why."""


def read_image(source, *, draft=False):
    """Reads a picture as an upright RGB image.

    The EXIF orientation is applied, transparency shows white, and an animation gives
    its first frame. Grey values of 16 bits, and of Pillow's integer mode `I`, count
    from 0 to 65535; those of mode `F` from 0 to 1, or to 255 if one exceeds 1.

    Args:
        source: Path, `ArchivedFile`, `bytes`, binary file (read from its start if it
            can seek), `PIL.Image.Image`, or array of shape `(height, width)` or
            `(height, width, channels)` with 1, 3 or 4 channels, of uint8, uint16 or
            floats in [0, 1].
        draft: Whether a JPEG may become an eighth as wide and high, which is much
            faster.

    Returns:
        `PIL.Image.Image` of mode `RGB`.

    Raises:
        ImageError: If `source` cannot be opened, is no picture of one of `FORMATS`,
            is broken, or claims more than `MAX_PIXELS` pixels.
    """
    # A picture or an open file may be given to several threads.
    shared = isinstance(source, Image.Image) or hasattr(source, "read")
    try:
        with _pixel_limit(), _one_at_a_time if shared else contextlib.nullcontext():
            image = _open(source)
            if draft:
                image.draft("RGB", (1, 1))
            return _to_rgb(_upright(image))
    # A broken header leads Pillow's readers into nearly every type of exception.
    except Exception as error:
        is_path = isinstance(source, (str, os.PathLike, ArchivedFile))
        name = repr(str(source)) if is_path else f"the given {_type(source)}"
        reason = " ".join(_reason(error).split())
        raise ImageError(f"Cannot read {name}: {reason}") from error


def image_to_array(image, size, box=None):
    """Resizes a picture, or a rectangle of it, to a square.

    First along the longer side of the picture, and rounded between: where Pillow
    begins depends on its version.

    Args:
        image: RGB picture, as `read_image` returns it.
        size: Positive integer, height and width of the result.
        box: What to keep, `(left, top, right, bottom)` in pixels, which may be
            fractions; all of the picture if omitted.

    Returns:
        uint8 array of shape `(size, size, 3)`.

    Raises:
        ValueError: If `image` is not of mode `RGB` or `size` is not positive.
    """
    if image.mode != "RGB" or size < 1:
        raise ValueError(
            "expected a picture of mode RGB and a positive size, "
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


def find_images(paths):
    """Replaces every folder by the pictures directly inside it, sorted by name.

    Args:
        paths: Iterable of paths; what is not a folder is kept, even if missing.

    Returns:
        List of `pathlib.Path`.

    Raises:
        ImageError: If a folder cannot be listed or holds no picture.
    """
    found = []
    for path in map(pathlib.Path, paths):
        found.extend(_pictures_inside(path) if os.path.isdir(path) else [path])
    return found


def find_unreadable(folder):
    """The pictures directly inside a folder that are of no format which is read.

    Args:
        folder: Path; what is not a folder holds none.

    Returns:
        List of `pathlib.Path`.
    """
    if not os.path.isdir(folder):
        return []
    return sorted(
        entry
        for entry in pathlib.Path(folder).iterdir()
        if entry.suffix.lower() in UNREAD and not entry.name.startswith(".")
    )


def _pictures_inside(folder):
    Image.init()
    known = Image.registered_extensions()
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ImageError(f"Cannot list {str(folder)!r}: {_reason(error)}") from error
    pictures = [
        entry
        for entry in entries
        if known.get(entry.suffix.lower()) in FORMATS
        and not entry.name.startswith(".")
        # A link to nothing, or what may not be seen, is told when it is read.
        and (os.path.isfile(entry) or not os.path.exists(entry))
    ]
    if not pictures:
        raise ImageError(
            f"No picture in {str(folder)!r}: expected files of {', '.join(FORMATS)}, "
            f"got {len(entries)} other entries"
        )
    return pictures


_one_at_a_time = threading.Lock()

# Pillow's limit is one variable per process: the first of the readers in several
# threads replaces it, the last one puts it back.
_lock = threading.Lock()
_readers = 0
_limit_before = None


class _Limit(int):
    """Pillow warns above its limit and refuses above twice that: here twice is once."""

    def __rmul__(self, factor):
        return int(self)


@contextlib.contextmanager
def _pixel_limit():
    global _readers, _limit_before
    with _lock:
        if not _readers:
            _limit_before = Image.MAX_IMAGE_PIXELS
            Image.MAX_IMAGE_PIXELS = _Limit(MAX_PIXELS)
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers:
                Image.MAX_IMAGE_PIXELS = _limit_before


def _open(source):
    if isinstance(source, np.ndarray):
        return _array_to_image(source)
    if not isinstance(source, Image.Image):
        data = _read_bytes(source)
        Image.init()
        try:
            formats = [name for name in FORMATS if name in Image.OPEN]
            source = Image.open(io.BytesIO(data), formats=formats)
        except UnidentifiedImageError as error:
            raise ImageError(
                f"expected a picture of {', '.join(FORMATS)}, "
                f"got {len(data)} bytes that begin with {data[:16]!r}"
            ) from error
    if source.width * source.height > MAX_PIXELS:
        raise Image.DecompressionBombError(f"{source.width} x {source.height}")
    return source


def _read_bytes(source):
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif isinstance(source, (str, os.PathLike)):
        # Windows would call this a lack of permission.
        if os.path.isdir(source):
            raise ImageError("expected a picture file, got a folder")
        with open(source, "rb") as file:
            data = file.read()
    elif isinstance(source, ArchivedFile):
        data = source.read_bytes()
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
        raise ImageError("expected a picture, got no data (0 bytes)")
    return data


def _array_to_image(array):
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.shape[2:] not in ((), (3,), (4,)) or array.ndim < 2 or not array.size:
        raise ImageError(
            "expected shape (height, width), with 1, 3 or 4 channels behind if any, "
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
    # TIFF is upright once it is loaded, and then says so.
    image.load()
    # Pillow's own function writes all other tags anew, of which any may be broken.
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION))
    except Exception:
        turn = None
    return image if turn is None else image.transpose(turn)


def _to_rgb(image):
    if image.mode.startswith("I"):
        values = np.asarray(image)
        grey = _to_8_bits(values, 65535)
        # Pillow compares the 16 bits of a transparent grey with 8 bits.
        if "transparency" in image.info:
            grey[values == image.info["transparency"]] = 255
        image = Image.fromarray(grey)
    elif image.mode == "F":
        values = np.nan_to_num(np.asarray(image))
        image = Image.fromarray(_to_8_bits(values, 1 if values.max() <= 1 else 255))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def _to_8_bits(values, maximum):
    scaled = np.clip(values, 0, maximum).astype("float32") * (255 / maximum)
    return np.rint(scaled).astype("uint8")


def _type(value):
    return type(value).__name__


def _reason(error):
    match error:
        case ImageError():
            return str(error)
        case Image.DecompressionBombError():
            found = re.search("[0-9]+ x [0-9]+|[0-9]+", str(error)).group()
            return f"expected at most {MAX_PIXELS} pixels, got {found} pixels"
        case OSError(strerror=str(reason)):
            return f"expected a picture, got {reason}"
        case _:
            return f"expected a whole picture, got {_type(error)}: {error}"
