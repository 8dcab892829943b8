"""The arithmetic of self-attention: weights, masks, gradients and precision."""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import (
    EXACT,
    assert_close,
    attend,
    draw,
    embedded,
    numpy,
    random_fixture,
)
from attention_testing.layers.mask_reference import (
    assert_zero_where_masked,
    combined,
    masks,
    spoil,
)
from attention_testing.layers.positions_reference import by_loops
from attention_testing.layers.self_attention_reference import (
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
    biased_cross,
    both_ways,
    joined,
    project,
    projected,
    read,
)
from attention_testing.models import needs_tensorflow
from keras_attention import MultiHeadAttention, SelfAttention

x = random_fixture(*SEQUENCE)


@pytest.mark.parametrize("options", [{}, {"value_dim": VALUE_DIM, "scale": 0.5}])
def test_follows_the_paper(rng, options):
    layer = biased_cross(**options, output_dim=OUTPUT_DIM)
    tensors = draw(rng, QUERY, VALUE, KEY)

    actual = attend(layer, *tensors)

    expected = by_loops(layer, *tensors)
    assert_close(actual, expected)
    assert_close(read(layer, *tensors), expected[0])


def test_gradients_do_not_depend_on_the_implementation(x, rng, gradients):
    layer = biased(causal=True)
    layer.build(SEQUENCE)
    readout = draw(rng, SEQUENCE)
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

    layer = MultiHeadAttention(2, 3)
    query, value = map(tf.constant, draw(rng, (1, queries, 5), (1, 7, 5)))
    mask = tf.constant([[True] * 4 + [False] * 3])

    def outputs_and_gradients(query, value):
        with tf.GradientTape() as tape:
            tape.watch((query, value))
            actual = layer(query, value, value_mask=mask, return_attention_scores=True)
        return *actual, *tape.gradient(actual[0], (query, value))

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


def test_fused_attention_works_where_it_can(x, monkeypatch):
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
    layer = MultiHeadAttention(
        1, 4, use_bias=False, kernel_initializer="ones", dtype=f"mixed_{half}"
    )
    query = np.array([[150.0]], "float32")
    value = np.array([[[150.0], [-150.0], [150.0]]], "float32")

    output, weights = layer(query, value, return_attention_scores=True)

    assert_close(ops.cast(weights, "float32"), np.array([[[0.5, 0, 0.5]]]), 0)
    for outputs in (output, layer(query, value)):
        # All products and sums are numbers of the format.
        outputs = numpy(ops.cast(outputs, "float32"))
        np.testing.assert_array_equal(outputs, [[4 * 150.0]])


def test_float64(x):
    x = ops.cast(x, "float64")
    # A bias would hide a product in float32.
    layer = SelfAttention(HEADS, KEY_DIM, use_bias=False, causal=True, dtype="float64")

    output, weights = attend(layer, x)

    plain = ops.convert_to_numpy(x)
    expected = by_loops(layer, plain, valid=np.tri(POSITIONS, dtype="bool"))
    for array, wanted in zip(
        (output, weights, read(layer, x)), (*expected, expected[0]), strict=True
    ):
        assert array.dtype == plain.dtype
        np.testing.assert_allclose(array, wanted, atol=1e-12 if EXACT else 1e-5)
    cache = layer.get_initial_cache(BATCH, POSITIONS)
    for t in range(POSITIONS):
        actual, cache = layer(x[:, t], cache=cache)
        assert_close(actual, expected[0][:, t])


def test_returned_weights_are_those_after_dropout(x):
    layer = biased(dropout=0.5, seed=1)
    expected, full = attend(layer, x)

    output, weights = attend(layer, x, training=True)

    undropped = weights != 0
    assert 0.3 < undropped.mean() < 0.7
    np.testing.assert_allclose(weights[undropped], 2 * full[undropped], rtol=1e-5)
    context = joined(weights, projected(layer, x, x)[1])
    assert_close(output, project(context, layer.step.output_projection)[:, :, 0])
    assert_close(read(layer, x), expected)
    again = biased(dropout=0.5, seed=1)
    again.build(SEQUENCE)
    np.testing.assert_array_equal(attend(again, x, training=True)[1] != 0, undropped)


def test_a_sequence_attends_to_itself_as_to_a_value(x):
    layer, cross = biased(), biased_cross()

    outputs = layer(x)

    cross.build(x.shape, x.shape)
    cross.set_weights(layer.get_weights())
    np.testing.assert_array_equal(*numpy([outputs, cross(x, x)]))
    with pytest.raises(TypeError, match="value"):
        cross(x)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_masks_are_combined_whatever_the_masked_values(rng, value_dim):
    layer = biased_cross(value_dim=value_dim)
    tensors = draw(rng, QUERY, VALUE, KEY)
    all_masks = masks(rng)
    valid = combined(**all_masks)
    layer.build(QUERY, VALUE, KEY)
    expected = by_loops(layer, *tensors, valid)
    spoil(tensors, all_masks)

    _, weights = attend(layer, *tensors, **all_masks)

    assert_close(weights, expected[1])
    seen = np.broadcast_to(valid[:, None], weights.shape)
    np.testing.assert_array_equal(weights != 0, seen)
    for output in both_ways(layer, *tensors, **all_masks):
        assert_close(output, expected[0])
        assert (output[~valid.any(-1)] == 0).all()
    assert not valid[1, 0].any()


@pytest.mark.parametrize("name", ["query_mask", "mask"])
@pytest.mark.parametrize("causal", [False, True])
def test_mask_of_a_sequence_hides_its_queries_and_its_values(x, name, causal):
    layer = biased(causal=causal)
    mask = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0]], "bool")
    valid = mask[:, :, None] & mask[:, None, :]
    if causal:
        valid = valid & np.tri(POSITIONS, dtype="bool")
    layer.build(SEQUENCE)
    expected = by_loops(layer, x, valid=valid)
    x[~mask] = np.nan

    _, weights = attend(layer, x, **{name: mask})

    assert_close(weights, expected[1])
    for output in both_ways(layer, x, **{name: mask}):
        assert_close(output, expected[0])
        assert (output[~mask] == 0).all()


def test_mask_of_the_values_of_a_sequence_may_differ_from_its_queries(x):
    layer = biased()
    query_mask = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1]], "bool")
    value_mask = ~query_mask

    output, _ = attend(layer, x, query_mask=query_mask, value_mask=value_mask)

    valid = query_mask[:, :, None] & value_mask[:, None, :]
    expected, _ = by_loops(layer, x, valid=valid)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_gradients_are_finite_for_every_mask(rng, gradients, value_dim, scores):
    layer = biased_cross(value_dim=value_dim)
    layer.build(QUERY, VALUE, KEY)
    arrays = draw(rng, QUERY, VALUE, KEY)
    all_masks = masks(rng)
    spoil(arrays, all_masks)

    def loss(query, value, key):
        output = layer(query, value, key, return_attention_scores=scores, **all_masks)
        return ops.sum((output[0] if scores else output) ** 2)

    grads = gradients(loss, arrays, layer.trainable_variables)

    assert len(grads) == 3 + 8
    assert_zero_where_masked(grads, all_masks)


@pytest.mark.parametrize("name", ["mask", "query_mask", "attention_mask"])
def test_masks_that_are_lists_are_named(x, name):
    # Keras does not see them: it would take an implicit mask instead.
    mask = np.ones((BATCH, POSITIONS), "bool").tolist()
    expected = r"_mask must be a tensor or an array of num|masks are separate arguments"
    with pytest.raises(ValueError, match=expected):
        biased()(x, **{name: mask})


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("options", [{}, {"return_attention_scores": True}])
def test_implicit_mask_of_a_sequence_is_honoured(rng, dtype, options):
    layer = biased(dtype=dtype)
    token_ids, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    mask, plain = token_ids != 0, ops.convert_to_numpy(x)
    attention_mask = rng.random((BATCH, POSITIONS, POSITIONS)) < 0.8

    # With another tensor, Keras fills another argument.
    for more in ({}, {"attention_mask": attention_mask}):
        implicit = numpy(layer(x, **more, **options))
        assert_close(implicit, layer(plain, query_mask=mask, **more, **options), 0)
        output = implicit[0] if options else implicit
        assert (output[~mask] == 0).all()


@pytest.mark.parametrize("name", ["query_mask", "mask"])
def test_explicit_mask_wins_over_an_implicit_one(rng, name):
    layer = biased()
    _, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)
    everything = np.ones((BATCH, POSITIONS), "bool")

    outputs = attend(layer, x, **{name: everything})

    assert_close(outputs, attend(layer, numpy(x)), 1e-6)


@pytest.mark.parametrize("cross", [False, True])
def test_mask_of_the_query_is_passed_on(rng, cross):
    token_ids, query = embedded(rng, QUERY_DIM, BATCH, QUERIES)
    value = [draw(rng, VALUE)] if cross else []

    layer = biased_cross() if cross else biased()
    output = layer(query, *value)
    # A layer that honours masks averages over the valid queries alone.
    average = keras.layers.GlobalAveragePooling1D()(output)

    valid = (token_ids != 0)[..., None]
    expected = (numpy(output) * valid).sum(1) / valid.sum(1)
    assert_close(average, expected, 1e-6)
