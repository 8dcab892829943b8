"""Self-attention as a layer of Keras: its config, its files and its errors."""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.layers.keras_contract import (
    PROJECTION_OPTIONS,
    restored_from_config,
    restored_from_json,
)
from attention_testing.layers.self_attention_reference import (
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
    biased,
    read,
    stepped,
)
from attention_testing.models import reloaded
from keras_attention import (
    MultiHeadAttention,
    SelfAttention,
    SoftmaxWeighting,
    T5Positions,
)

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


def test_layer_comes_back_from_its_config():
    restored = restored_from_config(MultiHeadAttention, ARGUMENTS)

    restored.build(QUERY, VALUE)
    parts = restored, restored.memory, restored.step
    assert {part.dtype_policy.name for part in parts} == {"mixed_bfloat16"}
    for part in parts[1:]:
        restored_from_json(part)
    restored_from_json(SelfAttention(1, 2, use_output_projection=False))


def test_projections_do_not_start_alike():
    layer = SelfAttention(1, 11, output_dim=11, use_bias=False)
    layer.build(QUERY)

    pairs = list(itertools.combinations(layer.get_weights(), 2))
    assert len(pairs) == 6 and all((x != y).any() for x, y in pairs)


def test_options_of_the_projections_take_effect():
    layer = MultiHeadAttention(
        HEADS,
        KEY_DIM,
        output_dim=OUTPUT_DIM,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(1.0),
        kernel_constraint="non_neg",
        bias_initializer=keras.initializers.Constant(2.0),
        bias_regularizer=keras.regularizers.L1(10.0),
        bias_constraint="max_norm",
    )
    layer.build(QUERY, VALUE, KEY)

    inner = HEADS * KEY_DIM
    kernels = [QUERY_DIM * inner, KEY_DEPTH * inner, VALUE_DEPTH * inner]
    expected = [*kernels, inner * OUTPUT_DIM, *[20 * inner] * 3, 20 * OUTPUT_DIM]
    assert sorted(numpy(layer.losses)) == pytest.approx(sorted(expected))
    for variable in layer.weights:
        wanted = "NonNeg" if len(variable.shape) == 2 else "MaxNorm"
        assert type(variable.constraint).__name__ == wanted


@pytest.mark.parametrize("batch", [BATCH, None])
@pytest.mark.parametrize("queries", [(), (QUERIES,), (None,)])
def test_shapes_of_steps_with_a_cache_are_known(batch, queries):
    layer = biased(output_dim=OUTPUT_DIM, causal=True, dtype="mixed_float16")
    x = keras.KerasTensor((batch, *queries, QUERY_DIM))
    cache = {
        name: keras.KerasTensor((batch, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in layer.get_initial_cache(BATCH, SLOTS).items()
    }

    output, weights, new_cache = layer(x, cache=cache, return_attention_scores=True)

    assert output.shape == (batch, *queries, OUTPUT_DIM)
    assert weights.shape == (batch, HEADS, *queries, SLOTS)
    shapes, expected = ({k: v.shape for k, v in x.items()} for x in (new_cache, cache))
    assert shapes == expected
    if None not in queries:
        details, _ = layer(x, cache=cache, return_details=True)
        assert details["context"].shape == output.shape


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

    assert_close(output, read(layer, data)[:, -1])
    np.testing.assert_array_equal(*numpy([cache["length"], [POSITIONS] * BATCH]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weighting": "monotonic"}, "monotonic attention cannot.*: MonotonicWeig"),
        ({"output_dim": 3, "use_output_projection": False}, "must be None.*Rec.*: 3"),
        ({"weighting": ["softmax"]}, "weighting must be one of"),
    ],
)
def test_argument_that_does_not_fit_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        SelfAttention(1, 1, **options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2,), VALUE], r"query must have the shape \(batch.*\(2,\)"),
        ([(2, 3, 5, 7), VALUE], r"query must have the shape \(batch.*\(2, 3, 5, 7\)"),
        ([QUERY, (2, 13)], r"value must have the shape \(batch.*\(2, 13\)"),
        ([QUERY, VALUE, (2, 11)], r"key must have the shape \(batch.*\(2, 11\)"),
        ([QUERY, VALUE, (2, 7, 13)], r"same number.*value \(2, 5, 17\), key \(2, 7"),
        ([(2, 3), VALUE], r"causal attention need it: .*Received: \(2, 3\)"),
    ],
)
def test_shape_that_does_not_fit_is_named(shapes, message):
    layer = MultiHeadAttention(1, 1, causal=True)

    with pytest.raises(ValueError, match=message):
        layer(*(np.zeros(shape, "float32") for shape in shapes))
    with pytest.raises(ValueError, match=message):
        layer(*(keras.KerasTensor(shape) for shape in shapes))


@pytest.mark.parametrize("shape", [(2,), (2, 3, 5, 7)])
def test_shape_of_a_sequence_that_does_not_fit_is_named(shape):
    message = r"query must have the shape \(batch.*" + re.escape(str(shape))
    for x in (np.zeros(shape, "float32"), keras.KerasTensor(shape)):
        with pytest.raises(ValueError, match=message):
            SelfAttention(1, 1)(x)


def test_a_table_is_refused_with_the_reshape_that_it_needs():
    for x in (np.zeros((4, 8), "float32"), keras.Input((8,))):
        with pytest.raises(ValueError, match=r"Reshape\(\(8, 1\)\).*: \(\w+, 8\)"):
            SelfAttention(1, 1)(x)


def test_missing_arguments_are_those_of_the_layer():
    with pytest.raises(TypeError, match=r"^SelfAttention\.__init__\(\) missing"):
        SelfAttention()


def test_a_value_is_refused_with_the_layer_that_takes_it(rng):
    with pytest.raises(TypeError, match=r"use MultiHeadAttention\. Received: 2 tens"):
        SelfAttention(1, 1)(*draw(rng, QUERY, VALUE))
