"""Arguments that a cell or a decoder refuses."""

import re

import keras
import numpy as np
import pytest
from keras import tree

import keras_attention as ka
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUT_DIM,
    INPUTS,
    STATE_UNITS,
    UNITS,
    VALUE,
    decoder_of,
)


def zeros(*shape):
    return np.zeros(shape, "float32")


def heads(**options):
    return ka.MultiHeadAttention(3, 5, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": keras.layers.Dense(8)}, "must be a Keras RNN cell.*Received: <Dense"),
        ({"cell": keras.layers.GRU(8)}, "must be a Keras RNN cell.*Received: <GRU"),
        ({"cell": "gru"}, "must be a Keras RNN cell.*Received: 'gru'"),
        ({"cell": None}, "must be a Keras RNN cell.*Received: None"),
        ({"attention": keras.layers.Attention()}, "attention must be.*: <Attention"),
        ({"attention": ka.SelfAttention(3, 5)}, "query and a value.*: <SelfAttention"),
        ({"attention": None}, "attention must be.*Received: None"),
        ({"attention": heads(causal=True)}, "neither be causal.*=True"),
        ({"attention": heads(positions="alibi")}, "neither be causal.*: causal="),
        ({"attention": heads(window_size=2)}, "neither be causal.*: causal="),
        ({"order": "luong"}, "'previous', 'current'.*Received: 'luong'"),
        ({"order": "current", "input_in_query": True}, "needs order='previous'"),
    ],
)
def test_parts_that_do_not_fit_are_named(options, message):
    parts = {"cell": CELLS["lstm"](), "attention": ka.AdditiveAttention(UNITS)}

    with pytest.raises(ValueError, match=message):
        ka.AttentionCell(**{**parts, **options})


@pytest.mark.parametrize("cell", [keras.layers.GRUCell(8), None], ids=repr)
def test_decoder_needs_an_attention_cell(cell):
    message = f"cell must be an AttentionCell. Received: {re.escape(repr(cell))}"

    with pytest.raises(ValueError, match=message):
        ka.AttentionDecoder(cell)


def new_decoder(cell="lstm"):
    cell = ka.AttentionCell(CELLS[cell](), ka.AdditiveAttention(UNITS))
    return ka.AttentionDecoder(cell)


SHAPES = {
    "inputs": INPUTS,
    "value": VALUE,
    "inputs_mask": INPUTS[:-1],
    "value_mask": VALUE[:-1],
}


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize(
    ("wrong", "shape", "expected"),
    [
        ("inputs", (2, 11), "(batch, [sequences,] steps, depth)"),
        ("inputs", (2, 3, 5, 7, 11), "(batch, [sequences,] steps, depth)"),
        ("value", (2, 13), "(batch, positions, depth)"),
        ("value", (2, 3, 7, 13), "(batch, positions, depth)"),
        ("inputs_mask", (2, 5, 1), "(2, 5)"),
        ("inputs_mask", (2, 1), "(2, 5)"),
        ("value_mask", (2, 1), "(2, 7)"),
    ],
)
def test_shape_that_does_not_fit_is_named(make, wrong, shape, expected):
    arrays = {name: zeros(*x) for name, x in {**SHAPES, wrong: shape}.items()}
    message = f"{wrong} must have the shape {expected}. Received: {shape}"

    with pytest.raises(ValueError, match=re.escape(message)):
        make("lstm")(arrays.pop("inputs"), arrays.pop("value"), **arrays)


STATES = [
    zeros(2, 17),
    {"state": [zeros(2, 17), zeros(2, 17)]},
    {"cell": zeros(2, 17)},
    {"cell": [zeros(2, 17)]},
    {"cell": [zeros(2, 17), zeros(2, 19)]},
    {"cell": [zeros(2, 3, 17), zeros(2, 17)]},
    {"cell": [zeros(2, 17), zeros(2, 17)], "fedd": zeros(2, 17)},
]


def shapes(nested):
    return tree.map_structure(lambda x: getattr(x, "shape", x), nested)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize("state", STATES, ids=lambda state: str(shapes(state)))
def test_a_state_of_another_structure_is_named(make, state):
    decoder = make("lstm")
    inputs, value = zeros(*INPUTS), zeros(*VALUE)
    expected = f"units \\[17, 17\\], .*Received: {re.escape(str(shapes(state)))}"

    with pytest.raises(ValueError, match=f"initial_state must be a dict.*{expected}"):
        decoder(inputs, value, state)
    memory = decoder.cell.attention.memory(value)
    message = f"(?<!initial_)state must be a dict.*{expected}"
    with pytest.raises(ValueError, match=message):
        decoder.cell(inputs[:, 0], state, memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize("memory", [zeros(*VALUE), {"values": zeros(*VALUE)}, None])
def test_a_memory_of_another_structure_is_named(make, memory):
    cell = make("lstm").cell
    state = cell.get_initial_state(batch_size=BATCH)
    expected = re.escape(f"Received: {shapes(memory) if memory is not None else None}")

    with pytest.raises(ValueError, match=f"memory must be the dict that.*{expected}"):
        cell(zeros(BATCH, INPUT_DIM), state, memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
@pytest.mark.parametrize("shape", [(2,), (2, 3, 5, 11)])
def test_a_step_of_the_wrong_rank_is_named(make, shape):
    cell = make("lstm").cell
    memory = cell.attention.memory(zeros(*VALUE))
    message = re.escape(f"(batch, [sequences,] depth). Received: {shape}")

    with pytest.raises(ValueError, match=f"inputs must have the shape {message}"):
        cell(zeros(*shape), cell.get_initial_state(batch_size=BATCH), memory)


@pytest.mark.parametrize("make", [decoder_of, new_decoder])
def test_different_batch_sizes_are_named(make):
    decoder, value = make("lstm"), zeros(BATCH + 1, *VALUE[1:])
    message = r"same batch size.* inputs \(2, .* values \[\(3, 7, 13\)\]"

    with pytest.raises(ValueError, match=message):
        decoder(zeros(*INPUTS), value)
    state, memory = decoder.cell.get_initial_state(2), decoder.cell.attention.memory
    with pytest.raises(ValueError, match=message):
        decoder.cell(zeros(BATCH, INPUT_DIM), state, memory(value))


@pytest.mark.parametrize(
    ("count", "value", "message"),
    [
        (2, [zeros(*VALUE)] * 3, "value must be one .* list of 2.*Received"),
        (1, [zeros(*VALUE)], r"one tensor for one .*: a list .* \[\(2, 7, 13\)\]"),
        (1, {"values": zeros(*VALUE)}, "value must be a tensor .*: a dict with values"),
    ],
)
def test_a_value_of_another_structure_is_named(count, value, message):
    attentions = [ka.AdditiveAttention(UNITS) for _ in range(count)]
    attention = attentions if count > 1 else attentions[0]
    decoder = ka.AttentionDecoder(ka.AttentionCell(CELLS["lstm"](), attention))

    with pytest.raises(ValueError, match=message):
        decoder(zeros(*INPUTS), value)


def test_a_memory_is_required_if_the_fed_depth_is_unknown():
    cell = ka.AttentionCell(
        CELLS["gru"](), ka.LuongAttention(), order="current", input_feeding=True
    )

    with pytest.raises(ValueError, match=r"memory must be given.*memory=None"):
        cell.get_initial_state(BATCH)


def test_an_initial_state_has_the_batch_size_of_the_inputs():
    decoder = new_decoder("gru")
    state = {"cell": [zeros(BATCH + 1, STATE_UNITS)]}

    with pytest.raises(ValueError, match=r"initial_state must have .*Received: \(3, "):
        decoder(zeros(*INPUTS), zeros(*VALUE), state)


@pytest.mark.parametrize("state", [{}, {"fed": zeros(2, 17)}, None], ids=repr)
def test_a_state_to_complete_needs_that_of_the_cell(state):
    cell = ka.AttentionCell(CELLS["gru"](), ka.AdditiveAttention(UNITS, coverage=True))
    message = r"state must be a dict.*'cell' with tensors of rank 2 or 3.*Received: "

    with pytest.raises(ValueError, match=message + re.escape(str(shapes(state)))):
        cell.complete_state(state, cell.memory(zeros(*VALUE)))
