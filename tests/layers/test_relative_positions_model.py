"""Relative positions and sliding windows in files, exports, and half precision."""

import json

import keras
import numpy as np
import pytest
from arrays import draw, numpy
from combinations import quick_first
from keras import ops
from layers.self_attention_reference import BACKEND, read
from layers.test_relative_positions import (
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
from models import fit, reloaded
from rounding import rounding_bound

from keras_attention import (
    RelativePositions,
    RotaryPositions,
    SelfAttention,
    ShawPositions,
    T5Positions,
    convert_to_litert,
)
from keras_attention.ops import sliding_windows

pytestmark = pytest.mark.usefixtures("seeded")

# The window of T5 is symmetric, the others are causal.
KINDS = quick_first(["shaw", "t5", "rotary", "alibi"])


def windowed(name, monkeypatch):
    """A layer whose window cuts even the shortest sequences into blocks."""
    monkeypatch.setattr(sliding_windows, "MIN_BLOCK", 2)
    return build(name, name != "t5", num_key_value_heads=GROUPS, window_size=2)


@pytest.mark.parametrize("name", KINDS)
def test_compiled_for_any_length(rng, name, monkeypatch):
    layer = windowed(name, monkeypatch)
    x, mask = draw(rng, SEQUENCE), MASK
    expected = read(layer, x, query_mask=mask)

    def run(x, mask):
        return layer(x, query_mask=mask)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        shapes = (None, None, DEPTH), (None, None)
        specs = [tf.TensorSpec(shapes[0]), tf.TensorSpec(shapes[1], "bool")]
        run = tf.function(run, input_signature=specs, jit_compile=True)
    elif BACKEND == "jax":
        import jax

        run = jax.jit(run)
    output = ops.convert_to_numpy(run(ops.convert_to_tensor(x), mask))

    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="exports need TensorFlow")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.exhaustive
def test_exported_to_saved_model_and_litert(rng, name, monkeypatch, tmp_path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    import tensorflow as tf

    layer, x = windowed(name, monkeypatch), draw(rng, SEQUENCE)
    inputs = keras.Input((None, DEPTH))
    keras.Model(inputs, layer(inputs)).export(tmp_path, verbose=False)
    exported = tf.saved_model.load(str(tmp_path))
    for length in (1, STEPS):
        found = exported.serve(x[:, :length])
        np.testing.assert_allclose(found, read(layer, x[:, :length]), atol=1e-5)

    def attend(x, mask):
        return {"output": layer(x, query_mask=mask)}

    specs = {"x": tf.TensorSpec(SEQUENCE), "mask": tf.TensorSpec(MASK.shape, "bool")}
    model = convert_to_litert({"attend": (attend, specs)}, quantize=None)
    run = interpreter.Interpreter(model_content=model).get_signature_runner("attend")
    expected = read(layer, x, query_mask=MASK)
    np.testing.assert_allclose(run(x=x, mask=MASK)["output"], expected, atol=1e-5)


@pytest.mark.parametrize("quantized", quick_first([False, True]))
def test_layers_in_a_file_share_positions(rng, tmp_path, quantized):
    shared = T5Positions(8, 5, bias_initializer="normal")
    inputs = keras.Input((None, DEPTH))
    x = SelfAttention(2, 4, positions=shared)(inputs)
    x = SelfAttention(2, 4, positions=shared)(x)
    x = SelfAttention(2, 4, positions="shaw", window_size=2, use_gate=True)(x)
    model = keras.Model(inputs, x)
    if quantized:
        model.quantize("int8")
    loaded = reloaded(model, tmp_path)

    first, second = (layer.positions for layer in loaded.layers[1:3])
    assert first is second
    assert len(loaded.weights) == len(model.weights)
    x = draw(rng, SEQUENCE)
    np.testing.assert_allclose(read(loaded, x), read(model, x), atol=1e-6)


def test_config_of_an_earlier_version_gives_the_same_layer(rng):
    layer = build("none", True)
    config = layer.get_config()
    for name in (
        "positions",
        "num_key_value_heads",
        "window_size",
        "attention_axes",
        "query_key_norm",
    ):
        assert config.pop(name) is None
    assert config.pop("use_gate") is False
    config["weighting"] = "softmax"

    restored = SelfAttention.from_config(json.loads(json.dumps(config)))

    x = draw(rng, SEQUENCE)
    restored.build(SEQUENCE)
    layer.build(SEQUENCE)
    restored.set_weights(layer.get_weights())
    np.testing.assert_array_equal(read(restored, x), read(layer, x))


@pytest.mark.parametrize("name", ["rotary", "alibi", "t5", "shaw"])
def test_positions_come_back_from_their_config(name):
    for positions in (name, POSITIONS[name](causal=True)):
        layer = SelfAttention(2, 4, positions=positions, dtype="mixed_float16")
        config = json.loads(json.dumps(layer.get_config()))

        restored = SelfAttention.from_config(config)

        assert restored.get_config() == layer.get_config()
        assert type(restored.positions) is type(layer.positions)


@pytest.mark.parametrize("dtype", quick_first(["mixed_float16", "bfloat16", "float64"]))
@pytest.mark.parametrize("name", quick_first(["rotary", "alibi", "t5", "shaw"], 4))
def test_other_precisions(rng, name, dtype):
    exact = build(name, True, query_key_norm="rms", use_gate=True)
    layer = SelfAttention.from_config({**exact.get_config(), "dtype": dtype})
    x = draw(rng, SEQUENCE) / 4
    exact.build(SEQUENCE)
    layer.build(SEQUENCE)
    layer.set_weights(exact.get_weights())

    output, weights = layer(x, return_attention_scores=True)

    assert layer.compute_dtype == output.dtype.name if BACKEND != "torch" else True
    expected = exact(x, return_attention_scores=True)
    for found, value in zip((output, weights), expected, strict=True):
        found, value = numpy([ops.cast(found, "float32"), value])
        bound = 1e-5 if dtype == "float64" else 2 * rounding_bound(dtype, 40)
        np.testing.assert_allclose(found, value, atol=bound)


def test_tables_are_trained(rng):
    layer = build("shaw", True, window_size=3)
    x = draw(rng, SEQUENCE)
    inputs = keras.Input((STEPS, DEPTH))
    model = keras.Model(inputs, layer(inputs))
    before = [np.array(w) for w in numpy(layer.positions.weights)]

    fit(model, x, np.zeros_like(x), optimizer=keras.optimizers.SGD(1.0))

    after = numpy(layer.positions.weights)
    for old, new in zip(before, after, strict=True):
        changed = (old != new).any(axis=1)
        # Offsets from -2 to 2; causal attention sees none above 0.
        np.testing.assert_array_equal(changed, [True, True, True, False, False])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "sine"}, r"positions must be one of 'rotary'.*Received: 'sine'"),
        ({"num_key_value_heads": 4}, r"must divide num_heads=6. Received: 4"),
        ({"query_key_norm": "l2"}, r"query_key_norm must be .* Received: 'l2'"),
        ({"window_size": 0}, r"window_size must be .* Received: 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(HEADS, 4, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RotaryPositions(0), r"max_wavelength must be positive.*: 0"),
        (lambda: RotaryPositions(fraction=2), r"fraction must .* Received: 2"),
        (lambda: RotaryPositions(fraction="all"), r"fraction must .* Received: 'all'"),
        (lambda: RotaryPositions(scaling="yarn"), r"scaling must .* Received: 'yarn'"),
        (lambda: RotaryPositions(scaling_factor=0.5), r"factor must .* Received: 0.5"),
        (lambda: T5Positions(3), r"num_buckets must .* Received: num_buckets=3"),
        (lambda: T5Positions(32, 8), r"max_distance above .* max_distance=8"),
        (lambda: ShawPositions(0), r"max_distance must .* Received: 0"),
    ],
)
def test_wrong_options_of_positions_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rotary_positions_need_a_pair_of_features():
    layer = SelfAttention(HEADS, 4, positions=RotaryPositions(fraction=0.25))

    with pytest.raises(ValueError, match=r"Received: key_dim=4, fraction=0\.25"):
        layer.build(SEQUENCE)


def test_ntk_scaling_needs_two_pairs_of_features():
    positions = RotaryPositions(scaling="ntk", scaling_factor=2.0)
    layer = SelfAttention(HEADS, 2, positions=positions)

    with pytest.raises(ValueError, match=r"four features or more.*: key_dim=2, frac"):
        layer(np.zeros(SEQUENCE, "float32"))


def test_one_query_of_another_sequence_has_no_position():
    layer = build("rotary")

    with pytest.raises(ValueError, match=r"Received: \(2, 3\)"):
        layer(np.zeros((BATCH, DEPTH), "float32"), np.zeros(SEQUENCE, "float32"))


class Distance(RelativePositions):
    """Custom positions: the distance lowers the scores of all heads."""

    def bias(self, query, offsets):
        return -ops.cast(ops.abs(offsets), "float32")[:, None]


def test_custom_positions_have_a_config():
    config = SelfAttention(1, 4, positions=Distance(name="near")).get_config()

    assert config["positions"]["config"]["name"] == "near"


def test_custom_positions_bias_the_scores(rng):
    layer = SelfAttention(1, 4, positions=Distance(), kernel_initializer="zeros")

    _, weights = layer(draw(rng, SEQUENCE), return_attention_scores=True)

    t = np.arange(STEPS)
    odds = np.exp(-abs(t[:, None] - t))
    expected = odds / odds.sum(-1, keepdims=True)
    np.testing.assert_allclose(ops.convert_to_numpy(weights)[0, 0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("positions", "other", "message"),
    [
        (T5Positions(8, 5), (2, 4), "same number of heads, 1. Received: 2"),
        (ShawPositions(3), (1, 6), r"\[4, 4\]. Received: \[6, 6\]"),
    ],
    ids=["T5", "Shaw"],
)
def test_shared_positions_must_fit(positions, other, message):
    sequence = np.zeros(SEQUENCE, "float32")
    SelfAttention(1, 4, positions=positions)(sequence)
    SelfAttention(1, 4, positions=positions)(sequence)

    with pytest.raises(ValueError, match=message):
        SelfAttention(*other, positions=positions)(sequence)
