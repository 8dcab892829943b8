"""Contract of every attention layer, whatever it computes."""

import inspect
import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention
from attention_testing.arrays import assert_close, numpy
from attention_testing.combinations import quick_first
from attention_testing.layers.cases import (
    BATCH,
    CASES,
    POSITIONS,
    QUERIES,
    QUERY_DIM,
    UNITS,
    VALUE_DIM,
    attend,
    functional,
    quick_cases,
)
from attention_testing.layers.keras_contract import restored_from_json
from attention_testing.models import fit, reloaded
from attention_testing.rounding import rounding_bound
from keras_attention import MultiHeadAttention, SelfAttention

BACKEND = keras.backend.backend()


@pytest.fixture(params=quick_cases(CASES))
def case(request):
    return CASES[request.param]


cases_with_queries = pytest.mark.parametrize(
    "case",
    quick_cases(name for name, case in CASES.items() if len(case.depths) == 2),
    indirect=True,
)


@pytest.fixture
def layer(case):
    return case.build()


@pytest.fixture
def data(case, rng):
    return case.draw(rng)


def test_config_names_every_argument(case):
    layer = case.build(name="reader", dtype="mixed_bfloat16", trainable=False)
    config = layer.get_config()

    parameters = inspect.signature(type(layer)).parameters.values()
    signature = {x.name for x in parameters if x.kind != x.VAR_KEYWORD}
    assert signature | {"name", "dtype", "trainable"} <= set(config)
    copy = restored_from_json(layer)
    assert copy.compute_dtype == "bfloat16"
    for name, value in case.arguments().items():
        if isinstance(value, (int, float, str, bool)) and name != "weighting":
            assert config[name] == value


def test_a_frozen_model_comes_back_from_its_file(case, data, tmp_path):
    layer = case.build(trainable=False, name="reader")
    model = functional(case, layer)

    loaded = reloaded(model, tmp_path)

    assert_close(loaded(data), model(data), 1e-6)
    restored = loaded.get_layer("reader")
    assert layer.trainable_variables == restored.trainable_variables == []
    layer.trainable = restored.trainable = True
    assert len(restored.trainable_variables) == len(layer.trainable_variables)


def test_shapes_are_known_before_anything_is_computed(case, rng):
    computed = case.build(dtype="mixed_float16")
    real = computed(*case.draw(rng), return_attention_scores=True)
    unknown = {"batch": None, "queries": None, "positions": None}
    for shapes in (case.shapes(), case.shapes(**unknown)):
        layer = case.build(dtype="mixed_float16")
        symbols = [keras.KerasTensor(shape) for shape in shapes]

        promised = layer(*symbols, return_attention_scores=True)

        assert layer.compute_output_shape(*shapes) == tuple(promised[0].shape)
        for symbol, tensor in zip(promised, real, strict=True):
            assert symbol.dtype == "float16"
            assert keras.backend.standardize_dtype(tensor.dtype) == "float16"
            pairs = zip(symbol.shape, tensor.shape, strict=True)
            assert all(size in (None, actual) for size, actual in pairs)


# Every case once. In the quick suite: weightings, scores, windows and loops.
POLICIES = itertools.cycle(["float32", "mixed_float16", "mixed_bfloat16"])
POLICY_OF = dict(zip(CASES, POLICIES, strict=False))
COMPILED = ["coverage", "straight-through", "monotonic", "local-p concat", "hops"]


@pytest.mark.parametrize(
    "name", quick_first(sorted(CASES, key=COMPILED.__contains__, reverse=True), 3)
)
def test_compiled_training_is_finite_and_reaches_the_weights(name, rng):
    case = CASES[name]
    layer = case.build(dtype=POLICY_OF[name])
    model = functional(case, layer)
    before = numpy(layer.trainable_variables)
    target = rng.normal(size=layer.compute_output_shape(*case.shapes()))

    fit(model, case.draw(rng), target, optimizer=keras.optimizers.SGD(1.0))

    after = numpy(layer.trainable_variables)
    assert all(np.isfinite(x).all() for x in after)
    moved = [(old != new).any() for old, new in zip(before, after, strict=True)]
    assert all(moved) or name == "hard", moved


# A choice and the places of a window change in steps: rounding may make one.
DISCONTINUOUS = ["hard", "straight-through", "local-p", "local-p concat", "parts"]
# Each case has two of them, one in the quick suite.
DTYPES = ["mixed_bfloat16", "mixed_float16", "float64"]


@pytest.mark.parametrize("place", quick_first([0, 1]))
@pytest.mark.parametrize("name", quick_cases(CASES))
def test_other_dtypes_give_nearly_the_same(name, rng, place):
    case = CASES[name]
    dtype = DTYPES[(list(CASES).index(name) + place) % 3]
    layer, other = case.build(), case.build(dtype=dtype)
    # Small enough that nothing on the way to the context exceeds 1.
    data = [x / 4 for x in case.draw(rng)]
    expected = numpy(layer(*data, return_attention_scores=True))
    attend(other, data)
    other.set_weights(layer.get_weights())

    # Without weights among the outputs, heads are computed at once.
    actual = *other(*data, return_attention_scores=True), other(*data)

    # Products over the values' depth, the hidden layer and the positions, and a
    # rounding of each operand.
    roundings = VALUE_DIM + UNITS + POSITIONS + 6
    tolerance = 1e-5 if dtype == "float64" else rounding_bound(dtype, roundings)
    for tensor, wanted in zip(actual, (*expected, expected[0]), strict=True):
        if not (BACKEND == "jax" and dtype == "float64"):
            assert keras.backend.standardize_dtype(tensor.dtype) == other.compute_dtype
        tensor = ops.convert_to_numpy(ops.cast(tensor, "float32"))
        assert np.isfinite(tensor).all()
        if dtype == "float64" or name not in DISCONTINUOUS:
            np.testing.assert_allclose(tensor, wanted, atol=tolerance)


def test_masked_values_have_no_influence(layer, data):
    mask = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], "bool")
    bad = np.resize([np.nan, np.inf, -np.inf], data[-1].shape)
    spoiled = [*data[:-1], np.where(mask[..., None], data[-1], bad).astype("float32")]

    expected = attend(layer, data, value_mask=mask)
    actual = attend(layer, spoiled, value_mask=mask)

    assert all(np.isfinite(array).all() for array in actual)
    assert_close(actual, expected, 1e-6)
    between = [1] * (actual[1].ndim - 2)
    hidden = np.broadcast_to(~mask.reshape(BATCH, *between, POSITIONS), actual[1].shape)
    assert (actual[1][hidden] == 0).all()


def test_a_query_without_a_valid_position_gives_zeros(layer, data, gradients):
    mask = np.array([[0] * POSITIONS, [1] * POSITIONS], "bool")

    context, weights = attend(layer, data, value_mask=mask)

    assert (context[0] == 0).all()
    assert (weights[0] == 0).all()
    assert (context[1] != 0).any()

    def read(*tensors):
        return ops.sum(layer(*tensors, value_mask=mask) ** 2)

    for gradient in gradients(read, data, layer.trainable_variables):
        assert np.isfinite(gradient).all()


def test_lengths_may_be_zero(case, layer, rng):
    for *sizes, masked in ((0, 3, 5, 0), (2, 0, 5, 1), (2, 3, 0, 0), (2, 3, 0, 1)):
        lengths = dict(zip(("batch", "queries", "positions"), sizes, strict=True))
        mask = {"value_mask": np.ones(sizes[::2], "bool")} if masked else {}

        context, weights = attend(layer, case.draw(rng, **lengths), **mask)

        assert context.shape == layer.compute_output_shape(*case.shapes(**lengths))
        assert weights.shape == (*context.shape[:-1], sizes[-1])
        assert sizes[-1] or not context.any()


@cases_with_queries
def test_a_masked_query_gives_zeros(layer, data):
    valid = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    spoiled = [np.where(valid[..., None], data[0], np.nan).astype("float32"), data[1]]

    context, weights = attend(layer, spoiled, query_mask=valid)

    expected = attend(layer, data)
    for actual, wanted in zip((context, weights), expected, strict=True):
        assert (actual[~valid] == 0).all()
        np.testing.assert_allclose(actual[valid], wanted[valid], atol=1e-6)


@cases_with_queries
def test_a_single_query_equals_the_first_of_a_sequence(layer, data, rng):
    query, value = data
    if layer.get_config().get("causal"):
        pytest.skip("one query has no place in a sequence")

    masks = {
        "query_mask": np.array([[1, 1, 0], [0, 1, 1]], "bool"),
        "attention_mask": rng.random((BATCH, QUERIES, POSITIONS)) < 0.6,
    }

    expected = attend(layer, (query, value), **masks)
    of_one = {name: mask[:, 0] for name, mask in masks.items()}
    actual = attend(layer, (query[:, 0], value), **of_one)

    assert_close(actual, tuple(many[:, 0] for many in expected), 1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("query_mask", (QUERIES,), (BATCH, QUERIES)),
        ("query_mask", (BATCH, 1), (BATCH, QUERIES)),
        ("value_mask", (BATCH, 1), (BATCH, POSITIONS)),
        ("value_mask", (1, POSITIONS), (BATCH, POSITIONS)),
        ("key_mask", (BATCH, QUERIES), (BATCH, POSITIONS)),
        (
            "attention_mask",
            (BATCH, POSITIONS, QUERIES),
            f"{(BATCH, QUERIES, POSITIONS)} or {(QUERIES, POSITIONS)}",
        ),
    ],
)
@pytest.mark.parametrize("case", ["additive", "heads"], indirect=True)
def test_a_mask_of_another_shape_is_named(case, layer, data, name, shape, expected):
    if case is CASES["heads"] and name == "attention_mask":
        expected += " or (2, 3, 3, 5)"
    message = f"{name} must have the shape {expected}. Received: {shape}"

    with pytest.raises(ValueError, match=re.escape(message)):
        layer(*data, **{name: np.ones(shape, "bool")})


@pytest.mark.parametrize(
    ("name", "shape"), [("query_mask", (BATCH, 1)), ("attention_mask", (POSITIONS,))]
)
@pytest.mark.parametrize("case", ["additive", "heads"], indirect=True)
def test_a_mask_of_another_shape_for_one_query_is_named(layer, data, name, shape):
    query, value = data
    message = rf"{name} must have the shape \(2,.* Received: {re.escape(str(shape))}"

    with pytest.raises(ValueError, match=message):
        layer(query[:, 0], value, **{name: np.ones(shape, "bool")})


@cases_with_queries
def test_masks_of_keys_and_of_pairs_are_exact(layer, data, rng):
    mask = rng.random((BATCH, QUERIES, POSITIONS)) < 0.6

    context, weights = attend(layer, data, attention_mask=mask)

    assert np.isfinite(context).all()
    assert (weights[~mask] == 0).all()
    for part in (mask[:1], mask[:, :1], mask[0], mask[0, :1]):
        whole = attend(layer, data, attention_mask=np.broadcast_to(part, mask.shape))
        assert_close(attend(layer, data, attention_mask=part), whole, 1e-6)
    of_values = attend(layer, data, value_mask=mask[:, 0])
    assert_close(attend(layer, data, key_mask=mask[:, 0]), of_values, 1e-6)


def test_sizes_of_masks_need_not_be_known():
    layer = CASES["additive"].build()
    query, value = keras.Input((None, QUERY_DIM)), keras.Input((POSITIONS, VALUE_DIM))
    masks = {
        "query_mask": keras.Input((QUERIES,), dtype="bool"),
        "value_mask": keras.Input((None,), dtype="bool"),
        "attention_mask": keras.Input((None, None), dtype="bool"),
    }

    model = keras.Model([query, value, masks], layer(query, value, **masks))

    shapes = {"query_mask": (QUERIES,), "value_mask": (POSITIONS,)}
    shapes["attention_mask"] = (QUERIES, POSITIONS)
    ones = {name: np.ones((BATCH, *x), "bool") for name, x in shapes.items()}
    data = [np.ones(shape, "float32") for shape in CASES["additive"].shapes()]
    assert tuple(model([*data, ones]).shape) == (BATCH, QUERIES, VALUE_DIM)


@cases_with_queries
def test_batches_of_different_sizes_are_named(case):
    (_, *query), (_, *value) = case.shapes()
    for batches in ((1, BATCH), (BATCH, 1)):
        shapes = [(batches[0], *query), (batches[1], *value)]
        message = "same batch size. Received: query {}, value {}".format(*shapes)

        for make in (np.zeros, keras.KerasTensor):
            with pytest.raises(ValueError, match=re.escape(message)):
                case.build()(*map(make, shapes))


def test_implicit_masks_are_honoured(case, layer, data):
    masks = {
        "query_mask": np.array([[1, 0, 1], [1, 1, 0]], "bool"),
        "value_mask": np.array([[0, 0, 1, 1, 0], [0, 1, 0, 1, 0]], "bool"),
    }
    masks = dict(list(masks.items())[-len(data) :])
    for tensor, mask in zip(data, masks.values(), strict=True):
        tensor[~mask] = 0
    inputs = [keras.Input(shape[1:]) for shape in case.shapes()]
    model = keras.Model(inputs, layer(*map(keras.layers.Masking(), inputs)))

    outputs = numpy(model(data))

    assert_close(outputs, layer(*data, **masks), 1e-6)
    if case not in (CASES["hard"], CASES["straight-through"]):
        assert (outputs != numpy(layer(*data))).any()


def test_same_seed_draws_the_same(case, data):
    first, second = case.build(), case.build()
    attend(first, data)
    attend(second, data)
    second.set_weights(first.get_weights())

    outputs = [attend(layer, data, training=True) for layer in (first, second)]
    assert_close(*outputs, 0)


def test_details_have_context_and_weights(case, layer, data):
    details = layer(*data, return_details=True)

    pair = [details["context"], details["weights"]]
    assert_close(pair, layer(*data, return_attention_scores=True), 1e-6)
    symbols = map(keras.KerasTensor, case.shapes())
    promised = layer(*symbols, return_details=True)
    for name, x in details.items():
        assert tuple(promised.pop(name).shape) == tuple(x.shape)
    assert not promised


def test_wrong_rank_is_reported(case):
    shapes = dict(zip(("value", "query"), case.shapes()[::-1], strict=False))
    if "query" in shapes:
        shapes["key"] = shapes["value"]
    for name, shape in shapes.items():
        wrong = shape[:1] if name == "query" else shape[1:]
        message = rf"{name} must have the shape .*{re.escape(str(wrong))}"
        for make in (np.zeros, keras.KerasTensor):
            tensors = {x: make(y) for x, y in {**shapes, name: wrong}.items()}
            positional = [tensors.pop(x) for x in ("query", "value") if x in tensors]
            with pytest.raises(ValueError, match=message):
                case.build()(*positional, **tensors)


def test_every_attention_layer_has_a_case():
    layers = {case.layer for case in CASES.values()}
    public = {getattr(keras_attention, name) for name in keras_attention.__all__}
    names = ("Attention", "Pooling")
    classes = {x for x in public if inspect.isclass(x) and x.__name__.endswith(names)}
    # Their weights have an axis for the heads, and other tests cover them.
    assert classes == {*layers, MultiHeadAttention, SelfAttention}
