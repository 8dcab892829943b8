"""Sizes of tensors that are zero, or not known while a graph is traced.

An empty batch, sequence or source gives an empty result, but backends cannot read from
an empty tensor, or infer a size if another one is zero. A size that is known is checked
in Python, at no cost. Only TensorFlow's graphs have unknown sizes and need extra
operations. JAX has symbols for sizes that it infers or exports, PyTorch tensors for
those that it exports; both cannot be compared.
"""

import keras
from keras import ops


def is_symbol(size):
    """Return whether JAX infers or exports this size, or PyTorch exports it."""
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


def is_zero(size):
    """Return whether a size is known to be zero."""
    return isinstance(size, int) and size == 0


def is_one(size):
    """Return whether a size is known to be one."""
    return isinstance(size, int) and size == 1


def may_be_zero(size):
    """Return whether a size is zero, or not known before a graph runs."""
    return size is None or is_zero(size)


def mean(x):
    """Return the mean of a vector `(N,)`, zero if N is 0."""
    count = ops.maximum(ops.shape(x)[0], 1)
    return ops.sum(x) / ops.cast(count, x.dtype)


def at_least_one(x, axis=0):
    """Return `x`, with one entry of zeros along the axis if it is empty."""
    sizes = list(ops.shape(x))
    if is_zero(x.shape[axis]):
        sizes[axis] = 1
        return ops.zeros(sizes, x.dtype)
    if x.shape[axis] is not None:
        return x
    # A padding of zero is free, and so is its gradient.
    padding = [[0, 0] for _ in sizes]
    padding[axis][1] = 1 - ops.minimum(sizes[axis], 1)
    return ops.pad(x, padding)


def join_axes(x):
    """Return `(A, B, ...)` as `(A * B, ...)`."""
    first, second, *rest = ops.shape(x)
    # -1 costs less, but cannot be inferred if another size is zero.
    inferred = all(isinstance(size, int) and size for size in rest)
    return ops.reshape(x, (-1 if inferred else first * second, *rest))
