"""Masks, sample weights and checks of the arguments of losses."""

import contextlib
from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_attention.typing import Tensor
from keras_attention.validation import (
    check_mask,
    check_number,
    check_shape,
    may_be_equal,
    values_of,
)


def masked(x: Tensor, mask: Tensor, rows: Tensor = False) -> Tensor:
    """Return `x` with zeros where the mask of its elements, or rows, is `False`."""
    if mask is None:
        return x
    check_mask("mask", mask, x.shape[:-1] if rows else x.shape, broadcasts=True)
    return ops.where(mask[..., None] if rows else mask, x, ops.zeros_like(x))


def check_token_ids(name: str, token_ids: Tensor, rows_name: str, rows: Tensor) -> None:
    """Raise `ValueError` unless there is one token for every row of a tensor."""
    if not len(rows.shape) or rows.shape[-1] == 0:
        raise ValueError(
            f"{rows_name} must have at least one class in the last axis. "
            f"Received: {tuple(rows.shape)}"
        )
    if "bool" in str(token_ids.dtype):
        raise ValueError(f"{name} must be integers. Received: {token_ids.dtype}")
    if not may_be_equal(token_ids.shape, rows.shape[:-1]):
        raise ValueError(
            f"{name} must have the shape of {rows_name} without the last axis, "
            f"{tuple(rows.shape[:-1])}. Received: {tuple(token_ids.shape)}"
        )


@contextlib.contextmanager
def explaining_token_ids(token_ids: Tensor, size: Any) -> Iterator[None]:
    """Raise `ValueError` from an error of a backend if a token is out of range.

    TensorFlow raises such errors on processors. Other backends give NaN or zeros.
    """
    try:
        yield
    except Exception as error:
        values = values_of(token_ids)
        if values is None:
            raise
        # NaN is in no range.
        wrong = values[~((values >= 0) & (values < size))]
        if len(wrong):
            raise ValueError(
                f"token ids must lie between 0 and {size - 1}. Received: {wrong[0]}"
            ) from error
        raise


def check_label_smoothing(label_smoothing: float) -> None:
    """Raise `ValueError` unless a label smoothing is in `[0, 1)`."""
    check_number("label_smoothing", label_smoothing, "in [0, 1)", lambda x: 0 <= x < 1)


def broadcast_sample_weights(sample_weight: Tensor, weighed: Tensor) -> Tensor:
    """Expand sample weights to the rank of a tensor `(B, ...)`.

    Args:
        sample_weight: Tensor `(B,)`, `(B, ...)`, or with one more axis of size 1.
        weighed: The tensor that they weigh; the result has its dtype.

    Raises:
        ValueError: If the shape does not fit.
    """
    weights, rank = ops.cast(sample_weight, weighed.dtype), len(weighed.shape)
    if len(weights.shape) == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while len(weights.shape) < rank:
        weights = weights[..., None]
    check_shape("sample_weight", weights, weighed.shape, broadcasts=True)
    return weights
