import keras
import numpy as np
import pytest
from keras import ops

from keras_attention.ops.scores import additive_scores

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, UNITS = 2, 3, 5, 7


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    shapes = (BATCH, QUERIES, UNITS), (BATCH, POSITIONS, UNITS), (UNITS,)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def scores_of(*arrays):
    scores = additive_scores(*(ops.convert_to_tensor(x) for x in arrays))
    return ops.convert_to_numpy(scores)


def test_value_worked_by_hand():
    # tanh is 1 or -1 far from zero, so the score adds or subtracts the scale.
    query = np.array([[[0.0, 0.0], [0.0, 100.0]]], "float32")
    keys = np.array([[[100.0, 50.0], [0.0, -200.0], [-100.0, -100.0]]], "float32")

    scores = scores_of(query, keys, np.array([3.0, 5.0], "float32"))

    np.testing.assert_allclose(scores, [[[8, -5, -8], [8, -5, -3]]], rtol=1e-6)


def test_follows_the_formula(arrays):
    query, keys, scale = arrays

    scores = scores_of(query, keys, scale)

    assert scores.shape == (BATCH, QUERIES, POSITIONS)
    for b in range(BATCH):
        for t in range(QUERIES):
            for s in range(POSITIONS):
                expected = scale @ np.tanh(query[b, t] + keys[b, s])
                np.testing.assert_allclose(scores[b, t, s], expected, atol=1e-6)


def test_queries_and_keys_are_interchangeable(arrays):
    query, keys, scale = arrays

    np.testing.assert_allclose(
        scores_of(keys, query, scale),
        scores_of(query, keys, scale).swapaxes(1, 2),
        atol=1e-6,
    )


def test_opposite_inputs_give_opposite_scores(arrays):
    query, keys, scale = arrays

    np.testing.assert_allclose(
        scores_of(-query, -keys, scale), -scores_of(query, keys, scale), atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_keeps_the_dtype(arrays, dtype):
    scores = additive_scores(*(ops.cast(x, dtype) for x in arrays))

    assert keras.backend.standardize_dtype(scores.dtype) == dtype


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow has such sizes"
)
@pytest.mark.parametrize("jit_compile", [False, True])
def test_batch_and_lengths_may_be_unknown(arrays, jit_compile):
    import tensorflow as tf

    unknown = tf.TensorSpec((None, None, UNITS))
    compiled = tf.function(
        additive_scores,
        input_signature=[unknown, unknown, tf.TensorSpec((UNITS,))],
        jit_compile=jit_compile,
    )

    np.testing.assert_allclose(compiled(*arrays), scores_of(*arrays), atol=1e-6)
