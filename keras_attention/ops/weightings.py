"""From scores to weights: who gets how much of the attention.

Shapes: B batch, T queries, S positions.
"""

import keras
from keras import ops

# Far below any score, yet finite in float32, so that differences stay finite.
LOWEST = -1e30


def masked_softmax(scores, mask=None):
    """Softmax over the last axis that gives masked positions exactly zero.

    A row with no valid position is a row of zeros with zero gradients; a score of
    minus infinity counts as not valid. The sum is taken in float32 at least, whatever
    the dtype of the scores.

    Args:
        scores: Scores, `(..., S)`; anything may stand in masked places.
        mask: Boolean, broadcastable to `scores`; `True` marks a valid position.
            Without it, every position is valid.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores).
    """
    if keras.backend.standardize_dtype(scores.dtype) != "float64":
        scores = ops.cast(scores, "float32")
    if mask is not None:
        mask = ops.broadcast_to(mask, ops.shape(scores))
        scores = ops.where(mask, scores, LOWEST)
    # Not "greater": a score that is not a number must not pass unnoticed.
    valid = ops.logical_not(scores <= LOWEST)
    scores = ops.where(valid, scores, LOWEST)
    peak = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    odds = ops.where(valid, ops.exp(scores - peak), 0.0)
    total = ops.sum(odds, axis=-1, keepdims=True)
    return odds / ops.where(total > 0, total, 1.0)
