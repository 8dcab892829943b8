"""Rows of scores: masking, difference from the maximum, cumulative sum.

Scores and masks are `(..., S)`, S positions. A mask is boolean and broadcastable to the
scores, `True` marks a valid position; without one every position is valid.
"""

from keras import ops

from keras_attention.ops.precision import at_least_float32
from keras_attention.typing import Tensor

# Far below any score, yet finite in float32, so that differences stay finite.
LOWEST = -1e30
# A normal number in float32, because XLA rounds subnormal numbers to zero.
TINY = 1e-37


def row_max(x: Tensor) -> Tensor:
    """Return the maximum of every row, `(..., 1)`."""
    if 0 in x.shape:
        # Backends refuse the maximum of an empty axis; a sum has the same shape.
        return ops.sum(x, axis=-1, keepdims=True)
    return ops.max(x, axis=-1, keepdims=True)


def subtract_max(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores minus the maximum of their row, and the mask of valid positions."""
    scores, valid = valid_scores(scores, mask)
    return scores - ops.stop_gradient(row_max(scores)), valid


def valid_scores(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores with `LOWEST` at invalid positions, and the mask of valid ones."""
    scores = at_least_float32(scores)
    if mask is not None:
        mask = ops.broadcast_to(mask, ops.shape(scores))
        scores = ops.where(mask, scores, LOWEST)
    # Not `x > LOWEST`, because NaN must propagate to the weights.
    valid = ops.logical_not(scores <= LOWEST)
    return ops.where(scores < LOWEST, LOWEST, scores), valid


def cumsum(x: Tensor) -> Tensor:
    """Return the cumulative sum of every row, in the dtype of `x`."""
    # On PyTorch, `ops.cumsum` and `ops.maximum` return float32 for float64; `ops.clip`
    # does not.
    return ops.cast(ops.cumsum(x, axis=-1), x.dtype)


def first_candidate(candidates: Tensor, values: Tensor) -> Tensor:
    """Return the first candidate of every row as one-hot, or zeros if there is none."""
    count = cumsum(ops.cast(candidates, values.dtype))
    first = ops.cast(ops.logical_and(candidates, count == 1), values.dtype)
    # NaN must propagate to the weights.
    return ops.where(ops.isnan(values), values, first)
