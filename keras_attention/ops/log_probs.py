"""Log-probabilities in which impossible events are finite."""

from keras_attention import backends
from keras_attention.typing import Tensor

# Log-probability of an impossible event. It is finite, as are its sums, but its
# exponential is zero.
IMPOSSIBLE = -1e9


def is_possible(log_probs: Tensor) -> Tensor:
    """Return a mask of the log-probabilities above `IMPOSSIBLE`; `False` for NaN."""
    return log_probs > IMPOSSIBLE / 2


def is_impossible(log_probs: Tensor) -> Tensor:
    """Return a mask of the log-probabilities near `IMPOSSIBLE`; `False` for NaN."""
    return log_probs <= IMPOSSIBLE / 2


def finite_log_probs(log_probs: Tensor) -> Tensor:
    """Replace NaN and infinities by `IMPOSSIBLE`; see `backends.finite_log_probs`."""
    return backends.finite_log_probs(log_probs, IMPOSSIBLE)
