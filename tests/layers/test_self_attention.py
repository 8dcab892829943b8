"""The arithmetic of self-attention: weights, masks, gradients and precision."""

import keras
import numpy as np
import pytest
from arrays import EXACT, assert_close, attend, draw, embedded, numpy
from keras import ops
from layers.mask_reference import (
    assert_zero_where_masked,
    clear_with_nan,
    combined,
    masks,
)
from layers.positions_reference import by_loops
from layers.self_attention_reference import (
    BACKEND,
    BATCH,
    HEADS,
    KEY,
    KEY_DIM,
    OUTPUT_DIM,
    POSITIONS,
    QUERIES,
    QUERY,
    QUERY_DIM,
    SEQUENCE,
    VALUE,
    VALUE_DIM,
    biased,
    both_ways,
    dense,
    read,
)
from models import needs_tensorflow

from keras_attention.layers.multi_head import MultiHeadAttention, SelfAttention


def test_scale_worked_by_hand():
    # Identity projections: the scores are 0 and 2 * 3, times a sixth: odds of 1 : e.
    layer = SelfAttention(
        1, 1, scale=1 / 6, use_bias=False, kernel_initializer="ones", output_dim=1
    )
    query, value = np.array([[2.0]], "float32"), np.array([[[0.0], [3.0]]], "float32")

    output, weights = attend(layer, query, value)

    share = np.e / (1 + np.e)
    np.testing.assert_allclose(weights, [[[1 - share, share]]], rtol=1e-6)
    np.testing.assert_allclose(output, [[3 * share]], rtol=1e-6)
    np.testing.assert_allclose(read(layer, query, value), [[3 * share]], rtol=1e-6)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("sparsemax", [0, 0.25, 0.75, 0]), ("entmax", [0, 0.326, 0.674, 0])],
)
def test_sparse_weights_worked_by_hand(weighting, expected):
    # Identity projections: the scores are the values, the last of which is masked.
    layer = SelfAttention(
        1, 1, weighting=weighting, use_bias=False, kernel_initializer="ones"
    )
    query = np.array([[1.0]], "float32")
    value = np.array([[[-2.0], [0.0], [0.5], [5.0]]], "float32")
    options = {"value_mask": np.array([[1, 1, 1, 0]], "bool")}

    output, weights = attend(layer, query, value, **options)

    np.testing.assert_allclose(weights, [[expected]], atol=1e-3)
    np.testing.assert_array_equal(weights[0, 0] == 0, np.array(expected) == 0)
    np.testing.assert_allclose(output, [[0.5 * expected[2]]], atol=1e-3)
    np.testing.assert_allclose(read(layer, query, value, **options), output, rtol=1e-6)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_follows_the_paper(rng, value_dim):
    layer = biased(value_dim=value_dim, output_dim=OUTPUT_DIM)
    tensors = draw(rng, QUERY, VALUE, KEY)

    output, weights = attend(layer, *tensors)

    expected_output, expected_weights = by_loops(layer, *tensors)
    assert output.shape == (BATCH, QUERIES, OUTPUT_DIM)
    assert weights.shape == (BATCH, HEADS, QUERIES, POSITIONS)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(output, expected_output, atol=1e-5)
    np.testing.assert_allclose(read(layer, *tensors), expected_output, atol=1e-5)


def test_gradients_do_not_depend_on_the_implementation(rng, gradients):
    layer = biased(causal=True)
    layer.build(SEQUENCE)
    x, readout = draw(rng, SEQUENCE, SEQUENCE)
    mask = np.array([[0, 1, 1, 0, 1], [1, 1, 1, 1, 0]], "bool")

    def loss(x, scores):
        output = layer(x, mask=mask, return_attention_scores=scores)
        return ops.sum(ops.multiply(output[0] if scores else output, readout))

    fused, explicit = (
        gradients(lambda x, s=scores: loss(x, s), [x], layer.trainable_variables)
        for scores in (False, True)
    )

    assert_close(fused, explicit)


@needs_tensorflow
@pytest.mark.parametrize("queries", [1, 3])
def test_a_graph_uses_plain_operations_for_few_scores(rng, queries):
    import tensorflow as tf

    layer = SelfAttention(2, 3)
    query, value = (
        tf.constant(rng.normal(size=(1, n, 5)), "float32") for n in (queries, 7)
    )
    mask = tf.constant([[True] * 4 + [False] * 3])

    def outputs_and_gradients(query, value):
        with tf.GradientTape() as tape:
            tape.watch((query, value))
            found = layer(query, value, value_mask=mask, return_attention_scores=True)
        return *found, *tape.gradient(found[0], (query, value))

    expected = outputs_and_gradients(query, value)
    few = tf.function(outputs_and_gradients)
    many = tf.function(
        outputs_and_gradients, input_signature=[tf.TensorSpec((None, None, 5))] * 2
    )
    for function, sums in ((few, True), (many, False)):
        graph = function.get_concrete_function(query, value).graph
        kinds = {operation.type for operation in graph.get_operations()}
        assert kinds.isdisjoint({"BatchMatMulV2", "Softmax"}) == sums
        assert_close(function(query, value), expected, 1e-6)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_future_does_not_change_the_past(rng, value_dim):
    layer = biased(causal=True, value_dim=value_dim)
    x, other = draw(rng, SEQUENCE, SEQUENCE)
    valid = np.broadcast_to(
        np.tri(POSITIONS, dtype="bool"), (BATCH, POSITIONS, POSITIONS)
    )

    output, weights = attend(layer, x)

    expected = by_loops(layer, x, valid=valid)
    assert_close(output, expected[0])
    np.testing.assert_array_equal(weights, weights * np.tri(POSITIONS))
    for before, after in zip(
        both_ways(layer, x),
        both_ways(layer, np.concatenate([x[:, :3], other[:, 3:]], axis=1)),
        strict=True,
    ):
        assert_close(before, expected[0])
        assert_close(after[:, :3], before[:, :3], 1e-6)
        assert (abs(after[:, 3:] - before[:, 3:]) > 1e-3).any(-1).all()


def test_fused_attention_works_where_it_can(rng, monkeypatch):
    x = draw(rng, SEQUENCE)
    calls = []
    fused = ops.dot_product_attention
    monkeypatch.setattr(
        "keras.ops.dot_product_attention",
        lambda *args, **options: calls.append(options) or fused(*args, **options),
    )

    biased(causal=True)(x)
    biased(dropout=0.5)(x, training=False)
    if BACKEND == "tensorflow":
        # The fallback of Keras is slower on TensorFlow.
        assert not calls
        return
    assert len(calls) == 2
    # With a mask, the fastest kernel is not used.
    assert calls[0]["mask"] is None and calls[0]["is_causal"]

    biased()(x, return_attention_scores=True)
    biased(dropout=0.5)(x, training=True)
    assert len(calls) == 2
    # JAX takes one depth for keys and values.
    biased(value_dim=VALUE_DIM)(x)
    assert len(calls) == (2 if BACKEND == "jax" else 3)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_large_numbers_do_not_overflow_in_half_precision(half):
    # Without the scale of a half, a score of 4 * 150 * 150 is beyond float16.
    layer = SelfAttention(
        1, 4, use_bias=False, kernel_initializer="ones", dtype=f"mixed_{half}"
    )
    query = np.array([[150.0]], "float32")
    value = np.array([[[150.0], [-150.0], [150.0]]], "float32")

    output, weights = layer(query, value, return_attention_scores=True)

    weights = ops.convert_to_numpy(ops.cast(weights, "float32"))
    np.testing.assert_allclose(weights, [[[0.5, 0, 0.5]]])
    for found in (output, layer(query, value)):
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        # All products and sums are numbers of the format.
        np.testing.assert_array_equal(found, [[4 * 150.0]])


def test_float64(rng):
    x = ops.cast(draw(rng, SEQUENCE), "float64")
    # A bias would hide a product in float32.
    layer = SelfAttention(HEADS, KEY_DIM, use_bias=False, causal=True, dtype="float64")

    output, weights = attend(layer, x)

    plain = ops.convert_to_numpy(x)
    valid = np.broadcast_to(np.tri(POSITIONS), (BATCH, POSITIONS, POSITIONS))
    expected = by_loops(layer, plain, valid=valid)
    for array, wanted in zip(
        (output, weights, read(layer, x)), (*expected, expected[0]), strict=True
    ):
        assert array.dtype == plain.dtype
        np.testing.assert_allclose(array, wanted, atol=1e-12 if EXACT else 1e-5)
    cache = layer.get_initial_cache(BATCH, POSITIONS)
    for t in range(POSITIONS):
        found, cache = layer(x[:, t], cache=cache)
        assert_close(found, expected[0][:, t])


def test_returned_weights_are_those_after_dropout(rng):
    layer = biased(dropout=0.5, seed=1)
    x = draw(rng, SEQUENCE)
    expected, full = attend(layer, x)

    output, weights = attend(layer, x, training=True)

    kept = weights != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(weights[kept], 2 * full[kept], rtol=1e-5)
    (values, value_bias), (kernel, bias) = (
        dense(layer.memory.value_projection),
        dense(layer.step.output_projection),
    )
    values = (x @ values + value_bias).reshape(BATCH, POSITIONS, HEADS, KEY_DIM)
    heads = np.einsum("bnts,bsnd->btnd", weights, values)
    joined = heads.reshape(BATCH, POSITIONS, HEADS * KEY_DIM)
    np.testing.assert_allclose(output, joined @ kernel + bias, atol=1e-5)
    np.testing.assert_allclose(read(layer, x), expected, atol=1e-5)
    again = biased(dropout=0.5, seed=1)
    again.build(SEQUENCE)
    np.testing.assert_array_equal(attend(again, x, training=True)[1] != 0, kept)


def test_multi_head_attention_attends_from_a_query_to_a_value():
    random = np.random.default_rng(1)
    query = random.normal(size=(2, 3, 5)).astype("float32")
    value = random.normal(size=(2, 7, 11)).astype("float32")
    mask = np.array([[True] * 7, [True] * 4 + [False] * 3])
    layer = MultiHeadAttention(2, 3)

    found = layer(query, value, value_mask=mask)

    # Models of earlier versions have a `SelfAttention` with a value.
    earlier = SelfAttention(2, 3)
    earlier.build(query.shape, value.shape)
    earlier.set_weights(layer.get_weights())
    expected = earlier(query, value, value_mask=mask)
    np.testing.assert_array_equal(numpy(found), numpy(expected))
    value[1, 4:] = np.nan
    again = layer(query, value, value_mask=mask)
    np.testing.assert_array_equal(numpy(again), numpy(found))
    with pytest.raises(TypeError, match="value"):
        layer(query)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_masks_are_combined_whatever_the_masked_values(rng, value_dim):
    layer = biased(value_dim=value_dim)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    valid = combined(**given)
    layer.build(QUERY, VALUE, KEY)
    expected = by_loops(layer, query, value, key, valid)
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
    expected = by_loops(layer, x, valid=valid)
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
    expected, _ = by_loops(layer, x, valid=valid)
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
