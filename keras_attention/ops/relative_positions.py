"""Arithmetic of relative positions: rotations, and biases that depend on a distance.

An offset is the position of a key minus the position of a query.

Shapes: B batch, T queries, S positions, N heads, D depth of a head, R clipped offsets.
"""

import math

import numpy as np
from keras import ops

from keras_attention.ops.precision import accumulation_dtype


def positions_of_steps(mask, length, start=None):
    """Return the positions of the steps of a sequence, int32 `(B, S)` or `(1, S)`.

    Masked steps do not count: a step has the position that it would have without them.

    Args:
        mask: Boolean `(B, S)`; `None` if all steps are valid.
        length: S.
        start: Position of the first step of each row, int32 `(B,)`; zero if `None`.
    """
    if mask is None:
        positions = ops.arange(length, dtype="int32")[None]
    else:
        counted = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        positions = ops.cast(counted, "int32") - 1
    return positions if start is None else start[:, None] + positions


def offsets_between(query_positions, key_positions):
    """Return the offsets `(B, T, S)` between positions `(B, T)` and `(B, S)`."""
    return key_positions[:, None, :] - query_positions[:, :, None]


def rotary_frequencies(depth, max_wavelength, scaling, scaling_factor):
    """Return the angles by which one step rotates the pairs of features.

        frequency[i] = base ^ (-2 i / depth)

    The base is `max_wavelength`. Linear scaling divides the frequencies by the factor;
    NTK-aware scaling multiplies the base by `factor ^ (depth / (depth - 2))`, which
    divides the lowest frequency by the factor and leaves the highest unchanged.

    Returns:
        NumPy array of `depth / 2` numbers.

    Reference:
        [Chen et al., 2023](https://arxiv.org/abs/2306.15595), equation 4;
        [Peng et al., 2023](https://arxiv.org/abs/2309.00071), section 3.1.
    """
    if scaling == "ntk" and depth > 2:
        max_wavelength = max_wavelength * scaling_factor ** (depth / (depth - 2))
    frequencies = float(max_wavelength) ** (-np.arange(0, depth, 2) / depth)
    return frequencies / scaling_factor if scaling == "linear" else frequencies


def rotate_pairs(x, positions, frequencies):
    """Rotate pairs of features by an angle in proportion to the position.

    Feature i of the first half and feature i of the second half are a pair:

        first[i]'  = first[i] cos(a) - second[i] sin(a),  a = position * frequency[i]
        second[i]' = second[i] cos(a) + first[i] sin(a)

    Angles, sines and cosines are in float32 at least.

    Args:
        x: Tensor `(B, N, T, D)`. Features after the pairs are left unchanged.
        positions: Integers `(B, T)` or `(1, T)`.
        frequencies: NumPy array of at most `D / 2` numbers.
    """
    dtype = accumulation_dtype(x.dtype)
    frequencies = ops.convert_to_tensor(frequencies, dtype)
    angles = ops.cast(positions, dtype)[:, None, :, None] * frequencies
    cosines, sines = (ops.cast(f(angles), x.dtype) for f in (ops.cos, ops.sin))
    half = frequencies.shape[0]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    if 2 * half < x.shape[-1]:
        turned.append(rest)
    return ops.concatenate(turned, axis=-1)


def alibi_slopes(num_heads):
    """Return the slopes of the linear biases, a NumPy array `(N,)`.

    For a power of two, they are the geometric sequence `2 ^ (-8 n / N)`, n from 1.
    Otherwise, they are those of the next lower power of two, followed by every second
    slope of twice that power.

    Reference:
        [Press et al., 2022](https://arxiv.org/abs/2108.12409), section 3, and the
        authors' code for other numbers of heads.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
    return np.concatenate([slopes, between[: num_heads - power]])


def buckets_of_offsets(num_buckets, max_distance, bidirectional):
    """Return the bucket of each offset from `-max_distance` to `max_distance`.

    Half of the buckets of one direction hold one distance each; the others hold ranges
    that grow in proportion to the distance, up to `max_distance`. If `bidirectional`,
    offsets above zero have buckets of their own; otherwise they are in bucket 0.

    Returns:
        NumPy array `(2 * max_distance + 1,)` of int32.

    Reference:
        [Raffel et al., 2020](https://arxiv.org/abs/1910.10683), section 2.1.
    """
    offsets = np.arange(-max_distance, max_distance + 1)
    ahead = np.zeros_like(offsets)
    if bidirectional:
        num_buckets //= 2
        ahead = num_buckets * (offsets > 0)
        distances = np.abs(offsets)
    else:
        distances = -np.minimum(offsets, 0)
    exact = num_buckets // 2
    # In float32, as in the published models, because rounding may move a boundary.
    logs = np.log(np.maximum(distances, 1).astype("float32") / np.float32(exact))
    logs = logs / np.float32(math.log(max_distance / exact)) * (num_buckets - exact)
    ranges = np.minimum(exact + logs.astype("int32"), num_buckets - 1)
    return (ahead + np.where(distances < exact, distances, ranges)).astype("int32")


def clip_offsets(offsets, max_distance):
    """Return the row of each offset in a table for `-max_distance..max_distance`."""
    return ops.clip(offsets, -max_distance, max_distance) + max_distance


def take_by_offset(x, rows):
    """Return `x[b, n, t, rows[b, t, s]]`, `(B, N, T, S)`, for `x` `(B, N, T, R)`."""
    return ops.take_along_axis(x, rows[:, None], axis=-1)


def sum_by_offset(weights, rows, size):
    """Sum the weights `(B, N, T, S)` of each clipped offset, to `(B, N, T, R)`.

    Args:
        weights: Attention weights.
        rows: Rows of the offsets, as `clip_offsets` returns them, `(B, T, S)` or
            `(1, T, S)`.
        size: Number of clipped offsets, R.
    """
    is_row = ops.one_hot(rows, size, dtype=weights.dtype)
    by_query = ops.transpose(weights, (0, 2, 1, 3))
    return ops.transpose(ops.matmul(by_query, is_row), (0, 2, 1, 3))
