"""Sizes of tensors that are zero, or not known while a graph is traced.

An empty batch, sequence or source gives an empty result, but backends cannot read from
an empty tensor, or infer a size if another one is zero. A size that is known is checked
in Python, at no cost. Only TensorFlow's graphs have unknown sizes and need extra
operations. JAX has symbols for sizes that it infers or exports, PyTorch tensors for
those that it exports; both cannot be compared.
"""

from typing import Any

from keras import ops

from keras_attention.typing import Shape, Tensor


def known_sizes(shape: Shape) -> tuple[int | None, ...]:
    """Return a shape with `None` for every size that is not an integer."""
    return tuple(size if isinstance(size, int) else None for size in shape)


def is_zero(size: Any) -> bool:
    """Return whether a size is known to be zero."""
    return isinstance(size, int) and size == 0


def is_one(size: Any) -> bool:
    """Return whether a size is known to be one."""
    return isinstance(size, int) and size == 1


def mean(x: Tensor) -> Tensor:
    """Return the mean of a vector `(N,)`, zero if N is 0."""
    count = ops.maximum(ops.shape(x)[0], 1)
    return ops.sum(x) / ops.cast(count, x.dtype)


def at_least_one(x: Tensor, axis: int = 0) -> Tensor:
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


def join_axes(x: Tensor) -> Tensor:
    """Return `(A, B, ...)` as `(A * B, ...)`."""
    first, second, *rest = ops.shape(x)
    # -1 costs less, but cannot be inferred if another size is zero.
    inferred = all(isinstance(size, int) and size for size in rest)
    return ops.reshape(x, (-1 if inferred else first * second, *rest))
