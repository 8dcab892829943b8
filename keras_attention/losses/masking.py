"""Masks, sample weights and checks of the arguments of losses."""

from keras import ops

from keras_attention.validation import (
    check_mask,
    check_number,
    check_shape,
    may_be_equal,
)


def masked(x, mask, rows=False):
    """Return `x` with zeros where the mask of its elements, or rows, is `False`."""
    if mask is None:
        return x
    check_mask("mask", mask, x.shape[:-1] if rows else x.shape, broadcasts=True)
    return ops.where(mask[..., None] if rows else mask, x, ops.zeros_like(x))


def check_token_ids(name, token_ids, rows_name, rows):
    """Raise `ValueError` unless there is one token for every row of a tensor."""
    if not may_be_equal(token_ids.shape, rows.shape[:-1]):
        raise ValueError(
            f"{name} must have the shape of {rows_name} without the last axis, "
            f"{tuple(rows.shape[:-1])}. Received: {tuple(token_ids.shape)}"
        )


def check_label_smoothing(label_smoothing):
    """Raise `ValueError` unless a label smoothing is in `[0, 1)`."""
    check_number("label_smoothing", label_smoothing, "in [0, 1)", lambda x: 0 <= x < 1)


def broadcast_sample_weights(given, weighed):
    """Expand sample weights to the rank of a tensor `(B, ...)`.

    Args:
        given: Tensor `(B,)`, `(B, ...)`, or with one more axis of size 1.
        weighed: The tensor that they weigh; the result has its dtype.

    Raises:
        ValueError: If the shape does not fit.
    """
    weights, rank = ops.cast(given, weighed.dtype), len(weighed.shape)
    if len(weights.shape) == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while len(weights.shape) < rank:
        weights = weights[..., None]
    check_shape("sample_weight", weights, weighed.shape, broadcasts=True)
    return weights
