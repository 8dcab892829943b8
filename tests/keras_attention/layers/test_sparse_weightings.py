"""Sparsemax and entmax."""

import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import finite_differences
from attention_testing.layers.weightings_reference import (
    BATCH,
    EXACT,
    POSITIONS,
    QUERIES,
    SPARSE,
    by_the_paper,
    weights_of,
)
from keras_attention.layers.weightings import masked_entmax15


@pytest.mark.parametrize("weighting", SPARSE)
def test_sparse_weights_follow_the_paper(weighting, rng):
    scores = rng.normal(size=(7, BATCH, QUERIES, POSITIONS))
    # From nearly equal scores to nearly one-hot weights, and equal ones among them.
    scores *= np.array([0.1, 0.5, 1, 2, 5, 20, 0.5]).reshape(7, 1, 1, 1)
    scores[-1] = np.round(scores[-1])
    mask = rng.random(scores.shape) < 0.7

    weights = weights_of(scores, mask, weighting=weighting)

    expected = by_the_paper(weighting, scores, mask)
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    np.testing.assert_array_equal(weights[~mask], 0)
    assert ((weights == 0) & mask).any()


@pytest.mark.parametrize("weighting", SPARSE)
def test_long_rows_are_as_exact_as_short_ones(weighting, rng):
    # One high score, and a thousand others that share what it leaves.
    scores = rng.normal(size=(3, 1009)) * np.array([[1e-5], [1e-3], [1]])
    scores[:2, 500] += np.array([0.9, 1.7]) if weighting is masked_entmax15 else 0.9
    scores = scores.astype("float32")

    weights = weights_of(scores, weighting=weighting)

    everything = np.ones(scores.shape, "bool")
    expected = by_the_paper(weighting, scores.astype("float64"), everything)
    np.testing.assert_allclose(weights, expected, atol=3e-7)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("weighting", SPARSE)
def test_sparse_gradients_equal_finite_differences(weighting, rng, gradients):
    scores = rng.normal(size=(7, POSITIONS))
    # All equal, two equal at the top, one far above the others.
    scores[:3] = [[1] * 5, [3, 3, 2.25, -4, -5], [90, 0, 1, 2, 3]]
    mask = np.ones(scores.shape, "bool")
    mask[4, [1, 3]] = mask[5, :4] = mask[6] = False
    readout = rng.normal(size=scores.shape)

    def read(scores):
        return ops.sum(ops.multiply(weighting(scores, mask), readout))

    def read_the_paper(scores):
        return (by_the_paper(weighting, scores, mask) * readout).sum()

    spoilt = np.where(mask, scores, np.nan).astype("float64" if EXACT else "float32")
    (gradient,) = gradients(read, [spoilt])

    (expected,) = finite_differences(read_the_paper, scores)
    np.testing.assert_allclose(gradient, expected, atol=1e-6 if EXACT else 1e-5)
    np.testing.assert_array_equal(gradient[~mask], 0)
    assert (gradient[2:6][mask[2:6]] == 0).any()
