"""Masks of a decoder, given or implicit, and what is stored at masked places."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import assert_close, draw, embedded, numpy
from attention_testing.combinations import quick_first
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    POSITIONS,
    SEQUENCES,
    STEPS,
    UNITS,
    VALUE,
    VALUE_DIM,
    VALUE_MASK,
    WORDS,
    decoder_of,
)
from attention_testing.models import reloaded
from keras_attention import AdditiveAttention, AttentionCell, AttentionDecoder


def test_masked_places_may_hold_anything(rng, gradients):
    decoder = decoder_of("lstm", gate=True)
    arrays = draw(rng, INPUTS, VALUE)
    inputs_mask = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]], "bool")
    masks = {"inputs_mask": inputs_mask, "value_mask": VALUE_MASK}
    expected = numpy(decoder(*arrays, **masks))
    for array, mask in zip(arrays, masks.values(), strict=True):
        array[~mask] = np.nan

    def read(inputs, value):
        return ops.sum(decoder(inputs, value, **masks)["output"] ** 2)

    actual = gradients(read, arrays, decoder.trainable_variables)

    assert_close(numpy(decoder(*arrays, **masks)), expected)
    # Four weights of the attention, three of the cell, two of the gate.
    assert len(actual) == 2 + 4 + 3 + 2
    for gradient in actual:
        assert np.isfinite(gradient).all()
        assert (gradient != 0).any()
    for gradient, mask in zip(actual[:2], masks.values(), strict=True):
        assert (gradient[~mask] == 0).all()


def test_implicit_masks_are_honoured(rng):
    decoder = decoder_of("gru")
    input_ids, inputs = embedded(rng, INPUT_DIM, BATCH, STEPS)
    value_ids, value = embedded(rng, VALUE_DIM, BATCH, POSITIONS)
    arrays = numpy((inputs, value))

    implicit = decoder(inputs, value)

    explicit = decoder(*arrays, inputs_mask=input_ids != 0, value_mask=value_ids != 0)
    assert_close(implicit, explicit, atol=0)
    assert not np.array_equal(implicit["output"], decoder(*arrays)["output"])


def test_explicit_mask_wins_over_an_implicit_one(rng):
    decoder = decoder_of("gru")
    _, inputs = embedded(rng, INPUT_DIM, BATCH, STEPS)
    _, value = embedded(rng, VALUE_DIM, BATCH, POSITIONS)
    every_step, everything = np.ones(INPUTS[:2], "bool"), np.ones(VALUE[:2], "bool")

    outputs = decoder(inputs, value, inputs_mask=every_step, value_mask=everything)

    assert_close(outputs, decoder(*numpy((inputs, value))))


@keras.saving.register_keras_serializable(package="keras_attention_tests")
class ShowMask(keras.layers.Layer):
    """Returns the implicit mask of a tensor, or minus ones without a mask."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, mask=None):
        if mask is None:
            return ops.full_like(x[..., 0], -1.0)
        return ops.cast(mask, "float32")

    def compute_output_shape(self, x_shape):
        return x_shape[:-1]


@pytest.mark.parametrize("leading", quick_first([(SEQUENCES,), ()]))
def test_the_mask_of_the_inputs_goes_on_with_all_but_the_state(rng, leading, tmp_path):
    input_ids = keras.Input((*leading, None), dtype="int32")
    value = keras.Input((None, VALUE_DIM))
    embedding = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)
    decoder = AttentionDecoder(
        AttentionCell(CELLS["gru over lstm"](), AdditiveAttention(UNITS))
    )
    outputs = decoder(embedding(input_ids), value)
    masks = tree.map_structure(lambda x: ShowMask()(x), outputs)
    model = keras.Model([input_ids, value], {**masks, "steps": outputs["output"]})
    ids, values = rng.integers(3, size=(BATCH, *leading, STEPS)), draw(rng, VALUE)
    expected = model.predict([ids, values], verbose=0)

    eager = tree.map_structure(ShowMask(), decoder(embedding(ids), values))
    restored = reloaded(model, tmp_path)
    actual = restored.predict([ids, values], verbose=0)

    assert (expected["steps"] != 0).any(axis=-1).tolist() == (ids != 0).tolist()
    assert_close(actual.pop("steps"), expected.pop("steps"))
    for masks in (expected, numpy(eager), actual):
        for name in ("output", "context", "weights"):
            np.testing.assert_array_equal(masks[name], ids != 0)
        assert all((x == -1).all() for x in tree.flatten(masks["state"]))
