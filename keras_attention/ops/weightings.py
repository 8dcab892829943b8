"""Weightings: functions from scores to weights.

Scores, weights, masks and choices are `(..., S)`, S positions. A mask is boolean and
broadcastable to the scores, `True` marks a valid position; without one every position
is valid, and a score of minus infinity weighs zero. Masked scores, whatever their
value, affect neither a result nor a gradient. Arithmetic and results are float32, or
float64 for float64 scores.
"""

from keras import ops

from keras_attention import acceleration
from keras_attention.ops.precision import at_least_float32
from keras_attention.ops.rows import LOWEST
from keras_attention.ops.rows import bounded_scores
from keras_attention.ops.rows import cumsum
from keras_attention.ops.rows import row_max
from keras_attention.ops.rows import subtract_max
from keras_attention.ops.rows import valid_scores
from keras_attention.typing import Tensor


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last axis that gives masked positions exactly zero.

    Where there is a mask, a row with no valid position is a row of zeros with zero
    gradients, and a score of minus infinity counts as not valid; without one, the
    weights of a row of minus infinity are NaN. The sum is taken in float32 at least,
    whatever the dtype of the scores.

    Args:
        scores: Scores, `(..., S)`; masked ones may have any value, NaN included.
        mask: Boolean, broadcastable to `scores`; `True` marks a valid position.
            Without it, every position is valid.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores).
    """
    bounded = at_least_float32(scores) if mask is None else bounded_scores(scores, mask)
    if bounded.shape[-1] == 1:
        # Keras warns of the softmax of a single number. NaN must propagate.
        weights = ops.ones_like(bounded) + 0 * bounded
    elif acceleration.has_few_scores(bounded.shape, bounded.dtype):
        weights = ops.exp(ops.log_softmax(bounded, axis=-1))
    else:
        weights = ops.softmax(bounded, axis=-1)
    if mask is None:
        return weights
    valid = row_max(bounded) > LOWEST
    return weights * ops.cast(valid, weights.dtype)


def masked_log_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logarithm of `masked_softmax`, exact where the weights underflow.

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        Logarithms like `scores`, in float32 (float64 for float64 scores). Masked
        positions hold `LOWEST`: it is finite, and its exponential is zero.

    Example:

    >>> scores = np.log(np.array([1.0, 3.0, 4.0], "float32"))
    >>> logs = masked_log_softmax(scores, np.array([True, True, False]))
    >>> print(np.exp(keras.ops.convert_to_numpy(logs)).round(3))
    [0.25 0.75 0.  ]
    """
    scores, valid = subtract_max(scores, mask)
    total = ops.sum(ops.where(valid, ops.exp(scores), 0.0), axis=-1, keepdims=True)
    logs = scores - ops.log(ops.where(total > 0, total, 1.0))
    return ops.where(valid, logs, LOWEST)


def masked_sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sparsemax: projection of the valid scores onto the simplex.

        weights[s] = max(scores[s] - threshold, 0),  with the threshold for which
                                                     the weights sum to one

    Gradients are exact, and one-sided where a score equals the threshold.

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores). A row with no
        valid position is a row of zeros with zero gradients.

    Example:

    >>> weights = masked_sparsemax(np.array([-2.0, 0.0, 0.5], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights))
    [0.   0.25 0.75]

    Reference:
        [Martins & Astudillo, 2016](https://arxiv.org/abs/1602.02068), algorithm 1.
    """
    scores, valid = subtract_max(scores, mask)
    scores, ordered, rank = _sorted(scores)
    # Of the thresholds for the best k scores, the largest is that of the support.
    thresholds = (cumsum(ordered) - 1) / rank
    support = _above(row_max(thresholds), scores, valid)
    # Recomputed from the support, the threshold carries the gradient.
    count, deviation = _deviation(scores, support)
    return ops.where(support, ops.relu(deviation + 1 / count), 0.0)


def masked_entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sparse weights between softmax and sparsemax: entmax with alpha = 1.5.

        weights[s] = max(scores[s] / 2 - threshold, 0)^2,  with the threshold for which
                                                           the weights sum to one

    Gradients are exact. Arguments and results are as in `masked_sparsemax`.

    Example:

    >>> weights = masked_entmax15(np.array([-2.0, 0.0, 0.5], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights).round(3))
    [0.    0.326 0.674]

    Reference:
        [Peters et al., 2019](https://arxiv.org/abs/1905.05702), algorithm 2.
    """
    scores, valid = subtract_max(scores, mask)
    scores, ordered, rank = _sorted(scores / 2)
    mean = cumsum(ordered) / rank
    spread = cumsum(ops.square(ordered)) - rank * ops.square(mean)
    thresholds = mean - ops.sqrt(ops.clip(1 - spread, 0.0, 1.0) / rank)
    # The threshold for the best k scores is valid if score k is not below it. The
    # largest valid threshold is that of the support; for k = 1, it is -1.
    thresholds = ops.where(thresholds <= ordered, thresholds, -1.0)
    support = _above(row_max(thresholds), scores, valid)
    # Recomputed from the support, the threshold carries the gradient, and the spread
    # is free of cancellation.
    count, deviation = _deviation(scores, support)
    spread = ops.sum(ops.square(deviation), axis=-1, keepdims=True)
    root = deviation + ops.sqrt((1 - spread) / count)
    return ops.where(support, ops.square(ops.relu(root)), 0.0)


def masked_sigmoid(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sigmoid of every score: the probability of stopping at a position.

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        Probabilities like `scores`, in float32 (float64 for float64 scores); exactly
        zero with a zero gradient at masked positions.

    Example:

    >>> scores = np.array([0.0, 0.0], "float32")
    >>> p = masked_sigmoid(scores, np.array([True, False]))
    >>> print(keras.ops.convert_to_numpy(p))
    [0.5 0. ]
    """
    scores, valid = valid_scores(scores, mask)
    return ops.where(valid, ops.sigmoid(scores), 0.0)


def _sorted(scores):
    """Return clipped scores, the same in descending order, and their ranks from 1."""
    # Scores below -1 get no weight, and squares of the lowest would overflow. No score
    # reaches the upper bound, because at a bound JAX halves the gradient.
    scores = ops.clip(scores, -2.0, 1.0)
    ordered = -ops.sort(-ops.stop_gradient(scores), axis=-1)
    return scores, ordered, cumsum(ops.ones_like(ordered))


def _above(threshold, scores, valid):
    """Return which valid scores exceed the threshold; `True` for NaN."""
    # Not `scores > threshold`, because NaN must propagate to the weights.
    return ops.logical_and(valid, ops.logical_not(scores <= threshold))


def _deviation(scores, support):
    """Return the size of the support (at least 1), and deviations from its mean."""
    count = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    count = ops.where(count > 0, count, 1.0)
    # The second pass removes the rounding error of the first.
    for _ in range(2):
        total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
        scores = scores - total / count
    return count, ops.where(support, scores, 0.0)
