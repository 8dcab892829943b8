"""Weight files: written in half precision, and checked before they are read."""

import contextlib
import io
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.cli import reason
from keras_attention_apps.common.files import atomic_path
from keras_attention_apps.common.reading import byte_limit
from keras_attention_apps.common.reading import check_bytes
from keras_attention_apps.common.reading import check_input

# Script that reads a file in another process. Its time limit is a constant number of
# seconds, plus the time of reading the file at this rate.
_READER = Path(__file__).with_name("read_hdf5.py")
_SECONDS = 60
_BYTES_PER_SECOND = 10_000_000


def check_weights(path, fewest=0, *, is_verified=False):
    """Check a `.weights.h5` file, before a network is built for it.

    Args:
        path: Name of the file.
        fewest: Lower bound of the number of weights that the configuration describes.
        is_verified: Whether the file has a digest, and has been compared with it. If
            not, another process reads it first, since some kinds of damage crash the
            HDF5 library.

    Raises:
        UserError: If the file is damaged, has fewer weights, or exceeds the limit of
            reading.
    """
    check_input(path)
    check_bytes(path.stat().st_size, path)
    if not is_verified:
        _read_elsewhere(path)
    with _reading(), h5py.File(path) as file:
        check_bytes(sum(_sizes(file, "nbytes")), path)
        count = sum(_sizes(file, "size"))
    if count < fewest:
        raise UserError(
            f"expected at least {fewest:,} weights, as its configuration describes. "
            f"Received: {count:,} in {path.name}"
        )


def load_weights(model, path):
    """Load a `.weights.h5` file into a built Keras model.

    Raises:
        UserError: If the file is damaged, or its weights do not fit.
    """
    largest = max(math.prod(weight.shape) for weight in model.weights)
    with _reading(), h5py.File(path) as file:
        found = max(_sizes(file, "size"), default=0)
    if found > largest:
        # Keras would read the array before it compares the shapes.
        raise UserError(
            f"expected arrays of at most {largest:,} numbers, as in the network. "
            f"Received: {found:,} in {path.name}"
        )
    with _reading():
        model.load_weights(path)


def _read_elsewhere(path):
    """Read an HDF5 file in another process, and raise a `UserError` if that crashes."""
    if not sys.executable or getattr(sys, "frozen", False):
        return
    # -P: a file in the working directory does not replace an installed package.
    command = sys.executable, "-P", _READER, path, str(byte_limit())
    seconds = _SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    try:
        ended = subprocess.run(command, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        message = f"cannot be read in {seconds} s"
    else:
        if ended.returncode == 0:
            return
        message = f"crashes the HDF5 library (exit status {ended.returncode})"
    raise UserError(f"{path.name} is damaged: it {message}")


@contextlib.contextmanager
def _reading():
    """Replace every error inside by a `UserError` with the reason.

    h5py and Keras fail with nearly every type of exception if a file is damaged.
    """
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        # Keras lists all layers that failed.
        message, _, _ = reason(error).partition(" List of objects")
        raise UserError(message) from error


def _sizes(file, kind):
    """Return the sizes of all arrays in a file: `"size"` in numbers, or `"nbytes"`."""
    sizes = []
    file.visititems(lambda _, item: sizes.append(getattr(item, kind, 0) or 0))
    return sizes


def copy_weights(source, target):
    """Copy the weights of one network to another of the same configuration."""
    pairs = zip(model_weights(target), model_weights(source), strict=True)
    for ours, theirs in pairs:
        ours.assign(theirs)


def model_weights(network):
    """Return the weights of a network without those of its training.

    A network with scheduled sampling counts its training passes in a weight.
    """
    return [x for x in network.weights if not x.path.endswith("/passes")]


def save_half(model, path):
    """Write a model's weights as a Keras `.weights.h5` file in float16.

    They are rounded to eight significant bits, as in bfloat16, which makes the
    compressed file a quarter smaller than with the eleven bits of float16.

    Args:
        model: A built Keras model. The state of a training, of its optimiser and of
            scheduled sampling, is left out.
        path: Name of the file, ending in `.weights.h5`.
    """
    # The file in full precision has no name, so that a killed process leaves none.
    with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
        full = _Stream(file)
        with full.raising():
            model.save_weights(full)
        with (
            _writing(path) as half,
            h5py.File(full) as source,
            h5py.File(half, "w", libver="latest") as target,
        ):
            _copy_half(source, target)


def save_weights(model, path):
    """Write a model's weights, and its optimiser's state, piece by piece, atomically.

    Args:
        model: A built Keras model.
        path: Name of the file, ending in `.weights.h5`.
    """
    with _writing(path) as stream:
        model.save_weights(stream)


class _Stream(io.BytesIO):
    """A file on disk as Keras and h5py write to it.

    An error in a write, such as that of a full disk, would keep HDF5 from closing the
    file, and crash the process. So the first error is stored, and `raising` raises it
    at the end. Keras accepts only files of this base class.

    Args:
        file: Unbuffered binary file, open for reading and writing.
    """

    def __init__(self, file):
        super().__init__()
        self._file = file
        self._error = None

    def __str__(self):
        # Keras chooses a format by the suffix.
        return ".weights.h5"

    @contextlib.contextmanager
    def raising(self):
        """Raise the first error of writing, in place of those that follow from it."""
        try:
            yield
        except Exception:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error

    def write(self, data):
        data = memoryview(data)
        left = data
        try:
            while left and self._error is None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._error = error
        return len(data)

    def truncate(self, size=None):
        try:
            return self._file.truncate(size)
        except OSError as error:
            self._error = self._error or error
            return size

    def readinto(self, buffer):
        return self._file.readinto(buffer)

    def seek(self, offset, whence=0):
        return self._file.seek(offset, whence)

    def tell(self):
        return self._file.tell()

    def flush(self):
        pass


@contextlib.contextmanager
def _writing(path):
    """Yield a `_Stream` to a file, which appears when it is complete."""
    with atomic_path(path) as temporary, open(temporary, "w+b", buffering=0) as file:
        stream = _Stream(file)
        with stream.raising():
            yield stream


def _copy_half(source, target):
    target.attrs.update(source.attrs)
    for name, item in source.items():
        if name in ("optimizer", "sampling"):
            continue
        if isinstance(item, h5py.Group):
            _copy_half(item, target.create_group(name))
            continue
        value = item[()]
        if item.dtype.kind == "f":
            value = _rounded(value.astype("float16"))
        packed = {"compression": "gzip", "shuffle": True, "chunks": value.shape}
        target.create_dataset(
            name, data=value, **packed if value.size > 1 else {}
        ).attrs.update(item.attrs)


def _rounded(value):
    """Round to the nearest float16 whose last three bits are zero, ties to even."""
    bits = value.view("uint16")
    carry = 3 + (bits >> 3 & 1)
    rounded = (bits + carry & 0xFFF8).astype("uint16").view("float16")
    return np.where(np.isfinite(value) & np.isfinite(rounded), rounded, value)
