"""Self-attention as a layer of Keras: its config, its files and its errors."""

import itertools

import keras
import numpy as np
import pytest
from arrays import assert_close, draw, numpy
from keras import ops
from layers.keras_contract import (
    PROJECTION_OPTIONS,
    restored_from_config,
    restored_from_json,
)
from layers.self_attention_reference import (
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
from models import reloaded

from keras_attention import SoftmaxWeighting, T5Positions
from keras_attention.layers.multi_head import SelfAttention

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
    restored = restored_from_config(SelfAttention, ARGUMENTS)

    restored.build(QUERY, VALUE)
    parts = restored, restored.memory, restored.step
    assert {part.dtype_policy.name for part in parts} == {"mixed_bfloat16"}
    for part in parts[1:]:
        restored_from_json(part)
    restored_from_json(SelfAttention(1, 2, use_output_projection=False))


def test_parts_from_files_of_the_first_version_come_back():
    layer = SelfAttention(HEADS, KEY_DIM, use_bias=False)
    for part in (layer.memory, layer.step):
        config = part.get_config()
        config["projection"] = config.pop("dense_options")
        config["norm"] = config.pop("query_key_norm")

        restored = type(part).from_config(config)

        assert restored.get_config() == part.get_config()


def test_projections_do_not_start_alike():
    layer = SelfAttention(1, 11, output_dim=11, use_bias=False)
    layer.build(QUERY)

    pairs = list(itertools.combinations(layer.get_weights(), 2))
    assert len(pairs) == 6 and all((one != other).any() for one, other in pairs)


def test_options_of_the_projections_take_effect():
    layer = SelfAttention(
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
