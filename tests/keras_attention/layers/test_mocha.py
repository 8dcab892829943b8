"""Monotonic chunkwise attention, against slow loops that read like the paper."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import (
    assert_close,
    attend,
    finite_differences,
    numpy,
    random_fixture,
    sigmoid,
)
from attention_testing.layers.cases import step_by_step
from attention_testing.layers.weightings_reference import (
    chunkwise_by_the_paper,
    monotonic_by_the_paper,
    tensor,
)
from attention_testing.models import compiled, needs_tensorflow, reloaded
from keras_attention.layers.monotonic import chunkwise

BATCH, QUERIES, POSITIONS, QUERY_DIM, VALUE_DIM, UNITS = 2, 3, 7, 5, 11, 13
CHUNK = 3
MASK = np.array([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]], "bool")

query = random_fixture(BATCH, QUERIES, QUERY_DIM)
value = random_fixture(BATCH, POSITIONS, VALUE_DIM)


def scores_of(score, projection, query, value):
    """Additive scores, `v . tanh(W query + V value)`, for each query and value."""
    w, v, scale = numpy([score.query_projection.kernel, projection.kernel, score.scale])
    return np.tanh((query @ w)[:, :, None] + (value @ v)[:, None]) @ scale


def first_stop(p, previous):
    stops = (np.cumsum(previous, axis=-1) > 0) & (p > 0.5)
    return 1.0 * (stops & (np.cumsum(stops, axis=-1) == 1))


@pytest.mark.parametrize(
    ("options", "stop"),
    [({"inference": "expectation"}, monotonic_by_the_paper), ({}, first_stop)],
    ids=["expectation", "hard"],
)
def test_follows_the_paper(query, value, options, stop):
    weighting = ka.MochaWeighting(CHUNK, score_bias=0.1, **options)
    layer = ka.AdditiveAttention(UNITS, scale_initializer="normal", weighting=weighting)
    layer.build(query.shape, value.shape)
    pair, keys = layer.step.score, layer.memory.key_projection
    for score in (pair.first, pair.second):
        score.scale.assign(30 * score.scale)

    context, weights = attend(layer, query, value, value_mask=MASK)

    assert weights.sum() > 1
    p = MASK[:, None] * sigmoid(scores_of(pair.first, keys.first, query, value) + 0.1)
    chunk = scores_of(pair.second, keys.second, query, value)
    stops = np.eye(POSITIONS)[[0] * BATCH]
    for t in range(QUERIES):
        stops = stop(p[:, t], stops)
        expected = chunkwise_by_the_paper(stops, chunk[:, t], CHUNK, MASK)
        assert_close(weights[:, t], expected)
    assert_close(context, weights @ value, 1e-4)


def test_expected_weights_learn_both_scores(query, value, gradients):
    layer = ka.AdditiveAttention(UNITS, weighting="mocha")
    layer.build(query.shape, value.shape)

    grads = gradients(
        lambda: ops.sum(ops.sin(layer(query, value, training=True))),
        (),
        layer.trainable_variables,
    )

    # Two projections of the keys, two of the queries, two scales, and the bias.
    assert len(grads) == 7
    assert all((x != 0).any() and np.isfinite(x).all() for x in grads)


def test_steps_equal_the_full_pass(query, value):
    layer = ka.AdditiveAttention(
        UNITS,
        weighting=ka.MochaWeighting(CHUNK, inference="expectation", score_bias=0.5),
    )
    expected = attend(layer, query, value, value_mask=MASK)

    memory = layer.memory(value, value_mask=MASK)
    assert_close(step_by_step(layer, query, memory), expected)


@needs_tensorflow
def test_values_of_a_graph_have_any_length(query, value):
    layer = ka.AdditiveAttention(UNITS, weighting=ka.MochaWeighting(CHUNK))
    expected = numpy(layer(query, value))
    inputs = keras.Input(query.shape[1:]), keras.Input((None, VALUE_DIM))
    run = compiled(layer, [keras.KerasTensor(x.shape, x.dtype) for x in inputs])

    assert_close(run(query, value), expected, 1e-6)
    assert_close(run(query, value[:, :2]), layer(query, value[:, :2]), 1e-6)


def test_the_copy_of_a_score_comes_back_from_a_file(query, value, tmp_path):
    inputs = keras.Input(query.shape[1:]), keras.Input(value.shape[1:])
    layer = ka.AdditiveAttention(
        UNITS, use_bias=True, weighting=ka.MochaWeighting(CHUNK)
    )
    model = keras.Model(inputs, layer(*inputs))

    restored = reloaded(model, tmp_path)

    assert restored.layers[-1].get_config() == layer.get_config()
    outputs = [x([query, value]) for x in (restored, model)]
    np.testing.assert_array_equal(*numpy(outputs))
    assert len(layer.weights) == 2 * 4 + 1
    assert len({weight.path for weight in layer.weights}) == 2 * 4 + 1


def test_dot_scores_have_no_weights_to_copy(value):
    layer = ka.Attention(ka.DotScore(), weighting=ka.MochaWeighting(1, score_bias=0.0))

    _, mocha = attend(layer, value[:, :2], value)

    # A chunk of one position has a weight of one.
    monotonic = ka.LuongAttention("dot", weighting=layer.step.weighting)
    assert [len(x.weights) for x in (layer, layer.memory)] == [1, 0]
    np.testing.assert_array_equal(mocha.sum(axis=-1), 1)
    assert monotonic.step.score.first.scaled is False


def test_a_key_projection_must_be_that_of_two_scores(query, value):
    for units in (UNITS, 2 * UNITS + 1):
        projection = keras.layers.Dense(units)
        layer = ka.Attention(ka.AdditiveScore(UNITS), projection, weighting="mocha")
        with pytest.raises(ValueError, match=rf"two projections .* depth {units}$"):
            layer(query, value)
    with pytest.raises(ValueError, match="depth") as error:
        ka.Attention(ka.DotScore(), weighting="mocha")(query, value)
    assert "two projections" not in str(error.value)


def draw_stops(rng, valid):
    stops = rng.random(valid.shape) * valid
    return stops / np.maximum(stops.sum(axis=-1, keepdims=True), 1e-9)


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_follows_a_slow_loop(rng, size):
    # A softmax by moving sums of exponentials would overflow or underflow here.
    scores = 300 * rng.normal(size=(BATCH, QUERIES, POSITIONS))
    valid = rng.random(scores.shape) < 0.7
    valid[0, 0] = False
    stops = draw_stops(rng, valid)
    bad = np.where(valid, scores, np.nan)

    chunk_weights = chunkwise(
        tensor(stops), tensor(bad), size, ops.convert_to_tensor(valid)
    )

    weights = ops.convert_to_numpy(chunk_weights)
    assert_close(weights, chunkwise_by_the_paper(stops, scores, size, valid), 1e-4)
    assert (weights[~valid] == 0).all()


def test_gradients_equal_finite_differences(rng, gradients):
    scores = 2 * rng.normal(size=(QUERIES, POSITIONS))
    valid = rng.random(scores.shape) < 0.8
    stops, readout = draw_stops(rng, valid), rng.normal(size=scores.shape)
    mask = ops.convert_to_tensor(valid)

    def read(stops, scores):
        weights = chunkwise(stops, scores, 3, mask)
        return ops.sum(weights * ops.convert_to_tensor(readout, weights.dtype))

    actual = gradients(read, [x.astype("float32") for x in (stops, scores)])

    def read_the_paper(stops, scores):
        return (readout * chunkwise_by_the_paper(stops, scores, 3, valid)).sum()

    expected = finite_differences(read_the_paper, stops, scores)
    assert_close([x * valid for x in actual], [x * valid for x in expected])


def test_nan_propagates():
    scores = tensor([[0.0, np.nan, 0.0]])

    weights = ops.convert_to_numpy(chunkwise(tensor([[0.0, 1.0, 0.0]]), scores, 2))

    assert np.isnan(weights).any()
