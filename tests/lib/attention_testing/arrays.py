"""Arrays for tests: random ones, those of tensors, and numerical gradients."""

import keras
import numpy as np
import pytest
from keras import ops, tree

# JAX has no float64 by default, and keras.ops.matmul rounds to float32 on PyTorch.
EXACT = keras.backend.backend() == "tensorflow"


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


def assert_close(actual, expected, atol=1e-5):
    """Compare tensors or arrays, or nested ones; with `atol=0`, to the last bit."""

    def compare(x, y):
        rtol = 1e-7 if atol else 0
        np.testing.assert_allclose(numpy(x), numpy(y), rtol=rtol, atol=atol)

    # A list may be a tuple in the other.
    actual, expected = (tree.lists_to_tuples(x) for x in (actual, expected))
    tree.map_structure_up_to(actual, compare, actual, expected)


def attend(layer, *tensors, **options):
    """Return context and weights of a layer as NumPy arrays."""
    return numpy(layer(*tensors, return_attention_scores=True, **options))


def embedded(rng, depth, *shape, words=19):
    """Return token numbers with some zeros, and their embedding that masks them."""
    token_ids = rng.integers(1, words, shape)
    token_ids[:, 1] = 0
    token_ids[0, -1] = 0
    return token_ids, keras.layers.Embedding(words, depth, mask_zero=True)(token_ids)


def sigmoid(x):
    """Return the logistic function of an array."""
    return 1 / (1 + np.exp(-x))


def softmax(scores, mask=True):
    """Return the softmax over the last axis; rows without a position are zero."""
    odds = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    return odds / np.maximum(odds.sum(-1, keepdims=True), 1e-30)


def slope(function, arrays, which, index, step):
    """Return the central difference of a number, at an entry of one of the arrays."""
    ends = []
    for sign in (1, -1):
        moved = [array.copy() for array in arrays]
        moved[which].flat[index] += sign * step
        ends.append(function(*moved))
    return (ends[0] - ends[1]) / (2 * step)


def finite_differences(function, *points, step=1e-5):
    """Return the gradients of a number with respect to float64 arrays."""
    slopes = [
        [slope(function, points, which, index, step) for index in range(point.size)]
        for which, point in enumerate(points)
    ]
    return [np.reshape(x, point.shape) for x, point in zip(slopes, points, strict=True)]


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
    for which, gradient in enumerate(gradients):
        for index in rng.integers(arrays[which].size, size=entries):
            expected = slope(function, arrays, which, index, 1e-6)
            np.testing.assert_allclose(gradient.flat[index], expected, atol=atol)
