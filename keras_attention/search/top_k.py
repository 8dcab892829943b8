"""Top-k of many numbers."""

import math
from typing import Any

from keras import ops

from keras_attention.ops.gathering import take_rows
from keras_attention.ops.precision import at_most
from keras_attention.sizes import join_axes
from keras_attention.typing import Tensor

# For fewer numbers, the function of the backend is as fast.
MIN_SIZE = 4096


def argmax(x: Tensor) -> Tensor:
    """Return the first index of the largest number: `(..., N)` to `(...)`, int32.

    `keras.ops.argmax` of floats has operations that LiteRT lacks.
    """
    maximum = ops.max(x, axis=-1, keepdims=True, initial=-math.inf)
    return ops.cast(ops.argmax(ops.cast(x >= maximum, "int32"), axis=-1), "int32")


def top_k_of_sums(
    offsets: Tensor, x: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top-k of the sums `offsets[b, i] + x[b, i, n]` of every row b.

    It is several times as fast as `keras.ops.top_k` for many numbers. The k largest lie
    in the k chunks with the largest maxima. So all numbers are read once, for the
    maxima, and only those of k chunks are added and sorted.

    Args:
        offsets: Tensor `(B, K)`.
        x: Tensor `(B, K, N)`, K and N known.
        k: Number of values.

    Returns:
        values: The k largest sums of every row, in descending order.
        parts: Their positions i, int32.
        places: Their positions n, int32; equal sums are in the order of their
            positions, except on PyTorch.
        terms: The numbers `x[b, i, n]` in them.
    """
    count, size = x.shape[1:]
    rows = ops.shape(x)[0]
    if count * size < max(MIN_SIZE, 16 * k):
        sums = ops.reshape(offsets[..., None] + x, (rows, count * size))
        values, indices = ops.top_k(sums, k)
        indices = ops.cast(indices, "int32")
        terms = take_rows(ops.reshape(x, (rows, count * size)), indices)
        return values, indices // size, indices % size, terms
    length = _chunk_length(size, count, k)
    if size % length:
        padding = [[0, 0], [0, 0], [0, -size % length]]
        x = ops.pad(x, padding, constant_values=-math.inf)
    per_part = x.shape[-1] // length
    chunks = ops.reshape(x, (rows, count * per_part, length))
    # The chunks of all rows, as in `take_rows`, since LiteRT copies what it reshapes.
    largest = ops.max(join_axes(chunks), axis=-1)
    largest = offsets[..., None] + ops.reshape(largest, (rows, count, per_part))
    _, chosen = ops.top_k(ops.reshape(largest, (rows, count * per_part)), k)
    # Sorted, so that equal numbers keep the order of their positions.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    terms = take_rows(chunks, chosen)
    candidates = terms + take_rows(offsets, chosen // per_part)[..., None]
    values, candidate_indices = ops.top_k(
        ops.reshape(candidates, (rows, k * length)), k
    )
    candidate_indices = ops.cast(candidate_indices, "int32")
    terms = take_rows(ops.reshape(terms, (rows, k * length)), candidate_indices)
    chunk = take_rows(chosen, candidate_indices // length)
    positions = chunk % per_part * length + candidate_indices % length
    # If all numbers are -inf, the padding may be among the largest.
    return values, chunk // per_part, at_most(positions, size - 1), terms


def _chunk_length(size: Any, count: Any, k: int) -> int:
    """Return a length with about as many chunks as there are numbers in k chunks.

    It divides the size of a part if possible.
    """
    best = round(math.sqrt(count * size / k))
    divisors = [d for d in range(best // 2, 2 * best) if size % d == 0]
    return min(divisors, key=lambda d: abs(d - best), default=best)
