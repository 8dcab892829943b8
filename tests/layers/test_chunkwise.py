"""The weights of chunks, against a slow loop."""

import numpy as np
import pytest
from keras import ops
from layers.weightings_reference import BATCH, QUERIES, tensor

from keras_attention.layers.monotonic import chunkwise

POSITIONS = 7


def slow_chunkwise(stops, scores, size, valid):
    weights = np.zeros(stops.shape)
    for *row, k in np.ndindex(*stops.shape):
        row = tuple(row)
        chunk = [j for j in range(max(k - size + 1, 0), k + 1) if valid[(*row, j)]]
        if chunk:
            shares = np.exp(scores[row][chunk] - scores[row][chunk].max())
            weights[row][chunk] += stops[(*row, k)] * shares / shares.sum()
    return weights


def draw_stops(rng, valid):
    stops = rng.random(valid.shape) * valid
    return stops / np.maximum(stops.sum(axis=-1, keepdims=True), 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_value_worked_by_hand(dtype):
    scores = np.log([[1.0, 3.0, 1.0, 1.0]])
    # Half of the weight is on the positions 0 and 1, half of it on 2 and 3.
    stops = np.array([[0.0, 0.5, 0.0, 0.5]])

    weights = chunkwise(tensor(stops, dtype), tensor(scores, dtype), 2)

    expected = [[0.125, 0.375, 0.25, 0.25]]
    np.testing.assert_allclose(ops.convert_to_numpy(weights), expected, atol=1e-3)
    assert "float32" in str(weights.dtype)


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_follows_a_slow_loop(rng, size):
    # A softmax by moving sums of exponentials would overflow or underflow here.
    scores = 300 * rng.normal(size=(BATCH, QUERIES, POSITIONS))
    valid = rng.random(scores.shape) < 0.7
    valid[0, 0] = False
    stops = draw_stops(rng, valid)
    bad = np.where(valid, scores, np.nan)

    found = chunkwise(tensor(stops), tensor(bad), size, ops.convert_to_tensor(valid))

    weights = ops.convert_to_numpy(found)
    np.testing.assert_allclose(
        weights, slow_chunkwise(stops, scores, size, valid), atol=1e-4
    )
    assert (weights[~valid] == 0).all()


def test_gradients_equal_finite_differences(rng, gradients):
    scores = 2 * rng.normal(size=(QUERIES, POSITIONS))
    valid = rng.random(scores.shape) < 0.8
    stops, readout = draw_stops(rng, valid), rng.normal(size=scores.shape)
    mask = ops.convert_to_tensor(valid)

    def read(stops, scores):
        weights = chunkwise(stops, scores, 3, mask)
        return ops.sum(weights * ops.convert_to_tensor(readout, weights.dtype))

    found = gradients(read, [x.astype("float32") for x in (stops, scores)])

    for place, x in enumerate((stops, scores)):
        direction = rng.normal(size=x.shape) * valid
        sides = []
        for sign in (1, -1):
            moved = [stops, scores]
            moved[place] = x + sign * 1e-6 * direction
            sides.append((readout * slow_chunkwise(*moved, 3, valid)).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        assert (found[place] * direction).sum() == pytest.approx(slope, rel=1e-3)


def test_nan_propagates():
    scores = tensor([[0.0, np.nan, 0.0]])

    weights = ops.convert_to_numpy(chunkwise(tensor([[0.0, 1.0, 0.0]]), scores, 2))

    assert np.isnan(weights).any()
