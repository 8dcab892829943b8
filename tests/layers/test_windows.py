import numpy as np
from keras import ops

from keras_attention import LocalWindow
from keras_attention.layers.windows import spread_window, take_window

BATCH, QUERIES, POSITIONS, WIDTH, DEPTH = 2, 3, 7, 5, 11


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


class GivenCenters(LocalWindow):
    has_prior = True

    def centers(self, query, memory, state):
        return ops.convert_to_tensor(query[..., 0]), state


def test_windows_lie_around_the_floor_of_their_centre():
    centers = np.array([[0.0, 2.9], [-0.1, 5.0]], "float32")
    values = np.ones((2, 5, 1), "float32")

    memory = {"keys": values, "values": values}
    view, _ = GivenCenters(1)(centers[..., None], memory, {})

    positions = [[[-1, 0, 1], [1, 2, 3]], [[-2, -1, 0], [4, 5, 6]]]
    np.testing.assert_array_equal(numpy(view["positions"]), positions)
    exists = [[[0, 1, 1], [1, 1, 1]], [[0, 0, 1], [1, 0, 0]]]
    np.testing.assert_array_equal(numpy(view["mask"]), exists)
    # The standard deviation is half of the half-width, 1 / 2.
    distances = np.array(positions) - centers[..., None]
    prior = np.exp(-2 * distances**2)
    np.testing.assert_allclose(numpy(view["prior"]), prior, rtol=1e-5)


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
