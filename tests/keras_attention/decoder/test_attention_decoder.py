"""Values of a decoder with additive attention, and its steps against its pass."""

import keras
import numpy as np
import pytest
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import assert_close, attend, draw, numpy
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    SEQUENCES,
    STATE_UNITS,
    STEPS,
    UNITS,
    VALUE,
    VALUE_DIM,
    WORDS,
    decode_as_in_the_paper,
    decoder_of,
    random_state,
)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_follows_the_paper(inputs, value, rng, name, gate):
    # Keras' default for the GRU resets after the product, which is another function.
    options = {"reset_after": False} if name == "gru" else {}
    decoder = decoder_of(name, gate=gate, **options)
    state = random_state(rng, decoder.cell, BATCH)

    actual = numpy(decoder(inputs, value, state))

    for b in range(BATCH):
        first = [x[b] for x in state["cell"]]
        expected = decode_as_in_the_paper(decoder.cell, inputs[b], value[b], first)
        assert_close(tree.map_structure(lambda x, b=b: x[b], actual), expected)


def test_first_query_is_the_initial_state_of_the_topmost_cell(inputs, value, rng):
    decoder = decoder_of("gru over lstm")
    state = random_state(rng, decoder.cell, BATCH)

    outputs = decoder(inputs, value, state)

    first = outputs["context"][:, 0], outputs["weights"][:, 0]
    assert_close(first, attend(decoder.cell.attention, state["cell"][-1][0], value))


@pytest.mark.parametrize("leading", [(), (SEQUENCES,)])
def test_shapes_are_known_before_anything_is_computed(leading):
    inputs = keras.Input((*leading, STEPS, INPUT_DIM), batch_size=BATCH)
    value = keras.Input((None, VALUE_DIM), batch_size=BATCH)

    symbolic = decoder_of("lstm", gate=True)(inputs, value)

    known = (BATCH, *leading)
    assert symbolic["output"].shape == (*known, STEPS, STATE_UNITS)
    assert symbolic["context"].shape == (*known, STEPS, VALUE_DIM)
    assert symbolic["weights"].shape == (*known, STEPS, None)
    assert [x.shape for x in symbolic["state"]["cell"]] == [(*known, STATE_UNITS)] * 2


class BareCell(keras.layers.Layer):
    """A cell as the documentation of `keras.layers.RNN` writes it."""

    state_size = STATE_UNITS

    def build(self, inputs_shape):
        self.kernel = self.add_weight(
            name="kernel", shape=(inputs_shape[-1] + STATE_UNITS, STATE_UNITS)
        )

    def call(self, inputs, states, training=None):
        both = ops.concatenate([inputs, states[0]], axis=-1)
        output = ops.tanh(ops.matmul(both, self.kernel))
        return output, [output]


class TensorCell(BareCell):
    """A cell whose initial state is a tensor, not a list."""

    def get_initial_state(self, batch_size=None):
        return ops.ones((batch_size, STATE_UNITS))


@pytest.mark.parametrize("cell_class", [BareCell, TensorCell])
def test_a_custom_cell(inputs, value, cell_class):
    cell = cell_class()
    decoder = ka.AttentionDecoder(ka.AttentionCell(cell, ka.AdditiveAttention(UNITS)))
    results = numpy(decoder(inputs, value))

    before = np.full((BATCH, STATE_UNITS), float(cell_class is TensorCell))
    state = decoder.cell.get_initial_state(BATCH)
    assert_close(numpy(state["cell"]), [before])
    memory = decoder.cell.attention.memory(value)
    for t in range(STEPS):
        outputs, state = decoder.cell(inputs[:, t], state, memory)
        read = np.concatenate([inputs[:, t], numpy(outputs["context"]), before], axis=1)
        before = np.tanh(read @ numpy(cell.kernel))
        assert_close(outputs["output"], before)
        assert_close(results["output"][:, t], before)


def test_the_depth_of_an_attentional_layer_without_units_is_inferred(inputs, value):
    options = {"order": "current", "input_feeding": True}
    options["attentional_vector"] = keras.Sequential([keras.layers.Dense(INPUT_DIM)])
    cell = ka.AttentionCell(CELLS["gru"](), ka.LuongAttention("general"), **options)
    symbolic = ka.AttentionDecoder(cell)(inputs, value)

    assert tuple(symbolic["output"].shape) == (BATCH, STEPS, INPUT_DIM)
    state = cell.get_initial_state(BATCH, cell.attention.memory(value))
    assert state["feedback"].shape[-1] == INPUT_DIM


@pytest.mark.parametrize("order", ["previous", "current"])
def test_the_state_of_a_gru_may_be_a_tensor_as_keras_returns_it(order, rng):
    source, inputs = draw(rng, VALUE, INPUTS)
    gru = keras.layers.GRU(STATE_UNITS, return_sequences=True, return_state=True)
    values, state = gru(source)
    attention = ka.AdditiveAttention(UNITS, coverage=True)
    cell = ka.AttentionCell(CELLS["gru"](), attention, order=order)
    decoder = ka.AttentionDecoder(cell)

    actual = decoder(inputs, values, initial_state={"cell": state})

    assert_close(actual, decoder(inputs, values, initial_state={"cell": [state]}))
    memory = cell.memory(values)
    outputs, next_state = cell(inputs[:, 0], {"cell": state}, memory)
    expected, expected_state = cell(inputs[:, 0], {"cell": [state]}, memory)
    assert_close(outputs, expected)
    assert_close(next_state, {**expected_state, "cell": expected_state["cell"][0]})


@pytest.mark.parametrize("search", [ka.greedy_search, ka.beam_search])
def test_a_search_starts_from_a_state_that_is_a_tensor(search, rng):
    cell = ka.AttentionCell(CELLS["gru"](), ka.AdditiveAttention(UNITS, coverage=True))
    embed, classify = keras.layers.Embedding(WORDS, 5), keras.layers.Dense(WORDS)
    memory = cell.memory(draw(rng, VALUE))
    state = draw(rng, (BATCH, STATE_UNITS))

    def result(cell_state):
        def step(token_ids, state):
            outputs, state = cell(embed(token_ids), state, memory)
            log_probs = ops.log_softmax(classify(outputs["output"]))
            return log_probs, state, outputs["weights"]

        start = cell.complete_state({"cell": cell_state}, memory)
        return search(step, start, start=1, end=2, max_length=3)

    assert_close(numpy(result(state)), numpy(result([state])))


def test_a_step_ends_the_mask_of_an_embedded_word(rng):
    """Keras warns of layers that lose a mask, in every search over an embedding."""
    embed = keras.layers.Embedding(5, INPUT_DIM, mask_zero=True)
    cell = decoder_of("gru").cell
    memory = cell.attention.memory(draw(rng, VALUE))

    outputs, _ = cell(
        embed(np.ones(BATCH, "int32")), cell.get_initial_state(BATCH), memory
    )

    assert getattr(outputs["output"], "_keras_mask", None) is None
