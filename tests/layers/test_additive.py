import keras
import numpy as np
import pytest
from arrays import assert_numerical_gradients, draw, numpy
from keras import ops
from layers.additive_reference import (
    BATCH,
    KEY,
    KEY_DIM,
    POSITIONS,
    QUERIES,
    QUERY,
    UNITS,
    VALUE,
    VALUE_DIM,
    WORDS,
    as_in_the_paper,
    attend,
    built_layer,
    embedded,
    paper_attention,
)
from layers.mask_reference import (
    assert_zero_where_masked,
    clear_with_nan,
    combined,
    masks,
)

from keras_attention import AdditiveAttention

pytestmark = pytest.mark.usefixtures("seeded")


# JAX has no float64 by default, and keras.ops.matmul rounds to float32 on PyTorch.
EXACT = keras.backend.backend() == "tensorflow"


def test_value_worked_by_hand():
    # Identity projections and a unit scale leave score = tanh(query + value):
    # tanh(0) = 0 and tanh(100) = 1, so the odds are 1 : e.
    layer = AdditiveAttention(
        units=1, kernel_initializer="ones", scale_initializer="ones"
    )
    query = np.zeros((1, 1, 1), "float32")
    value = np.array([[[0.0], [100.0]]], "float32")

    context, weights = attend(layer, query, value)

    share = np.e / (1 + np.e)
    np.testing.assert_allclose(weights, [[[1 - share, share]]], rtol=1e-6)
    np.testing.assert_allclose(context, [[[100 * share]]], rtol=1e-6)


def test_bias_worked_by_hand():
    # The bias of 100 lifts the first score to tanh(100) = 1 and the second, at
    # tanh(-200 + 100), stays at -1: the odds are e : 1 / e.
    layer = AdditiveAttention(
        units=1,
        use_bias=True,
        kernel_initializer="ones",
        scale_initializer="ones",
        bias_initializer=keras.initializers.Constant(100.0),
    )
    query = np.zeros((1, 1), "float32")
    value = np.array([[[0.0], [-200.0]]], "float32")

    _, weights = attend(layer, query, value)

    share = np.e**2 / (1 + np.e**2)
    np.testing.assert_allclose(weights, [[share, 1 - share]], rtol=1e-6)


@pytest.mark.parametrize("use_bias", [False, True])
def test_follows_the_paper(rng, use_bias):
    layer = AdditiveAttention(UNITS, use_bias=use_bias, bias_initializer="normal")
    query, value = draw(rng, QUERY, VALUE)

    context, weights = attend(layer, query, value)

    expected_context, expected_weights = as_in_the_paper(layer, query, value)
    assert context.shape == (BATCH, QUERIES, VALUE_DIM)
    assert weights.shape == (BATCH, QUERIES, POSITIONS)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(context, expected_context, atol=1e-5)


def test_keys_are_scored_and_values_are_averaged(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)

    context, weights = attend(layer, query, value, key)

    expected_context, expected_weights = as_in_the_paper(layer, query, value, key)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(context, expected_context, atol=1e-5)
    _, weights_of_other_values = attend(layer, query, -value, key)
    np.testing.assert_array_equal(weights_of_other_values, weights)


def test_masks_are_combined_whatever_the_masked_values(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    valid = combined(**given)
    expected_context, expected_weights = as_in_the_paper(
        built_layer(layer), query, value, key, valid
    )
    query[~given["query_mask"]] = np.nan
    value[~given["value_mask"]] = np.inf
    key[~given["key_mask"]] = np.nan

    context, weights = attend(layer, query, value, key, **given)

    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(context, expected_context, atol=1e-5)
    assert (weights[~valid] == 0).all()
    assert (context[~valid.any(-1)] == 0).all()
    assert not valid[1, 0].any()


def test_gradients_are_finite_for_every_mask(rng, gradients):
    layer = built_layer(AdditiveAttention(UNITS, use_bias=True))
    arrays = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    clear_with_nan(arrays, given)

    def read(query, value, key):
        return ops.sum(layer(query, value, key, **given) ** 2)

    found = gradients(read, arrays, layer.trainable_variables)

    assert len(found) == 3 + 4
    assert_zero_where_masked(found, given)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_implicit_masks_are_honoured(rng, dtype):
    layer = AdditiveAttention(UNITS, dtype=dtype)
    query_ids, query = embedded(rng, BATCH, QUERIES)
    value_ids, value = embedded(rng, BATCH, POSITIONS)
    key_ids, key = embedded(rng, BATCH, POSITIONS)
    key_ids[1, 0] = 0
    key = keras.layers.Embedding(WORDS, KEY_DIM, mask_zero=True)(key_ids)

    implicit = attend(layer, query, value, key)
    explicit = attend(
        layer,
        *numpy([query, value, key]),
        query_mask=query_ids != 0,
        value_mask=value_ids != 0,
        key_mask=key_ids != 0,
    )

    for found, expected in zip(implicit, explicit, strict=True):
        np.testing.assert_array_equal(found, expected)
    valid = (query_ids != 0)[:, :, None] & ((value_ids * key_ids) != 0)[:, None]
    np.testing.assert_array_equal(implicit[1] != 0, valid)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_large_numbers_do_not_overflow_in_half_precision(half):
    # The scores, not the projections, are large: 1e4 of them on either side.
    layer = AdditiveAttention(
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


def test_gradients_equal_finite_differences_of_the_paper(rng, gradients):
    layer = built_layer(AdditiveAttention(UNITS, use_bias=True, dtype="float64"))
    arrays = [np.float64(x) for x in draw(rng, QUERY, VALUE, KEY)]
    given = masks(rng)
    readout = rng.normal(size=(BATCH, QUERIES, VALUE_DIM))
    score, dense = layer.step.score, layer.memory.key_projection
    variables = [score.query_projection.kernel, dense.kernel, score.scale, dense.bias]

    def read(*tensors):
        return ops.sum(ops.multiply(layer(*tensors, **given), readout))

    def read_the_paper(query, value, key, w_a, u_a, v_a, bias):
        weights = w_a.T, u_a.T, v_a, bias
        arrays = query, value, key, combined(**given)
        return (paper_attention(*weights, *arrays)[0] * readout).sum()

    found = gradients(read, arrays, variables)

    points = [*arrays, *(np.float64(x) for x in numpy(variables))]
    atol = 1e-7 if EXACT else 1e-4
    assert_numerical_gradients(found, read_the_paper, points, rng, 5, atol)


def test_many_queries_are_scored_in_blocks(rng, gradients, monkeypatch):
    layer = AdditiveAttention(UNITS, use_bias=True)
    arrays = draw(rng, QUERY, VALUE)
    readout = draw(rng, (BATCH, QUERIES, VALUE_DIM))

    def read(query, value):
        return ops.sum(ops.multiply(layer(query, value), readout))

    expected_context = ops.convert_to_numpy(layer(*arrays))
    expected = gradients(read, arrays, layer.variables)

    for limit in ("BLOCK_ELEMENTS", "MIN_BLOCKED_ELEMENTS"):
        monkeypatch.setattr(f"keras_attention.ops.additive_blocks.{limit}", 0)

    context = ops.convert_to_numpy(layer(*arrays))
    np.testing.assert_allclose(context, expected_context, atol=1e-6)
    found = gradients(read, arrays, layer.variables)
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


@pytest.mark.parametrize("option", ["window", "key_projection"])
def test_options_of_other_attention_layers_are_refused(option):
    with pytest.raises(ValueError, match=rf"Unrecognized.*AdditiveAttention.*{option}"):
        AdditiveAttention(4, **{option: None})
