"""The arithmetic of self-attention: weights, masks, gradients and precision."""

import keras
import numpy as np
import pytest
from arrays import draw, numpy
from keras import ops
from layers.mask_reference import combined, masks
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
    VALUE_DEPTH,
    VALUE_DIM,
    as_in_the_paper,
    attend,
    biased,
    both_ways,
    dense,
    read,
)
from rounding import rounding_bound

from keras_attention.layers.multi_head import MultiHeadAttention, SelfAttention

pytestmark = pytest.mark.usefixtures("seeded")

# JAX has no float64 by default, and keras.ops.matmul rounds to float32 on PyTorch.
EXACT = BACKEND == "tensorflow"


def test_worked_example():
    words = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], "float32")
    draws = np.random.RandomState(42)
    w_q, w_k, w_v = (draws.randint(3, size=(3, 3)) for _ in range(3))
    layer = SelfAttention(1, 3, use_bias=False, use_output_projection=False)
    layer.build((1, 4, 3))
    layer.step.query_projection.kernel.assign(w_q)
    layer.memory.key_projection.kernel.assign(w_k)
    layer.memory.value_projection.kernel.assign(w_v)

    for output in both_ways(layer, words[None]):
        np.testing.assert_allclose(
            output[0],
            [
                [0.98522025, 1.74174051, 0.75652026],
                [0.90965265, 1.40965265, 0.5],
                [0.99851226, 1.75849334, 0.75998108],
                [0.99560386, 1.90407309, 0.90846923],
            ],
            rtol=1e-6,
        )


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

    expected_output, expected_weights = as_in_the_paper(layer, *tensors)
    assert output.shape == (BATCH, QUERIES, OUTPUT_DIM)
    assert weights.shape == (BATCH, HEADS, QUERIES, POSITIONS)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(output, expected_output, atol=1e-5)
    np.testing.assert_allclose(read(layer, *tensors), expected_output, atol=1e-5)


def test_self_attention_equals_cross_attention_to_itself(rng):
    layer = biased()
    x = draw(rng, SEQUENCE)

    output, weights = attend(layer, x)

    expected_output, expected_weights = as_in_the_paper(layer, x)
    assert output.shape == x.shape
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(output, expected_output, atol=1e-5)
    np.testing.assert_array_equal(attend(layer, x, x)[0], output)


def test_joined_heads_may_stay_unprojected(rng):
    query, value = draw(rng, QUERY, VALUE)
    layer = biased(value_dim=VALUE_DIM)
    expected, _ = attend(layer, query, value)
    bare = biased(value_dim=VALUE_DIM, use_output_projection=False)
    bare.build(QUERY, VALUE)
    bare.set_weights(layer.get_weights()[: len(bare.weights)])

    kernel, bias = dense(layer.step.output_projection)
    for heads in both_ways(bare, query, value):
        assert heads.shape == (BATCH, QUERIES, HEADS * VALUE_DIM)
        np.testing.assert_allclose(heads @ kernel + bias, expected, atol=1e-5)


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

    for gradient, expected in zip(fused, explicit, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="others multiply as quickly"
)
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
        for x, wanted in zip(function(query, value), expected, strict=True):
            np.testing.assert_allclose(x, wanted, atol=1e-6)


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_future_does_not_change_the_past(rng, value_dim):
    layer = biased(causal=True, value_dim=value_dim)
    x, other = draw(rng, SEQUENCE, SEQUENCE)
    valid = np.broadcast_to(
        np.tri(POSITIONS, dtype="bool"), (BATCH, POSITIONS, POSITIONS)
    )

    output, weights = attend(layer, x)

    expected = as_in_the_paper(layer, x, valid=valid)
    np.testing.assert_allclose(output, expected[0], atol=1e-5)
    np.testing.assert_array_equal(weights, weights * np.tri(POSITIONS))
    for before, after in zip(
        both_ways(layer, x),
        both_ways(layer, np.concatenate([x[:, :3], other[:, 3:]], axis=1)),
        strict=True,
    ):
        np.testing.assert_allclose(before, expected[0], atol=1e-5)
        np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
        assert (abs(after[:, 3:] - before[:, 3:]) > 1e-3).any(-1).all()


def test_causal_cross_attention_has_a_triangular_mask(rng):
    layer = biased(causal=True)
    query, value = draw(rng, QUERY, VALUE)
    valid = np.broadcast_to(np.tri(QUERIES, POSITIONS), (BATCH, QUERIES, POSITIONS))

    for output in both_ways(layer, query, value):
        expected, _ = as_in_the_paper(layer, query, value, valid=valid)
        np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_layer_of_keras_given_its_weights(rng, causal):
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    theirs = keras.layers.MultiHeadAttention(
        HEADS, KEY_DIM, VALUE_DIM, output_shape=OUTPUT_DIM, bias_initializer="normal"
    )
    expected = theirs(
        query, value, key, return_attention_scores=True, use_causal_mask=causal
    )
    layer = biased(value_dim=VALUE_DIM, output_dim=OUTPUT_DIM, causal=causal)
    layer.build(QUERY, VALUE, KEY)
    pairs = (
        (layer.step.query_projection, theirs.query_dense),
        (layer.memory.key_projection, theirs.key_dense),
        (layer.memory.value_projection, theirs.value_dense),
        (layer.step.output_projection, theirs.output_dense),
    )
    for ours, their in pairs:
        ours.kernel.assign(ops.reshape(their.kernel, ours.kernel.shape))
        ours.bias.assign(ops.reshape(their.bias, ours.bias.shape))

    found = attend(layer, query, value, key)

    for array, wanted in zip(found, numpy(expected), strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-5)


def test_a_single_query_equals_a_query_of_a_sequence(rng):
    layer = biased()
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    output, weights = attend(layer, query, value, key, **given)

    for t in range(QUERIES):
        of_one = {
            **given,
            "query_mask": given["query_mask"][:, t],
            "attention_mask": given["attention_mask"][:, t],
        }
        alone = attend(layer, query[:, t], value, key, **of_one)

        assert alone[0].shape == (BATCH, QUERY_DIM)
        assert alone[1].shape == (BATCH, HEADS, POSITIONS)
        np.testing.assert_allclose(alone[0], output[:, t], atol=1e-5)
        np.testing.assert_allclose(alone[1], weights[:, :, t], atol=1e-6)
        np.testing.assert_allclose(
            read(layer, query[:, t], value, key, **of_one), output[:, t], atol=1e-5
        )


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


@pytest.mark.parametrize("value_dim", [None, 5])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(rng, half, value_dim):
    # Small enough that nothing on the way to the output exceeds 1.
    tensors = [x / 4 for x in draw(rng, QUERY, VALUE, KEY)]
    given = masks(rng)
    layer = biased(2, 3, value_dim=value_dim, dtype=f"mixed_{half}")
    # The depths of all products, and a rounding of each operand.
    products = VALUE_DEPTH + 3 + POSITIONS + 2 * (value_dim or 3)
    bound = rounding_bound(half, products + 10)

    outputs = [
        *layer(*tensors, return_attention_scores=True, **given),
        layer(*tensors, **given),
    ]

    expected = as_in_the_paper(layer, *tensors, combined(**given))
    for found, wanted in zip(outputs, (*expected, expected[0]), strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == half
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        np.testing.assert_allclose(found, wanted, atol=bound)
        np.testing.assert_array_equal(found[wanted == 0], 0)
    assert {v.dtype for v in layer.variables} == {"float32"}


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
    expected = as_in_the_paper(layer, plain, valid=valid)
    for array, wanted in zip(
        (output, weights, read(layer, x)), (*expected, expected[0]), strict=True
    ):
        assert array.dtype == plain.dtype
        np.testing.assert_allclose(array, wanted, atol=1e-12 if EXACT else 1e-5)
    cache = layer.get_initial_cache(BATCH, POSITIONS)
    for t in range(POSITIONS):
        found, cache = layer(x[:, t], cache=cache)
        np.testing.assert_allclose(
            ops.convert_to_numpy(found), expected[0][:, t], atol=1e-5
        )


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
