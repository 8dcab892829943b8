"""Decoders in files and configs, and frozen ones."""

import keras
import pytest

import keras_attention as ka
from attention_testing.arrays import assert_close, draw
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    STATE_UNITS,
    UNITS,
    VALUE,
    VALUE_DIM,
    model_of,
)
from attention_testing.models import reloaded


def test_model_of_one_step_comes_back_from_its_file(rng, tmp_path):
    cell = ka.AttentionCell(CELLS["gru"](), ka.AdditiveAttention(UNITS))
    word, state = keras.Input((INPUT_DIM,)), keras.Input((STATE_UNITS,))
    value = keras.Input((None, VALUE_DIM))
    outputs, next_state = cell(word, {"cell": [state]}, cell.attention.memory(value))
    model = keras.Model([word, state, value], {**outputs, "next": next_state["cell"]})
    data = draw(rng, (BATCH, INPUT_DIM), (BATCH, STATE_UNITS), VALUE)

    restored = reloaded(model, tmp_path)

    assert_close(restored.predict(data, verbose=0), model.predict(data, verbose=0))


def frozen_decoder(how):
    cell = ka.AttentionCell(
        CELLS["stacked gru"](),
        ka.AdditiveAttention(UNITS, use_bias=True),
        gate=True,
        trainable=how != "cell",
    )
    decoder = ka.AttentionDecoder(cell, trainable=how != "decoder")
    if how == "decoder before it is built":
        decoder.trainable = False
    return decoder


@pytest.mark.parametrize("how", ["cell", "decoder", "decoder before it is built"])
def test_frozen_layers_have_no_trainable_weights(how, tmp_path):
    decoder = frozen_decoder(how)
    model = model_of(decoder)

    restored = reloaded(model, tmp_path)

    for frozen in (model, restored):
        # Four weights of the attention, three of each cell, two of the gate.
        assert len(frozen.weights) == 4 + 2 * 3 + 2
        assert frozen.trainable_weights == []
    decoder.trainable = decoder.cell.trainable = True
    assert len(decoder.trainable_weights) == len(decoder.weights)


ATTENTIONS = {
    "additive": lambda **options: ka.AdditiveAttention(UNITS, **options),
    "local-p": lambda **options: ka.LuongAttention(window="local-p", **options),
    "heads": lambda **options: ka.MultiHeadAttention(
        2, 2, weighting=ka.SoftmaxWeighting(learn_temperature=True), **options
    ),
}


@pytest.mark.parametrize(
    ("name", "is_built"), [("additive", False), ("local-p", True), ("heads", False)]
)
def test_a_frozen_attention_does_not_train_in_a_decoder(name, is_built, tmp_path):
    attention = ATTENTIONS[name](trainable=is_built)
    cell = ka.AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention)
    model = model_of(ka.AttentionDecoder(cell))
    attention.trainable = False

    restored = reloaded(model, tmp_path)

    for frozen in (model, restored):
        assert len(frozen.trainable_weights) == 3
