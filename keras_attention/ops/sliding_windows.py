"""Sliding windows: every query of a sequence sees the steps around its own.

The cost grows with the window and not with the sequence: the sequence is cut into
blocks of C steps, and the queries of a block attend to it and to its neighbours. The
blocks of all sequences are rows of one batch.

Shapes: B batch, S steps, N heads, D depth, W window size, C steps in a block, K blocks,
J positions that a block sees: `2 C`, or `3 C` unless causal.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attention.backends import index_range
from keras_attention.ops.gathering import take_rows
from keras_attention.sizes import join_axes
from keras_attention.typing import Tensor

# Smaller blocks would make matrix products that are too small to be fast.
MIN_BLOCK = 32


def in_window(offsets: Tensor, window_size: int) -> Tensor:
    """Return whether each of the offsets `(B, T, S)` is inside the window."""
    return ops.abs(offsets) < window_size


def block_span(window_size: Any, causal: bool) -> Any:
    """Return J, the number of positions that the queries of a block see."""
    return (2 if causal else 3) * _block_size(window_size)


def attend_in_blocks(
    attend: Callable[..., Tensor],
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    valid: Tensor | None,
    *,
    window_size: Any,
    causal: bool,
) -> Tensor:
    """Return the contexts of a sliding window `(B, N, S, D)`, block by block.

    Args:
        attend: Function from the queries, keys, values, mask and offsets of all blocks
            to their contexts, `(B * K, N, C, D)`.
        query, keys, values: Tensors `(B, N, S, D)` of the same sequence; keys and
            values may have fewer heads.
        valid: Mask of its steps, boolean `(B, S)`, or `None`. A window counts valid
            steps only.
        window_size, causal: W, and whether a query sees the steps up to its own only.
    """
    batch, _, length, _ = ops.shape(query)
    steps = None
    if valid is not None:
        order, inverse = _valid_first(valid)
        query, keys, values = (_reorder(x, order) for x in (query, keys, values))
        steps = ops.sum(ops.cast(valid, "int32"), axis=1)
    size = _block_size(window_size)
    context = attend(
        _query_blocks(query, size),
        _key_blocks(keys, size, causal),
        _key_blocks(values, size, causal),
        _block_mask(steps, batch, length, window_size, size, causal)[:, None],
        _block_offsets(size, causal),
    )
    context = _join_blocks(context, length)
    return context if valid is None else _reorder(context, inverse)


def _block_size(window_size: Any) -> Any:
    """Return C, large enough that a window reaches neighbouring blocks only."""
    return max(window_size, MIN_BLOCK)


def _query_blocks(query: Tensor, size: Any) -> Tensor:
    """Cut queries `(B, N, S, D)` into blocks, `(B * K, N, C, D)`."""
    return _as_rows(_cut(query, size))


def _key_blocks(keys: Tensor, size: Any, causal: bool) -> Tensor:
    """Return the keys that each block of queries sees, `(B * K, N, J, D)`."""
    blocks = _cut(keys, size)
    before = ops.pad(blocks[:, :, :-1], [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]])
    neighbours = [before, blocks]
    if not causal:
        after = ops.pad(blocks[:, :, 1:], [[0, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
        neighbours.append(after)
    return _as_rows(ops.concatenate(neighbours, axis=3))


def _join_blocks(x: Tensor, length: Any) -> Tensor:
    """Join blocks `(B * K, N, C, D)` to sequences `(B, N, S, D)`."""
    _, heads, size, depth = ops.shape(x)
    count = _block_count(length, size)
    x = ops.reshape(x, (-1, count, heads, size, depth))
    x = ops.transpose(x, (0, 2, 1, 3, 4))
    return ops.reshape(x, (-1, heads, count * size, depth))[:, :, :length]


def _block_offsets(size: Any, causal: bool) -> Tensor:
    """Return the offsets of the positions that a block sees, `(1, C, J)`."""
    queries = index_range(size)
    keys = ops.arange(-size, size if causal else 2 * size, dtype="int32")
    return (keys[None, :] - queries[:, None])[None]


def _block_mask(
    lengths: Tensor | None,
    batch: Any,
    length: Any,
    window_size: Any,
    size: Any,
    causal: bool,
) -> Tensor:
    """Return which positions the queries of each block may see, `(B * K, C, J)`.

    Args:
        lengths: Number of steps of each sequence, int32 `(B,)`; S if `None`.
        batch, length: B and S.
    """
    offsets = _block_offsets(size, causal)
    seen = in_window(offsets, window_size)
    if causal:
        seen = ops.logical_and(seen, offsets <= 0)
    count = _block_count(length, size)
    starts = size * index_range(count)
    keys = starts[:, None] + ops.arange(-size, offsets.shape[2] - size, dtype="int32")
    lengths = length if lengths is None else lengths[:, None, None]
    exists = ops.logical_and(keys >= 0, keys < lengths)
    exists = ops.broadcast_to(exists, (batch, count, keys.shape[1]))
    exists = ops.reshape(exists, (-1, 1, keys.shape[1]))
    return ops.logical_and(seen, exists)


def _valid_first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of steps in which the valid ones come first, and its inverse.

    Both are int32 `(B, S)`; the valid steps, and the others, keep their order.
    """
    length = ops.shape(mask)[1]
    steps = index_range(length)
    order = ops.argsort(ops.where(mask, steps, steps + length), axis=1)
    return ops.cast(order, "int32"), ops.cast(ops.argsort(order, axis=1), "int32")


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """Return `x` `(B, N, S, D)` with its steps in the order `(B, S)`."""
    shape = ops.shape(x)
    order = ops.broadcast_to(order[:, None], shape[:3])
    return ops.reshape(take_rows(join_axes(x), join_axes(order)), shape)


def _block_count(length: Any, size: Any) -> Any:
    """Return K, a Python integer if `length` is one, otherwise a tensor."""
    # Not `-(-length // size)`: ONNX does not round the quotient down.
    count = (length + size - 1) // size
    return max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)


def _cut(x: Tensor, size: Any) -> Tensor:
    """Return `(B, N, S, D)` as `(B, N, K, C, D)`, padded with zeros."""
    batch, heads, length, depth = ops.shape(x)
    count = _block_count(length, size)
    x = ops.pad(x, [[0, 0], [0, 0], [0, count * size - length], [0, 0]])
    return ops.reshape(x, (batch, heads, count, size, depth))


def _as_rows(blocks: Tensor) -> Tensor:
    """Return `(B, N, K, C, D)` as `(B * K, N, C, D)`."""
    _, heads, _, size, depth = ops.shape(blocks)
    return ops.reshape(ops.transpose(blocks, (0, 2, 1, 3, 4)), (-1, heads, size, depth))
