"""Top-k of many numbers."""

import math

from keras import ops

from keras_attention.ops.gathering import take_rows
from keras_attention.ops.precision import at_most

# For fewer numbers, the function of the backend is as fast.
MIN_SIZE = 4096


def argmax(x):
    """Return the first index of the largest number: `(..., N)` to `(...)`, int32.

    `keras.ops.argmax` of floats has operations that LiteRT lacks.
    """
    most = ops.max(x, axis=-1, keepdims=True, initial=-math.inf)
    return ops.cast(ops.argmax(ops.cast(x >= most, "int32"), axis=-1), "int32")


def top_k(x, k):
    """Top-k like `keras.ops.top_k`, several times as fast for many numbers.

    The k largest numbers lie in the k chunks with the largest maxima. So all numbers
    are read once, for the maxima, and only those of k chunks are sorted.

    Args:
        x: Tensor of shape `(B, N)`, N known.
        k: Number of values.

    Returns:
        values: The k largest numbers of every row, in descending order.
        indices: Their positions, int32; equal numbers are in the order of their
            positions, except on PyTorch.
    """
    size = x.shape[-1]
    if size < max(MIN_SIZE, 16 * k):
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    length = _chunk_length(size, k)
    if size % length:
        padding = [[0, 0], [0, -size % length]]
        x = ops.pad(x, padding, constant_values=-math.inf)
    rows = ops.shape(x)[0]
    chunks = ops.reshape(x, (rows, x.shape[-1] // length, length))
    _, chosen = ops.top_k(ops.max(chunks, axis=-1), k)
    # Sorted, so that equal numbers keep the order of their positions.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    candidates = ops.reshape(take_rows(chunks, chosen), (rows, k * length))
    values, places = ops.top_k(candidates, k)
    places = ops.cast(places, "int32")
    indices = take_rows(chosen, places // length) * length + places % length
    # If all numbers are -inf, the padding may be among the largest.
    return values, at_most(indices, size - 1)


def _chunk_length(size, k):
    """Return a length with about as many chunks as there are numbers in k chunks."""
    best = round(math.sqrt(size / k))
    divisors = [d for d in range(best // 2, 2 * best) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - best), default=best)
