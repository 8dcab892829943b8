import inspect
import json
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import loops
from keras_attention.layers.self_attention import SelfAttention

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, HEADS = 2, 3, 5, 7
QUERY_DIM, KEY_DEPTH, VALUE_DEPTH = 11, 13, 17
KEY_DIM, VALUE_DIM, OUTPUT_DIM = 19, 23, 29
WORDS, PLACES = 31, 37

QUERY = (BATCH, QUERIES, QUERY_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DEPTH)
KEY = (BATCH, POSITIONS, KEY_DEPTH)
SEQUENCE = (BATCH, POSITIONS, QUERY_DIM)

BACKEND = keras.backend.backend()
# JAX has no float64 by default, and keras.ops.matmul rounds to float32 on PyTorch.
EXACT = BACKEND == "tensorflow"


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def draw(rng, *shapes):
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    return arrays if len(arrays) > 1 else arrays[0]


def numpy(tensors):
    return [ops.convert_to_numpy(x) for x in tensors]


def attend(layer, *tensors, **options):
    """Output and weights, as NumPy arrays."""
    return numpy(layer(*tensors, return_attention_scores=True, **options))


def read(layer, *tensors, **options):
    """The output alone, as a NumPy array."""
    return ops.convert_to_numpy(layer(*tensors, **options))


def both_ways(layer, *tensors, **options):
    """The output without and with the weights being asked for."""
    yield read(layer, *tensors, **options)
    yield attend(layer, *tensors, **options)[0]


def biased(num_heads=HEADS, key_dim=KEY_DIM, **options):
    """A layer whose biases would show in a row that should be zero."""
    return SelfAttention(num_heads, key_dim, bias_initializer="normal", **options)


def masks(rng):
    """Masks of every kind; the first query of the second row sees no position."""
    found = {
        "query_mask": np.array([[1, 0, 1], [1, 1, 1]], "bool"),
        "value_mask": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]], "bool"),
        "key_mask": np.array([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]], "bool"),
        "attention_mask": rng.random((BATCH, QUERIES, POSITIONS)) < 0.7,
    }
    found["attention_mask"][1, 0] = [0, 0, 0, 0, 1]
    return found


def combined(query_mask, value_mask, key_mask, attention_mask):
    of_the_memory = (value_mask & key_mask)[:, None, :]
    return query_mask[:, :, None] & of_the_memory & attention_mask


def dense(projection):
    """Kernel and bias of a projection, in float64."""
    kernel = ops.convert_to_numpy(projection.kernel).astype("float64")
    bias = ops.convert_to_numpy(projection.bias) if projection.use_bias else 0.0
    return kernel, bias


def as_in_the_paper(layer, query, value=None, key=None, valid=None):
    """Section 3.2: one head, one query, one score at a time."""
    query = np.float64(query)
    value = query if value is None else np.float64(value)
    key = value if key is None else np.float64(key)
    batch, queries, positions = len(query), query.shape[1], value.shape[1]
    if valid is None:
        valid = np.ones((batch, queries, positions), "bool")
    w_q, b_q = dense(layer.step.query_projection)
    w_k, b_k = dense(layer.memory.key_projection)
    w_v, b_v = dense(layer.memory.value_projection)
    w_o, b_o = dense(layer.step.output_projection)
    d_k, d_v = layer.key_dim, layer.memory.value_dim
    output = np.zeros((batch, queries, w_o.shape[1]))
    weights = np.zeros((batch, layer.num_heads, queries, positions))
    for b in range(batch):
        for t in range(queries):
            (seen,) = np.nonzero(valid[b, t])
            if not len(seen):
                continue
            heads = []
            for n in range(layer.num_heads):
                of_key = slice(n * d_k, (n + 1) * d_k)
                of_value = slice(n * d_v, (n + 1) * d_v)
                q = (query[b, t] @ w_q + b_q)[of_key]
                scores = [q @ (key[b, s] @ w_k + b_k)[of_key] for s in seen]
                odds = np.exp(np.array(scores) / np.sqrt(d_k))
                weights[b, n, t, seen] = odds / odds.sum()
                head = np.zeros(d_v)
                for s in seen:
                    head += weights[b, n, t, s] * (value[b, s] @ w_v + b_v)[of_value]
                heads.append(head)
            output[b, t] = np.concatenate(heads) @ w_o + b_o
    return output, weights


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


def test_sequence_looks_at_itself(rng):
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


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_masks_are_combined_whatever_is_stored_behind_them(rng, value_dim):
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
def test_gradients_are_finite_behind_every_mask(rng, gradients, value_dim, scores):
    layer = biased(value_dim=value_dim)
    layer.build(QUERY, VALUE, KEY)
    arrays = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    hidden = given["query_mask"], given["value_mask"], given["key_mask"]
    for array, mask in zip(arrays, hidden, strict=True):
        array[~mask] = np.nan

    def loss(query, value, key):
        output = layer(query, value, key, return_attention_scores=scores, **given)
        return ops.sum((output[0] if scores else output) ** 2)

    found = gradients(loss, arrays, layer.trainable_variables)

    assert len(found) == 3 + 8
    for gradient in found:
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()
    for gradient, mask in zip(found[:3], hidden, strict=True):
        assert (gradient[~mask] == 0).all()


def test_gradients_are_the_same_whichever_way_they_are_taken(rng, gradients):
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


def test_without_any_valid_position_nothing_is_read(rng, gradients):
    layer = biased()
    query, value = draw(rng, QUERY, VALUE)
    layer.build(QUERY, VALUE)
    nothing = np.zeros((BATCH, POSITIONS), "bool")

    found = gradients(
        lambda query, value: ops.sum(layer(query, value, value_mask=nothing)),
        [query, value],
        layer.trainable_variables,
    )

    assert (attend(layer, query, value, value_mask=nothing)[1] == 0).all()
    for output in both_ways(layer, query, value, value_mask=nothing):
        assert (output == 0).all()
    assert all((gradient == 0).all() for gradient in found)


def test_rows_sum_to_one_where_anything_is_valid(rng):
    tensors, given = draw(rng, QUERY, VALUE, KEY), masks(rng)

    _, weights = attend(biased(), *tensors, **given)

    assert (weights >= 0).all()
    expected = np.repeat(combined(**given).any(-1)[:, None], HEADS, axis=1)
    np.testing.assert_allclose(weights.sum(-1), expected, rtol=1e-6, atol=0)


def test_permuted_sequence_gives_the_permuted_output(rng):
    layer = biased()
    x = draw(rng, SEQUENCE)
    order = rng.permutation(POSITIONS)

    output, weights = attend(layer, x)
    permuted = attend(layer, x[:, order])

    np.testing.assert_allclose(permuted[0], output[:, order], atol=1e-5)
    np.testing.assert_allclose(permuted[1], weights[:, :, order][..., order], atol=1e-6)


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


def test_causal_queries_see_as_much_of_another_sequence(rng):
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


def test_one_query_is_one_of_many(rng):
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
        # What Keras does there is slower.
        assert not calls
        return
    assert len(calls) == 2
    # A mask would keep the quickest kernel from being used.
    assert calls[0]["mask"] is None and calls[0]["is_causal"]

    biased()(x, return_attention_scores=True)
    biased(dropout=0.5)(x, training=True)
    assert len(calls) == 2
    # JAX takes one depth for keys and values.
    biased(value_dim=VALUE_DIM)(x)
    assert len(calls) == (2 if BACKEND == "jax" else 3)


def embedded(rng, depth, *shape):
    """Token numbers with some zeros, and their embedding that masks them."""
    token_ids = rng.integers(1, WORDS, shape)
    token_ids[:, 1] = 0
    token_ids[0, -1] = 0
    return token_ids, keras.layers.Embedding(WORDS, depth, mask_zero=True)(token_ids)


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


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_precision(rng, half, value_dim):
    tensors = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    layer = biased(value_dim=value_dim, dtype=f"mixed_{half}")

    outputs = [
        *layer(*tensors, return_attention_scores=True, **given),
        layer(*tensors, **given),
    ]

    expected = as_in_the_paper(layer, *tensors, combined(**given))
    for found, wanted in zip(outputs, (*expected, expected[0]), strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == half
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        np.testing.assert_allclose(found, wanted, atol=8e-2)
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
        np.testing.assert_allclose(found, [[4 * 150.0]], rtol=1e-2)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
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


def test_dropped_weights_are_those_that_were_used(rng):
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


def stepped(layer, x, places=PLACES, **options):
    """Outputs and weights of one step at a time, and the cache they leave."""
    cache = layer.get_initial_cache(len(x), places)
    outputs, weights = [], []
    for t in range(x.shape[1]):
        of_step = {name: mask[:, t] for name, mask in options.items()}
        output, weight, cache = layer(
            x[:, t], cache=cache, return_attention_scores=True, **of_step
        )
        outputs.append(ops.convert_to_numpy(output))
        weights.append(ops.convert_to_numpy(weight))
    return np.stack(outputs, 1), np.stack(weights, 2), cache


@pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
def test_stepping_equals_the_full_pass(rng, value_dim):
    layer = biased(causal=True, value_dim=value_dim)
    x = draw(rng, SEQUENCE)
    expected, expected_weights = attend(layer, x)

    output, weights, cache = stepped(layer, x)

    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(weights[..., :POSITIONS], expected_weights, atol=1e-6)
    assert (weights[..., POSITIONS:] == 0).all()
    assert weights.shape[-1] == PLACES
    shapes = {name: tuple(leaf.shape) for name, leaf in cache.items()}
    assert shapes == {
        "keys": (BATCH, HEADS, PLACES, KEY_DIM),
        "values": (BATCH, HEADS, PLACES, value_dim or KEY_DIM),
        "length": (BATCH,),
    }
    np.testing.assert_array_equal(*numpy([cache["length"], [POSITIONS] * BATCH]))


def test_several_steps_at_once_continue_a_cache(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 1, 1]], "bool")
    expected = read(layer, x, query_mask=mask)
    cache = layer.get_initial_cache(BATCH, POSITIONS)

    outputs = []
    for part in (slice(0, 3), slice(3, 4), slice(4, 5)):
        output, cache = layer(x[:, part], query_mask=mask[:, part], cache=cache)
        outputs.append(ops.convert_to_numpy(output))

    np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=1e-5)


def test_masked_steps_are_not_remembered(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    mask = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], "bool")
    expected = read(layer, x, query_mask=mask)
    x[~mask] = np.nan

    output, _, cache = stepped(layer, x, query_mask=mask)

    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_array_equal(*numpy([cache["length"], mask.sum(1)]))


def test_steps_beyond_the_last_place_are_not_remembered(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    mask = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], "bool")
    _, _, full = stepped(layer, x[:, :3], 3, query_mask=mask[:, :3])

    _, cache = layer(x[:, 3], cache=full)
    _, cache = layer(x[:, 4], cache=cache)

    for name in ("keys", "values"):
        one, other = numpy([cache[name], full[name]])
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1, :, 0], other[1, :, 0])
        assert (one[1, :, 1:] != 0).all() and (other[1, :, 1:] == 0).all()


def test_implicit_mask_reaches_a_step_with_a_cache(rng):
    layer = biased(causal=True)
    token_ids, x = embedded(rng, QUERY_DIM, BATCH, POSITIONS)

    output, cache = layer(x, cache=layer.get_initial_cache(BATCH, POSITIONS))

    np.testing.assert_allclose(*numpy([output, layer(x)]), atol=1e-5)
    np.testing.assert_array_equal(*numpy([cache["length"], (token_ids != 0).sum(1)]))


def test_attention_mask_hides_places_of_a_cache(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    seen = np.ones((BATCH, POSITIONS, POSITIONS), "bool")
    seen[:, :, 0] = False

    output, weights, _ = stepped(layer, x, POSITIONS, attention_mask=seen)

    np.testing.assert_allclose(output, read(layer, x, attention_mask=seen), atol=1e-5)
    assert (weights[..., 0] == 0).all()
    assert (output[:, 0] == 0).all()


def test_rows_of_a_cache_may_be_gathered(rng):
    layer = biased(causal=True)
    x = draw(rng, SEQUENCE)
    _, _, cache = stepped(layer, x[:, :-1])
    rows = np.array([1, 1, 0])

    gathered = {name: ops.take(leaf, rows, axis=0) for name, leaf in cache.items()}
    output, _ = layer(x[rows, -1], cache=gathered)

    np.testing.assert_allclose(
        ops.convert_to_numpy(output), read(layer, x)[rows, -1], atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_loop_over_steps_compiles_for_batches_of_any_size(rng, dtype):
    layer = biased(causal=True, dtype=dtype)
    layer.build(SEQUENCE)

    def run(x):
        def step(cache, inputs):
            output, cache = layer(inputs, cache=cache)
            return cache, output

        cache = layer.get_initial_cache(ops.shape(x)[0], POSITIONS)
        return loops.scan(step, cache, ops.transpose(x, (1, 0, 2)))[1]

    if BACKEND == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec((None, POSITIONS, QUERY_DIM))]
        run = tf.function(run, input_signature=signature, jit_compile=True)
    elif BACKEND == "jax":
        import jax

        run = jax.jit(run)
    x = draw(rng, SEQUENCE)

    output = ops.transpose(run(ops.convert_to_tensor(x)), (1, 0, 2))

    np.testing.assert_allclose(
        *numpy([ops.cast(output, "float32"), ops.cast(layer(x), "float32")]),
        atol=1e-5 if dtype == "float32" else 1e-2,
    )


def test_memory_is_projected_once_for_many_steps(rng):
    layer = biased(value_dim=VALUE_DIM)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    expected = attend(layer, query, value, key, **given)

    memory = layer.memory(
        value, key, value_mask=given["value_mask"], key_mask=given["key_mask"]
    )
    for t in range(QUERIES):
        one = slice(t, t + 1)
        found = layer.step(
            query[:, one],
            memory,
            query_mask=given["query_mask"][:, one],
            mask=given["attention_mask"][:, one],
            return_attention_scores=True,
        )

        found = numpy(found)
        np.testing.assert_allclose(found[0], expected[0][:, one], atol=1e-5)
        np.testing.assert_allclose(found[1], expected[1][:, :, one], atol=1e-6)


def test_implicit_mask_reaches_a_memory_that_is_prepared_alone(rng):
    value_ids, value = embedded(rng, VALUE_DEPTH, BATCH, POSITIONS)

    memory = biased().memory(value)

    np.testing.assert_array_equal(ops.convert_to_numpy(memory["mask"]), value_ids != 0)


# Every argument with a value that is not its default.
ARGUMENTS = {
    "num_heads": HEADS,
    "key_dim": KEY_DIM,
    "value_dim": VALUE_DIM,
    "output_dim": OUTPUT_DIM,
    "use_output_projection": True,
    "causal": True,
    "weighting": "softmax",
    "dropout": 0.25,
    "scale": 0.5,
    "use_bias": False,
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=2),
    "kernel_regularizer": keras.regularizers.L2(0.5),
    "kernel_constraint": keras.constraints.MaxNorm(3.0),
    "bias_initializer": keras.initializers.Constant(-0.25),
    "bias_regularizer": keras.regularizers.L1(0.75),
    "bias_constraint": keras.constraints.NonNeg(),
    "seed": 3,
    "dtype": "mixed_bfloat16",
    "name": "reader",
    "trainable": False,
}


def test_config_names_every_argument():
    signature = inspect.signature(SelfAttention).parameters
    assert set(signature) - {"kwargs"} <= set(ARGUMENTS)

    config = SelfAttention(**ARGUMENTS).get_config()

    assert set(config) == set(ARGUMENTS)
    for name, argument in ARGUMENTS.items():
        if hasattr(argument, "get_config"):
            assert config[name]["class_name"] == type(argument).__name__
            for setting, number in argument.get_config().items():
                assert config[name]["config"][setting] == pytest.approx(number)
        elif name != "dtype":
            assert config[name] == argument


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
    config = json.loads(json.dumps(layer.get_config()))

    restored = SelfAttention.from_config(config)

    assert restored.get_config() == layer.get_config()
    restored.build(QUERY, VALUE)
    parts = restored, restored.memory, restored.step
    assert {part.dtype_policy.name for part in parts} == {layer.dtype_policy.name}
    for part in parts[1:]:
        twin = type(part).from_config(json.loads(json.dumps(part.get_config())))
        assert twin.get_config() == part.get_config()


def test_frozen_layer_has_nothing_to_train(rng):
    layer = SelfAttention(**{**ARGUMENTS, "use_bias": True})
    memory = layer.memory(draw(rng, VALUE))
    assert layer.memory.trainable_variables == []
    layer.build(QUERY, VALUE)
    assert len(layer.variables) > 8
    parts = layer, layer.memory, layer.step, layer.step.output_projection
    assert all(part.trainable_variables == [] for part in parts)
    assert not any(v.trainable for v in layer.weights)
    assert tuple(memory["keys"].shape) == (BATCH, HEADS, POSITIONS, KEY_DIM)

    layer.trainable = True

    assert len(layer.trainable_variables) == 8


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
        for name, leaf in layer.get_initial_cache(BATCH, PLACES).items()
    }
    known = (batch, *queries)

    output, weights = layer(x, return_attention_scores=True)
    assert layer(x).shape == output.shape == (*known, OUTPUT_DIM)
    assert weights.shape == (batch, HEADS, *queries, *(queries or (1,)))
    assert output.dtype == weights.dtype == "float16"

    output, weights, new_cache = layer(x, cache=cache, return_attention_scores=True)
    assert output.shape == (*known, OUTPUT_DIM)
    assert weights.shape == (batch, HEADS, *queries, PLACES)
    assert {k: v.shape for k, v in new_cache.items()} == {
        k: v.shape for k, v in cache.items()
    }

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
        shared.step(query, memory),
    ]
    model = keras.Model([query_ids, value_ids], outputs)
    data = [
        embedded(rng, 1, BATCH, QUERIES)[0],
        embedded(rng, 1, BATCH, POSITIONS)[0],
    ]
    expected = numpy(model(data))

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

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
        for name, leaf in layer.get_initial_cache(BATCH, PLACES).items()
    }
    model = keras.Model([x, cache], list(layer(x, cache=cache)))
    data = draw(rng, SEQUENCE)
    _, _, cache = stepped(layer, data[:, :-1])

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
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
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=BACKEND != "torch")

    history = model.fit(data, np.ones((BATCH, POSITIONS, 1)), verbose=0)

    assert np.isfinite(history.history["loss"]).all()
    paths = [w.path for w in model.attention.weights if "seed" not in w.path]
    after = model.attention.get_weights()
    for path, old, new in zip(paths, before, after, strict=True):
        assert np.isfinite(new).all()
        # What all keys have in common changes no weight.
        assert "key_projection/bias" in path or (old != new).any()
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("queries", [(), (QUERIES,)])
def test_passes_the_contract_test_of_keras(queries):
    from keras.src.testing import TestCase

    # The training check knows layers of one input only.
    TestCase().run_layer_test(
        SelfAttention,
        init_kwargs={"num_heads": HEADS, "key_dim": KEY_DIM, "dropout": 0.1},
        input_shape={
            "query_shape": (BATCH, *queries, QUERY_DIM),
            "value_shape": VALUE,
            "key_shape": KEY,
        },
        expected_output_shape=(BATCH, *queries, QUERY_DIM),
        expected_num_trainable_weights=8,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=1,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
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
            {"weighting": "hard"},
            r"one of \['softmax', 'sparsemax', 'entmax'\].*Received: 'hard'",
        ),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\). Received: 1.0"),
        (
            {"output_dim": 3, "use_output_projection": False},
            "output_dim must be None.*Received: 3",
        ),
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
        ([QUERY, VALUE, (2, 7, 13)], r"same number.*key \(2, 7, 13\), value \(2, 5"),
        ([(2, 3), VALUE], r"causal attention needs.*Received: \(2, 3\)"),
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


@pytest.mark.parametrize(
    ("causal", "value", "message"),
    [
        (False, [], "Received: causal=False, value None"),
        (True, [VALUE], r"Received: causal=True, value \(2, 5, 17\)"),
    ],
)
def test_cache_is_for_causal_self_attention(rng, causal, value, message):
    layer = biased(causal=causal)
    tensors = [np.zeros(shape, "float32") for shape in (QUERY, *value)]

    with pytest.raises(ValueError, match=message):
        layer(*tensors, cache=layer.get_initial_cache(BATCH, PLACES))


def test_cache_must_have_a_place_for_every_step(rng):
    layer = biased(causal=True)

    with pytest.raises(ValueError, match="Received: 5 steps, max_length=3"):
        layer(draw(rng, SEQUENCE), cache=layer.get_initial_cache(BATCH, 3))
    with pytest.raises(ValueError, match=r"max_length must be .* Received: 0"):
        layer.get_initial_cache(BATCH, 0)
