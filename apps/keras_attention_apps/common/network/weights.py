"""Weight files: `.npz` archives whose sizes are checked before they are read.

A file has one array per variable, named by its position, `0000`, `0001`, ..., because
Keras numbers the names of layers per process. Numbers of `n` bytes are stored as an
array of uint8 and shape `(n, *shape)`: all most significant bytes first, then all next
ones. Deflate compresses that better, since the bytes with the exponents are similar.

The floats of a model are float16, or those of the variables if the model was imported;
a checkpoint has the dtypes of the variables. The
archive must have exactly the members, and the sizes, that the variables need. Nothing
is decompressed before that is checked.
"""

import contextlib
import itertools
import math
import zipfile

import keras
import numpy as np

from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import atomic_path, check_bytes, check_input

# Name of the array at a position, and bytes of its header.
MEMBER, HEADER = "{:04}.npy", 128
# Published models have 300 MB in float32, and some of them three times as many. A
# network is built from its configuration before its weights are read.
MAX_BYTES = 2_000_000_000


def check_weights(path, fewest=0):
    """Check the weights of a model before a network is built for them."""
    check_input(path)
    check_bytes(path.stat().st_size, path, minimum=MAX_BYTES)
    with errors_of(path), zipfile.ZipFile(path) as archive:
        sizes = [member.file_size for member in archive.infolist()]
    check_bytes(sum(sizes), path, minimum=MAX_BYTES)
    count = sum(size - HEADER for size in sizes) // 2
    if count < fewest:
        raise UserError(
            f"expected at least {fewest:,} weights, as its configuration describes. "
            f"Received: {count:,} in {path.name}"
        )


def save_model(network, path, without=None, *, half=True):
    """Write the weights of a network, compressed; in float16 if `half`.

    The weights of the layer `without`, if any, are left out.
    """
    variables = _weights_without(network, without)
    arrays = map(_saved if half else _array, variables)
    _write(arrays, path, zipfile.ZIP_DEFLATED)


def saves_equal(layer, other):
    """Return whether `save_model` writes equal weights for two layers."""
    return len(layer.weights) == len(other.weights) and all(
        np.array_equal(_saved(ours), _saved(theirs))
        for ours, theirs in zip(layer.weights, other.weights, strict=True)
    )


def load_model(network, path, shared=(), elsewhere=None):
    """Load what `save_model` wrote into a built network.

    Layers that are `shared` with another network have their weights already. They are
    read, too; return whether they are what they were. `elsewhere` is a layer whose
    weights are in another file, where they come first, and that file.
    """
    before = [(layer, layer.get_weights()) for layer in shared]
    layer, other = elsewhere or (None, None)
    if layer:
        _read(layer.weights, other, half=True, only_first=True)
    _read(_weights_without(network, layer), path, half=True)
    return all(
        np.array_equal(*pair)
        for layer, weights in before
        for pair in zip(layer.get_weights(), weights, strict=True)
    )


def save_checkpoint(model, path):
    """Write the weights of a compiled model and the state of its built optimiser."""
    _write(map(_array, _state(model)), path, zipfile.ZIP_STORED)


def load_checkpoint(model, path):
    """Load what `save_checkpoint` wrote; see `load_model`."""
    _read(_state(model), path)


@contextlib.contextmanager
def errors_of(path):
    """Replace every error of reading a file by a `UserError` with the reason."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        # Keras lists all layers that failed.
        message, _, _ = reason(error).partition(" List of objects")
        raise UserError(f"{path.name} cannot be read: {message}") from error


def _state(model):
    """Return all variables of a compiled model except those of its generators."""
    return [*model.weights, *model.optimizer.variables]


def _weights_without(network, layer):
    """Return the variables of a network except those of one of its layers, if any."""
    left_out = {id(variable) for variable in layer.weights} if layer else ()
    return [variable for variable in network.weights if id(variable) not in left_out]


def _dtype(variable, half):
    """Return the dtype of a variable in a file, where floats are float16 if `half`."""
    return np.dtype("float16" if half and "float" in variable.dtype else variable.dtype)


def _saved(variable):
    """Return the array of a variable in the file of a model."""
    return _rounded(_array(variable, half=True))


def _array(variable, half=False):
    return keras.ops.convert_to_numpy(variable).astype(_dtype(variable, half))


def _write(arrays, path, compression):
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", compression) as archive,
    ):
        for index, array in enumerate(arrays):
            planes = _planes(array)
            # Without a date, so that equal weights are equal files.
            member = zipfile.ZipInfo(MEMBER.format(index))
            content = _header(planes.shape) + planes.tobytes()
            archive.writestr(member, content, compression)


def _read(variables, path, half=False, only_first=False):
    """Read variables from a file, which may have more of them if `only_first`.

    If `half`, floats may be float16, or those of the variables.
    """
    with errors_of(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if only_first:
            members = members[: len(variables)]
        half = half and _sizes(members) != _expected_sizes(variables, half=False)
        dtypes = [_dtype(x, half) for x in variables]
        shapes = [
            (y.itemsize, *x.shape) for x, y in zip(variables, dtypes, strict=True)
        ]
        _check_sizes(members, shapes, path)
        for item in zip(members, variables, shapes, dtypes, strict=True):
            member, variable, shape, dtype = item
            content = archive.read(member)
            header, expected = content[:HEADER], _header(shape)
            if header != expected:
                raise UserError(
                    f"expected {expected!r} in {member.filename} of {path.name}. "
                    f"Received: {header!r}"
                )
            planes = np.frombuffer(content, "uint8", offset=HEADER).reshape(shape)
            variable.assign(_joined(planes, dtype))


def _size_of(shape):
    """Return the size of a member for an array of bytes."""
    return HEADER + math.prod(shape)


def _sizes(members):
    return [member.file_size for member in members]


def _expected_sizes(variables, half):
    """Return the sizes of the members of variables."""
    return [_size_of((_dtype(x, half).itemsize, *x.shape)) for x in variables]


def _check_sizes(members, shapes, path):
    """Raise a `UserError` unless an archive has exactly the arrays of these shapes."""
    sizes = map(_size_of, shapes)
    expected = [(MEMBER.format(index), size) for index, size in enumerate(sizes)]
    received = [(member.filename, member.file_size) for member in members]
    for pair in itertools.zip_longest(expected, received):
        if pair[0] != pair[1]:
            wanted, actual = (
                f"{x[0]} of {x[1]:,} bytes" if x else "none" for x in pair
            )
            raise UserError(f"expected {wanted}. Received: {actual} in {path.name}")


def _header(shape):
    """Return the header of an array of bytes in the format of NumPy, version 1.0."""
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(HEADER - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _planes(array):
    """Return the bytes of an array, `(item size, *shape)`, most significant first."""
    numbers = array.astype(array.dtype.newbyteorder(">"), order="C")
    return np.moveaxis(numbers[..., None].view("uint8"), -1, 0)


def _joined(planes, dtype):
    """Return the array of a dtype whose bytes are `planes`."""
    last = np.ascontiguousarray(np.moveaxis(planes, 0, -1))
    return last.view(dtype.newbyteorder(">"))[..., 0].astype(dtype)


def _rounded(value):
    """Round float16 to the nearest whose last three bits are zero, ties to even."""
    if value.dtype != "float16":
        return value
    bits = value.view("uint16")
    carry = 3 + (bits >> 3 & 1)
    rounded = (bits + carry & 0xFFF8).astype("uint16").view("float16")
    return np.where(np.isfinite(value) & np.isfinite(rounded), rounded, value)
