"""The papers' equations as slow loops, and helpers of the decoder tests."""

import keras
import numpy as np
from keras import tree

import keras_attention as ka
from attention_testing.arrays import draw, numpy, randomized, sigmoid, softmax
from attention_testing.layers.cases import CASES

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, SEQUENCES, STEPS, POSITIONS = 2, 3, 5, 7
INPUT_DIM, VALUE_DIM, STATE_UNITS, UNITS = 11, 13, 17, 19
LOWER_UNITS, WORDS = 23, 29
ATTENTIONAL, OTHER_DIM, OTHER_LENGTH = 31, 37, 3

INPUTS = (BATCH, STEPS, INPUT_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DIM)
# Some positions of the first row, and none of the second.
VALUE_MASK = np.array([[1, 1, 0, 1, 0, 1, 1], [0] * 7], "bool")


def stacked(lower, upper):
    return lambda **options: keras.layers.StackedRNNCells(
        [lower(LOWER_UNITS, **options), upper(STATE_UNITS, **options)]
    )


CELLS = {
    "gru": lambda **options: keras.layers.GRUCell(STATE_UNITS, **options),
    "lstm": lambda **options: keras.layers.LSTMCell(STATE_UNITS, **options),
    "simple": lambda **options: keras.layers.SimpleRNNCell(STATE_UNITS, **options),
    "stacked lstm": stacked(keras.layers.LSTMCell, keras.layers.LSTMCell),
    "stacked gru": stacked(keras.layers.GRUCell, keras.layers.GRUCell),
    "gru over lstm": stacked(keras.layers.LSTMCell, keras.layers.GRUCell),
    "normalized gru": lambda **options: ka.LayerNormGRUCell(STATE_UNITS, **options),
    "normalized lstm": lambda **options: ka.LayerNormLSTMCell(STATE_UNITS, **options),
}


def attend_as_in_the_paper(attention, s, h):
    """Context and weights of one state for the annotations of one source."""
    score, dense = attention.step.score, attention.memory.key_projection
    w_a, v_a = numpy([score.query_projection.kernel, score.scale])
    u_a, bias = numpy([dense.kernel, dense.bias])
    alpha = softmax(np.tanh(w_a.T @ s + h @ u_a + bias) @ v_a)
    return alpha @ h, alpha


def gru_as_in_the_paper(cell, x, state):
    """Appendix A.1.1, where the update gate z says how much is new.

    Keras lets its gate say how much is kept, hence the sign.
    """
    (s,) = state
    kernel, recurrent, bias = numpy([cell.kernel, cell.recurrent_kernel, cell.bias])
    w_z, w_r, w = np.split(kernel, 3, axis=1)
    u_z, u_r, u = np.split(recurrent, 3, axis=1)
    b_z, b_r, b = np.split(bias, 3)
    z = sigmoid(-(x @ w_z + s @ u_z + b_z))
    r = sigmoid(x @ w_r + s @ u_r + b_r)
    proposal = np.tanh(x @ w + (r * s) @ u + b)
    s = (1 - z) * s + z * proposal
    return s, [s]


def lstm_as_in_the_paper(cell, x, state):
    """Show, Attend and Tell, equations 1 to 3."""
    h, c = state
    kernel, recurrent, bias = numpy([cell.kernel, cell.recurrent_kernel, cell.bias])
    i, f, g, o = np.split(x @ kernel + h @ recurrent + bias, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return h, [h, c]


def decode_as_in_the_paper(cell, words, annotations, state):
    """One sequence, one step at a time; `state` is a list of vectors."""
    run_cell = gru_as_in_the_paper if len(state) == 1 else lstm_as_in_the_paper
    results = {"output": [], "context": [], "weights": [], "query": []}
    for word in words:
        results["query"].append(state[0])
        context, weights = attend_as_in_the_paper(cell.attention, state[0], annotations)
        if cell.gate:
            kernel, bias = numpy([cell.context_gate.kernel, cell.context_gate.bias])
            context = sigmoid(state[0] @ kernel + bias) * context
        step_input = np.concatenate([word, context])
        output, state = run_cell(cell.cell, step_input, state)
        results["output"].append(output)
        results["context"].append(context)
        results["weights"].append(weights)
    outputs = {key: np.stack(steps) for key, steps in results.items()}
    outputs["cell_output"] = outputs["output"]
    return {**outputs, "state": {"cell": state}}


def step_by_step(decoder, inputs, value, state, *, inputs_mask=None, value_mask=None):
    """Run the cell of a decoder in a Python loop, as the reference."""
    cell = decoder.cell
    memory, results = cell.memory(value, value_mask=value_mask), []
    for t in range(inputs.shape[-2]):
        outputs, new_state = cell(inputs[..., t, :], state, memory)
        if inputs_mask is not None:
            keep = inputs_mask[..., t]

            def masked(new, old, keep=keep):
                missing = (1,) * (new.ndim - keep.ndim)
                return np.where(keep.reshape(keep.shape + missing), new, old)

            new_state = tree.map_structure(masked, numpy(new_state), numpy(state))
            outputs = tree.map_structure(lambda x: masked(x, 0 * x), numpy(outputs))
        state = new_state
        results.append(numpy(outputs))
    axis = inputs.ndim - 2
    outputs = tree.map_structure(lambda *steps: np.stack(steps, axis=axis), *results)
    return {**outputs, "state": numpy(state)}


def random_state(rng, cell, *leading):
    """An initial state whose every entry is drawn at random."""
    zeros = cell.get_initial_state(batch_size=1)
    return tree.map_structure(lambda x: draw(rng, (*leading, x.shape[-1])), zeros)


# Every option alone, and combined with others.
CHOICES = {
    "Bahdanau": {},
    "Bahdanau, gated": {"gate": True},
    "Bahdanau, attentional": {"attentional_vector": ATTENTIONAL},
    "Bahdanau, fed": {"input_feeding": True, "gate": True},
    "Bahdanau, input in query": {"input_in_query": True, "gate": True},
    "Luong": {"order": "current", "attentional_vector": ATTENTIONAL},
    "Luong, plain": {"order": "current", "gate": True},
    "Luong, fed with the context": {"order": "current", "input_feeding": True},
    "adaptive": {"order": "current", "sentinel": True},
}
CHOICES["Luong, fed"] = {**CHOICES["Luong"], "input_feeding": True}
CHOICES["adaptive, fed"] = {**CHOICES["adaptive"], "input_feeding": True, "gate": True}


def decoder_of_choice(
    choice,
    attention="general",
    cell="lstm",
    *,
    value=VALUE,
    dtype=None,
    scale=0.5,
    **options,
):
    """A decoder whose weights, biases included, are all drawn at random.

    `attention` names one or several; further options are those of the recurrent cell.
    """
    if isinstance(attention, str):
        attention = CASES[attention].build(dtype=dtype)
    else:
        attention = [CASES[name].build(dtype=dtype) for name in attention]
        value = [VALUE, (BATCH, OTHER_LENGTH, OTHER_DIM)]
    cell = CELLS[cell](dtype=dtype, **options)
    cell = ka.AttentionCell(cell, attention, dtype=dtype, **CHOICES[choice])
    decoder = ka.AttentionDecoder(cell, dtype=dtype)
    decoder.build(INPUTS, value)
    return randomized(decoder, scale)


def decoder_of(cell, *, gate=False, **options):
    choice = "Bahdanau, gated" if gate else "Bahdanau"
    return decoder_of_choice(choice, "additive", cell, **options)


def model_of(decoder, *leading):
    """A model that returns the output of a decoder."""
    inputs = keras.Input((*leading, None, INPUT_DIM))
    value = keras.Input((None, VALUE_DIM))
    return keras.Model([inputs, value], decoder(inputs, value)["output"])
