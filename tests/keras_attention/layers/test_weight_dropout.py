"""Dropout of attention weights."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.combinations import quick_first
from attention_testing.layers.cases import attend
from attention_testing.models import fit

BATCH, QUERIES, POSITIONS, DEPTH, UNITS = 2, 3, 5, 7, 11


@pytest.fixture
def data(rng):
    return draw(rng, (BATCH, QUERIES, DEPTH), (BATCH, POSITIONS, DEPTH))


def test_dropout_scales_what_it_keeps():
    layer = ka.LuongAttention("dot", dropout=0.2, seed=1)
    query, value = np.zeros((1, 50, 1)), np.ones((1, 100, 1))

    context, weights = attend(layer, (query, value), training=True)

    undropped = weights > 0
    np.testing.assert_allclose(weights[undropped], 1 / 100 / 0.8, rtol=1e-6)
    np.testing.assert_allclose(
        undropped.mean(), 0.8, atol=4 * 0.4 / np.sqrt(undropped.size)
    )
    np.testing.assert_allclose(context, weights.sum(-1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(attend(layer, (query, value))[1], 1 / 100, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    quick_first(
        [
            {"score": "concat", "units": UNITS, "coverage": True},
            {"window": "local-p", "half_width": 1},
            {"weighting": "monotonic"},
        ],
        2,
    ),
)
def test_states_do_not_depend_on_dropout(options, data):
    layer = ka.LuongAttention(dropout=0.5, seed=1, **options)
    query, value = data
    memory = layer.memory(value)
    noise = layer.step.draw(memory, 1, QUERIES)
    noise = keras.tree.map_structure(lambda x: x[0], noise)

    used, state = layer.step(query, memory, noise=noise, training=True)

    noise = {name: x for name, x in noise.items() if name != "dropout"}
    expected, same = layer.step(query, memory, noise=noise, training=True)
    assert_close(state, same, 0)
    used, expected = numpy([used["weights"], expected["weights"]])
    assert (used == 0).any()
    np.testing.assert_allclose(used, np.where(used > 0, 2 * expected, 0), rtol=1e-5)


@pytest.mark.parametrize("compiled", quick_first([False, True]))
@pytest.mark.parametrize("weighting", quick_first(["softmax", "monotonic"]))
def test_every_step_of_a_decoder_draws_its_own_mask(weighting, compiled, data):
    attention = ka.AdditiveAttention(UNITS, weighting=weighting, dropout=0.5, seed=1)
    decoder = ka.AttentionDecoder(
        ka.AttentionCell(keras.layers.GRUCell(UNITS), attention)
    )
    inputs, value = data
    if compiled:
        symbols = [keras.Input(x.shape[1:]) for x in data]
        model = keras.Model(symbols, decoder(*symbols)["context"])
        fit(model, data, np.zeros_like(inputs))

    weights = decoder(inputs, value, training=True)["weights"]

    dropped = ops.convert_to_numpy(weights) == 0
    assert (dropped != dropped[:, :1]).any()
    assert not (ops.convert_to_numpy(decoder(inputs, value)["weights"]) == 0).any()


def test_a_hard_choice_has_no_dropout():
    message = "of a hard choice. Received: .*HardWeighting, dropout=0.5"
    with pytest.raises(ValueError, match=message):
        ka.LuongAttention("dot", weighting="hard", dropout=0.5)
