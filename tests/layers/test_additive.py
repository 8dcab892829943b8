import warnings

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
    QUERY_DIM,
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
from rounding import rounding_bound

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


@pytest.mark.parametrize("name", ["query", "value", "key", "attention"])
def test_each_mask_works_alone(rng, name):
    layer = built_layer(AdditiveAttention(UNITS))
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    everything = {each: np.ones_like(mask) for each, mask in given.items()}
    name = f"{name}_mask"
    valid = combined(**{**everything, name: given[name]})

    context, weights = attend(layer, query, value, key, **{name: given[name]})

    expected = as_in_the_paper(layer, query, value, key, valid)
    np.testing.assert_allclose(context, expected[0], atol=1e-5)
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)


def test_masks_may_be_integers(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)

    as_integers = {name: mask.astype("int32") for name, mask in given.items()}

    np.testing.assert_array_equal(
        attend(layer, query, value, key, **as_integers)[1],
        attend(layer, query, value, key, **given)[1],
    )


def test_masks_raise_no_warning(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*mask")
        attend(layer, query, value, key, **masks(rng))


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


def test_a_query_without_a_valid_position_gives_zeros(rng, gradients):
    layer = AdditiveAttention(UNITS)
    query, value = draw(rng, QUERY, VALUE)
    nothing = np.zeros((BATCH, POSITIONS), "bool")

    context, weights = attend(layer, query, value, value_mask=nothing)
    found = gradients(
        lambda query, value: ops.sum(layer(query, value, value_mask=nothing)),
        [query, value],
        layer.trainable_variables,
    )

    assert (context == 0).all()
    assert (weights == 0).all()
    assert all((gradient == 0).all() for gradient in found)


def test_rows_sum_to_one_where_anything_is_valid(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)

    _, weights = attend(layer, query, value, key, **given)

    assert (weights >= 0).all()
    np.testing.assert_allclose(
        weights.sum(-1), combined(**given).any(-1), rtol=1e-6, atol=0
    )


def test_order_of_the_positions_does_not_matter(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    order = rng.permutation(POSITIONS)

    context, weights = attend(layer, query, value, key)
    permuted = attend(layer, query, value[:, order], key[:, order])

    np.testing.assert_allclose(permuted[0], context, atol=1e-5)
    np.testing.assert_allclose(permuted[1], weights[:, :, order], atol=1e-6)


def test_queries_are_independent(rng):
    layer = AdditiveAttention(UNITS)
    query, value = draw(rng, QUERY, VALUE)
    order = rng.permutation(QUERIES)

    context, weights = attend(layer, query, value)
    permuted = attend(layer, query[:, order], value)

    np.testing.assert_allclose(permuted[0], context[:, order], atol=1e-5)
    np.testing.assert_allclose(permuted[1], weights[:, order], atol=1e-6)


def test_a_single_query_equals_a_query_of_a_sequence(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    context, weights = attend(layer, query, value, key, **given)

    for t in range(QUERIES):
        alone = attend(
            layer,
            query[:, t],
            value,
            key,
            query_mask=given["query_mask"][:, t],
            value_mask=given["value_mask"],
            key_mask=given["key_mask"],
            attention_mask=given["attention_mask"][:, t],
        )

        assert alone[0].shape == (BATCH, VALUE_DIM)
        assert alone[1].shape == (BATCH, POSITIONS)
        np.testing.assert_allclose(alone[0], context[:, t], atol=1e-5)
        np.testing.assert_allclose(alone[1], weights[:, t], atol=1e-6)


def test_single_position_is_read_unchanged(rng):
    query, value = draw(rng, QUERY, (BATCH, 1, VALUE_DIM))

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        context, weights = attend(AdditiveAttention(UNITS), query, value)

    np.testing.assert_array_equal(weights, np.ones((BATCH, QUERIES, 1)))
    np.testing.assert_allclose(context, np.repeat(value, QUERIES, axis=1), rtol=1e-6)


def test_lengths_may_change_from_call_to_call(rng):
    layer = AdditiveAttention(UNITS)
    for batch, queries, positions in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        query = draw(rng, (batch, queries, QUERY_DIM))
        value = draw(rng, (batch, positions, VALUE_DIM))

        context, _ = attend(layer, query, value)

        expected, _ = as_in_the_paper(layer, query, value)
        np.testing.assert_allclose(context, expected, atol=1e-5)


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


def test_explicit_mask_wins_over_an_implicit_one(rng):
    layer = AdditiveAttention(UNITS)
    _, query = embedded(rng, BATCH, QUERIES)
    _, value = embedded(rng, BATCH, POSITIONS)
    _, key = embedded(rng, BATCH, POSITIONS)
    unmasked = attend(layer, *numpy([query, value, key]))

    found = attend(
        layer,
        query,
        value,
        key,
        query_mask=np.ones((BATCH, QUERIES), "bool"),
        value_mask=np.ones((BATCH, POSITIONS), "bool"),
        key_mask=np.ones((BATCH, POSITIONS), "bool"),
    )

    np.testing.assert_allclose(found[0], unmasked[0], atol=1e-6)
    np.testing.assert_allclose(found[1], unmasked[1], atol=1e-6)


def test_implicit_mask_reaches_a_memory_that_is_prepared_alone(rng):
    layer = AdditiveAttention(UNITS)
    value_ids, value = embedded(rng, BATCH, POSITIONS)

    memory = layer.memory(value)

    np.testing.assert_array_equal(ops.convert_to_numpy(memory["mask"]), value_ids != 0)


def test_mask_of_the_query_is_passed_on(rng):
    query_ids, query = embedded(rng, BATCH, QUERIES)
    value = draw(rng, VALUE)

    context = AdditiveAttention(UNITS)(query, value)
    # A layer that honours masks averages over the valid queries alone.
    average = keras.layers.GlobalAveragePooling1D()(context)

    valid = (query_ids != 0)[..., None]
    expected = (ops.convert_to_numpy(context) * valid).sum(1) / valid.sum(1)
    np.testing.assert_allclose(ops.convert_to_numpy(average), expected, atol=1e-6)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(rng, half):
    # Small enough that nothing on the way to the context exceeds 1.
    query, value, key = (x / 4 for x in draw(rng, QUERY, VALUE, KEY))
    given = masks(rng)
    layer = AdditiveAttention(UNITS, dtype=f"mixed_{half}")

    outputs = layer(query, value, key, return_attention_scores=True, **given)

    expected = as_in_the_paper(layer, query, value, key, combined(**given))
    for found, wanted in zip(outputs, expected, strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == half
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        # Products over the key's depth and the positions; inputs, kernels, projections,
        # scores and weights are rounded once. The hidden layer is float32.
        bound = rounding_bound(half, KEY_DIM + POSITIONS + 5)
        np.testing.assert_allclose(found, wanted, atol=bound)
        np.testing.assert_array_equal(found[1, 0], 0)
    assert {v.dtype for v in layer.variables} == {"float32"}


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


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_float64(rng):
    query, value = draw(rng, QUERY, VALUE)
    layer = AdditiveAttention(UNITS, dtype="float64")

    query, value = ops.cast(query, "float64"), ops.cast(value, "float64")
    found = attend(layer, query, value)

    expected = as_in_the_paper(layer, *numpy([query, value]))
    for array, wanted in zip(found, expected, strict=True):
        assert array.dtype.name == keras.backend.standardize_dtype(query.dtype)
        np.testing.assert_allclose(array, wanted, atol=1e-12 if EXACT else 1e-5)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
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
