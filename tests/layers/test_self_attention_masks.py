"""Masks of self-attention: explicit, implicit, causal, and of the wrong shape."""

import keras
import numpy as np
import pytest
from arrays import draw, numpy
from keras import ops
from layers.mask_reference import (
    assert_zero_where_masked,
    clear_with_nan,
    combined,
    masks,
)
from layers.self_attention_reference import (
    BATCH,
    HEADS,
    KEY,
    KEY_DEPTH,
    POSITIONS,
    QUERIES,
    QUERY,
    QUERY_DIM,
    SEQUENCE,
    VALUE,
    VALUE_DEPTH,
    VALUE_DIM,
    as_in_the_paper,
    attend,
    biased,
    both_ways,
    embedded,
    read,
)

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_masks_are_combined_whatever_the_masked_values(rng, value_dim):
    layer = biased(value_dim=value_dim)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    valid = combined(**given)
    layer.build(QUERY, VALUE, KEY)
    expected = as_in_the_paper(layer, query, value, key, valid)
    query[~given["query_mask"]] = np.nan
    value[~given["value_mask"]] = np.inf
    key[~given["key_mask"]] = np.nan

    _, weights = attend(layer, query, value, key, **given)

    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    seen = np.broadcast_to(valid[:, None], weights.shape)
    np.testing.assert_array_equal(weights != 0, seen)
    for output in both_ways(layer, query, value, key, **given):
        np.testing.assert_allclose(output, expected[0], atol=1e-5)
        assert (output[~valid.any(-1)] == 0).all()
    assert not valid[1, 0].any()


@pytest.mark.parametrize("name", ["query", "value", "key", "attention"])
def test_each_mask_works_alone(rng, name):
    layer = biased()
    tensors = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    everything = {each: np.ones_like(mask) for each, mask in given.items()}
    name = f"{name}_mask"
    valid = combined(**{**everything, name: given[name]})

    for mask in (given[name], given[name].astype("int32")):
        output, weights = attend(layer, *tensors, **{name: mask})

        expected = as_in_the_paper(layer, *tensors, valid)
        np.testing.assert_allclose(output, expected[0], atol=1e-5)
        np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    np.testing.assert_allclose(
        read(layer, *tensors, **{name: given[name]}), expected[0], atol=1e-5
    )


@pytest.mark.parametrize("name", ["query_mask", "mask"])
@pytest.mark.parametrize("causal", [False, True])
def test_mask_of_a_sequence_hides_its_queries_and_its_values(rng, name, causal):
    layer = biased(causal=causal)
    x = draw(rng, SEQUENCE)
    mask = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], "bool")
    valid = mask[:, :, None] & mask[:, None, :]
    if causal:
        valid = valid & np.tri(POSITIONS, dtype="bool")
    layer.build(SEQUENCE)
    expected = as_in_the_paper(layer, x, valid=valid)
    x[~mask] = np.nan

    _, weights = attend(layer, x, **{name: mask})

    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    for output in both_ways(layer, x, **{name: mask}):
        np.testing.assert_allclose(output, expected[0], atol=1e-5)
        assert (output[~mask] == 0).all()


def test_mask_of_the_values_of_a_sequence_may_differ_from_its_queries(rng):
    layer = biased()
    x = draw(rng, SEQUENCE)
    query_mask = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], "bool")
    value_mask = ~query_mask

    output, _ = attend(layer, x, query_mask=query_mask, value_mask=value_mask)

    valid = query_mask[:, :, None] & value_mask[:, None, :]
    expected, _ = as_in_the_paper(layer, x, valid=valid)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_gradients_are_finite_for_every_mask(rng, gradients, value_dim, scores):
    layer = biased(value_dim=value_dim)
    layer.build(QUERY, VALUE, KEY)
    arrays = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    clear_with_nan(arrays, given)

    def loss(query, value, key):
        output = layer(query, value, key, return_attention_scores=scores, **given)
        return ops.sum((output[0] if scores else output) ** 2)

    found = gradients(loss, arrays, layer.trainable_variables)

    assert len(found) == 3 + 8
    assert_zero_where_masked(found, given)


@pytest.mark.parametrize("queries", [HEADS, QUERIES])
def test_a_mask_of_all_sentences_is_that_of_each(rng, queries):
    layer = biased()
    query, value = draw(rng, (BATCH, queries, QUERY_DIM), VALUE)
    mask = rng.random((queries, POSITIONS)) < 0.6

    everywhere = np.broadcast_to(mask, (BATCH, queries, POSITIONS))
    found = both_ways(layer, query, value, attention_mask=mask)
    expected = both_ways(layer, query, value, attention_mask=everywhere)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "query, shape",
    [
        (QUERY, (2, 3, 5, 7)),
        (QUERY, (2, 5)),
        (QUERY, (2, 5, 3)),
        (QUERY[::2], (2,)),
        (QUERY[::2], (2, 3)),
    ],
)
def test_attention_masks_of_another_shape_are_named(rng, query, shape):
    query, value = draw(rng, query, VALUE)

    with pytest.raises(ValueError, match=r"attention_mask must .* Received: \(2,"):
        biased()(query, value, attention_mask=np.ones(shape, "bool"))


@pytest.mark.parametrize("name", ["mask", "query_mask", "value_mask", "key_mask"])
@pytest.mark.parametrize("shape", [(POSITIONS,), (BATCH, 1), (1, POSITIONS)])
def test_masks_of_another_shape_are_named(rng, name, shape):
    message = r"_mask must have the shape \(2, 5\). Received: \("

    with pytest.raises(ValueError, match=message):
        biased()(draw(rng, SEQUENCE), **{name: np.ones(shape, "bool")})


@pytest.mark.parametrize("name", ["mask", "query_mask", "attention_mask"])
def test_masks_that_are_lists_are_named(rng, name):
    # Keras does not see them: it would take an implicit mask instead.
    mask = np.ones((BATCH, POSITIONS), "bool").tolist()
    expected = r"_mask must be a tensor or an array\. Rec|masks are separate arguments"
    with pytest.raises(ValueError, match=expected):
        biased()(draw(rng, SEQUENCE), **{name: mask})


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_implicit_mask_of_a_sequence_is_honoured(rng, dtype, options):
    layer = biased(dtype=dtype)
    token_ids, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    mask, plain = token_ids != 0, ops.convert_to_numpy(x)
    attention_mask = rng.random((BATCH, POSITIONS, POSITIONS)) < 0.8

    # With another tensor, Keras fills another argument.
    for more in ({}, {"attention_mask": attention_mask}):
        implicit = layer(x, **more, **options)
        explicit = layer(plain, query_mask=mask, **more, **options)
        for found, wanted in zip(implicit, explicit, strict=True):
            np.testing.assert_array_equal(*numpy([found, wanted]))
        first = implicit[0] if options else implicit
        assert (ops.convert_to_numpy(first)[~mask] == 0).all()


def test_implicit_masks_of_several_sequences_are_honoured(rng):
    layer = biased()
    query_ids, query = embedded(rng, QUERY_DIM, BATCH, QUERIES)
    value_ids, value = embedded(rng, VALUE_DEPTH, BATCH, POSITIONS)
    key_ids, key = embedded(rng, KEY_DEPTH, BATCH, POSITIONS)

    _, weights = attend(layer, query, value, key)

    valid = (query_ids != 0)[:, :, None] & ((value_ids * key_ids) != 0)[:, None]
    seen = np.broadcast_to(valid[:, None], weights.shape)
    np.testing.assert_array_equal(weights != 0, seen)


@pytest.mark.parametrize("name", ["query_mask", "mask"])
def test_explicit_mask_wins_over_an_implicit_one(rng, name):
    layer = biased()
    _, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    everything = np.ones((BATCH, POSITIONS), "bool")
    wanted = attend(layer, ops.convert_to_numpy(x))

    found = attend(layer, x, **{name: everything})

    np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], atol=1e-6)


@pytest.mark.parametrize("cross", [False, True])
def test_mask_of_the_query_is_passed_on(rng, cross):
    token_ids, query = embedded(rng, QUERY_DIM, BATCH, QUERIES)
    value = [draw(rng, VALUE)] if cross else []

    output = biased()(query, *value)
    # A layer that honours masks averages over the valid queries alone.
    average = keras.layers.GlobalAveragePooling1D()(output)

    valid = (token_ids != 0)[..., None]
    expected = (ops.convert_to_numpy(output) * valid).sum(1) / valid.sum(1)
    np.testing.assert_allclose(ops.convert_to_numpy(average), expected, atol=1e-6)
