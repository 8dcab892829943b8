"""Gathering of entries row by row.

Shapes: B batch, M entries of a row.
"""

from keras import ops, tree

from keras_attention.backends import index_range, take
from keras_attention.sizes import is_one, is_zero, join_axes
from keras_attention.typing import Nested, Tensor


def take_rows(nested: Nested, index: Tensor) -> Nested:
    """Return `x[b, index[b, ...]]` for nested `x` `(B, M, ...)` and int32 `(B, ...)`.

    All tensors have the same M.
    """
    tensors = tree.flatten(nested)
    if not tensors:
        return nested
    batch, size = ops.shape(tensors[0])[:2]
    if not is_one(batch):
        first = size * index_range(batch)
        index = index + ops.reshape(first, (-1, *[1] * (len(index.shape) - 1)))

    def take_places(x: Tensor) -> Tensor:
        taken = take(join_axes(x), index)
        if any(map(is_zero, (*index.shape, *x.shape[2:]))):
            # JAX loses the axes of an empty result.
            return ops.reshape(taken, (*ops.shape(index), *ops.shape(x)[2:]))
        return taken

    return tree.map_structure(take_places, nested)
