"""Windows of positions around a centre.

Shapes: B batch, T queries, S positions, W positions in a window, D depth.
"""

from keras import ops

from keras_attention.empty_tensors import at_least_one
from keras_attention.empty_tensors import is_zero
from keras_attention.ops.gathering import take_rows


def window_positions(centers, half_width):
    """Return the positions of the window around each centre.

    Some of them may be outside of the source.

    Args:
        centers: Real-valued positions, `(B, T)`, counted from zero.
        half_width: Positions on either side of `floor(center)`, so W is
            `2 * half_width + 1`.

    Returns:
        int32 tensor `(B, T, W)`.
    """
    middle = ops.cast(ops.floor(centers), "int32")
    return middle[..., None] + ops.arange(-half_width, half_width + 1, dtype="int32")


def inside(positions, length):
    """Return whether positions are those of a source of this length."""
    return ops.logical_and(positions >= 0, positions < length)


def take_window(x, positions):
    """Return the entries at the positions of every window.

    The cost grows with the window and not with the source.

    Args:
        x: Tensor `(B, S, ...)`.
        positions: int32 `(B, T, W)`; positions outside give the nearest entry.

    Returns:
        Tensor `(B, T, W, ...)`; zeros if there is no entry.
    """
    x = at_least_one(x, axis=1)
    return take_rows(x, _nearest(positions, ops.shape(x)[1]))


def spread_window(weights, positions, length):
    """Spread weights of windows over all positions of the source.

    Args:
        weights: `(B, T, W)`, zero at positions outside of the source.
        positions: int32 `(B, T, W)`.
        length: S.

    Returns:
        Tensor `(B, T, S)`, zero outside of the windows.
    """
    batch, queries = ops.shape(weights)[:2]
    if is_zero(length):
        return ops.zeros((batch, queries, 0), weights.dtype)
    rows = ops.reshape(
        ops.arange(batch * queries, dtype="int32") * length, (batch, queries, 1)
    )
    places = ops.reshape(rows + _nearest(positions, length), (-1, 1))
    size = batch * queries * length
    flat = ops.reshape(weights, (-1,))
    if ops.is_tensor(size):
        # The size is unknown in a graph, and `scatter` fails for an empty tensor.
        flat = ops.scatter(places, flat, (ops.maximum(size, 1),))[:size]
    else:
        flat = ops.scatter(places, flat, (size,))
    return ops.reshape(flat, (batch, queries, length))


def _nearest(positions, length):
    """Return the position of the source that is nearest to each; 0 if it is empty."""
    # On JAX with bfloat16 by default, `ops.maximum` of integers is a float; there, the
    # length is a Python integer.
    last = length - 1
    last = max(last, 0) if isinstance(last, int) else ops.maximum(last, 0)
    return ops.clip(positions, 0, last)


def gaussian(positions, centers, deviation):
    """Gaussian prior of positions around real-valued centres.

        prior[b, t, w] = exp(-(positions[b, t, w] - centers[b, t])^2 / (2 deviation^2))

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), equation 10.
    """
    distance = ops.cast(positions, centers.dtype) - centers[..., None]
    return ops.exp(-ops.square(distance / deviation) / 2)
