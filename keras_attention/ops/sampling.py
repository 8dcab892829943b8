"""Draws from given odds."""

from keras import ops


def invert(odds, uniform):
    """The first place at which the cumulated odds exceed their share `uniform`.

    Args:
        odds: What each of N places has, `(..., N)`; not negative, of any sum.
        uniform: Numbers in [0, 1), `(..., 1)`.

    Returns:
        Places, integers `(...)`; the last one where all odds are zero.
    """
    sums = ops.cumsum(odds, axis=-1)
    places = ops.sum(ops.cast(sums <= uniform * sums[..., -1:], "int32"), axis=-1)
    last = ops.cast(ops.shape(odds)[-1] - 1, "int32")
    return ops.minimum(places, last)
