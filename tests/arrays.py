"""Arrays for tests: random ones, those of tensors, and numerical gradients."""

import numpy as np
import pytest
from keras import ops, tree


def random_fixture(*shape):
    """Return a fixture: a normally distributed float32 array."""

    @pytest.fixture
    def array(rng):
        return draw(rng, shape)

    return array


def draw(rng, *shapes):
    """Return normally distributed float32 arrays, or one array for one shape."""
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    return arrays if len(arrays) > 1 else arrays[0]


def randomized(layer, scale=0.5, seed=2):
    """Draw the weights of a built layer at random, biases too; return the layer."""
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(scale=scale, size=variable.shape))
    return layer


def numpy(tensors):
    """Return nested tensors as NumPy arrays."""
    return tree.map_structure(ops.convert_to_numpy, tensors)


def assert_numerical_gradients(gradients, function, arrays, rng, entries, atol):
    """Compare gradients with central differences, at random entries of each array.

    Args:
        gradients: Gradients of the arrays.
        function: Function of the arrays, to a number.
        arrays: List of arrays.
        rng: Random number generator.
        entries: Number of entries of each array; `function` may be slow.
        atol: Absolute tolerance.
    """
    step = 1e-6
    for which, gradient in enumerate(gradients):
        for place in rng.integers(arrays[which].size, size=entries):
            ends = []
            for sign in (1, -1):
                moved = [array.copy() for array in arrays]
                moved[which].flat[place] += sign * step
                ends.append(function(*moved))
            expected = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(gradient.flat[place], expected, atol=atol)
