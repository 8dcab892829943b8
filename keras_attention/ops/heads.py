"""Arithmetic of several heads.

Queries have N heads, and keys and values G groups of `N / G` heads: head n reads group
`n // (N / G)`. With one group for every head, this is multi-head attention.

Shapes: B batch, T queries, S positions, N heads, G groups of heads, D depth of a head,
V depth of a value in a head.

Reference:
    [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245), section 2.2.
"""

import keras
from keras import ops

from keras_attention.backends import (
    index_range,
    mask_for_fused_attention,
    row_products,
    weighted_sums,
)
from keras_attention.ops.masks import clear_masked, combine_masks
from keras_attention.typing import Tensor


def join_heads(x: Tensor) -> Tensor:
    """Reshape `(B, N, T, D)` to `(B, T, N * D)`."""
    batch, num_heads, length, depth = ops.shape(x)
    if not (isinstance(length, int) and length == 1):
        x = ops.transpose(x, (0, 2, 1, 3))
    return ops.reshape(x, (batch, length, num_heads * depth))


def head_scores(query: Tensor, keys: Tensor) -> Tensor:
    """Return `query @ keys^T` `(B, N, T, S)` for `(B, N, T, D)` and `(B, G, S, D)`."""
    is_grouped = query.shape[1] != keys.shape[1]
    heads = _by_group(query, keys.shape[1]) if is_grouped else query
    scores = row_products(heads, keys)
    return _by_head(scores, query) if is_grouped else scores


def read_heads(weights: Tensor, values: Tensor) -> Tensor:
    """Return `weights @ values` for `(B, N, T, S)` and values `(B, G, S, V)`."""
    is_grouped = weights.shape[1] != values.shape[1]
    heads = _by_group(weights, values.shape[1]) if is_grouped else weights
    context = weighted_sums(heads, values)
    return _by_head(context, weights) if is_grouped else context


def _by_group(x: Tensor, num_groups: int) -> Tensor:
    """Reshape `(B, N, T, ...)` to `(B, G, N / G * T, ...)`."""
    batch, num_heads, length, last = ops.shape(x)
    return ops.reshape(x, (batch, num_groups, num_heads // num_groups * length, last))


def _by_head(x: Tensor, like: Tensor) -> Tensor:
    """Reshape `(B, G, N / G * T, ...)` to `(B, N, T, ...)`, the axes of `like`."""
    return ops.reshape(x, (*ops.shape(like)[:3], ops.shape(x)[3]))


def sees_a_key(mask: Tensor, query: Tensor, keys: Tensor) -> Tensor | None:
    """Return whether each query sees a position in any head; `None` if all do.

    The result is boolean and broadcastable to `(B, T)`.

    Args:
        mask: Boolean, broadcastable to `(B, N, T, S)`, or `None`.
        query, keys: Tensors `(B, N, T, D)` and `(B, G, S, D)`.
    """
    if mask is not None:
        return ops.any(mask, axis=(1, 3))
    length = keys.shape[2]
    if length is not None and not (isinstance(length, int) and length == 0):
        return None
    batch, _, queries, _ = ops.shape(query)
    return ops.broadcast_to(ops.shape(keys)[2] > 0, (batch, queries))


def causal_mask(query: Tensor, keys: Tensor) -> Tensor:
    """Return the mask of the positions up to each query, `(1, 1, T, S)`."""
    t, s = (index_range(ops.shape(x)[2]) for x in (query, keys))
    return t[None, None, :, None] >= s


def fused_heads(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    bias: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attend by the fused attention of the backend.

    Args:
        query, keys, values: Tensors `(B, N, T, D)`, `(B, G, S, D)` and `(B, G, S, V)`.
        mask, bias: Broadcastable to `(B, N, T, S)`, or `None`.
        causal: Whether query t sees the positions up to t only.

    Returns:
        The contexts `(B, N, T, V)`, and the mask with which they were computed, `None`
        if every query sees a position.
    """
    # Without a mask, the fastest kernel is used. JAX cannot export it for a length that
    # is not known.
    causal_only = causal and mask is None and bias is None
    causal_only = causal_only and isinstance(query.shape[2], int)
    if causal and not causal_only:
        mask = combine_masks(mask, causal_mask(query, keys))
    if bias is not None:
        bias = ops.cast(bias, query.dtype)
    if bias is not None and mask is not None:
        # Finite, because minus infinity everywhere would give weights of NaN.
        half = keras.backend.standardize_dtype(query.dtype) == "float16"
        bias = ops.where(mask, bias, ops.cast(-3e4 if half else -1e30, query.dtype))
    fused_mask = None
    if mask is not None and bias is None:
        fused_mask = mask_for_fused_attention(mask, query.shape[2])
    context = ops.dot_product_attention(
        *(ops.transpose(x, (0, 2, 1, 3)) for x in (query, keys, values)),
        mask=fused_mask,
        bias=bias,
        scale=1.0,
        is_causal=causal_only,
        flash_attention=keras.config.is_flash_attention_enabled(),
    )
    context = ops.transpose(context, (0, 2, 1, 3))
    if mask is None or mask.shape[1] == 1:
        return context, mask
    # A query may have a valid position in some heads only.
    return clear_masked(context, ops.any(mask, axis=-1)), mask
