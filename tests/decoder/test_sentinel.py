"""Adaptive attention: a visual sentinel that competes with the values."""

import keras
import numpy as np
import pytest
from arrays import assert_close, draw, numpy, randomized, sigmoid
from combinations import quick_first
from decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    POSITIONS,
    SEQUENCES,
    STATE_UNITS,
    STEPS,
    UNITS,
    VALUE_DIM,
    assert_same_config,
    lstm_as_in_the_paper,
    random_state,
    step_by_step,
)
from keras import ops, tree
from layers.cases import CASES
from models import reloaded
from rounding import rounding_bound

import keras_attention as ka
from keras_attention import backends
from keras_attention.decoder import fast

# JAX takes half a minute to compile the gradients.
ON_JAX = keras.backend.backend() == "jax"
FED = {"input_feeding": True, "gate": True}
VALUE = (BATCH, POSITIONS, VALUE_DIM)
MASKS = {
    "inputs_mask": np.array([[1, 0, 1, 1, 0], [0, 1, 1, 1, 1]], "bool"),
    "value_mask": np.array([[1, 1, 0, 1, 0, 1, 1], [0] * 7], "bool"),
}


def adaptive_cell(cell=None, attention=None, **options):
    options = {"order": "current", "sentinel": True, **options}
    dtype = options.get("dtype")
    return ka.AttentionCell(
        cell or keras.layers.LSTMCell(STATE_UNITS, dtype=dtype),
        attention or ka.AdditiveAttention(UNITS, use_bias=True, dtype=dtype),
        **options,
    )


def adaptive_decoder(value_dim=VALUE_DIM, scale=0.5, **options):
    """A decoder whose weights are all drawn at random."""
    decoder = ka.AttentionDecoder(adaptive_cell(**options), dtype=options.get("dtype"))
    decoder.build(INPUTS, (BATCH, POSITIONS, value_dim))
    return randomized(decoder, scale)


def decode_as_lu(cell, words, regions, state):
    """Sections 2.2 and 2.3 of Lu et al., for one image."""
    score, sentinel = cell.attention.step.score, cell.visual_sentinel
    keys = cell.attention.memory.key_projection
    w_v, b_v, w_g, w_h, w_s, w_gate = numpy(
        [
            keys.kernel,
            keys.bias,
            score.query_projection.kernel,
            score.scale,
            sentinel.key_projection.kernel,
            sentinel.gate.kernel,
        ]
    )
    found = {name: [] for name in ("context", "weights", "sentinel")}
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
        found["context"].append(beta_t * s_t + (1 - beta_t) * alpha_t @ regions)
        found["weights"].append((1 - beta_t) * alpha_t)
        found["sentinel"].append(beta_t)
    return {name: np.stack(x) for name, x in found.items()}


@pytest.mark.parametrize("value_dim", [STATE_UNITS, VALUE_DIM])
def test_follows_the_paper(rng, value_dim):
    decoder = adaptive_decoder(value_dim)
    inputs, value = draw(rng, INPUTS, (BATCH, POSITIONS, value_dim))
    state = random_state(rng, decoder.cell.cell, BATCH)

    found = numpy(decoder(inputs, value, {"cell": state}))

    assert (decoder.cell.visual_sentinel.value_projection is None) == (
        value_dim == STATE_UNITS
    )
    for b in range(BATCH):
        first = [numpy(x[b]) for x in state]
        expected = decode_as_lu(decoder.cell, inputs[b], value[b], first)
        assert_close({name: found[name][b] for name in expected}, expected)


@pytest.mark.parametrize("options", [{}, FED], ids=["plain", "fed"])
def test_stepping_equals_the_full_pass(rng, options):
    decoder = adaptive_decoder(**options)
    inputs, value = draw(rng, INPUTS, VALUE)
    value[~MASKS["value_mask"]] = np.nan
    state = random_state(rng, decoder.cell.cell, BATCH)

    found = numpy(decoder(inputs, value, {"cell": state}, **MASKS))

    state = decoder.cell.complete_state({"cell": state})
    assert_close(found, step_by_step(decoder, inputs, value, state, **MASKS))
    # Where no position is valid, the sentinel has all of the weight.
    total = found["weights"].sum(axis=-1) + found["sentinel"]
    assert_close(total, 1.0 * MASKS["inputs_mask"])
    assert (found["weights"][1] == 0).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [{}, FED], ids=["plain", "fed"])
def test_sequences_of_one_memory_are_independent(rng, options):
    decoder = adaptive_decoder(**options)
    inputs, value = draw(rng, (BATCH, SEQUENCES, STEPS, INPUT_DIM), VALUE)

    together = numpy(decoder(inputs, value))

    for k in range(SEQUENCES):
        alone = numpy(decoder(inputs[:, k], value))
        assert_close(tree.map_structure(lambda x, k=k: x[:, k], together), alone)


@pytest.mark.parametrize("options", quick_first([FED, {}], 0 if ON_JAX else 1))
def test_gradients_are_the_same_with_and_without_deferred_parts(
    rng, options, gradients, monkeypatch
):
    decoder = adaptive_decoder(**options)
    arrays = draw(rng, INPUTS, VALUE)

    def loss(inputs, value):
        steps = decoder(inputs, value, **MASKS)
        parts = steps["output"], steps["context"], steps["sentinel"]
        return sum(ops.sum(ops.sin(x)) for x in parts)

    found = gradients(loss, arrays, decoder.trainable_variables)

    monkeypatch.setattr(fast, "split_cell", lambda *_: None)
    monkeypatch.setattr(backends, "defers_gradients", lambda x: False)
    monkeypatch.setattr(ka.AttentionCell, "sequential", True)
    expected = gradients(loss, arrays, decoder.trainable_variables)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4 * abs(y).max(), rtol=1e-3)
        assert (x != 0).any()


@pytest.mark.parametrize("half", quick_first(["mixed_float16", "mixed_bfloat16"]))
def test_mixed_precision(rng, half):
    decoder = adaptive_decoder(dtype=half, scale=0.1)
    inputs, value = (np.clip(x, -1, 1) for x in draw(rng, INPUTS, VALUE))

    found = decoder(inputs, value)

    exact = numpy(adaptive_decoder(scale=0.1)(inputs, value))
    assert keras.backend.standardize_dtype(found["context"].dtype) == half[6:]
    assert keras.backend.standardize_dtype(found["sentinel"].dtype) == "float32"
    for name in ("context", "sentinel"):
        x = numpy(ops.cast(found[name], "float32"))
        np.testing.assert_allclose(x, exact[name], atol=rounding_bound(half, 8), rtol=0)


@pytest.mark.exhaustive
def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    inputs, value = keras.Input((None, INPUT_DIM)), keras.Input((None, VALUE_DIM))
    decoder = ka.AttentionDecoder(adaptive_cell(ka.LayerNormLSTMCell(STATE_UNITS)))
    steps = decoder(keras.layers.Masking()(inputs), value)
    shape = steps["sentinel"].shape
    model = keras.Model([inputs, value], steps)
    arrays = draw(rng, INPUTS, VALUE)
    arrays[0][:, -1] = 0

    restored = reloaded(model, tmp_path)

    found = restored.predict(arrays, verbose=0)
    assert_close(found, model.predict(arrays, verbose=0))
    assert (found["sentinel"][:, -1] == 0).all()
    assert shape == (None, None)
    assert found["sentinel"].shape == (BATCH, STEPS)


def test_comes_back_from_its_config():
    decoder = adaptive_decoder()

    restored = ka.AttentionDecoder.from_config(decoder.get_config())

    assert_same_config(restored, decoder)
    assert restored.cell.sentinel is True


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
    with pytest.raises(ValueError, match=f"sentinel .*{expected}"):
        adaptive_cell(**options)
