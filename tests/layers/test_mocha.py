"""Monotonic chunkwise attention, against slow loops that read like the paper."""

import keras
import numpy as np
import pytest
from arrays import numpy, random_fixture
from keras import ops
from models import reloaded

from keras_attention import (
    AdditiveAttention,
    AdditiveScore,
    Attention,
    AttentionCell,
    DotScore,
    LuongAttention,
    MochaWeighting,
)

pytestmark = pytest.mark.usefixtures("seeded")

BATCH, QUERIES, POSITIONS, QUERY_DIM, VALUE_DIM, UNITS = 2, 3, 7, 5, 11, 13
CHUNK = 3
MASK = np.array([[1, 1, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]], "bool")

query = random_fixture(BATCH, QUERIES, QUERY_DIM)
value = random_fixture(BATCH, POSITIONS, VALUE_DIM)


def scores_of(score, projection, query, value):
    """The additive score of one query: `v . tanh(W query + V value)`."""
    w, v, scale = numpy([score.query_projection.kernel, projection.kernel, score.scale])
    return np.tanh(query @ w + value @ v) @ scale


def expected_stops(p, previous):
    """Section 2.2: the process starts where the last query stopped."""
    stops = np.zeros(POSITIONS)
    for j in range(POSITIONS):
        stops[j] = p[j] * sum(previous[k] * np.prod(1 - p[k:j]) for k in range(j + 1))
    return stops


def first_stop(p, previous):
    stops = np.zeros(POSITIONS)
    if previous.any():
        later = [j for j in range(previous.argmax(), POSITIONS) if p[j] > 0.5]
        stops[later[:1]] = 1
    return stops


def chunkwise(stops, scores, valid):
    """Section 2.3: a softmax over the chunk that ends at each position."""
    weights = np.zeros(POSITIONS)
    for k in range(POSITIONS):
        chunk = [j for j in range(k - CHUNK + 1, k + 1) if j >= 0 and valid[j]]
        for j in chunk if stops[k] else []:
            weights[j] += stops[k] * np.exp(scores[j]) / np.exp(scores[chunk]).sum()
    return weights


@pytest.mark.parametrize(
    ("options", "stop"),
    [({"inference": "expectation"}, expected_stops), ({}, first_stop)],
    ids=["expectation", "hard"],
)
def test_follows_the_paper(query, value, options, stop):
    weighting = MochaWeighting(CHUNK, score_bias=0.1, **options)
    layer = AdditiveAttention(UNITS, scale_initializer="normal", weighting=weighting)
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
            expected = chunkwise(stops, chunk, MASK[b])
            np.testing.assert_allclose(weights[b, t], expected, atol=1e-5)
            np.testing.assert_allclose(context[b, t], expected @ value[b], atol=1e-4)


def test_expected_weights_learn_both_scores(query, value, gradients):
    layer = AdditiveAttention(UNITS, weighting="mocha")
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
    layer = AdditiveAttention(
        UNITS, weighting=MochaWeighting(CHUNK, inference="expectation", score_bias=0.5)
    )
    context = ops.convert_to_numpy(layer(query, value, value_mask=MASK))
    memory, state = layer.memory(value, value_mask=MASK), None

    for t in range(QUERIES):
        outputs, state = layer.step(query[:, t : t + 1], memory, state)
        found = ops.convert_to_numpy(outputs["context"])
        np.testing.assert_allclose(found[:, 0], context[:, t], atol=1e-5)


def test_the_copy_of_a_score_comes_back_from_a_file(query, value, tmp_path):
    inputs = keras.Input(query.shape[1:]), keras.Input(value.shape[1:])
    layer = AdditiveAttention(UNITS, use_bias=True, weighting=MochaWeighting(CHUNK))
    model = keras.Model(inputs, layer(*inputs))

    restored = reloaded(model, tmp_path)

    assert restored.layers[-1].get_config() == layer.get_config()
    found = [x([query, value]) for x in (restored, model)]
    np.testing.assert_array_equal(*numpy(found))
    assert len(layer.weights) == 2 * 4 + 1
    assert len({weight.path for weight in layer.weights}) == 2 * 4 + 1


def test_dot_scores_have_no_weights_to_copy(value):
    layer = Attention(DotScore(), weighting=MochaWeighting(1, score_bias=0.0))

    _, mocha = numpy(layer(value[:, :2], value, return_attention_scores=True))

    # A chunk of one position has a weight of one.
    monotonic = LuongAttention("dot", weighting=layer.step.weighting)
    assert [len(x.weights) for x in (layer, layer.memory)] == [1, 0]
    np.testing.assert_array_equal(mocha.sum(axis=-1), 1)
    assert monotonic.step.score.first.scaled is False


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_chunk_size_is_a_positive_integer(size):
    with pytest.raises(ValueError, match=f"chunk_size .*Received: {size}"):
        MochaWeighting(size)


def test_a_key_projection_must_be_that_of_two_scores(query, value):
    for units in (UNITS, 2 * UNITS + 1):
        projection = keras.layers.Dense(units)
        layer = Attention(AdditiveScore(UNITS), projection, weighting="mocha")
        with pytest.raises(ValueError, match=rf"two projections .* depth {units}$"):
            layer(query, value)
    with pytest.raises(ValueError, match="depth") as error:
        Attention(DotScore(), weighting="mocha")(query, value)
    assert "two projections" not in str(error.value)


@pytest.mark.exhaustive
def test_in_a_decoder(query, value):
    cell = AttentionCell(
        keras.layers.GRUCell(UNITS), AdditiveAttention(UNITS, weighting="mocha")
    )
    memory = cell.attention.memory(value)
    state = cell.get_initial_state(BATCH, memory)

    outputs, state = cell(query[:, 0], state, memory)

    assert outputs["weights"].shape == (BATCH, POSITIONS)
    assert state["attention"]["weighting"]["previous"].shape == (BATCH, POSITIONS)
