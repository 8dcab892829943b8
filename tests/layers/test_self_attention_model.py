"""Self-attention as a layer of Keras: its config, its files and its errors."""

import re

import keras
import numpy as np
import pytest
from arrays import draw, numpy
from keras import ops
from layers.keras_contract import (
    PROJECTION_OPTIONS,
    assert_config_names_every_argument,
    assert_fulfils_the_contract_of_keras,
    restored_from_json,
)
from layers.self_attention_reference import (
    BACKEND,
    BATCH,
    HEADS,
    KEY,
    KEY_DEPTH,
    KEY_DIM,
    OUTPUT_DIM,
    POSITIONS,
    QUERIES,
    QUERY,
    QUERY_DIM,
    SEQUENCE,
    SLOTS,
    VALUE,
    VALUE_DEPTH,
    VALUE_DIM,
    WORDS,
    biased,
    embedded,
    read,
    stepped,
)
from models import fit, reloaded

from keras_attention import SoftmaxWeighting, T5Positions
from keras_attention.layers.multi_head import SelfAttention

pytestmark = pytest.mark.usefixtures("seeded")


# Every argument with a value that is not its default.
ARGUMENTS = {
    "num_heads": HEADS,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
    "output_dim": OUTPUT_DIM,
    "use_output_projection": True,
    "causal": True,
    "weighting": SoftmaxWeighting(dtype="mixed_bfloat16"),
    "dropout": 0.25,
    "scale": 0.5,
    "use_bias": False,
    **PROJECTION_OPTIONS,
    "seed": 3,
    "positions": T5Positions(8, 5, bidirectional=False, dtype="mixed_bfloat16"),
    "num_key_value_heads": 1,
    "window_size": 3,
    "attention_axes": [1],
    "query_key_norm": "layer",
    "use_gate": True,
    "dtype": "mixed_bfloat16",
    "name": "reader",
    "trainable": False,
}


def test_config_names_every_argument():
    assert_config_names_every_argument(SelfAttention, ARGUMENTS)


@pytest.mark.parametrize(
    "arguments",
    [
        ARGUMENTS,
        {"num_heads": 1, "key_dim": 2},
        {"num_heads": 1, "key_dim": 2, "use_output_projection": False},
    ],
)
def test_layer_comes_back_from_its_config(arguments):
    layer = SelfAttention(**arguments)

    restored = restored_from_json(layer)

    restored.build(QUERY, VALUE)
    parts = restored, restored.memory, restored.step
    assert {part.dtype_policy.name for part in parts} == {layer.dtype_policy.name}
    for part in parts[1:]:
        restored_from_json(part)


def test_parts_from_files_of_the_first_version_come_back():
    layer = SelfAttention(HEADS, KEY_DIM, use_bias=False)
    for part in (layer.memory, layer.step):
        config = part.get_config()
        config["projection"] = config.pop("dense_options")
        config["norm"] = config.pop("query_key_norm")

        restored = type(part).from_config(config)

        assert restored.get_config() == part.get_config()


def test_a_frozen_layer_has_no_trainable_weights(rng):
    layer = SelfAttention(**{**ARGUMENTS, "use_bias": True})
    memory = layer.memory(draw(rng, VALUE))
    assert layer.memory.trainable_variables == []
    layer.build(QUERY, VALUE)
    assert len(layer.variables) > 8
    parts = layer, layer.memory, layer.step, layer.step.output_projection
    assert all(part.trainable_variables == [] for part in parts)
    assert not any(v.trainable for v in layer.weights)
    assert tuple(memory["keys"].shape) == (BATCH, 1, POSITIONS, KEY_DIM)

    layer.trainable = True

    # A table of positions, gain and shift of each norm, kernel and bias of each
    # projection.
    assert len(layer.trainable_variables) == 1 + 2 * 2 + 2 * 5


def test_initializers_take_effect_and_projections_do_not_start_alike():
    options = {"output_dim": 11, "use_bias": True}
    layer = SelfAttention(
        1, 11, **options, bias_initializer=keras.initializers.Constant(3.0)
    )
    layer.build(QUERY)
    seeded = SelfAttention(
        1, 11, **options, kernel_initializer=keras.initializers.Constant(2.0)
    )
    seeded.build(QUERY)

    kernels = [w for w in layer.get_weights() if w.ndim == 2]
    assert len(kernels) == 4
    for i, kernel in enumerate(kernels):
        assert all((kernel != other).any() for other in kernels[:i])
    assert all((w == 3).all() for w in layer.get_weights() if w.ndim == 1)
    assert all((w == 2).all() for w in seeded.get_weights() if w.ndim == 2)


def test_regularizers_take_effect():
    layer = SelfAttention(
        HEADS,
        KEY_DIM,
        output_dim=OUTPUT_DIM,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(1.0),
        bias_initializer="ones",
        bias_regularizer=keras.regularizers.L1(10.0),
    )
    layer.build(QUERY, VALUE, KEY)

    inner = HEADS * KEY_DIM
    kernels = [QUERY_DIM * inner, KEY_DEPTH * inner, VALUE_DEPTH * inner]
    expected = [*kernels, inner * OUTPUT_DIM, *[10 * inner] * 3, 10 * OUTPUT_DIM]
    assert sorted(numpy(layer.losses)) == pytest.approx(sorted(expected))


def test_constraints_take_effect():
    layer = SelfAttention(
        HEADS, KEY_DIM, kernel_constraint="non_neg", bias_constraint="max_norm"
    )
    layer.build(QUERY)

    for variable in layer.weights:
        wanted = "NonNeg" if len(variable.shape) == 2 else "MaxNorm"
        assert type(variable.constraint).__name__ == wanted


@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("queries", [(), (QUERIES,), (None,)])
def test_shapes_and_dtypes_are_known_before_anything_is_computed(rng, batch, queries):
    layer = biased(output_dim=OUTPUT_DIM, causal=True, dtype="mixed_float16")
    x = keras.KerasTensor((batch, *queries, QUERY_DIM))
    cache = {
        name: keras.KerasTensor((batch, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in layer.get_initial_cache(BATCH, SLOTS).items()
    }
    known = (batch, *queries)

    output, weights = layer(x, return_attention_scores=True)
    assert layer(x).shape == output.shape == (*known, OUTPUT_DIM)
    assert weights.shape == (batch, HEADS, *queries, *(queries or (1,)))
    assert output.dtype == weights.dtype == "float16"

    output, weights, new_cache = layer(x, cache=cache, return_attention_scores=True)
    assert output.shape == (*known, OUTPUT_DIM)
    assert weights.shape == (batch, HEADS, *queries, SLOTS)
    assert {k: v.shape for k, v in new_cache.items()} == {
        k: v.shape for k, v in cache.items()
    }

    if None not in queries:
        details, _ = layer(x, cache=cache, return_details=True)
        assert details["context"].shape == (*known, OUTPUT_DIM)

    other = biased(use_output_projection=False, value_dim=VALUE_DIM)
    value = keras.KerasTensor((batch, None, VALUE_DEPTH))
    output, weights = other(x, value, return_attention_scores=True)
    assert output.shape == (*known, HEADS * VALUE_DIM)
    assert other.compute_output_shape(x.shape, value.shape) == output.shape
    assert weights.shape == (batch, HEADS, *queries, None)


def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    query_ids = keras.Input((None,), dtype="int32", name="query_ids")
    value_ids = keras.Input((None,), dtype="int32", name="value_ids")
    query = keras.layers.Embedding(WORDS, QUERY_DIM, mask_zero=True)(query_ids)
    value = keras.layers.Embedding(WORDS, VALUE_DEPTH, mask_zero=True)(value_ids)
    query = biased(causal=True)(query)
    shared = biased(name="shared")
    memory = shared.memory(value)
    outputs = [
        *biased(name="reader")(query, value, return_attention_scores=True),
        shared.step(query, memory)[0]["context"],
    ]
    model = keras.Model([query_ids, value_ids], outputs)
    data = [
        embedded(rng, 1, BATCH, QUERIES)[0],
        embedded(rng, 1, BATCH, POSITIONS)[0],
    ]
    expected = numpy(model(data))

    restored = reloaded(model, tmp_path)

    found = numpy(restored(data))
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-6)
    valid = (data[0] != 0)[..., None] & (data[1] != 0)[:, None]
    seen = np.broadcast_to(valid[:, None], found[1].shape)
    np.testing.assert_array_equal(found[1] != 0, seen)
    assert (found[2][data[0] == 0] == 0).all()


def test_model_of_one_step_comes_back_from_its_file(rng, tmp_path):
    layer = biased(causal=True)
    x = keras.Input((QUERY_DIM,))
    cache = {
        name: keras.Input(leaf.shape[1:], dtype=leaf.dtype, name=name)
        for name, leaf in layer.get_initial_cache(BATCH, SLOTS).items()
    }
    model = keras.Model([x, cache], list(layer(x, cache=cache)))
    data = draw(rng, SEQUENCE)
    _, _, cache = stepped(layer, data[:, :-1])

    restored = reloaded(model, tmp_path)
    output, cache = restored([ops.convert_to_tensor(data[:, -1]), cache])

    np.testing.assert_allclose(
        ops.convert_to_numpy(output), read(layer, data)[:, -1], atol=1e-5
    )
    np.testing.assert_array_equal(*numpy([cache["length"], [POSITIONS] * BATCH]))


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class Encoder(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = SelfAttention(
            HEADS, KEY_DIM, dropout=0.1, dtype=self.dtype_policy
        )
        self.readout = keras.layers.Dense(1)

    def call(self, inputs):
        return self.readout(self.attention(inputs["x"], mask=inputs["mask"]))


def test_subclassed_model_trains_compiled_and_comes_back(rng, tmp_path):
    mask = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], "bool")
    data = {"x": draw(rng, SEQUENCE), "mask": mask}
    model = Encoder(dtype="mixed_bfloat16")
    model(data)
    before = model.attention.get_weights()

    fit(
        model, data, np.ones((BATCH, POSITIONS, 1)), optimizer=keras.optimizers.SGD(0.1)
    )

    paths = [w.path for w in model.attention.weights if "seed" not in w.path]
    after = model.attention.get_weights()
    for path, old, new in zip(paths, before, after, strict=True):
        assert np.isfinite(new).all()
        # A term common to all keys changes no weight.
        assert "key_projection/bias" in path or (old != new).any()
    restored = reloaded(model, tmp_path)
    found, expected = (ops.cast(m(data), "float32") for m in (restored, model))
    np.testing.assert_allclose(*numpy([found, expected]), atol=1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a SavedModel needs TensorFlow")
def test_exported_model_takes_any_batch_and_length(rng, tmp_path):
    import tensorflow as tf

    token_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(WORDS, QUERY_DIM, mask_zero=True)(token_ids)
    model = keras.Model(token_ids, biased(causal=True)(x))
    model(np.ones((1, 2), "int32"))

    model.export(tmp_path / "model", verbose=False)
    saved = tf.saved_model.load(tmp_path / "model")

    for batch, length in ((3, 7), (1, 1), (5, 2)):
        data = rng.integers(WORDS, size=(batch, length)).astype("int32")
        np.testing.assert_allclose(*numpy([saved.serve(data), model(data)]), atol=1e-5)


@pytest.mark.parametrize("queries", [(), (QUERIES,)])
def test_fulfils_the_contract_of_keras(queries):
    query = (BATCH, *queries, QUERY_DIM)
    assert_fulfils_the_contract_of_keras(
        SelfAttention,
        {"num_heads": HEADS, "key_dim": KEY_DIM, "dropout": 0.1},
        {"query_shape": query, "value_shape": VALUE, "key_shape": KEY},
        query,
        weights=8,
        seed_generators=1,
    )


@pytest.mark.parametrize("name", ["num_heads", "key_dim", "value_dim", "output_dim"])
@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8"])
def test_sizes_must_be_positive_integers(name, size):
    message = f"{name} must be a positive integer.*Received: {re.escape(repr(size))}$"

    with pytest.raises(ValueError, match=message):
        SelfAttention(**{"num_heads": 1, "key_dim": 1, name: size})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weighting": "monotonic"},
            "monotonic attention cannot.*Received: MonotonicWeighting",
        ),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\). Received: 1.0"),
        (
            {"output_dim": 3, "use_output_projection": False},
            "output_dim must be None.*Received: 3",
        ),
        ({"scale": "x"}, r"scale must be a finite number or None\. Received: 'x'"),
        ({"weighting": ["softmax"]}, "weighting must be one of"),
    ],
)
def test_argument_that_does_not_fit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(1, 1, **options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2,)], r"query must have the shape \(batch.*\(2,\)"),
        ([(2, 3, 5, 7)], r"query must have the shape \(batch.*\(2, 3, 5, 7\)"),
        ([QUERY, (2, 13)], r"value must have the shape \(batch.*\(2, 13\)"),
        ([QUERY, VALUE, (2, 11)], r"key must have the shape \(batch.*\(2, 11\)"),
        ([QUERY, VALUE, (2, 7, 13)], r"same number.*value \(2, 5, 17\), key \(2, 7"),
        ([(2, 3), VALUE], r"causal attention need it: .*Received: \(2, 3\)"),
    ],
)
def test_shape_that_does_not_fit_is_named(shapes, message):
    layer = SelfAttention(1, 1, causal=True)

    with pytest.raises(ValueError, match=message):
        layer(*(np.zeros(shape, "float32") for shape in shapes))
    with pytest.raises(ValueError, match=message):
        layer(*(keras.KerasTensor(shape) for shape in shapes))


def test_key_without_value_is_an_error(rng):
    query, key = draw(rng, QUERY, KEY)

    with pytest.raises(ValueError, match=r"key needs a value.*key \(2, 5, 13\)"):
        biased()(query, key=key)
    layer, symbol = SelfAttention(1, 2, attention_axes=[1]), keras.Input((3, 5, 13))
    with pytest.raises(ValueError, match="key needs a value"):
        layer(symbol, key=symbol)
