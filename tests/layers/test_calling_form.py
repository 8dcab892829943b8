"""Calls written for other attention layers, and additive masks."""

import keras
import numpy as np
import pytest
from arrays import assert_close

import keras_attention as ka

QUERY, VALUE = np.ones((2, 3, 7), "float32"), np.ones((2, 5, 7), "float32")
ADDITIVE = np.where(np.arange(5) < 3, 0.0, -1e9).astype("float32") * np.ones((2, 1))
LAYERS = {
    "additive": lambda: ka.AdditiveAttention(4),
    "luong": lambda: ka.LuongAttention(),
    "self": lambda: ka.SelfAttention(2, 3),
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

    found = layer(QUERY, VALUE, value_mask=mask.astype("float32"))

    expected = layer(QUERY, VALUE, value_mask=mask.astype("bool"))
    assert_close(found, expected, 0)


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
