"""Decoders in files and configs, and frozen ones."""

import inspect
import json

import keras
import numpy as np
import pytest
from arrays import draw, numpy
from decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    LOWER_UNITS,
    STATE_UNITS,
    UNITS,
    VALUE,
    VALUE_DIM,
    WORDS,
    assert_close,
    assert_same_config,
    decoder_of,
)
from models import fit, reloaded

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    LuongAttention,
    SelfAttention,
    SoftmaxWeighting,
)

pytestmark = pytest.mark.usefixtures("seeded")


def test_functional_model_comes_back_from_its_file(rng, tmp_path):
    input_ids = keras.Input((None,), dtype="int32")
    value = keras.Input((None, VALUE_DIM))
    start = keras.Input((VALUE_DIM,))
    cell = AttentionCell(
        keras.layers.StackedRNNCells(
            [keras.layers.LSTMCell(LOWER_UNITS), keras.layers.LSTMCell(STATE_UNITS)]
        ),
        AdditiveAttention(UNITS, use_bias=True),
        gate=True,
    )
    state = {
        "cell": [
            [keras.layers.Dense(units, activation="tanh")(start) for _ in range(2)]
            for units in (LOWER_UNITS, STATE_UNITS)
        ]
    }
    embedded = keras.layers.Embedding(WORDS, INPUT_DIM, mask_zero=True)(input_ids)
    outputs = AttentionDecoder(cell, name="decoder")(embedded, value, state)
    model = keras.Model([input_ids, value, start], outputs)
    data = [
        np.array([[3, 5, 7, 11, 13], [2, 3, 0, 0, 0]]),
        *draw(rng, VALUE, (BATCH, VALUE_DIM)),
    ]
    expected = model.predict(data, verbose=0)

    restored = reloaded(model, tmp_path)

    found = restored.predict(data, verbose=0)
    assert_close(found, expected)
    assert (found["weights"][1, 2:] == 0).all()
    assert_same_config(restored.get_layer("decoder"), model.get_layer("decoder"))


def test_model_of_one_step_comes_back_from_its_file(rng, tmp_path):
    cell = AttentionCell(keras.layers.GRUCell(STATE_UNITS), AdditiveAttention(UNITS))
    word = keras.Input((INPUT_DIM,))
    state = keras.Input((STATE_UNITS,))
    value = keras.Input((None, VALUE_DIM))
    outputs, next_state = cell(word, {"cell": [state]}, cell.attention.memory(value))
    model = keras.Model([word, state, value], {**outputs, "next": next_state["cell"]})
    data = draw(rng, (BATCH, INPUT_DIM), (BATCH, STATE_UNITS), VALUE)

    restored = reloaded(model, tmp_path)

    assert_close(restored.predict(data, verbose=0), model.predict(data, verbose=0))


@pytest.mark.parametrize("cell", ["gru", "gru over lstm"])
def test_decoder_comes_back_from_its_config(rng, cell):
    decoder = decoder_of(cell, gate=True)
    inputs, value = draw(rng, INPUTS, VALUE)

    config = json.loads(json.dumps(keras.saving.serialize_keras_object(decoder)))
    restored = keras.saving.deserialize_keras_object(config)
    restored.build(INPUTS, VALUE)
    restored.set_weights(decoder.get_weights())

    assert_same_config(restored, decoder)
    assert_close(numpy(restored(inputs, value)), numpy(decoder(inputs, value)))


@pytest.mark.parametrize("layer", [AttentionCell, AttentionDecoder])
def test_config_names_every_argument(layer):
    cell = AttentionCell(
        keras.layers.GRUCell(STATE_UNITS), AdditiveAttention(UNITS), gate=True
    )
    instance = cell if layer is AttentionCell else AttentionDecoder(cell)

    config = instance.get_config()

    arguments = set(inspect.signature(layer).parameters) - {"kwargs"}
    assert set(config) == {"name", "trainable", "dtype"} | arguments
    assert config.get("gate", True) is True


def frozen_decoder(how):
    frozen = {"trainable": False}
    cell = AttentionCell(
        CELLS["stacked gru"](),
        AdditiveAttention(UNITS, use_bias=True),
        gate=True,
        **(frozen if how == "cell" else {}),
    )
    decoder = AttentionDecoder(cell, **(frozen if how == "decoder" else {}))
    if how == "decoder before it is built":
        decoder.trainable = False
    return decoder


@pytest.mark.parametrize("how", ["cell", "decoder", "decoder before it is built"])
def test_frozen_layers_have_no_trainable_weights(how, tmp_path):
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    decoder = frozen_decoder(how)
    model = keras.Model([inputs, value], decoder(inputs, value)["output"])

    restored = reloaded(model, tmp_path)

    for frozen in (model, restored):
        # Four weights of the attention, three of each cell, two of the gate.
        assert len(frozen.weights) == 4 + 2 * 3 + 2
        assert frozen.trainable_weights == []
    decoder.trainable = decoder.cell.trainable = True
    assert len(decoder.trainable_weights) == len(decoder.weights)


ATTENTIONS = {
    "additive": lambda **options: AdditiveAttention(UNITS, **options),
    "local-p": lambda **options: LuongAttention(window="local-p", **options),
    "heads": lambda **options: SelfAttention(
        2, 2, weighting=SoftmaxWeighting(learn_temperature=True), **options
    ),
}


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_frozen_attention_does_not_train_in_a_decoder(name, is_built, rng, tmp_path):
    attention = ATTENTIONS[name](trainable=is_built)
    cell = AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention)
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    outputs = AttentionDecoder(cell, name="decoder")(inputs, value)
    model = keras.Model([inputs, value], outputs["output"])
    attention.trainable = False

    restored = reloaded(model, tmp_path)

    for frozen in (model, restored):
        assert len(frozen.trainable_weights) == 3
    attention = restored.get_layer("decoder").cell.attention
    before = attention.get_weights()
    x = draw(rng, INPUTS, VALUE)
    fit(restored, x, np.ones((*INPUTS[:-1], STATE_UNITS)), jit_compile=False)
    for old, new in zip(before, attention.get_weights(), strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("layer", [AttentionCell, AttentionDecoder])
def test_config_may_be_used_twice(layer):
    decoder = decoder_of("gru")
    config = (decoder if layer is AttentionDecoder else decoder.cell).get_config()

    for _ in range(2):
        assert isinstance(layer.from_config(config), layer)
