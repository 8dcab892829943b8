"""Dropout masks of recurrent cells in a decoder."""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw, numpy
from attention_testing.combinations import quick_first
from attention_testing.decoder.reference import (
    BATCH,
    INPUT_DIM,
    POSITIONS,
    SEQUENCES,
    STATE_UNITS,
    STEPS,
    UNITS,
    VALUE,
    VALUE_DIM,
    decoder_of,
    model_of,
)
from attention_testing.models import COMPILES, fit
from keras_attention import AdditiveAttention, AttentionCell, AttentionDecoder
from keras_attention.ops import additive_blocks


class DropoutProbe(keras.Model):
    """Shows the dropout masks of a decoder, in training and in inference.

    Its cell adds the input to the state, and the memory that it reads is zero.
    """

    units = 101

    def __init__(self):
        super().__init__()
        cell = keras.layers.SimpleRNNCell(
            self.units,
            activation="linear",
            kernel_initializer="identity",
            recurrent_initializer="identity",
            dropout=0.5,
            recurrent_dropout=0.5,
        )
        self.decoder = AttentionDecoder(AttentionCell(cell, AdditiveAttention(UNITS)))

    def call(self, inputs):
        value = ops.zeros((ops.shape(inputs)[0], POSITIONS, VALUE_DIM))
        trained = self.decoder(inputs, value, training=True)
        used = self.decoder(inputs, value, training=False)
        return trained["output"], used["output"]


@pytest.mark.parametrize("compiled", quick_first([False, True]))
def test_dropout_is_the_same_at_all_steps_and_redrawn_per_call(compiled):
    probe = DropoutProbe()
    probe.compile(jit_compile=COMPILES)
    inputs = np.ones((BATCH, STEPS, probe.units), "float32")

    def run():
        return probe.predict(inputs, verbose=0) if compiled else numpy(probe(inputs))

    states, used = run()
    others, _ = run()

    # Both masks hold 0 and 2. The first state shows that of the inputs, and the
    # second that of the states, where the first is not zero.
    input_mask = states[:, 0]
    state_mask = states[:, 1] / np.maximum(input_mask, 1) - input_mask / 2
    assert set(np.unique(input_mask)) == set(np.unique(state_mask)) == {0, 2}
    for t in range(1, STEPS):
        expected = input_mask + state_mask * states[:, t - 1]
        np.testing.assert_allclose(states[:, t], expected)
        np.testing.assert_allclose(used[:, t], np.full_like(input_mask, t + 1))
    assert (states[0] != states[1]).any()
    assert (states[:, 0] != others[:, 0]).any()
    seen = (states[:, 0] > 0) & (others[:, 0] > 0)
    assert (states[:, 1] != others[:, 1])[seen].any()


def test_a_step_by_hand_draws_its_own_dropout_mask():
    cell, units = DropoutProbe().decoder.cell, DropoutProbe.units

    def step(batch):
        value = np.zeros((batch, POSITIONS, VALUE_DIM), "float32")
        arguments = (
            np.ones((batch, units), "float32"),
            cell.get_initial_state(batch_size=batch),
            cell.attention.memory(value),
        )
        outputs, _ = cell(*arguments, training=True)
        return arguments, numpy(outputs["output"])

    # Traced, not run: a mask that was kept would be unusable.
    word, value = keras.Input((units,)), keras.Input((POSITIONS, VALUE_DIM))
    memory = cell.attention.memory(value)
    cell(word, {"cell": [keras.Input((units,))]}, memory, training=True)

    arguments, first = step(BATCH)
    _, second = step(BATCH)
    _, other = step(BATCH + 1)
    with cell.same_dropout(*arguments, training=True):
        (_, third), (_, again) = step(BATCH), step(BATCH)

    # The state is zero: the output is the mask of the inputs.
    for mask in (first, second, other, third):
        assert set(np.unique(mask)) == {0, 2}
    for drawn, redrawn in ((first, second), (third, first), (third, second)):
        assert (drawn != redrawn).any()
    assert (other[0] != other[1]).any()
    np.testing.assert_array_equal(again, third)
    _, last = step(BATCH)
    assert (last != third).any()


@pytest.mark.parametrize("compiles", quick_first([False, COMPILES]))
@pytest.mark.exhaustive
def test_training_with_dropout_leaves_no_cached_masks(inputs, value, rng, compiles):
    decoder = decoder_of("gru", gate=True, dropout=0.3, recurrent_dropout=0.3)
    model = model_of(decoder)
    before = numpy(list(decoder.trainable_variables))

    data = draw(rng, (3, STEPS, INPUT_DIM), (3, POSITIONS, VALUE_DIM))
    target = np.zeros((3, STEPS, STATE_UNITS))
    sgd = keras.optimizers.SGD(0.1)
    fit(model, data, target, optimizer=sgd, epochs=2, jit_compile=compiles)

    after = numpy(list(decoder.trainable_variables))
    for old, new in zip(before, after, strict=True):
        assert np.isfinite(new).all()
        assert (old != new).any()
    without_dropout = decoder_of("gru", gate=True)
    without_dropout.set_weights(after)
    # Another batch size: a mask that was kept would not fit.
    decoder(inputs, value, training=True)
    assert_close(decoder(inputs, value), without_dropout(inputs, value))


@pytest.mark.parametrize(
    ("block", "compiles"), [(0, False), (additive_blocks.BLOCK_ELEMENTS, COMPILES)]
)
@pytest.mark.exhaustive
def test_training_with_dropout_runs_several_sequences(
    rng, monkeypatch, block, compiles
):
    # With a block of 0, scores are compiled, in graphs for any number of examples.
    monkeypatch.setattr(additive_blocks, "BLOCK_ELEMENTS", block)
    decoder = decoder_of("lstm", dropout=0.3, recurrent_dropout=0.3)
    shape = (BATCH, SEQUENCES, STEPS)
    data = draw(rng, (*shape, INPUT_DIM), VALUE)
    target = np.zeros((*shape, STATE_UNITS))

    fit(model_of(decoder, SEQUENCES), data, target, jit_compile=compiles)
