"""Relative positions and sliding windows in files, exports, and half precision."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close, draw, numpy, softmax
from attention_testing.combinations import quick_first
from attention_testing.layers.keras_contract import restored_from_json
from attention_testing.layers.self_attention_reference import BACKEND, read
from attention_testing.models import compiled, fit, needs_tensorflow, reloaded
from attention_testing.rounding import rounding_bound
from keras_attention.ops import sliding_windows

from .test_relative_positions import (
    BATCH,
    DEPTH,
    GROUPS,
    HEADS,
    MASK,
    POSITIONS,
    SEQUENCE,
    STEPS,
    build,
)

# The window of T5 is symmetric, the others are causal.
NAMES = ["shaw", "t5", "rotary", "alibi"]


def windowed(name, monkeypatch):
    """A layer whose window cuts even the shortest sequences into blocks."""
    monkeypatch.setattr(sliding_windows, "MIN_BLOCK", 2)
    return build(name, name != "t5", num_key_value_heads=GROUPS, window_size=2)


@pytest.mark.parametrize("name", quick_first(NAMES))
def test_compiled_for_any_length(rng, name, monkeypatch):
    layer = windowed(name, monkeypatch)
    x, mask = draw(rng, SEQUENCE), MASK
    expected = read(layer, x, query_mask=mask)

    def run(x, mask):
        return layer(x, query_mask=mask)

    shapes = (None, None, DEPTH), (None, None)
    symbols = list(map(keras.KerasTensor, shapes, ("float32", "bool")))
    output = compiled(run, symbols, xla=True)(ops.convert_to_tensor(x), mask)

    assert_close(output, expected)


@needs_tensorflow
@pytest.mark.exhaustive
def test_exported_to_saved_model_and_litert(rng, monkeypatch, tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    import tensorflow as tf

    layers = {name: windowed(name, monkeypatch) for name in NAMES}
    x, inputs = draw(rng, SEQUENCE), keras.Input((None, DEPTH))
    outputs = [layer(inputs) for layer in layers.values()]
    keras.Model(inputs, outputs).export(tmp_path, verbose=False)
    exported = tf.saved_model.load(str(tmp_path))
    for length in (1, STEPS):
        results = exported.serve(x[:, :length])
        assert_close(list(results), [read(y, x[:, :length]) for y in layers.values()])

    def attend(x, mask):
        return {name: layer(x, query_mask=mask) for name, layer in layers.items()}

    specs = {"x": tf.TensorSpec(SEQUENCE), "mask": tf.TensorSpec(MASK.shape, "bool")}
    model = ka.convert_to_litert({"attend": (attend, specs)}, quantize=None)
    run = interpreter.Interpreter(model_content=model).get_signature_runner("attend")
    assert_close(run(x=x, mask=MASK), attend(x, MASK))


@pytest.mark.parametrize("quantized", quick_first([False, True]))
def test_layers_in_a_file_share_positions(rng, tmp_path, quantized):
    shared = ka.T5Positions(8, 5, bias_initializer="normal")
    inputs = keras.Input((None, DEPTH))
    x = ka.SelfAttention(2, 4, positions=shared)(inputs)
    x = ka.SelfAttention(2, 4, positions=shared)(x)
    x = ka.SelfAttention(2, 4, positions="shaw", window_size=2, use_gate=True)(x)
    model = keras.Model(inputs, x)
    if quantized:
        model.quantize("int8")
    loaded = reloaded(model, tmp_path)

    first, second = (layer.positions for layer in loaded.layers[1:3])
    assert first is second
    assert len(loaded.weights) == len(model.weights)
    x = draw(rng, SEQUENCE)
    assert_close(loaded(x), model(x), 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_positions_come_back_from_their_config(name):
    for positions in (name, POSITIONS[name](causal=True)):
        layer = ka.SelfAttention(2, 4, positions=positions, dtype="mixed_float16")

        restored = restored_from_json(layer)

        assert type(restored.positions) is type(layer.positions)


@pytest.mark.parametrize("dtype", quick_first(["mixed_float16", "bfloat16", "float64"]))
@pytest.mark.parametrize("name", NAMES)
def test_other_precisions(rng, name, dtype):
    exact = build(name, True, query_key_norm="rms", use_gate=True)
    layer = ka.SelfAttention.from_config({**exact.get_config(), "dtype": dtype})
    x = draw(rng, SEQUENCE) / 4
    exact.build(SEQUENCE)
    layer.build(SEQUENCE)
    layer.set_weights(exact.get_weights())

    output, weights = layer(x, return_attention_scores=True)

    assert layer.compute_dtype == output.dtype.name if BACKEND != "torch" else True
    expected = exact(x, return_attention_scores=True)
    for actual, value in zip((output, weights), expected, strict=True):
        actual, value = numpy([ops.cast(actual, "float32"), value])
        bound = 1e-5 if dtype == "float64" else 2 * rounding_bound(dtype, 40)
        np.testing.assert_allclose(actual, value, atol=bound)


@pytest.mark.exhaustive
def test_tables_are_trained(rng):
    layer = build("shaw", True, window_size=3)
    x = draw(rng, SEQUENCE)
    inputs = keras.Input((STEPS, DEPTH))
    model = keras.Model(inputs, layer(inputs))
    before = layer.positions.get_weights()

    fit(model, x, np.zeros_like(x), optimizer=keras.optimizers.SGD(1.0))

    for old, new in zip(before, layer.positions.get_weights(), strict=True):
        changed = (old != new).any(axis=1)
        # Offsets from -2 to 2; causal attention sees none above 0.
        np.testing.assert_array_equal(changed, [True, True, True, False, False])


def attend(key_dim, **options):
    layer = ka.SelfAttention(HEADS, key_dim, positions=ka.RotaryPositions(**options))
    return layer(np.zeros(SEQUENCE, "float32"))


def attend_with_one_query():
    query, value = np.zeros((BATCH, DEPTH), "float32"), np.zeros(SEQUENCE, "float32")
    return build("rotary", layer=ka.MultiHeadAttention)(query, value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("none", num_key_value_heads=4), "divide num_heads=6. Rec.*: 4"),
        (lambda: ka.SelfAttention(1, 4, positions="sine"), "'rotary'.* Rec.*: 'sine'"),
        (lambda: attend(4, fraction=0.25), r"Received: key_dim=4, fraction=0\.25"),
        (
            lambda: attend(2, scaling="ntk", scaling_factor=2.0),
            "four features or more.*: key_dim=2, frac",
        ),
        (attend_with_one_query, r"Received: \(2, 3\)"),
        (lambda: ka.T5Positions(3), r"num_buckets must .* Received: num_buckets=3"),
        (lambda: ka.T5Positions(32, 8), r"max_distance above .* max_distance=8"),
        (lambda: ka.ShawPositions(0), r"max_distance must .* Received: 0"),
    ],
)
def test_wrong_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Distance(ka.RelativePositions):
    """Custom positions: the distance lowers the scores of all heads."""

    def bias(self, query, offsets):
        return -ops.cast(ops.abs(offsets), "float32")[:, None]


def test_custom_positions_bias_the_scores_and_have_a_config(rng):
    positions = Distance(name="near")
    layer = ka.SelfAttention(1, 4, positions=positions, kernel_initializer="zeros")
    assert layer.get_config()["positions"]["config"]["name"] == "near"

    _, weights = layer(draw(rng, SEQUENCE), return_attention_scores=True)

    t = np.arange(STEPS)
    assert_close(weights[0, 0], softmax(-1.0 * abs(t[:, None] - t)), 1e-6)


@pytest.mark.parametrize(
    ("positions", "other", "message"),
    [
        (ka.T5Positions(8, 5), (2, 4), "same number of heads, 1. Received: 2"),
        (ka.ShawPositions(3), (1, 6), r"\[4, 4\]. Received: \[6, 6\]"),
    ],
    ids=["T5", "Shaw"],
)
def test_shared_positions_must_fit(positions, other, message):
    sequence = np.zeros(SEQUENCE, "float32")
    ka.SelfAttention(1, 4, positions=positions)(sequence)
    ka.SelfAttention(1, 4, positions=positions)(sequence)

    with pytest.raises(ValueError, match=message):
        ka.SelfAttention(*other, positions=positions)(sequence)
