"""Sizes of tensors that are not known, or are symbols, while a graph is traced."""

import keras
from keras import ops


def is_symbol(size):
    """Return whether JAX infers or exports this size, or PyTorch exports it.

    JAX then has symbols and PyTorch tensors for sizes, which cannot be compared.
    """
    return keras.backend.backend() != "tensorflow" and not isinstance(size, int)


def known_sizes(shape):
    """Return a shape with `None` for every size that is not an integer."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def index_range(count):
    """Return the numbers from 0 to `count - 1`, int32 `(count,)`."""
    if keras.backend.backend() == "jax" and is_symbol(count):
        # The converter to ONNX has no range of unknown length.
        return ops.cumsum(ops.ones((count,), "int32")) - 1
    return ops.arange(count, dtype="int32")
