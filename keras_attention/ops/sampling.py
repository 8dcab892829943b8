"""Sampling from unnormalised probabilities."""

from keras import ops

from keras_attention.typing import Tensor


def sample_by_inversion(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Sample from unnormalised probabilities by inverting their cumulative sum.

    The result is the first index whose cumulative share of the sum exceeds `uniform`.

    Args:
        probabilities: Unnormalised probabilities, `(..., N)`.
        uniform: Numbers in [0, 1), `(..., 1)`.

    Returns:
        Indices, integers `(...)`; the last index where all probabilities are zero.
    """
    sums = ops.cumsum(probabilities, axis=-1)
    indices = ops.sum(ops.cast(sums <= uniform * sums[..., -1:], "int32"), axis=-1)
    last = ops.cast(ops.shape(probabilities)[-1] - 1, "int32")
    return ops.minimum(indices, last)
