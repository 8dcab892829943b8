"""The best of several epochs, and of the preset from which a training starts."""


def is_epoch(metrics):
    """Return whether metrics are those of an epoch of training.

    Those of a preset before the first epoch, and of an average, have no loss.
    """
    return not {"loss", "reward"}.isdisjoint(metrics)


def best_of(history, rank):
    """Return the index of the best metrics: of equals, the latest.

    The metrics of a preset, which come first, must be exceeded.

    Args:
        history: List of dicts of metrics, not empty.
        rank: Function from metrics to a value that is larger for better ones.
    """
    ranks = [rank(metrics) for metrics in history]
    best = max(ranks)
    if ranks[0] == best and not is_epoch(history[0]):
        return 0
    return len(ranks) - 1 - ranks[::-1].index(best)
