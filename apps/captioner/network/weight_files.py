"""Load the weights of a convolutional network from files of several kinds."""

import io
import os
from pathlib import Path

import keras
import numpy as np
from keras_attention_apps.captioner.network.torch_checkpoints import read_checkpoint
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.network.weights import errors_of
from keras_attention_apps.common.reading import check_bytes, check_input, read_file

SUFFIXES = (".weights.h5", ".npz", ".pth")

_TORCH_NAMES = {
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def load_weights(cnn, path):
    """Load weights into a Keras model.

    Args:
        cnn: The model.
        path: A `.weights.h5` file of Keras; a `.npz` file with one array for each
            weight, named such as `blocks.0.bn1/gamma`; or a `.pth` checkpoint of
            PyTorch with the same names of layers.

    Raises:
        UserError: If the file lacks a weight of the model, or has another shape for it.
    """
    path = str(path)
    if path.endswith(".npz"):
        with np.load(io.BytesIO(read_file(path))) as file:
            check_bytes(sum(x.file_size for x in file.zip.infolist()), path)
            _assign(cnn, {_layer_name(name): file[name] for name in file}, path)
    elif path.endswith(".pth"):
        _assign(cnn, dict(_from_torch(read_checkpoint(path))), path)
    else:
        check_input(path)
        check_bytes(os.stat(path).st_size, path)
        with errors_of(Path(path)):
            cnn.load_weights(path)


def _layer_name(name):
    """Return the name of a weight in Keras: underscores replace the dots of a file."""
    return name.replace(".", "_")


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
