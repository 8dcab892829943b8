"""Calls written for other attention layers, and additive masks."""

import keras
import numpy as np
import pytest

import keras_attention as ka
from attention_testing.arrays import assert_close

QUERY, VALUE = np.ones((2, 3, 7), "float32"), np.ones((2, 5, 7), "float32")
ADDITIVE = np.where(np.arange(5) < 3, 0.0, -1e9).astype("float32") * np.ones((2, 1))
LAYERS = {
    "additive": lambda: ka.AdditiveAttention(4),
    "luong": lambda: ka.LuongAttention(),
    "heads": lambda: ka.MultiHeadAttention(2, 3),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    return LAYERS[request.param]()


def test_a_list_of_tensors_is_refused(layer):
    with pytest.raises(ValueError, match=r"layer\(query, value, key\).*list of 2"):
        layer([QUERY, VALUE])


def test_a_list_of_masks_is_refused(layer):
    mask = np.ones((2, 5), "bool")
    with pytest.raises(ValueError, match=r"query_mask=\.\.\., value_mask=.*list of 2"):
        layer(QUERY, VALUE, mask=[None, mask])


@pytest.mark.parametrize("name", ["value_mask", "key_mask", "attention_mask"])
def test_additive_masks_are_refused(layer, name):
    mask = ADDITIVE[:, None] if name == "attention_mask" else ADDITIVE
    message = f"{name} must be boolean.*mask == 0. Received: .* from -10000"
    with pytest.raises(ValueError, match=message):
        layer(QUERY, VALUE, **{name: mask})


def test_additive_masks_are_refused_everywhere():
    for layer, options in (
        (ka.AttentionPooling(4), {"value_mask": ADDITIVE}),
        (ka.RecurrentEncoder(keras.layers.GRUCell(4)), {"mask": ADDITIVE}),
    ):
        with pytest.raises(ValueError, match="An additive mask"):
            layer(VALUE, **options)


def test_a_float_mask_of_zeros_and_ones_is_a_mask(layer):
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 0, 0]])

    actual = layer(QUERY, VALUE, value_mask=mask.astype("float32"))

    expected = layer(QUERY, VALUE, value_mask=mask.astype("bool"))
    assert_close(actual, expected, 0)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="others draw in loops")
def test_dropout_inside_the_loop_is_refused_on_jax():
    def dropout(units):
        return keras.Sequential([keras.layers.Dense(units), keras.layers.Dropout(0.5)])

    cell, attention = keras.layers.GRUCell(4), ka.AdditiveAttention(4)
    with pytest.raises(ValueError, match="gate must have no dropout"):
        ka.AttentionCell(cell, attention, gate=dropout(1))
    with pytest.raises(ValueError, match="attentional_vector must have no dropout"):
        ka.AttentionCell(
            cell, attention, attentional_vector=dropout(4), input_feeding=True
        )
    # Without input feeding, the vectors are computed after the loop.
    ka.AttentionCell(cell, attention, attentional_vector=dropout(4))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: ka.AdditiveAttention(4), "'query_mask', 'value_mask', 'key_mask'"),
        (lambda: ka.PointerNetwork(ka.AdditiveAttention(4)), "'query_mask', 'value_m"),
    ],
)
def test_a_mask_without_a_name_is_refused_with_the_names(make, names):
    with pytest.raises(TypeError, match=f"call argument 'mask'. Masks are {names}"):
        make()(QUERY, VALUE, mask=np.ones((2, 5), "bool"))


def test_an_unknown_argument_is_refused_with_the_most_similar():
    with pytest.raises(TypeError, match=r"'return_scores'\. Expected 'return_a"):
        ka.MultiHeadAttention(2, 3)(QUERY, VALUE, return_scores=True)
    with pytest.raises(TypeError, match=r"AttentionPooling.*'query_mask'\. Masks are"):
        ka.AttentionPooling(4)(VALUE, query_mask=np.ones((2, 5), "bool"))
