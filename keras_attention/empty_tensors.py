"""Empty tensors: an empty batch, sequence or source gives an empty result.

Backends cannot read from an empty tensor, or infer a size if another one is zero. A
size that is known is checked in Python, at no cost. Only TensorFlow's graphs have
unknown sizes and need extra operations.
"""

from keras import ops


def is_zero(size):
    """Return whether a size is known to be zero."""
    # JAX infers shapes with symbols, which cannot be compared.
    return isinstance(size, int) and size == 0


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
