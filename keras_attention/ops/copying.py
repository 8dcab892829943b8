"""Copying from a source: mixtures of a vocabulary with the tokens of a source.

Shapes: B batch, T steps, S source positions, N vocabulary size, X extra ids.

Log-probabilities are float32, or float64 for float64 logits.
"""

from keras import ops

from keras_attention.ops.log_probs import IMPOSSIBLE
from keras_attention.ops.masks import combine_masks
from keras_attention.ops.precision import at_least_float32
from keras_attention.ops.precision import log_floor


def log_of_weights(weights):
    """Return logarithms of weights, `IMPOSSIBLE` where they are zero.

    Weights below 1e-30 have no gradient; nor do weights in float16 below 1e-4, because
    the gradient of their logarithm overflows.

    Args:
        weights: Not negative, any shape.

    Returns:
        Logarithms like `weights`, in float32 at least.
    """
    return _log(at_least_float32(weights), log_floor(weights.dtype))


def extended_log_probs(
    logits, switch, weights, source_ids, extra_ids, source_mask=None
):
    """Mix the vocabulary with the tokens of the source.

        p[n] = p_gen * softmax(logits)[n] + (1 - p_gen) * sum of weights[s] over the
               positions s with source_ids[s] = n
        p_gen = sigmoid(switch)

    Args:
        logits: `(B, T, N)`.
        switch: `(B, T)`.
        weights: `(B, T, S)`, not necessarily normalised.
        source_ids: Integers `(B, S)`. Positions of ids outside of 0 to N + X - 1, such
            as unknown words beyond the X-th, are never copied.
        extra_ids: Number of extra ids, X.
        source_mask: Boolean `(B, S)`, `False` for positions that are never copied.

    Returns:
        Log-probabilities `(B, T, N + X)`; `IMPOSSIBLE` for extra ids without weight.
    """
    size = logits.shape[-1] + extra_ids
    source_ids, source_mask = _mask_ids(source_ids, size, source_mask)
    generate, copy, shares = _mixture(logits, switch, weights, source_mask)
    vocabulary = ops.log_softmax(at_least_float32(logits), axis=-1) + generate
    vocabulary = ops.pad(
        vocabulary, [[0, 0], [0, 0], [0, extra_ids]], constant_values=IMPOSSIBLE
    )
    copied = _sums_of_ids(shares, source_ids, size)
    return _log_sum(vocabulary, copy + _log(copied, log_floor(weights.dtype)))


def target_log_probs(
    targets, logits, switch, weights, source_ids, extra_ids, source_mask=None
):
    """Return the log-probabilities of target tokens alone, `(B, T)`.

    Equal to the entries of `extended_log_probs` for the tokens `targets` `(B, T)`, but
    without an array of the size `(B, T, N + X)`. Other tokens are `IMPOSSIBLE`.
    """
    size = logits.shape[-1]
    source_ids, source_mask = _mask_ids(source_ids, size + extra_ids, source_mask)
    generate, copy, shares = _mixture(logits, switch, weights, source_mask)
    logits = at_least_float32(logits)
    targets = ops.cast(targets, "int32")[..., None]
    in_vocabulary = (targets >= 0) & (targets < size)
    chosen = ops.take_along_axis(logits, ops.where(in_vocabulary, targets, 0), axis=-1)
    vocabulary = chosen - ops.logsumexp(logits, axis=-1, keepdims=True)
    vocabulary = ops.where(in_vocabulary, vocabulary + generate, IMPOSSIBLE)
    same = source_ids[:, None, :] == targets
    copied = ops.sum(ops.where(same, shares, 0.0), axis=-1, keepdims=True)
    return _log_sum(vocabulary, copy + _log(copied, log_floor(weights.dtype)))[..., 0]


def _mask_ids(source_ids, size, source_mask):
    """Return int32 ids, and the mask of positions whose id is in `[0, size)`."""
    source_ids = ops.cast(source_ids, "int32")
    is_id = ops.logical_and(source_ids >= 0, source_ids < size)
    return ops.where(is_id, source_ids, 0), combine_masks(source_mask, is_id)


def _mixture(logits, switch, weights, source_mask):
    """Return log p_gen and log (1 - p_gen), `(B, T, 1)`, and the normalised weights.

    If all weights of a step are zero, its p_gen is one.
    """
    dtype = at_least_float32(logits).dtype
    weights, switch = ops.cast(weights, dtype), ops.cast(switch, dtype)[..., None]
    weights = ops.where(source_mask[:, None, :], weights, 0.0)
    total = ops.sum(weights, axis=-1, keepdims=True)
    has_weight = total > 0
    generate = ops.where(has_weight, ops.log_sigmoid(switch), 0.0)
    copy = ops.where(has_weight, ops.log_sigmoid(-switch), IMPOSSIBLE)
    return generate, copy, weights / ops.where(has_weight, total, 1.0)


def _sums_of_ids(weights, source_ids, size):
    """Return the sum of the weights of every id, `(B, T, size)`."""
    batch, steps = ops.shape(weights)[:2]
    rows = size * ops.arange(batch, dtype="int32")[:, None]
    segments = ops.reshape(rows + source_ids, (-1,))
    # One segment for every row and id, with the weights of all steps.
    weights = ops.reshape(ops.swapaxes(weights, 1, 2), (-1, steps))
    sums = ops.segment_sum(weights, segments, num_segments=batch * size)
    return ops.swapaxes(ops.reshape(sums, (batch, size, steps)), 1, 2)


def _log(p, floor):
    """Return logarithms, without a gradient where `p < floor`."""
    p = ops.where(p >= floor, p, ops.stop_gradient(p))
    return ops.where(p > 0, ops.log(ops.where(p > 0, p, 1.0)), IMPOSSIBLE)


def _log_sum(x, y):
    """Return log(exp(x) + exp(y)), at least `IMPOSSIBLE`."""
    # The gradient of `ops.logaddexp` is one-sided where both are equal.
    largest = ops.stop_gradient(ops.maximum(x, y))
    total = ops.exp(x - largest) + ops.exp(y - largest)
    return ops.maximum(largest + ops.log(total), IMPOSSIBLE)
