"""From scores to weights: who gets how much of the attention.

Scores, weights, masks and choices are `(..., S)`, S positions. A mask is boolean and
broadcastable to the scores, `True` marks a valid position; without one every position
is valid, and a score of minus infinity weighs nothing. Whatever stands in masked places
reaches neither a result nor a gradient. The arithmetic and the results are float32,
float64 for float64 scores.
"""

import keras
from keras import ops

from keras_attention import acceleration

# Far below any score, yet finite in float32, so that differences stay finite.
LOWEST = -1e30
# Normal in float32: subnormal numbers are zero under XLA.
TINY = 1e-37


def masked_softmax(scores, mask=None):
    """Softmax over the last axis that gives masked positions exactly zero.

    Where there is a mask, a row with no valid position is a row of zeros with zero
    gradients, and a score of minus infinity counts as not valid; without one, a row of
    minus infinity has no weights (NaN). The sum is taken in float32 at least, whatever
    the dtype of the scores.

    Args:
        scores: Scores, `(..., S)`; anything may stand in masked places.
        mask: Boolean, broadcastable to `scores`; `True` marks a valid position.
            Without it, every position is valid.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores).
    """
    bounded = _as_float(scores) if mask is None else _bounded(scores, mask)
    if bounded.shape[-1] == 1:
        # Keras warns of the softmax of one number. What is none must be seen.
        weights = ops.ones_like(bounded) + 0 * bounded
    elif acceleration.is_handful(bounded.shape, bounded.dtype):
        weights = ops.exp(ops.log_softmax(bounded, axis=-1))
    else:
        weights = ops.softmax(bounded, axis=-1)
    if mask is None:
        return weights
    valid = highest(bounded) > LOWEST
    return weights * ops.cast(valid, weights.dtype)


def masked_log_softmax(scores, mask=None):
    """Logarithm of `masked_softmax`, exact where the weights are too small to see.

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
    scores, valid = _below_peak(scores, mask)
    total = ops.sum(ops.where(valid, ops.exp(scores), 0.0), axis=-1, keepdims=True)
    logs = scores - ops.log(ops.where(total > 0, total, 1.0))
    return ops.where(valid, logs, LOWEST)


def masked_sparsemax(scores, mask=None):
    """Projection of the valid scores onto the simplex: low scores weigh exactly zero.

        weights[s] = max(scores[s] - threshold, 0),  the threshold making the sum one

    Gradients are exact, with those of one side where a score equals the threshold.

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
    scores, valid = _below_peak(scores, mask)
    scores, ordered, rank = _sorted(scores)
    # What the best k alone would ask for is largest when they are the support.
    asked = (_cumsum(ordered) - 1) / rank
    support = _above(highest(asked), scores, valid)
    # Computed anew from the support, the threshold carries the gradient.
    count, deviation = _deviation(scores, support)
    return ops.where(support, ops.relu(deviation + 1 / count), 0.0)


def masked_entmax15(scores, mask=None):
    """Sparse weights between softmax and sparsemax: entmax with alpha = 1.5.

        weights[s] = max(scores[s] / 2 - threshold, 0)^2,  the threshold making the
                                                           sum one

    Gradients are exact.

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores). A row with no
        valid position is a row of zeros with zero gradients.

    Example:

    >>> weights = masked_entmax15(np.array([-2.0, 0.0, 0.5], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights).round(3))
    [0.    0.326 0.674]

    Reference:
        [Peters et al., 2019](https://arxiv.org/abs/1905.05702), algorithm 2.
    """
    scores, valid = _below_peak(scores, mask)
    scores, ordered, rank = _sorted(scores / 2)
    mean = _cumsum(ordered) / rank
    spread = _cumsum(ops.square(ordered)) - rank * ops.square(mean)
    asked = mean - ops.sqrt(ops.clip(1 - spread, 0.0, 1.0) / rank)
    # Among those k whose worst is not below what they ask for, the support asks for
    # most; the best alone asks for -1.
    asked = ops.where(asked <= ordered, asked, -1.0)
    support = _above(highest(asked), scores, valid)
    # Computed anew from the support, the threshold carries the gradient, and the spread
    # is free of cancellation.
    count, deviation = _deviation(scores, support)
    spread = ops.sum(ops.square(deviation), axis=-1, keepdims=True)
    root = deviation + ops.sqrt((1 - spread) / count)
    return ops.where(support, ops.square(ops.relu(root)), 0.0)


def masked_hardmax(scores, mask=None):
    """All weight on the best valid position, the first one of equals.

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        One-hot weights like `scores`, in float32 (float64 for float64 scores), without
        a gradient. A row with no valid position is a row of zeros.

    Example:

    >>> weights = masked_hardmax(np.array([1.0, 3.0, 3.0, 2.0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights))
    [0. 1. 0. 0.]
    """
    scores, valid = _below_peak(scores, mask)
    scores = ops.stop_gradient(ops.where(valid, scores, LOWEST))
    return _first(scores >= 0, scores)


def masked_gumbel_max(scores, uniform, mask=None):
    """All weight on one position, drawn with the probabilities of `masked_softmax`.

        choice = argmax over s of scores[s] - log(-log(uniform[s]))

    The noise is an argument, so that it can be drawn before a loop.

    Args:
        scores, mask: As in `masked_softmax`.
        uniform: Uniform noise in `[0, 1)`, like `scores`, drawn in float32 at least.

    Returns:
        One-hot weights like `scores`, in float32 (float64 for float64 scores), without
        a gradient. A row with no valid position is a row of zeros.

    Example:

    >>> scores = np.array([0.0, 0.0], "float32")
    >>> choice = masked_gumbel_max(scores, np.array([0.3, 0.6], "float32"))
    >>> print(keras.ops.convert_to_numpy(choice))
    [0. 1.]

    Reference:
        [Maddison et al., 2014](https://arxiv.org/abs/1411.0030), section 2.
    """
    return masked_hardmax(_perturbed(scores, uniform, mask))


def masked_gumbel_softmax(scores, uniform, mask=None, *, temperature=1.0):
    """Weights near the choice of `masked_gumbel_max`, the nearer the colder.

        weights = softmax((scores[s] - log(-log(uniform[s]))) / temperature)

    Args:
        scores, uniform, mask: As in `masked_gumbel_max`.
        temperature: Positive.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores). A row with no
        valid position is a row of zeros, with a zero gradient.

    Example:

    >>> scores, uniform = np.array([[0.0, 0.0], [0.3, 0.6]], "float32")
    >>> weights = masked_gumbel_softmax(scores, uniform, temperature=0.1)
    >>> print(keras.ops.convert_to_numpy(weights).round(3))
    [0. 1.]

    Reference:
        [Jang et al., 2017](https://arxiv.org/abs/1611.01144), section 2;
        [Maddison et al., 2017](https://arxiv.org/abs/1611.00712), section 3.
    """
    return masked_softmax(_perturbed(scores, uniform, mask) / temperature, mask)


def log_probability(scores, choice, mask=None):
    """Logarithm of the probability that `masked_softmax` gives to a choice.

    Args:
        scores, mask: As in `masked_softmax`.
        choice: One-hot, like `scores`; no gradient flows into it.

    Returns:
        Logarithms `(...)`, zero where the choice is a row of zeros: nothing could be
        chosen. Choosing a masked position gives `LOWEST`.

    Example:

    >>> scores = np.log(np.array([1.0, 3.0, 4.0], "float32"))
    >>> logs = log_probability(scores, np.array([0, 0, 1]))
    >>> print(np.exp(keras.ops.convert_to_numpy(logs)).round(3))
    0.5
    """
    logs = masked_log_softmax(scores, mask)
    return ops.sum(ops.stop_gradient(ops.cast(choice, logs.dtype)) * logs, axis=-1)


def entropy(scores, mask=None):
    """Entropy of `masked_softmax`, in nats.

        entropy = -sum over s of weights[s] * log(weights[s])

    Args:
        scores, mask: As in `masked_softmax`.

    Returns:
        Entropies `(...)`; zero with a zero gradient for a row with no valid position.

    Example:

    >>> among_three = entropy(np.zeros(3, "float32"))
    >>> print(np.exp(keras.ops.convert_to_numpy(among_three)).round(3))
    3.0
    """
    logs = masked_log_softmax(scores, mask)
    return -ops.sum(ops.exp(logs) * logs, axis=-1)


def straight_through(hard, soft):
    """The value of `hard`, bit for bit, with the gradient of `soft`.

    Args:
        hard: Weights to use, for example of `masked_hardmax`.
        soft: Weights to learn from, for example of `masked_softmax`; finite.

    Returns:
        `hard` in the dtype of `soft`.

    Example:

    >>> soft = masked_softmax(np.array([1.0, 3.0], "float32"))
    >>> print(keras.ops.convert_to_numpy(straight_through(masked_hardmax(soft), soft)))
    [0. 1.]

    Reference:
        [Bengio et al., 2013](https://arxiv.org/abs/1308.3432), section 4.
    """
    # A number minus itself is exactly zero; soft + (hard - soft) would be rounded.
    hard = ops.stop_gradient(ops.cast(hard, soft.dtype))
    return hard + (soft - ops.stop_gradient(soft))


def masked_sigmoid(scores, mask=None):
    """Sigmoid of every score by itself: the probability to stop at a position.

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
    scores, valid = _valid(scores, mask)
    return ops.where(valid, ops.sigmoid(scores), 0.0)


def monotonic_recursive(p, previous):
    """Expected position of a reader who moves on until a position is chosen.

        q[j]       = (1 - p[j - 1]) * q[j - 1] + previous[j],  q[0] = previous[0]
        weights[j] = p[j] * q[j]

    Exact to a few roundings for any `p`, zero and one included: the recurrence is
    solved by doubling (`q` over two positions, four, eight, ...), which only adds and
    multiplies numbers that are not negative. It takes `log2(S)` rounds over the row. A
    second derivative, such as of a penalty on gradients, is right on TensorFlow alone.

    Args:
        p: Probability to stop at a position, `(..., S)`, zero where it is masked; see
            `masked_sigmoid`.
        previous: Weights of the step before, like `p`; before the first step, one-hot
            at the first position.

    Returns:
        Weights like `p`, in float32 (float64 for float64 `p`). What is left of the sum
        of `previous` went past the last position.

    Example:

    >>> p = np.array([0.2, 0.5, 0.9, 0.1], "float32")
    >>> weights = monotonic_recursive(p, np.array([1, 0, 0, 0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights).round(4))
    [0.2   0.4   0.36  0.004]

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.3.
    """
    p, previous = _as_floats(p, previous)
    return p * _solve(_shifted(1 - p, 0.0), previous)


def monotonic_parallel(p, previous):
    """The closed form of `monotonic_recursive`, for moderate `p` only.

        passed[j]  = (1 - p[0]) * ... * (1 - p[j - 1])
        weights[j] = p[j] * passed[j] * sum over k <= j of previous[k] / passed[k]

    As in the paper's implementation, `passed` is at least 1e-10 as a divisor, to stay
    finite. Weights are lost wherever it is smaller: with every `p` at 0.9 and the
    previous position at 30, position 30 gets 9e-21, not 0.9.

    Args:
        p, previous: As in `monotonic_recursive`.

    Returns:
        Weights like `p`, in float32 (float64 for float64 `p`).

    Example:

    >>> p = np.array([0.2, 0.5, 0.9, 0.1], "float32")
    >>> weights = monotonic_parallel(p, np.array([1, 0, 0, 0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights).round(4))
    [0.2   0.4   0.36  0.004]

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.3.
    """
    p, previous = _as_floats(p, previous)
    # Not a product: its gradient is not finite everywhere where a factor is zero. The
    # upper bounds are out of reach: at a bound, JAX halves the gradient.
    logs = ops.log(ops.clip(_shifted(1 - p, 1.0), TINY, 2.0))
    passed = ops.exp(_cumsum(logs))
    return p * passed * _cumsum(previous / ops.clip(passed, 1e-10, 2.0))


def monotonic_hard(p, previous):
    """All weight on the first position with `p > 0.5`, from the previous one on.

    Args:
        p: As in `monotonic_recursive`.
        previous: Choice of the step before, one-hot like `p`; before the first step,
            at the first position.

    Returns:
        One-hot weights like `p`, in float32 (float64 for float64 `p`), without a
        gradient. A row of zeros once no such position is left.

    Example:

    >>> p = np.array([0.9, 0.2, 0.5, 0.6], "float32")
    >>> weights = monotonic_hard(p, np.array([0, 1, 0, 0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights))
    [0. 0. 0. 1.]

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.2.
    """
    p, previous = map(ops.stop_gradient, _as_floats(p, previous))
    reached = _cumsum(previous) > 0.5
    return _first(ops.logical_and(reached, p > 0.5), p)


def highest(x):
    """The highest number of every row, `(..., 1)`."""
    if 0 in x.shape:
        # Of nothing backends refuse a maximum. A sum has its shape.
        return ops.sum(x, axis=-1, keepdims=True)
    return ops.max(x, axis=-1, keepdims=True)


def _below_peak(scores, mask):
    """Valid scores less the highest of their row, and which ones are valid."""
    scores, valid = _valid(scores, mask)
    return scores - ops.stop_gradient(highest(scores)), valid


def _perturbed(scores, uniform, mask):
    """Scores and Gumbel noise, `LOWEST` where nothing is valid."""
    # Relative to the peak, large scores do not round the noise away.
    scores, valid = _below_peak(scores, mask)
    waiting = -ops.log(ops.cast(uniform, scores.dtype))
    noisy = scores - ops.log(ops.clip(waiting, TINY, 100.0))
    return ops.where(valid, noisy, LOWEST)


def _valid(scores, mask):
    """Scores with `LOWEST` where they are not valid, and which ones are valid."""
    scores = _bounded(scores, mask)
    # Not "greater": a score that is not a number must not pass unnoticed.
    return scores, ops.logical_not(scores <= LOWEST)


def _bounded(scores, mask):
    """Scores with `LOWEST` where they are not valid."""
    scores = _as_float(scores)
    if mask is not None:
        mask = ops.broadcast_to(mask, ops.shape(scores))
        scores = ops.where(mask, scores, LOWEST)
    return ops.where(scores < LOWEST, LOWEST, scores)


def _as_float(x):
    if keras.backend.standardize_dtype(x.dtype) == "float64":
        return ops.convert_to_tensor(x)
    return ops.cast(x, "float32")


def _as_floats(p, previous):
    p = _as_float(p)
    return p, ops.cast(previous, p.dtype)


def _cumsum(x):
    # On PyTorch, Keras adds float64 in float32; likewise `ops.maximum`, not `ops.clip`.
    return ops.cast(ops.cumsum(x, axis=-1), x.dtype)


def _sorted(scores):
    """Scores in range, the same from high to low, and their ranks, from 1."""
    # Below -1 nothing gets weight, and squares of the lowest scores would overflow. The
    # upper bound is out of reach: at a bound, JAX halves the gradient.
    scores = ops.clip(scores, -2.0, 1.0)
    ordered = -ops.sort(-ops.stop_gradient(scores), axis=-1)
    return scores, ordered, _cumsum(ops.ones_like(ordered))


def _above(threshold, scores, valid):
    # Not "greater": a score that is not a number must not pass unnoticed.
    return ops.logical_and(valid, ops.logical_not(scores <= threshold))


def _deviation(scores, support):
    """Size of the support, at least 1, and deviations from its mean; zero beyond."""
    count = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    count = ops.where(count > 0, count, 1.0)
    # The second time takes away what rounding has left of the mean.
    for _ in range(2):
        total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
        scores = scores - total / count
    return count, ops.where(support, scores, 0.0)


def _first(candidates, values):
    """One-hot of the first candidate of every row; zeros where there is none."""
    count = _cumsum(ops.cast(candidates, values.dtype))
    first = ops.cast(ops.logical_and(candidates, count == 1), values.dtype)
    # A value that is not a number must not pass unnoticed.
    return ops.where(ops.isnan(values), values, first)


def _shifted(x, first):
    """`x` moved one position on, and `first` in the first position."""
    return ops.concatenate([ops.full_like(x[..., :1], first), x[..., :-1]], axis=-1)


@ops.custom_gradient
def _solve(factor, x):
    """`q[j] = factor[j] * q[j - 1] + x[j]`, where `factor[0]` is zero."""
    q = _doubled(factor, x)
    before = ops.roll(q, 1, axis=-1)

    def grad(*args, upstream=None):
        upstream = args[0] if upstream is None else upstream
        # What is owed to q[j] is the same recurrence from the last position on.
        following = ops.roll(ops.flip(factor, axis=-1), 1, axis=-1)
        owed = _doubled(following, ops.flip(upstream, axis=-1))
        owed = ops.flip(owed, axis=-1)
        return owed * before, owed

    return q, grad


def _doubled(factor, q):
    # A loop even where the length is known: unrolled, XLA takes many times as long to
    # compile it. What `roll` brings around the end meets a factor that contains
    # factor[0], zero.
    def double(distance, factor, q):
        q = q + factor * ops.roll(q, distance, axis=-1)
        return 2 * distance, factor * ops.roll(factor, distance, axis=-1), q

    length = ops.shape(q)[-1]
    start = ops.convert_to_tensor(1), factor, q
    return ops.while_loop(lambda distance, *_: distance < length, double, start)[-1]
