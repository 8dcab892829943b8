"""Monotonic weights: a process moves forward and stops at a position.

Scores, weights, masks and choices are `(..., S)`, S positions; see `weightings` for
masks and dtypes.
"""

from keras import ops

from keras_attention.ops.gradients import with_upstream
from keras_attention.ops.precision import at_least_float32
from keras_attention.ops.rows import LOWEST
from keras_attention.ops.rows import TINY
from keras_attention.ops.rows import cumsum
from keras_attention.ops.rows import first_candidate
from keras_attention.ops.rows import valid_scores
from keras_attention.ops.weightings import masked_softmax


def monotonic_recursive(p, previous):
    """Expected weights of a process that moves forward until it stops at a position.

        q[j]       = (1 - p[j - 1]) * q[j - 1] + previous[j],  q[0] = previous[0]
        weights[j] = p[j] * q[j]

    The result is exact up to rounding for any `p`, zero and one included: the
    recurrence is solved by doubling (`q` over two positions, four, eight, ...), which
    only adds and multiplies numbers that are not negative. It takes `log2(S)` rounds.
    The second derivative is correct on TensorFlow only.

    Args:
        p: Probability of stopping at a position, `(..., S)`, zero where it is masked;
            see `masked_sigmoid`.
        previous: Weights of the step before, like `p`; before the first step, one-hot
            at the first position.

    Returns:
        Weights like `p`, in float32 (float64 for float64 `p`). Their sum is that of
        `previous` minus the probability of passing the last position.

    Example:

    >>> p = np.array([0.2, 0.5, 0.9, 0.1], "float32")
    >>> weights = monotonic_recursive(p, np.array([1, 0, 0, 0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights).round(4))
    [0.2   0.4   0.36  0.004]

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.3.
    """
    p, previous = _both_at_least_float32(p, previous)
    return p * _solve(_shifted(1 - p, 0.0), previous)


def monotonic_parallel(p, previous):
    """Closed form of `monotonic_recursive`, for moderate `p` only.

        passed[j]  = (1 - p[0]) * ... * (1 - p[j - 1])
        weights[j] = p[j] * passed[j] * sum over k <= j of previous[k] / passed[k]

    As in the paper's implementation, `passed` is at least 1e-10 as a divisor, to stay
    finite. Weights are lost wherever it is smaller: with every `p` at 0.9 and the
    previous position at 30, position 30 gets 9e-21, not 0.9.

    Args:
        p, previous: As in `monotonic_recursive`.

    Returns:
        Weights like `p`, in float32 (float64 for float64 `p`).

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.3.
    """
    p, previous = _both_at_least_float32(p, previous)
    # Not a product, whose gradient may be infinite where a factor is zero. No value
    # reaches the upper bounds, because at a bound JAX halves the gradient.
    logs = ops.log(ops.clip(_shifted(1 - p, 1.0), TINY, 2.0))
    passed = ops.exp(cumsum(logs))
    return p * passed * cumsum(previous / ops.clip(passed, 1e-10, 2.0))


def monotonic_hard(p, previous):
    """One-hot weights of the first position with `p > 0.5`, from the previous one on.

    Args:
        p: As in `monotonic_recursive`.
        previous: Choice of the step before, one-hot like `p`; before the first step,
            at the first position.

    Returns:
        One-hot weights like `p`, in float32 (float64 for float64 `p`), without a
        gradient. A row of zeros if there is no such position.

    Example:

    >>> p = np.array([0.9, 0.2, 0.5, 0.6], "float32")
    >>> weights = monotonic_hard(p, np.array([0, 1, 0, 0], "float32"))
    >>> print(keras.ops.convert_to_numpy(weights))
    [0. 0. 0. 1.]

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.2.
    """
    p, previous = map(ops.stop_gradient, _both_at_least_float32(p, previous))
    reached = cumsum(previous) > 0.5
    return first_candidate(ops.logical_and(reached, p > 0.5), p)


def chunkwise(stops, scores, size, mask=None):
    """Spread the weight of each position by a softmax over the chunk that ends there.

        weights[j] = sum over j <= k < j + size of
                     stops[k] * exp(scores[j]) / sum over k - size < l <= k of
                                                 exp(scores[l])

    Each chunk has a softmax of its own, so the result is exact even if the scores of
    distant positions differ by much. It takes `size` times as much memory as `stops`.

    Args:
        stops: Weights of the last positions of the chunks, `(..., S)`, such as those of
            `monotonic_hard`; zero where they are masked.
        scores: Scores `(..., S)`.
        size: Number of positions of a chunk. A chunk that begins before the first
            position is shorter.
        mask: Boolean, broadcastable to `scores`.

    Returns:
        Weights like `scores`, in float32 (float64 for float64 scores), with the sum of
        `stops`.

    Example:

    >>> scores = np.log(np.array([5.0, 1.0, 3.0, 2.0], "float32"))
    >>> weights = chunkwise(np.array([0, 0, 1, 0], "float32"), scores, size=2)
    >>> print(keras.ops.convert_to_numpy(weights).round(4))
    [0.   0.25 0.75 0.  ]

    Reference:
        [Chiu and Raffel, 2018](https://arxiv.org/abs/1712.05382), section 2.3.
    """
    scores, _ = valid_scores(scores, mask)
    delayed = [scores]
    for _ in range(size - 1):
        delayed.append(_shifted(delayed[-1], LOWEST))
    shares = masked_softmax(ops.stack(delayed, axis=-1))
    parts = ops.cast(stops, shares.dtype)[..., None] * shares
    weights = parts[..., size - 1]
    for n in reversed(range(size - 1)):
        # `parts[k, n]` is the weight of position k - n. It is shifted n times.
        beyond = ops.zeros_like(weights[..., :1])
        weights = ops.concatenate([weights[..., 1:], beyond], axis=-1) + parts[..., n]
    return weights


def _both_at_least_float32(p, previous):
    """Return both in float32, or in float64 for float64 `p`."""
    p = at_least_float32(p)
    return p, ops.cast(previous, p.dtype)


def _shifted(x, first):
    """Shift `x` by one position, with `first` in the first position."""
    return ops.concatenate([ops.full_like(x[..., :1], first), x[..., :-1]], axis=-1)


@ops.custom_gradient
def _solve(factor, x):
    """Solve `q[j] = factor[j] * q[j - 1] + x[j]` for q; `factor[0]` is zero."""
    q = _solve_by_doubling(factor, x)
    previous = ops.roll(q, 1, axis=-1)

    @with_upstream
    def gradient(upstream):
        # The gradient of q[j] is the same recurrence, from the last position back.
        reversed_factor = ops.roll(ops.flip(factor, axis=-1), 1, axis=-1)
        x_gradient = _solve_by_doubling(reversed_factor, ops.flip(upstream, axis=-1))
        x_gradient = ops.flip(x_gradient, axis=-1)
        return x_gradient * previous, x_gradient

    return q, gradient


def _solve_by_doubling(factor, q):
    """Solve the recurrence of `_solve` by doubling, without an explicit gradient."""

    # XLA compiles the loop many times as fast as unrolled steps. Entries that `roll`
    # wraps around are multiplied by factor[0], which is zero.
    def double(distance, factor, q):
        q = q + factor * ops.roll(q, distance, axis=-1)
        return 2 * distance, factor * ops.roll(factor, distance, axis=-1), q

    length = ops.shape(q)[-1]
    start = ops.convert_to_tensor(1), factor, q
    return ops.while_loop(lambda distance, *_: distance < length, double, start)[-1]
