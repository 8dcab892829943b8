"""Log-probabilities in which impossible events are finite."""

import math

from keras import ops

from keras_attention.backends import traces_for_litert

# Log-probability of an impossible event. It is finite, as are its sums, but its
# exponential is zero.
IMPOSSIBLE = -1e9


def is_possible(log_probs):
    """Return a mask of the log-probabilities above `IMPOSSIBLE`; `False` for NaN."""
    return log_probs > IMPOSSIBLE / 2


def is_impossible(log_probs):
    """Return a mask of the log-probabilities near `IMPOSSIBLE`; `False` for NaN."""
    return log_probs <= IMPOSSIBLE / 2


def finite_log_probs(log_probs):
    """Replace NaN and infinities by `IMPOSSIBLE`.

    Args:
        log_probs: Tensor `(..., N)`.

    Returns:
        log_probs: The same without NaN and infinities.
        finite: Mask `(...)`, `False` for rows with NaN or plus infinity.
    """
    if traces_for_litert():
        # Comparisons of all log-probabilities are slow there. NaN and plus infinity
        # remain in the sum of a row, and `NaN < inf` is false.
        finite = ops.sum(log_probs, axis=-1) < math.inf
        return ops.maximum(log_probs, IMPOSSIBLE), finite
    numbers = log_probs < math.inf
    log_probs = ops.where(numbers, log_probs, IMPOSSIBLE)
    return ops.maximum(log_probs, IMPOSSIBLE), ops.all(numbers, axis=-1)
