"""Log-probabilities in which impossible events are finite."""

# Log-probability of an impossible event. It is finite, as are its sums, but its
# exponential is zero.
IMPOSSIBLE = -1e9


def is_possible(log_probs):
    """Return a mask of the log-probabilities above `IMPOSSIBLE`; `False` for NaN."""
    return log_probs > IMPOSSIBLE / 2


def is_impossible(log_probs):
    """Return a mask of the log-probabilities near `IMPOSSIBLE`; `False` for NaN."""
    return log_probs <= IMPOSSIBLE / 2
