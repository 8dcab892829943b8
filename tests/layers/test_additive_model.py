"""Additive attention in models: configuration, saving, training, shapes, errors."""

import re

import keras
import numpy as np
import pytest
from arrays import draw, numpy
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
    attend,
    weights_of_the_paper,
)
from layers.keras_contract import (
    PROJECTION_OPTIONS,
    assert_config_names_every_argument,
    assert_fulfils_the_contract_of_keras,
    restored_from_json,
)
from layers.mask_reference import masks
from models import fit, reloaded

from keras_attention import (
    AdditiveAttention,
    AdditiveScore,
    Attention,
    SparsemaxWeighting,
)

pytestmark = pytest.mark.usefixtures("seeded")


# Every argument with a value that is not its default.
ARGUMENTS = {
    "units": UNITS,
    "weighting": SparsemaxWeighting(0.5, dtype="mixed_bfloat16"),
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


def test_config_names_every_argument():
    assert_config_names_every_argument(AdditiveAttention, ARGUMENTS)


def test_layer_comes_back_from_its_config():
    restored = restored_from_json(AdditiveAttention(**ARGUMENTS))

    assert restored.dtype_policy.name == "mixed_bfloat16"
    restored.build(QUERY, VALUE)
    assert {v.dtype for v in restored.weights} == {"float32"}
    parts = restored.step, restored.step.score, restored.memory
    assert [part.compute_dtype for part in parts] == ["bfloat16"] * 3


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
    still = keras.optimizers.SGD(0.0)

    fit(
        model,
        draw(rng, QUERY, VALUE),
        np.zeros((BATCH, QUERIES, VALUE_DIM)),
        optimizer=still,
    )

    assert all((array == 0).all() for array in layer.get_weights())


def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    query_ids = keras.Input((None,), dtype="int32", name="query_ids")
    value_ids = keras.Input((None,), dtype="int32", name="value_ids")
    key = keras.Input((None, KEY_DIM), name="key")
    seen = keras.Input((None, None), dtype="bool", name="seen")
    weighting = SparsemaxWeighting(0.5)
    others = {"weighting": weighting, "causal": False, "dtype": "float32"}
    outputs = AdditiveAttention(**{**ARGUMENTS, **others})(
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

    restored = reloaded(model, tmp_path)

    found = restored.predict(data, verbose=0)
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-6)
    valid = (data[0] != 0)[..., None] & (data[1] != 0)[:, None] & data[3]
    np.testing.assert_array_equal(found[1] != 0, valid)
    assert restored.get_layer("reader").get_config() == (
        model.get_layer("reader").get_config()
    )


@pytest.mark.parametrize("queries", [(), (QUERIES,)])
def test_fulfils_the_contract_of_keras(queries):
    query = (BATCH, *queries, QUERY_DIM)
    assert_fulfils_the_contract_of_keras(
        AdditiveAttention,
        {"units": UNITS, "use_bias": True},
        {"query_shape": query, "value_shape": VALUE, "key_shape": KEY},
        (BATCH, *queries, VALUE_DIM),
        weights=4,
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
    received = "query (2, 3, 7), value (2, 5, 13), key (2, 17, 11)"
    message = f"same number of positions. Received: {received}"

    with pytest.raises(ValueError, match=re.escape(message)):
        AdditiveAttention(UNITS)(*(np.zeros(shape, "float32") for shape in shapes))


def test_score_brings_the_projection_of_its_keys(rng):
    attention = Attention(AdditiveScore(UNITS, use_bias=True))

    context, _ = attend(attention, *draw(rng, QUERY, VALUE))

    assert context.shape == VALUE[:1] + QUERY[1:2] + VALUE[2:]
    assert {tuple(w.path.split("/")[-2:]) for w in attention.weights} == {
        ("key_projection", "kernel"),
        ("key_projection", "bias"),
        ("query_projection", "kernel"),
        (attention.step.score.name, "scale"),
    }


@pytest.mark.parametrize("depth", [1, UNITS + 1])
def test_keys_that_are_not_projected_are_as_deep_as_the_hidden_layer(depth):
    attention = Attention(AdditiveScore(UNITS), None)
    query, value = np.zeros((2, 3, 4), "float32"), np.zeros((2, 5, depth), "float32")

    with pytest.raises(
        ValueError, match=rf"hidden layer, {UNITS}.* key_projection.*: .* {depth}"
    ):
        attention(query, value)
