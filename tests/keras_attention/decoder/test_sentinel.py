"""Adaptive attention: a visual sentinel that competes with the values."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy, sigmoid
from attention_testing.combinations import quick_first
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUTS,
    POSITIONS,
    STATE_UNITS,
    UNITS,
    VALUE,
    VALUE_DIM,
    decoder_of_choice,
    lstm_as_in_the_paper,
    random_state,
)
from attention_testing.layers.cases import CASES
from attention_testing.rounding import rounding_bound


def decode_as_lu(cell, words, regions, state):
    """Sections 2.2 and 2.3 of Lu et al., for one image."""
    score, sentinel = cell.attention.step.score, cell.visual_sentinel
    w_v, b_v = numpy(cell.attention.memory.key_projection.weights)
    w_g, w_h = numpy([score.query_projection.kernel, score.scale])
    w_s, w_gate = numpy([sentinel.key_projection.kernel, sentinel.gate.kernel])
    outputs = {name: [] for name in ("context", "weights", "sentinel")}
    for x_t in words:
        g_t = sigmoid(np.concatenate([x_t, state[0]]) @ w_gate)
        h_t, state = lstm_as_in_the_paper(cell.cell, x_t, state)
        s_t = g_t * np.tanh(state[1])
        z_t = np.tanh(regions @ w_v + b_v + h_t @ w_g) @ w_h
        alpha_t = np.exp(z_t) / np.exp(z_t).sum()
        z_s = np.tanh(s_t @ w_s + h_t @ w_g) @ w_h
        beta_t = np.exp(z_s) / (np.exp(z_t).sum() + np.exp(z_s))
        if sentinel.value_projection is not None:
            s_t = s_t @ numpy(sentinel.value_projection.kernel)
        outputs["context"].append(beta_t * s_t + (1 - beta_t) * alpha_t @ regions)
        outputs["weights"].append((1 - beta_t) * alpha_t)
        outputs["sentinel"].append(beta_t)
    return {name: np.stack(x) for name, x in outputs.items()}


@pytest.mark.parametrize("value_dim", [STATE_UNITS, VALUE_DIM])
def test_follows_the_paper(rng, value_dim):
    shape = (BATCH, POSITIONS, value_dim)
    decoder = decoder_of_choice("adaptive", "additive", value=shape)
    inputs, value = draw(rng, INPUTS, shape)
    state = random_state(rng, decoder.cell.cell, BATCH)

    actual = numpy(decoder(inputs, value, {"cell": state}))

    projection = decoder.cell.visual_sentinel.value_projection
    assert (projection is None) == (value_dim == STATE_UNITS)
    for b in range(BATCH):
        first = [numpy(x[b]) for x in state]
        expected = decode_as_lu(decoder.cell, inputs[b], value[b], first)
        assert_close({name: actual[name][b] for name in expected}, expected)


@pytest.mark.parametrize("half", quick_first(["mixed_float16", "mixed_bfloat16"]))
def test_mixed_precision(rng, half):
    half_precise, precise = (
        decoder_of_choice("adaptive", "additive", dtype=dtype, scale=0.1)
        for dtype in (half, None)
    )
    inputs, value = (np.clip(x, -1, 1) for x in draw(rng, INPUTS, VALUE))

    outputs = half_precise(inputs, value)

    exact = numpy(precise(inputs, value))
    assert keras.backend.standardize_dtype(outputs["context"].dtype) == half[6:]
    assert keras.backend.standardize_dtype(outputs["sentinel"].dtype) == "float32"
    for name in ("context", "sentinel"):
        x = ops.cast(outputs[name], "float32")
        assert_close(x, exact[name], rounding_bound(half, 8))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sentinel": 1}, "must be a boolean. Received: 1"),
        ({"order": "previous"}, "needs order='current'.* Received: order='previous'"),
        ({"cell": CELLS["gru"]()}, "needs one LSTM cell.* Received: .*GRUCell"),
        ({"cell": CELLS["stacked lstm"]()}, "needs one LSTM cell"),
        ({"attention": [ka.AdditiveAttention(UNITS)]}, "needs one attention"),
        ({"attention": CASES["heads"].build()}, "needs one attention.*MultiHead"),
        ({"attention": CASES["local-p"].build()}, "without window"),
        ({"attention": CASES["coverage"].build()}, "without window, coverage"),
        ({"attention": CASES["monotonic"].build()}, "or monotonic"),
        ({"attention": CASES["location"].build()}, "uses the keys"),
        (
            {"attention": ka.AdditiveAttention(UNITS, weighting=ka.HardWeighting())},
            "deterministic weighting",
        ),
    ],
)
def test_parts_that_cannot_be_combined_are_named(options, expected):
    parts = {"cell": CELLS["lstm"](), "attention": ka.AdditiveAttention(UNITS)}
    parts |= {"order": "current", "sentinel": True, **options}

    with pytest.raises(ValueError, match=f"sentinel .*{expected}"):
        ka.AttentionCell(**parts)
