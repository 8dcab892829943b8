"""Sampling from unnormalised probabilities."""

from keras import ops


def invert(odds, uniform):
    """Sample from unnormalised probabilities by inverting their cumulative sum.

    The result is the first place whose cumulative share of the sum exceeds `uniform`.

    Args:
        odds: Unnormalised probabilities of N places, `(..., N)`.
        uniform: Numbers in [0, 1), `(..., 1)`.

    Returns:
        Places, integers `(...)`; the last one where all odds are zero.
    """
    sums = ops.cumsum(odds, axis=-1)
    places = ops.sum(ops.cast(sums <= uniform * sums[..., -1:], "int32"), axis=-1)
    last = ops.cast(ops.shape(odds)[-1] - 1, "int32")
    return ops.minimum(places, last)
