"""Weightings by their definitions, one row at a time, and helpers of their tests."""

import keras
import numpy as np
from keras import ops

from attention_testing.arrays import softmax
from keras_attention.layers.weightings import (
    masked_entmax15,
    masked_hardmax,
    masked_sparsemax,
    softmax_weights,
)

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
DTYPES = ["float16", "bfloat16", "float32", "float64"]
# JAX has no float64 by default.
EXACT = keras.backend.backend() != "jax"
SPARSE = [masked_sparsemax, masked_entmax15]
WEIGHTINGS = [softmax_weights, *SPARSE, masked_hardmax]


def tensor(array, dtype="float32"):
    return ops.cast(array, dtype)


def weights_of(scores, mask=None, dtype="float32", weighting=softmax_weights):
    mask = None if mask is None else np.asarray(mask, "bool")
    return ops.convert_to_numpy(weighting(tensor(scores, dtype), mask))


def sparsemax_of_the_paper(z):
    """Algorithm 1: sort, find the support, find the threshold."""
    total, threshold = 0, None
    for k, z_k in enumerate(sorted(z, reverse=True), start=1):
        total += z_k
        if 1 + k * z_k > total:
            threshold = (total - 1) / k
    return np.maximum(z - threshold, 0)


def entmax_of_the_paper(z):
    """The root of sum [z / 2 - threshold]_+^2 = 1, by bisection."""
    low, high = z.max() / 2 - 1, z.max() / 2
    for _ in range(60):
        threshold = (low + high) / 2
        if (np.maximum(z / 2 - threshold, 0) ** 2).sum() > 1:
            low = threshold
        else:
            high = threshold
    return np.maximum(z / 2 - low, 0) ** 2


OF_THE_PAPER = {
    masked_sparsemax: sparsemax_of_the_paper,
    masked_entmax15: entmax_of_the_paper,
}


def by_the_paper(weighting, scores, mask):
    weights = np.zeros(scores.shape)
    for row in np.ndindex(*scores.shape[:-1]):
        if mask[row].any():
            weights[row][mask[row]] = OF_THE_PAPER[weighting](scores[row][mask[row]])
    return weights


def monotonic_by_the_paper(p, previous):
    """The process of every query starts where the last one stopped."""
    weights = np.zeros(p.shape)
    for *row, j in np.ndindex(*p.shape):
        row = tuple(row)
        passed = [np.prod(1 - p[row][k:j]) for k in range(j + 1)]
        weights[(*row, j)] = p[row][j] * (previous[row][: j + 1] @ passed)
    return weights


def chunkwise_by_the_paper(stops, scores, size, valid):
    """A softmax over the chunk that ends at each position."""
    weights = np.zeros(stops.shape)
    for *row, k in np.ndindex(*stops.shape):
        row = tuple(row)
        chunk = [j for j in range(max(k - size + 1, 0), k + 1) if valid[(*row, j)]]
        if chunk:
            weights[row][chunk] += stops[(*row, k)] * softmax(scores[row][chunk])
    return weights
