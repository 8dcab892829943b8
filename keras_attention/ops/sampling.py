"""Sampling from unnormalised probabilities."""

from keras import ops


def invert(odds, uniform):
    """Return the first place at which the cumulative odds exceed `uniform` of the sum.

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
