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

from keras_attention.backends import has_few_scores, softmax
from keras_attention.ops.masks import clear_masked
from keras_attention.ops.precision import at_least_float32
from keras_attention.ops.rows import LOWEST
from keras_attention.sizes import index_range, is_one, may_be_zero


def project_heads(dense, x, num_heads):
    """Apply a `Dense` layer to `(B, T, depth)` and return its heads, `(B, N, T, D)`."""
    batch, length = ops.shape(x)[:2]
    # As in `project_rows`, whose result would be reshaped again.
    on_tensorflow = keras.backend.backend() == "tensorflow"
    rows = dense(ops.reshape(x, (-1, x.shape[-1])) if on_tensorflow else x)
    depth = rows.shape[-1] // num_heads
    if isinstance(length, int) and length == 1:
        return ops.reshape(rows, (batch, num_heads, 1, depth))
    rows = ops.reshape(rows, (batch, length, num_heads, depth))
    return ops.transpose(rows, (0, 2, 1, 3))


def join_heads(x):
    """Reshape `(B, N, T, D)` to `(B, T, N * D)`."""
    batch, num_heads, length, depth = ops.shape(x)
    if not (isinstance(length, int) and length == 1):
        x = ops.transpose(x, (0, 2, 1, 3))
    return ops.reshape(x, (batch, length, num_heads * depth))


def head_scores(query, keys):
    """Return `query @ keys^T` `(B, N, T, S)` for `(B, N, T, D)` and `(B, G, S, D)`."""
    is_grouped = query.shape[1] != keys.shape[1]
    heads = _by_group(query, keys.shape[1]) if is_grouped else query
    if has_few_scores((*heads.shape[:3], keys.shape[2]), query.dtype):
        if is_one(heads.shape[2]):
            scores = ops.sum(heads * keys, axis=-1)[:, :, None]
        else:
            scores = ops.sum(heads[:, :, :, None] * keys[:, :, None], axis=-1)
    else:
        scores = ops.matmul(heads, ops.transpose(keys, (0, 1, 3, 2)))
    return _by_head(scores, query) if is_grouped else scores


def read_heads(weights, values):
    """Return `weights @ values` for `(B, N, T, S)` and values `(B, G, S, V)`."""
    is_grouped = weights.shape[1] != values.shape[1]
    heads = _by_group(weights, values.shape[1]) if is_grouped else weights
    if has_few_scores(heads.shape, weights.dtype):
        if is_one(heads.shape[2]):
            heads = ops.transpose(heads, (0, 1, 3, 2))
            context = ops.sum(heads * values, axis=2, keepdims=True)
        else:
            context = ops.sum(heads[..., None] * values[:, :, None], axis=-2)
    else:
        context = ops.matmul(heads, values)
    return _by_head(context, weights) if is_grouped else context


def _by_group(x, num_groups):
    """Reshape `(B, N, T, ...)` to `(B, G, N / G * T, ...)`."""
    batch, num_heads, length, last = ops.shape(x)
    return ops.reshape(x, (batch, num_groups, num_heads // num_groups * length, last))


def _by_head(x, like):
    """Reshape `(B, G, N / G * T, ...)` to `(B, N, T, ...)`, the axes of `like`."""
    return ops.reshape(x, (*ops.shape(like)[:3], ops.shape(x)[3]))


def sees_a_key(mask, query, keys):
    """Return whether each query sees a position in any head; `None` if all do.

    The result is boolean and broadcastable to `(B, T)`.

    Args:
        mask: Boolean, broadcastable to `(B, N, T, S)`, or `None`.
        query, keys: Tensors `(B, N, T, D)` and `(B, G, S, D)`.
    """
    if mask is not None:
        return ops.any(mask, axis=(1, 3))
    if not may_be_zero(keys.shape[2]):
        return None
    batch, _, queries, _ = ops.shape(query)
    return ops.broadcast_to(ops.shape(keys)[2] > 0, (batch, queries))


def causal_mask(query, keys):
    """Return the mask of the positions up to each query, `(1, 1, T, S)`."""
    t, s = (index_range(ops.shape(x)[2]) for x in (query, keys))
    return t[None, None, :, None] >= s


def biased_softmax(scores, mask):
    """Return the masked softmax of finite scores, by few operators of LiteRT.

    Args:
        scores: `(B, N, T, S)`.
        mask: Boolean, broadcastable to the scores.
    """
    scores = at_least_float32(scores)
    weights = softmax(scores + ops.where(mask, 0.0, LOWEST))
    # Where no position is valid, the weights are zero.
    return weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), weights.dtype)


def fused_heads(query, keys, values, mask, bias, causal):
    """Return the contexts `(B, N, T, V)` of the backend's fused attention.

    Args:
        query, keys, values: Tensors `(B, N, T, D)`, `(B, G, S, D)` and `(B, G, S, V)`.
        mask, bias: Broadcastable to `(B, N, T, S)`, or `None`.
        causal: Whether query t sees the positions up to t only; requires that there is
            neither mask nor bias.
    """
    if bias is not None:
        bias = ops.cast(bias, query.dtype)
    if bias is not None and mask is not None:
        # Finite, because minus infinity everywhere would give weights of NaN.
        half = keras.backend.standardize_dtype(query.dtype) == "float16"
        bias = ops.where(mask, bias, ops.cast(-3e4 if half else -1e30, query.dtype))
    context = ops.dot_product_attention(
        *(ops.transpose(x, (0, 2, 1, 3)) for x in (query, keys, values)),
        mask=mask if bias is None else None,
        bias=bias,
        scale=1.0,
        is_causal=causal,
        flash_attention=keras.config.is_flash_attention_enabled(),
    )
    context = ops.transpose(context, (0, 2, 1, 3))
    if mask is None or mask.shape[1] == 1:
        return context
    # A query may have a valid position in some heads only.
    return clear_masked(context, ops.any(mask, axis=-1))
