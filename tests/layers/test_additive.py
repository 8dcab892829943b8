import inspect
import json
import re
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import (
    AdditiveAttention,
    AdditiveScore,
    Attention,
    SparsemaxWeighting,
)

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, KEY_DIM, VALUE_DIM, UNITS = 7, 11, 13, 17
WORDS = 19

QUERY = (BATCH, QUERIES, QUERY_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DIM)
KEY = (BATCH, POSITIONS, KEY_DIM)

COMPILES = keras.backend.backend() != "torch"
# JAX has no float64 by default, and keras.ops.matmul rounds to float32 on PyTorch.
EXACT = keras.backend.backend() == "tensorflow"


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def draw(rng, *shapes):
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    return arrays if len(arrays) > 1 else arrays[0]


def numpy(tensors):
    return [ops.convert_to_numpy(x) for x in tensors]


def attend(layer, *tensors, **options):
    """Context and weights, as NumPy arrays."""
    return numpy(layer(*tensors, return_attention_scores=True, **options))


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


def weights_of_the_paper(layer):
    """W_a, U_a, v_a and the bias, with the shapes that the paper gives to them."""
    score, dense = layer.step.score, layer.memory.key_projection
    kernels = score.query_projection.kernel, dense.kernel, score.scale
    bias = dense.bias if dense.use_bias else np.zeros(layer.units)
    w_a, u_a, v_a, bias = (np.float64(x) for x in numpy([*kernels, bias]))
    return w_a.T, u_a.T, v_a, bias


def as_in_the_paper(layer, query, value, key=None, valid=None):
    """Appendix A.1.2: one score, one softmax, one sum at a time."""
    return paper_attention(*weights_of_the_paper(layer), query, value, key, valid)


def paper_attention(w_a, u_a, v_a, bias, query, value, key=None, valid=None):
    query, value = np.float64(query), np.float64(value)
    key = value if key is None else np.float64(key)
    batch, queries, positions = len(query), query.shape[1], value.shape[1]
    if valid is None:
        valid = np.ones((batch, queries, positions), "bool")
    context = np.zeros((batch, queries, value.shape[2]))
    weights = np.zeros((batch, queries, positions))
    for b in range(batch):
        for i in range(queries):
            e = {}
            for j in range(positions):
                if valid[b, i, j]:
                    e[j] = v_a @ np.tanh(w_a @ query[b, i] + u_a @ key[b, j] + bias)
            for j in e:
                weights[b, i, j] = np.exp(e[j]) / sum(np.exp(e_k) for e_k in e.values())
                context[b, i] += weights[b, i, j] * value[b, j]
    return context, weights


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


def test_keys_are_scored_and_values_are_read(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)

    context, weights = attend(layer, query, value, key)

    expected_context, expected_weights = as_in_the_paper(layer, query, value, key)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(context, expected_context, atol=1e-5)
    _, weights_of_other_values = attend(layer, query, -value, key)
    np.testing.assert_array_equal(weights_of_other_values, weights)


def test_masks_are_combined_whatever_is_stored_behind_them(rng):
    layer = AdditiveAttention(UNITS)
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    valid = combined(**given)
    expected_context, expected_weights = as_in_the_paper(
        layer_built(layer), query, value, key, valid
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


def layer_built(layer):
    layer.build(QUERY, VALUE, KEY)
    return layer


@pytest.mark.parametrize("name", ["query", "value", "key", "attention"])
def test_each_mask_works_alone(rng, name):
    layer = layer_built(AdditiveAttention(UNITS))
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


def test_gradients_are_finite_behind_every_mask(rng, gradients):
    layer = layer_built(AdditiveAttention(UNITS, use_bias=True))
    arrays = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    hidden = given["query_mask"], given["value_mask"], given["key_mask"]
    for array, mask in zip(arrays, hidden, strict=True):
        array[~mask] = np.nan

    def read(query, value, key):
        return ops.sum(layer(query, value, key, **given) ** 2)

    found = gradients(read, arrays, layer.trainable_variables)

    assert len(found) == 3 + 4
    for gradient in found:
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()
    for gradient, mask in zip(found[:3], hidden, strict=True):
        assert (gradient[~mask] == 0).all()


def test_without_any_valid_position_nothing_is_read(rng, gradients):
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


def test_queries_do_not_see_each_other(rng):
    layer = AdditiveAttention(UNITS)
    query, value = draw(rng, QUERY, VALUE)
    order = rng.permutation(QUERIES)

    context, weights = attend(layer, query, value)
    permuted = attend(layer, query[:, order], value)

    np.testing.assert_allclose(permuted[0], context[:, order], atol=1e-5)
    np.testing.assert_allclose(permuted[1], weights[:, order], atol=1e-6)


def test_one_query_is_one_of_many(rng):
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


def embedded(rng, *shape):
    """Token numbers with some zeros, and their embedding that masks them."""
    token_ids = rng.integers(1, WORDS, shape)
    token_ids[:, 1] = 0
    token_ids[0, -1] = 0
    return token_ids, keras.layers.Embedding(WORDS, QUERY_DIM, mask_zero=True)(
        token_ids
    )


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
    query, value, key = draw(rng, QUERY, VALUE, KEY)
    given = masks(rng)
    layer = AdditiveAttention(UNITS, dtype=f"mixed_{half}")

    outputs = layer(query, value, key, return_attention_scores=True, **given)

    expected = as_in_the_paper(layer, query, value, key, combined(**given))
    for found, wanted in zip(outputs, expected, strict=True):
        assert keras.backend.standardize_dtype(found.dtype) == half
        found = ops.convert_to_numpy(ops.cast(found, "float32"))
        np.testing.assert_allclose(found, wanted, atol=5e-2)
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
    layer = layer_built(AdditiveAttention(UNITS, use_bias=True, dtype="float64"))
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
    step = 1e-6
    for which, gradient in enumerate(found):
        # A few entries of every argument; the loops of the paper are slow.
        for place in rng.integers(points[which].size, size=5):
            ends = []
            for sign in (1, -1):
                moved = [point.copy() for point in points]
                moved[which].flat[place] += sign * step
                ends.append(read_the_paper(*moved))
            expected = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(
                gradient.flat[place], expected, atol=1e-7 if EXACT else 1e-4
            )


def test_many_queries_are_worked_off_in_blocks(rng, gradients, monkeypatch):
    layer = AdditiveAttention(UNITS, use_bias=True)
    arrays = draw(rng, QUERY, VALUE)
    readout = draw(rng, (BATCH, QUERIES, VALUE_DIM))

    def read(query, value):
        return ops.sum(ops.multiply(layer(query, value), readout))

    expected_context = ops.convert_to_numpy(layer(*arrays))
    expected = gradients(read, arrays, layer.variables)

    monkeypatch.setattr("keras_attention.ops.scores.LARGE", 0)

    context = ops.convert_to_numpy(layer(*arrays))
    np.testing.assert_allclose(context, expected_context, atol=1e-6)
    found = gradients(read, arrays, layer.variables)
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


# Every argument with a value that is not its default.
ARGUMENTS = {
    "units": UNITS,
    "weighting": SparsemaxWeighting(0.5),
    "coverage": True,
    "normalize": True,
    "use_bias": True,
    "kernel_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=2),
    "kernel_regularizer": keras.regularizers.L2(0.5),
    "kernel_constraint": keras.constraints.MaxNorm(3.0),
    "bias_initializer": keras.initializers.Constant(-0.25),
    "bias_regularizer": keras.regularizers.L1(0.75),
    "bias_constraint": keras.constraints.NonNeg(),
    "scale_initializer": keras.initializers.Constant(1.5),
    "scale_regularizer": keras.regularizers.L1L2(0.125, 0.25),
    "scale_constraint": keras.constraints.UnitNorm(),
    "dtype": "mixed_bfloat16",
    "name": "reader",
    "trainable": False,
}


def test_config_names_every_argument():
    signature = inspect.signature(AdditiveAttention).parameters
    assert set(signature) - {"kwargs"} <= set(ARGUMENTS)
    layer = AdditiveAttention(**ARGUMENTS)

    config = layer.get_config()

    assert set(config) == set(ARGUMENTS)
    for name, argument in ARGUMENTS.items():
        if name == "weighting":
            assert config[name]["class_name"] == "SparsemaxWeighting"
            assert config[name]["config"]["temperature"] == 0.5
        elif hasattr(argument, "get_config"):
            assert config[name]["class_name"] == type(argument).__name__
            for setting, number in argument.get_config().items():
                assert config[name]["config"][setting] == pytest.approx(number)
        elif name != "dtype":
            assert config[name] == argument


def test_layer_comes_back_from_its_config():
    layer = AdditiveAttention(**ARGUMENTS)
    config = json.loads(json.dumps(layer.get_config()))

    restored = AdditiveAttention.from_config(config)

    assert restored.get_config() == layer.get_config()
    assert restored.dtype_policy.name == "mixed_bfloat16"
    restored.build(QUERY, VALUE)
    assert {v.dtype for v in restored.variables} == {"float32"}
    parts = restored.step, restored.step.score, restored.memory
    assert [part.compute_dtype for part in parts] == ["bfloat16"] * 3


def test_defaults_come_back_from_their_config():
    layer = AdditiveAttention(UNITS)

    restored = AdditiveAttention.from_config(layer.get_config())

    assert restored.get_config() == layer.get_config()


def test_initializers_take_effect():
    layer = AdditiveAttention(
        UNITS,
        use_bias=True,
        kernel_initializer=keras.initializers.Constant(2.0),
        bias_initializer=keras.initializers.Constant(3.0),
        scale_initializer=keras.initializers.Constant(5.0),
    )
    layer.build(QUERY, VALUE)

    w_a, u_a, v_a, bias = weights_of_the_paper(layer)

    assert w_a.shape == (UNITS, QUERY_DIM)
    assert u_a.shape == (UNITS, VALUE_DIM)
    assert (w_a == 2).all()
    assert (u_a == 2).all()
    assert (bias == 3).all()
    assert (v_a == 5).all()


def test_regularizers_take_effect():
    layer = AdditiveAttention(
        UNITS,
        use_bias=True,
        kernel_initializer="ones",
        kernel_regularizer=keras.regularizers.L1(1.0),
        bias_initializer="ones",
        bias_regularizer=keras.regularizers.L1(10.0),
        scale_initializer="ones",
        scale_regularizer=keras.regularizers.L1(100.0),
    )
    layer.build(QUERY, VALUE)

    losses = sorted(numpy(layer.losses))

    kernels = [QUERY_DIM * UNITS, VALUE_DIM * UNITS]
    assert losses == pytest.approx(sorted([*kernels, 10 * UNITS, 100 * UNITS]))


def functional(layer, query, value, **options):
    """A model of the layer for inputs of these shapes, given without the batch."""
    query, value = keras.Input(query), keras.Input(value)
    return keras.Model([query, value], layer(query, value, **options))


def test_constraints_take_effect(rng):
    minus_one = keras.initializers.Constant(-1.0)
    layer = AdditiveAttention(
        UNITS,
        use_bias=True,
        kernel_initializer=minus_one,
        kernel_constraint="non_neg",
        bias_initializer=minus_one,
        bias_constraint="non_neg",
        scale_initializer=minus_one,
        scale_constraint="non_neg",
    )
    model = functional(layer, QUERY[1:], VALUE[1:])
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=COMPILES)

    model.fit(draw(rng, QUERY, VALUE), np.zeros((BATCH, QUERIES, VALUE_DIM)), verbose=0)

    assert all((array == 0).all() for array in layer.get_weights())


@pytest.mark.parametrize("queries", [(), (QUERIES,), (None,)])
@pytest.mark.parametrize(("batch", "positions"), [(BATCH, POSITIONS), (None, None)])
def test_shapes_and_dtypes_are_known_before_anything_is_computed(
    rng, batch, positions, queries
):
    layer = AdditiveAttention(UNITS, dtype="mixed_float16")
    shapes = (
        (batch, *queries, QUERY_DIM),
        (batch, positions, VALUE_DIM),
        (batch, positions, KEY_DIM),
    )
    symbols = [keras.KerasTensor(shape) for shape in shapes]

    context, weights = layer(*symbols, return_attention_scores=True)

    known = (batch, *queries)
    assert context.shape == layer(*symbols).shape == (*known, VALUE_DIM)
    assert layer.compute_output_shape(*shapes) == (*known, VALUE_DIM)
    assert layer.compute_output_shape(*shapes[:2]) == (*known, VALUE_DIM)
    assert weights.shape == (*known, positions)
    assert context.dtype == weights.dtype == "float16"

    fill = {None: 7, **{size: size for size in (*QUERY, *VALUE, *KEY)}}
    arrays = [draw(rng, tuple(fill[size] for size in shape)) for shape in shapes]
    real = layer(*arrays, return_attention_scores=True)
    for symbol, tensor in zip((context, weights), real, strict=True):
        assert tuple(tensor.shape) == tuple(fill[size] for size in symbol.shape)
        assert keras.backend.standardize_dtype(tensor.dtype) == symbol.dtype


def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    query_ids = keras.Input((None,), dtype="int32", name="query_ids")
    value_ids = keras.Input((None,), dtype="int32", name="value_ids")
    key = keras.Input((None, KEY_DIM), name="key")
    seen = keras.Input((None, None), dtype="bool", name="seen")
    arguments = {**ARGUMENTS, "dtype": "float32"}
    outputs = AdditiveAttention(**arguments)(
        keras.layers.Embedding(WORDS, QUERY_DIM, mask_zero=True)(query_ids),
        keras.layers.Embedding(WORDS, VALUE_DIM, mask_zero=True)(value_ids),
        key,
        attention_mask=seen,
        return_attention_scores=True,
    )
    model = keras.Model([query_ids, value_ids, key, seen], list(outputs))
    given = masks(rng)
    data = [
        rng.integers(WORDS, size=(BATCH, QUERIES)) * given["query_mask"],
        rng.integers(WORDS, size=(BATCH, POSITIONS)) * given["value_mask"],
        draw(rng, KEY),
        given["attention_mask"],
    ]
    expected = model.predict(data, verbose=0)

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    found = restored.predict(data, verbose=0)
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-6)
    valid = (data[0] != 0)[..., None] & (data[1] != 0)[:, None] & data[3]
    np.testing.assert_array_equal(found[1] != 0, valid)
    assert restored.get_layer("reader").get_config() == (
        model.get_layer("reader").get_config()
    )


def test_model_of_one_query_comes_back_from_its_file(rng, tmp_path):
    model = functional(AdditiveAttention(UNITS), (QUERY_DIM,), (None, VALUE_DIM))
    data = draw(rng, (BATCH, QUERY_DIM), VALUE)

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    expected = model.predict(data, verbose=0)
    assert expected.shape == (BATCH, VALUE_DIM)
    np.testing.assert_allclose(restored.predict(data, verbose=0), expected, atol=1e-6)


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class Reader(keras.Model):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.attention = AdditiveAttention(units)
        self.readout = keras.layers.Dense(1)

    def call(self, inputs):
        context = self.attention(
            inputs["query"], inputs["value"], value_mask=inputs["mask"]
        )
        return self.readout(context)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def test_subclassed_model_trains_and_comes_back_from_its_file(rng, tmp_path):
    query, value = draw(rng, QUERY, VALUE)
    data = {"query": query, "value": value, "mask": masks(rng)["value_mask"]}
    model = Reader(UNITS)
    model.compile("sgd", "mse", jit_compile=COMPILES)
    model.fit(data, np.zeros((BATCH, QUERIES, 1)), verbose=0)

    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")

    np.testing.assert_allclose(
        restored.predict(data, verbose=0), model.predict(data, verbose=0), atol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_compiled_training_moves_every_weight(rng, dtype):
    layer = AdditiveAttention(UNITS, use_bias=True, dtype=dtype)
    model = functional(layer, (None, QUERY_DIM), (None, VALUE_DIM))
    before = layer.get_weights()
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=COMPILES)

    history = model.fit(
        draw(rng, QUERY, VALUE), draw(rng, (BATCH, QUERIES, VALUE_DIM)), verbose=0
    )

    assert np.isfinite(history.history["loss"]).all()
    assert len(before) == 4
    for old, new in zip(before, layer.get_weights(), strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("queries", [(), (QUERIES,)])
def test_passes_the_contract_test_of_keras(queries):
    from keras.src.testing import TestCase

    # The training check knows layers of one input only.
    TestCase().run_layer_test(
        AdditiveAttention,
        init_kwargs={"units": UNITS, "use_bias": True},
        input_shape={
            "query_shape": (BATCH, *queries, QUERY_DIM),
            "value_shape": VALUE,
            "key_shape": KEY,
        },
        expected_output_shape=(BATCH, *queries, VALUE_DIM),
        expected_num_trainable_weights=4,
        expected_num_non_trainable_weights=0,
        expected_num_seed_generators=0,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
    )


@pytest.mark.parametrize("units", [0, -1, 2.5, True, "8", None, [8]])
def test_units_must_be_a_positive_integer(units):
    with pytest.raises(ValueError, match="units must be a positive integer") as caught:
        AdditiveAttention(units)

    assert str(caught.value).endswith(f"Received: {units!r}")


@pytest.mark.parametrize(
    ("wrong", "shapes"),
    [
        ("query", [(2,), VALUE]),
        ("query", [(2, 3, 5, 7), VALUE]),
        ("value", [QUERY, (2, 13)]),
        ("value", [QUERY, (2, 5, 7, 13)]),
        ("key", [QUERY, VALUE, (2, 11)]),
    ],
)
def test_shape_of_the_wrong_rank_is_named(wrong, shapes):
    received = shapes[["query", "value", "key"].index(wrong)]
    message = rf"{wrong} must have the shape \(batch.*{re.escape(str(received))}"

    with pytest.raises(ValueError, match=message):
        AdditiveAttention(UNITS)(*(np.zeros(shape, "float32") for shape in shapes))
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(UNITS)(*(keras.KerasTensor(shape) for shape in shapes))


def test_key_and_value_of_different_lengths_are_named():
    shapes = [(2, 3, 7), (2, 5, 13), (2, 17, 11)]
    message = "same number of positions. Received: key (2, 17, 11), value (2, 5, 13)"

    with pytest.raises(ValueError, match=re.escape(message)):
        AdditiveAttention(UNITS)(*(np.zeros(shape, "float32") for shape in shapes))


@pytest.mark.parametrize("depth", [1, UNITS + 1])
def test_keys_that_are_not_projected_are_as_deep_as_the_hidden_layer(depth):
    attention = Attention(AdditiveScore(UNITS))
    query, value = np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, depth), "float32")

    with pytest.raises(
        ValueError, match=rf"{UNITS} deep.* key_projection.*: .* {depth}"
    ):
        attention(query, value)
