"""Additive attention: its arithmetic, against the paper, and its options."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import (
    EXACT,
    assert_close,
    assert_numerical_gradients,
    attend,
    embedded,
    numpy,
    random_fixture,
    softmax,
)
from attention_testing.layers.keras_contract import (
    PROJECTION_OPTIONS,
    restored_from_config,
)
from attention_testing.layers.mask_reference import (
    assert_zero_where_masked,
    combined,
    masks,
    spoil,
)

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, KEY_DIM, VALUE_DIM, UNITS = 7, 11, 13, 17
QUERY = (BATCH, QUERIES, QUERY_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DIM)
KEY = (BATCH, POSITIONS, KEY_DIM)


query, value, key = (random_fixture(*shape) for shape in (QUERY, VALUE, KEY))


def of_the_paper(layer):
    """W_a, U_a, v_a and the bias."""
    score, dense = layer.step.score, layer.memory.key_projection
    bias = [dense.bias] if dense.use_bias else []
    return [score.query_projection.kernel, dense.kernel, score.scale, *bias]


def by_the_paper(query, value, key, w_a, u_a, v_a, bias=0.0, valid=True):
    """Context and weights, as in appendix A.1.2."""
    hidden = np.tanh((query @ w_a)[:, :, None] + (key @ u_a)[:, None] + bias)
    weights = softmax(hidden @ v_a, valid)
    return weights @ value, weights


@pytest.mark.parametrize("use_bias", [False, True])
def test_follows_the_paper(query, value, use_bias):
    layer = ka.AdditiveAttention(UNITS, use_bias=use_bias, bias_initializer="normal")

    actual = attend(layer, query, value)

    expected = by_the_paper(query, value, value, *numpy(of_the_paper(layer)))
    assert_close(actual, expected)


def test_masks_are_combined_whatever_the_masked_values(query, value, key, rng):
    layer = ka.AdditiveAttention(UNITS)
    layer.build(QUERY, VALUE, KEY)
    all_masks = masks(rng)
    valid, weights = combined(**all_masks), numpy(of_the_paper(layer))
    expected = by_the_paper(query, value, key, *weights, valid=valid)
    spoil((query, value, key), all_masks)

    context, weights = attend(layer, query, value, key, **all_masks)

    assert_close((context, weights), expected)
    assert (weights[~valid] == 0).all()
    assert (context[~valid.any(-1)] == 0).all()
    assert not valid[1, 0].any()


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_implicit_masks_are_honoured(rng, dtype):
    layer = ka.AdditiveAttention(UNITS, dtype=dtype)
    query_ids, query = embedded(rng, QUERY_DIM, BATCH, QUERIES)
    value_ids, value = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    key_ids, key = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    key_ids[1, 0] = 0
    key = keras.layers.Embedding(19, KEY_DIM, mask_zero=True)(key_ids)

    implicit = attend(layer, query, value, key)
    explicit = attend(
        layer,
        *numpy([query, value, key]),
        query_mask=query_ids != 0,
        value_mask=value_ids != 0,
        key_mask=key_ids != 0,
    )

    assert_close(implicit, explicit, 0)
    valid = (query_ids != 0)[:, :, None] & ((value_ids * key_ids) != 0)[:, None]
    np.testing.assert_array_equal(implicit[1] != 0, valid)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_large_numbers_do_not_overflow_in_half_precision(half):
    # The scores, not the projections, are large: 1e4 of them on either side.
    layer = ka.AdditiveAttention(
        units=1,
        kernel_initializer="ones",
        scale_initializer=keras.initializers.Constant(1e4),
        dtype=f"mixed_{half}",
    )
    query = np.zeros((1, 1), "float32")
    value = np.array([[[100.0], [-100.0], [100.0]]], "float32")

    _, weights = layer(query, value, return_attention_scores=True)

    weights = ops.convert_to_numpy(ops.cast(weights, "float32"))
    np.testing.assert_allclose(weights, [[0.5, 0, 0.5]])


def test_gradients_equal_finite_differences_of_the_paper(
    query, value, key, rng, gradients
):
    layer = ka.AdditiveAttention(UNITS, use_bias=True, dtype="float64")
    layer.build(QUERY, VALUE, KEY)
    arrays = [np.float64(x) for x in (query, value, key)]
    all_masks = masks(rng)
    spoilt = [x.copy() for x in arrays]
    spoil(spoilt, all_masks)
    readout = rng.normal(size=(BATCH, QUERIES, VALUE_DIM))
    variables = of_the_paper(layer)

    def read(*tensors):
        return ops.sum(ops.multiply(layer(*tensors, **all_masks), readout))

    def read_the_paper(*points):
        return (by_the_paper(*points, valid=combined(**all_masks))[0] * readout).sum()

    grads = gradients(read, spoilt, variables)

    assert_zero_where_masked(grads, all_masks)
    points = [*arrays, *(np.float64(x) for x in numpy(variables))]
    atol = 1e-7 if EXACT else 1e-4
    assert_numerical_gradients(grads, read_the_paper, points, rng, 5, atol)


@pytest.mark.parametrize("option", ["window", "key_projection"])
def test_options_of_other_attention_layers_are_refused(option):
    with pytest.raises(ValueError, match=rf"Unrecognized.*AdditiveAttention.*{option}"):
        ka.AdditiveAttention(4, **{option: None})


# Every argument with a value that is not its default.
ARGUMENTS = {
    "units": UNITS,
    "weighting": ka.SparsemaxWeighting(0.5, dtype="mixed_bfloat16"),
    "coverage": True,
    "normalize": True,
    "use_bias": True,
    **PROJECTION_OPTIONS,
    "scale_initializer": keras.initializers.Constant(1.5),
    "scale_regularizer": keras.regularizers.L1L2(0.125, 0.25),
    "scale_constraint": keras.constraints.UnitNorm(),
    "causal": True,
    "dropout": 0.25,
    "seed": 3,
    "dtype": "mixed_bfloat16",
    "name": "reader",
    "trainable": False,
}


def test_layer_comes_back_from_its_config():
    restored = restored_from_config(ka.AdditiveAttention, ARGUMENTS)

    restored.build(QUERY, VALUE)
    assert {v.dtype for v in restored.weights} == {"float32"}
    parts = restored, restored.step, restored.step.score, restored.memory
    assert [part.compute_dtype for part in parts] == ["bfloat16"] * 4


def test_options_of_the_weights_take_effect():
    options = {}
    for name, number in (("kernel", 2.0), ("bias", 3.0), ("scale", 5.0)):
        options[f"{name}_initializer"] = keras.initializers.Constant(number)
        options[f"{name}_regularizer"] = keras.regularizers.L1(10 * number)
        options[f"{name}_constraint"] = keras.constraints.MaxNorm(number)
    layer = ka.AdditiveAttention(UNITS, use_bias=True, **options)
    layer.build(QUERY, VALUE)

    numbers = [2, 2, 3, 5]
    sizes = [QUERY_DIM * UNITS, VALUE_DIM * UNITS, UNITS, UNITS]
    expected = [10 * x**2 * n for x, n in zip(numbers, sizes, strict=True)]
    assert sorted(numpy(layer.losses)) == pytest.approx(sorted(expected))
    assert sorted(x.constraint.max_value for x in layer.weights) == numbers


def test_key_and_value_of_different_lengths_are_named():
    shapes = [(2, 3, 7), (2, 5, 13), (2, 17, 11)]
    received = "query (2, 3, 7), value (2, 5, 13), key (2, 17, 11)"
    message = f"same number of positions. Received: {received}"

    with pytest.raises(ValueError, match=re.escape(message)):
        ka.AdditiveAttention(UNITS)(*(np.zeros(shape, "float32") for shape in shapes))


@pytest.mark.parametrize("depth", [1, UNITS + 1])
def test_keys_that_are_not_projected_are_as_deep_as_the_hidden_layer(depth):
    attention = ka.Attention(ka.AdditiveScore(UNITS), None)
    query, value = np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, depth), "float32")

    with pytest.raises(
        ValueError, match=rf"hidden layer, {UNITS}.* key_projection.*: .* {depth}"
    ):
        attention(query, value)
