"""Losses for sequences and for the attention behind them.

Shapes: B batch, T target steps, S positions, N vocabulary size.
"""

import keras
from keras import ops


def doubly_stochastic_penalty(weights, mask=None):
    """How far each position's total attention is from one.

        penalty = sum over s of (1 - sum over t of weights[t, s]) ** 2

    Asks that every position of the source be looked at about equally often while
    the weights of every step sum to one by construction.

    Args:
        weights: Attention weights, `(..., T, S)`.
        mask: Boolean `(..., T)`; steps that are `False` do not count.

    Returns:
        One penalty per sequence, `(...)`, in float32 at least.

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 14.
    """
    weights = _at_least_float32(weights)
    if mask is not None:
        weights = ops.where(mask[..., None], weights, ops.zeros_like(weights))
    return ops.sum(ops.square(1.0 - ops.sum(weights, axis=-2)), axis=-1)


def sequence_crossentropy(token_ids, logits, *, label_smoothing=0.0):
    """Cross-entropy of every token, with label smoothing.

        loss = -(1 - e) log p(token) - e / N * sum over n of log p(n)

    Args:
        token_ids: Target tokens, integers `(..., T)`.
        logits: Unnormalised log-probabilities, `(..., T, N)`.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread
            evenly over the vocabulary.

    Returns:
        One loss per token, `(..., T)`, in float32 at least. Padding is for the caller
        to weigh.

    Reference:
        [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7.
    """
    log_probs = ops.log_softmax(_at_least_float32(logits), axis=-1)
    picked = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]
    if not label_smoothing:
        return -picked
    spread = ops.mean(log_probs, axis=-1)
    return -(1 - label_smoothing) * picked - label_smoothing * spread


def _at_least_float32(x):
    is_double = keras.backend.standardize_dtype(x.dtype) == "float64"
    return x if is_double else ops.cast(x, "float32")
