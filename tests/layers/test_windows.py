import numpy as np
from keras import ops

from keras_attention.layers.windows import (
    gaussian,
    inside,
    spread_window,
    take_window,
    window_positions,
)

BATCH, QUERIES, POSITIONS, WIDTH, DEPTH = 2, 3, 7, 5, 11


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def test_windows_lie_around_the_floor_of_their_centre():
    centers = ops.convert_to_tensor(np.array([[0.0, 2.9], [-0.1, 5.0]], "float32"))

    positions = numpy(window_positions(centers, 1))

    expected = [[[-1, 0, 1], [1, 2, 3]], [[-2, -1, 0], [4, 5, 6]]]
    np.testing.assert_array_equal(positions, expected)
    np.testing.assert_array_equal(
        numpy(inside(ops.convert_to_tensor(positions), 5)),
        [[[0, 1, 1], [1, 1, 1]], [[0, 0, 1], [1, 0, 0]]],
    )


def test_windows_are_taken_and_put_back(rng):
    x = rng.normal(size=(BATCH, POSITIONS, DEPTH)).astype("float32")
    first = rng.integers(-3, POSITIONS, size=(BATCH, QUERIES, 1))
    positions = (first + np.arange(WIDTH)).astype("int32")
    exists = (positions >= 0) & (positions < POSITIONS)
    weights = np.where(exists, rng.random(positions.shape), 0).astype("float32")

    taken = numpy(take_window(ops.convert_to_tensor(x), positions))
    spread = numpy(spread_window(ops.convert_to_tensor(weights), positions, POSITIONS))

    assert taken.shape == (BATCH, QUERIES, WIDTH, DEPTH)
    expected = np.zeros((BATCH, QUERIES, POSITIONS))
    for b, t, w in np.ndindex(positions.shape):
        place = positions[b, t, w]
        if exists[b, t, w]:
            np.testing.assert_array_equal(taken[b, t, w], x[b, place])
            expected[b, t, place] = weights[b, t, w]
    np.testing.assert_allclose(spread, expected)


def test_gaussian_worked_by_hand():
    centers = ops.convert_to_tensor(np.array([[2.5]], "float32"))

    prior = numpy(gaussian(np.array([[[1, 2, 3]]]), centers, 0.5))

    np.testing.assert_allclose(prior[0, 0], np.exp([-4.5, -0.5, -0.5]), rtol=1e-6)
