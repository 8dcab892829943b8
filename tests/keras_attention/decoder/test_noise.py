"""Noise that attentions draw in training, before the loop of a decoder."""

import keras
import pytest
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import assert_close, numpy
from attention_testing.decoder.reference import STATE_UNITS, UNITS, VALUE


@pytest.mark.parametrize("several", [False, True])
def test_monotonic_noise_is_drawn_for_every_training_pass(inputs, value, several):
    weighting = ka.MonotonicWeighting(noise=1.0, seed=3)
    attention = ka.AdditiveAttention(UNITS, weighting=weighting)
    if several:
        attention = [ka.LuongAttention("general"), attention]
    cell = ka.AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention)
    decoder = ka.AttentionDecoder(cell)
    value = [value, value] if several else value

    def weights(**options):
        outputs = numpy(decoder(inputs, value, **options)["weights"])
        return outputs[1] if several else outputs

    first, second = weights(training=True), weights(training=True)
    assert (first != second).any()
    # Every row and step has noise of its own.
    used = weights()
    assert (first != used).any(axis=-1).all()
    assert (weights(training=False) == used).all()


@pytest.mark.parametrize("order", ["previous", "current"])
def test_noise_of_one_step_is_that_of_one_sequence(inputs, value, order):
    attention = ka.AdditiveAttention(UNITS, dropout=0.5)
    cell = ka.AttentionCell(keras.layers.GRUCell(STATE_UNITS), attention, order=order)
    inputs, memory = inputs[:, 0], attention.memory(value)
    state = cell.get_initial_state(len(inputs), memory)
    cell(inputs, state, memory)
    noise = tree.map_structure(lambda x: x[0], cell.draw(memory, 1))

    step, _ = cell(inputs, state, memory, noise, training=True)

    states = tree.map_structure(lambda x: ops.convert_to_tensor(x)[:, None], state)
    expected, _ = cell(inputs[:, None], states, memory, noise, training=True)
    assert step["weights"].shape == VALUE[:2]
    assert_close(step["weights"], expected["weights"][:, 0], 1e-6)
