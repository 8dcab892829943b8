"""Monotonic chunkwise attention, against slow loops that read like the paper."""

import keras
import numpy as np
import pytest
from arrays import assert_close, numpy, random_fixture
from keras import ops
from layers.weightings_reference import (
    chunkwise_by_the_paper,
    monotonic_by_the_paper,
    tensor,
)
from models import reloaded

import keras_attention as ka
from keras_attention.layers.monotonic import chunkwise

BATCH, QUERIES, POSITIONS, QUERY_DIM, VALUE_DIM, UNITS = 2, 3, 7, 5, 11, 13
CHUNK = 3
MASK = np.array([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]], "bool")

query = random_fixture(BATCH, QUERIES, QUERY_DIM)
value = random_fixture(BATCH, POSITIONS, VALUE_DIM)


def scores_of(score, projection, query, value):
    """The additive score of one query: `v . tanh(W query + V value)`."""
    w, v, scale = numpy([score.query_projection.kernel, projection.kernel, score.scale])
    return np.tanh(query @ w + value @ v) @ scale


def first_stop(p, previous):
    stops = np.zeros(POSITIONS)
    if previous.any():
        later = [j for j in range(previous.argmax(), POSITIONS) if p[j] > 0.5]
        stops[later[:1]] = 1
    return stops


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

    context, weights = numpy(
        layer(query, value, value_mask=MASK, return_attention_scores=True)
    )

    assert weights.sum() > 1
    for b in range(BATCH):
        stops = np.eye(POSITIONS)[0]
        for t in range(QUERIES):
            energy = scores_of(pair.first, keys.first, query[b, t], value[b])
            p = MASK[b] / (1 + np.exp(-energy - 0.1))
            stops = stop(p, stops)
            chunk = scores_of(pair.second, keys.second, query[b, t], value[b])
            expected = chunkwise_by_the_paper(stops, chunk, CHUNK, MASK[b])
            np.testing.assert_allclose(weights[b, t], expected, atol=1e-5)
            np.testing.assert_allclose(context[b, t], expected @ value[b], atol=1e-4)


def test_expected_weights_learn_both_scores(query, value, gradients):
    layer = ka.AdditiveAttention(UNITS, weighting="mocha")
    layer.build(query.shape, value.shape)

    found = gradients(
        lambda: ops.sum(ops.sin(layer(query, value, training=True))),
        (),
        layer.trainable_variables,
    )

    # Two projections of the keys, two of the queries, two scales, and the bias.
    assert len(found) == 7
    assert all((x != 0).any() and np.isfinite(x).all() for x in found)


def test_steps_equal_the_full_pass(query, value):
    layer = ka.AdditiveAttention(
        UNITS,
        weighting=ka.MochaWeighting(CHUNK, inference="expectation", score_bias=0.5),
    )
    context = ops.convert_to_numpy(layer(query, value, value_mask=MASK))
    memory, state = layer.memory(value, value_mask=MASK), None

    for t in range(QUERIES):
        outputs, state = layer.step(query[:, t : t + 1], memory, state)
        found = ops.convert_to_numpy(outputs["context"])
        np.testing.assert_allclose(found[:, 0], context[:, t], atol=1e-5)


def test_the_copy_of_a_score_comes_back_from_a_file(query, value, tmp_path):
    inputs = keras.Input(query.shape[1:]), keras.Input(value.shape[1:])
    layer = ka.AdditiveAttention(
        UNITS, use_bias=True, weighting=ka.MochaWeighting(CHUNK)
    )
    model = keras.Model(inputs, layer(*inputs))

    restored = reloaded(model, tmp_path)

    assert restored.layers[-1].get_config() == layer.get_config()
    found = [x([query, value]) for x in (restored, model)]
    np.testing.assert_array_equal(*numpy(found))
    assert len(layer.weights) == 2 * 4 + 1
    assert len({weight.path for weight in layer.weights}) == 2 * 4 + 1


def test_dot_scores_have_no_weights_to_copy(value):
    layer = ka.Attention(ka.DotScore(), weighting=ka.MochaWeighting(1, score_bias=0.0))

    _, mocha = numpy(layer(value[:, :2], value, return_attention_scores=True))

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

    found = gradients(read, [x.astype("float32") for x in (stops, scores)])

    for place, x in enumerate((stops, scores)):
        direction = rng.normal(size=x.shape) * valid
        sides = []
        for sign in (1, -1):
            moved = [stops, scores]
            moved[place] = x + sign * 1e-6 * direction
            sides.append((readout * chunkwise_by_the_paper(*moved, 3, valid)).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        assert (found[place] * direction).sum() == pytest.approx(slope, rel=1e-3)


def test_nan_propagates():
    scores = tensor([[0.0, np.nan, 0.0]])

    weights = ops.convert_to_numpy(chunkwise(tensor([[0.0, 1.0, 0.0]]), scores, 2))

    assert np.isnan(weights).any()
