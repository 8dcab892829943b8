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
    """Replace NaN and infinities by `IMPOSSIBLE`; in LiteRT, they remain.

    Args:
        log_probs: Tensor `(..., N)`.

    Returns:
        log_probs: The same without them.
        finite: Mask `(...)`, `False` for rows with NaN or plus infinity.
    """
    if traces_for_litert():
        # Every pass over all log-probabilities counts there. NaN and plus infinity
        # remain in the sum of a row, and `NaN < inf` is false.
        return log_probs, ops.sum(log_probs, axis=-1) < math.inf
    numbers = log_probs < math.inf
    log_probs = ops.where(numbers, log_probs, IMPOSSIBLE)
    return ops.maximum(log_probs, IMPOSSIBLE), ops.all(numbers, axis=-1)
