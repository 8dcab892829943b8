"""The largest of very many numbers."""

import math

from keras import ops

from keras_attention.search.nested import gather

# Of fewer numbers, the backend's own function finds the largest as fast.
MANY = 4096


def top_k(x, k):
    """What `keras.ops.top_k` finds along the last axis, several times as fast.

    Cut into chunks, the k largest numbers lie in the k chunks with the largest maxima:
    so all are read once, and only what is in those chunks is compared.

    Args:
        x: Tensor of shape `(B, N)`, N known.
        k: Number of values.

    Returns:
        values: The k largest numbers of every row, the largest first.
        indices: Where they are, int32; of equal numbers the first comes first, unless
            PyTorch finds them.
    """
    size = x.shape[-1]
    if size < max(MANY, 16 * k):
        values, indices = ops.top_k(x, k)
        return values, ops.cast(indices, "int32")
    length = _chunk_length(size, k)
    if size % length:
        padding = [[0, 0], [0, -size % length]]
        x = ops.pad(x, padding, constant_values=-math.inf)
    chunks = ops.reshape(x, (-1, x.shape[-1] // length, length))
    _, chosen = ops.top_k(ops.max(chunks, axis=-1), k)
    # In their order, so that of equal numbers the first comes first.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    candidates = ops.reshape(gather(chunks, chosen), (-1, k * length))
    values, places = ops.top_k(candidates, k)
    places = ops.cast(places, "int32")
    indices = gather(chosen, places // length) * length + places % length
    # Where there is nothing but -inf, the padding may have been found.
    return values, ops.minimum(indices, size - 1)


def _chunk_length(size, k):
    """So long that about as many chunks are compared as numbers in those chosen."""
    best = round(math.sqrt(size / k))
    divisors = [d for d in range(best // 2, 2 * best) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - best), default=best)
