"""Nested structures of tensors whose first axes are rows and hypotheses."""

import math
from typing import Any

import numpy as np
from keras import ops, tree

from keras_attention.backends import index_range, take
from keras_attention.ops.gathering import take_rows
from keras_attention.sizes import is_one, is_zero, join_axes
from keras_attention.typing import Nested, Tensor
from keras_attention.validation import check_tensor


def batch_of(nested: Nested) -> Any:
    """Return the size of the first axis of nested tensors."""
    tensors = tree.flatten(nested)
    if not tensors or not getattr(tensors[0], "shape", ()):
        raise ValueError(
            "state must hold at least one tensor (batch, ...), whose first axis is the "
            f"batch size. Received: {nested!r}"
        )
    check_tensor("state", tensors[0])
    return ops.shape(tensors[0])[0]


def check_rows(name: str, x: Tensor, batch_size: int) -> None:
    """Raise `ValueError` if both numbers of rows are known and differ."""
    rows = ops.shape(x)[0]
    known = isinstance(rows, int) and isinstance(batch_size, int)
    if known and rows != batch_size:
        raise ValueError(
            f"{name} must have {batch_size} rows, as the state has. Received: {rows}"
        )


def repeat_for_hypotheses(state: Nested, size: Any) -> Nested:
    """Repeat a state for every hypothesis: `(B, ...)` to `(B, K, ...)`."""

    def repeat(x: Tensor) -> Tensor:
        batch, *rest = ops.shape(x)
        return ops.broadcast_to(x[:, None], (batch, size, *rest))

    return tree.map_structure(repeat, state)


def join_hypotheses(state: Nested) -> Nested:
    """Join the first axes of a state: `(B, K, ...)` to `(B * K, ...)`."""
    return tree.map_structure(join_axes, state)


def split_hypotheses(state: Nested, size: Any) -> Nested:
    """Undo `join_hypotheses` for K hypotheses of a row."""

    def split(x: Tensor) -> Tensor:
        joined, *rest = ops.shape(x)
        return ops.reshape(x, (joined // size, size, *rest))

    return tree.map_structure(split, state)


def take_hypotheses(state: Nested, index: Tensor) -> Nested:
    """Return `x[b, index[b, k]]`, `(B, K, ...)`, of a joined state `(B * K, ...)`."""
    batch, size = ops.shape(index)
    if not is_one(index.shape[0]):
        index = index + size * index_range(batch)[:, None]
    index = ops.reshape(index, (-1,))

    def take_split(x: Tensor) -> Tensor:
        # JAX loses the axes of an empty result.
        return ops.reshape(take(x, index), (batch, size, *ops.shape(x)[1:]))

    return tree.map_structure(take_split, state)


def concatenate(first: Nested, second: Nested) -> Nested:
    """Concatenate the tensors of two nested structures along axis 1."""
    return tree.map_structure(
        lambda *pair: ops.concatenate(pair, axis=1), first, second
    )


def write(history: Nested, t: Any, entry: Nested) -> Nested:
    """Write `entry` `(B, ...)` into step t of a nested history `(L, B, ...)`.

    `t` is one step for each row, `(B,)`, or one for all.
    """
    batch = batch_of(entry)
    if is_one(batch):
        t = t[0] if np.ndim(t) else t

        def put_slice(past: Tensor, x: Tensor) -> Tensor | None:
            if any(map(is_zero, x.shape)):
                return past
            return ops.slice_update(past, [t, *[0] * len(x.shape)], x[None])

        return tree.map_structure(put_slice, history, entry)
    rows = ops.arange(batch, dtype="int32")
    indices = ops.stack([ops.broadcast_to(t, ops.shape(rows)), rows], axis=-1)

    def put(past: Tensor, x: Tensor) -> Tensor | None:
        sizes = ops.shape(x)
        if any(map(is_zero, sizes)):
            return past
        if None in x.shape[1:]:
            # `scatter_update` fails for an empty tensor.
            count = sizes[0] * ops.minimum(math.prod(sizes[1:]), 1)
            return ops.scatter_update(past, indices[:count], x[:count])
        return ops.scatter_update(past, indices, x)

    return tree.map_structure(put, history, entry)


def take_steps(history: Nested, index: Tensor) -> Nested:
    """Return `x[t, b, index[t, b, ...]]` for a nested history `(L, B, M, ...)`."""
    rows = tree.map_structure(join_axes, history)
    taken = take_rows(rows, join_axes(index))
    leading = ops.shape(index)
    return tree.map_structure(
        lambda x: ops.reshape(x, (*leading, *ops.shape(x)[2:])), taken
    )
