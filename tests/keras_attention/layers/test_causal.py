"""Causal attention: a query sees no position after its own."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.combinations import quick_first
from attention_testing.layers.cases import CASES, attend, step_by_step

BATCH, QUERIES, POSITIONS, DEPTH, UNITS = 2, 5, 7, 3, 11

NAMES = ["additive", "coverage", "local-m", "monotonic", "local-p", "hard", "location"]


@pytest.fixture(params=quick_first(NAMES, 3))
def pair(request):
    """A layer that is not causal, and a causal one with the same weights."""
    layers = [CASES[request.param].build(causal=x) for x in (False, True)]
    for layer in layers:
        layer.build((None, None, DEPTH), (None, None, DEPTH))
    layers[1].set_weights(layers[0].get_weights())
    return layers


@pytest.fixture
def data(rng):
    return draw(rng, (BATCH, QUERIES, DEPTH), (BATCH, POSITIONS, DEPTH))


def test_causal_attention_has_a_triangular_mask(pair, data):
    layer, causal = pair
    # The first query is masked, but counts as a step.
    masks = {"query_mask": np.arange(QUERIES)[None] != [[0], [3]]}
    triangle = np.tri(QUERIES, POSITIONS, dtype="bool")

    expected = attend(layer, data, attention_mask=triangle, **masks)

    for actual in (
        attend(causal, data, **masks),
        attend(layer, data, use_causal_mask=True, **masks),
        attend(layer, data, use_causal_mask=np.True_, **masks),
    ):
        assert (actual[1][:, ~triangle] == 0).all()
        assert_close(actual, expected, 1e-6)


def test_steps_equal_the_full_pass(pair, data):
    layer = pair[1]
    query, value = data

    outputs = step_by_step(layer, query, layer.memory(value))

    assert_close(outputs, attend(layer, data), 1e-6)


@pytest.mark.parametrize("order", quick_first(["previous", "current"]))
def test_a_decoder_counts_its_steps(order, data):
    attention = ka.AdditiveAttention(UNITS, causal=True)
    cell = ka.AttentionCell(keras.layers.GRUCell(UNITS), attention, order=order)
    decoder = ka.AttentionDecoder(cell)
    inputs, value = data
    # Two sequences attend to the same memory; the second has a masked step.
    inputs = np.stack([inputs, inputs], axis=1)
    mask = np.ones((BATCH, 2, QUERIES), "bool")
    mask[:, 1, 2] = False

    weights = numpy(decoder(inputs, value, inputs_mask=mask)["weights"])

    triangle = np.tri(QUERIES, POSITIONS, dtype="bool")
    np.testing.assert_array_equal(weights[:, 0] > 0, [triangle] * BATCH)
    # A masked step keeps the state.
    triangle = np.insert(triangle[:-1], 2, False, axis=0)
    np.testing.assert_array_equal(weights[:, 1] > 0, [triangle] * BATCH)


@pytest.mark.parametrize("option", [{"causal": True}, {"causal": False}])
def test_a_single_query_is_refused(option, data):
    layer = ka.AdditiveAttention(UNITS, **option)
    query, value = data[0][:, 0], data[1]
    call = {} if option["causal"] else {"use_causal_mask": True}
    symbols = [keras.KerasTensor(x.shape) for x in (query, value)]

    for tensors in ((query, value), symbols):
        with pytest.raises(ValueError, match=r"One query.* Received: \(2, 3\)"):
            layer(*tensors, **call)
