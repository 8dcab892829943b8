"""Hard choices of a position, their probabilities, and gradient estimators.

Scores, weights, masks and choices are `(..., S)`, S positions; see `weightings` for
masks and dtypes.
"""

from keras import ops

from keras_attention.ops.rows import LOWEST
from keras_attention.ops.rows import TINY
from keras_attention.ops.rows import first_candidate
from keras_attention.ops.rows import subtract_max
from keras_attention.ops.weightings import masked_log_softmax
from keras_attention.ops.weightings import masked_softmax


def masked_hardmax(scores, mask=None):
    """One-hot weights of the best valid position; the first wins a tie.

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
    scores, valid = subtract_max(scores, mask)
    scores = ops.stop_gradient(ops.where(valid, scores, LOWEST))
    return first_candidate(scores >= 0, scores)


def masked_gumbel_max(scores, uniform, mask=None):
    """One-hot weights of a position drawn from `masked_softmax`.

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
    """Relaxation of `masked_gumbel_max`, closer to it at a lower temperature.

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
        Logarithms `(...)`, zero where the choice is a row of zeros (no valid
        position). Choosing a masked position gives `LOWEST`.

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
    """Return the exact value of `hard` with the gradient of `soft`.

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


def _perturbed(scores, uniform, mask):
    """Return scores plus Gumbel noise, `LOWEST` at masked positions."""
    # Once the maximum is subtracted, large scores do not round the noise away.
    scores, valid = subtract_max(scores, mask)
    exponential = -ops.log(ops.cast(uniform, scores.dtype))
    noisy = scores - ops.log(ops.clip(exponential, TINY, 100.0))
    return ops.where(valid, noisy, LOWEST)
