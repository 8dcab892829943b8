"""Dtypes of a decoder: half precision, double precision and mixtures."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import EXACT, assert_close, draw, numpy
from attention_testing.combinations import covering, quick_first
from attention_testing.decoder.reference import (
    BATCH,
    CELLS,
    INPUTS,
    STATE_UNITS,
    UNITS,
    VALUE,
    decoder_of_choice,
    step_by_step,
)
from attention_testing.rounding import rounding_bound
from keras_attention import AdditiveAttention, AttentionCell, AttentionDecoder

# One step rounds at most twelve times in turn: four in the attention (query, scores,
# weights, context), eight in the cell (two products, their sum, a gate, the candidate,
# two terms of the carry, the output). A step at least halves the error of the state, so
# all steps add up to no more than twice that.
ROUNDINGS = 24


def calm(decoder, scale=0.1):
    """Draw small weights, so that no step enlarges the error of the step before."""
    rng = np.random.default_rng(2)
    for variable in decoder.trainable_variables:
        variable.assign(rng.uniform(-scale, scale, size=variable.shape))
    return decoder


def decoder_of(cell, attention, outer, **options):
    """A calm decoder whose cell, attention and other parts may differ in dtype."""
    cell = AttentionCell(cell, attention, dtype=outer, **options)
    decoder = AttentionDecoder(cell, dtype=outer)
    decoder.build(INPUTS, VALUE)
    return calm(decoder)


def bounded(rng, *shapes):
    """Arrays of numbers between -1 and 1, so that states and contexts are, too."""
    return [rng.uniform(-1, 1, size=shape).astype("float32") for shape in shapes]


def float32(x):
    return numpy(ops.cast(x, "float32"))


@pytest.mark.parametrize(
    ("choice", "half"),
    covering(
        ["Luong, fed", "Bahdanau, fed", "Luong"],
        ["mixed_bfloat16", "mixed_float16"],
        strength=1,
    ),
)
def test_mixed_precision_of_every_order(rng, choice, half):
    decoder = calm(decoder_of_choice(choice, dtype=half))
    inputs, value = bounded(rng, INPUTS, VALUE)

    outputs = decoder(inputs, value)

    exact = numpy(calm(decoder_of_choice(choice))(inputs, value))
    assert {x.dtype for x in decoder.trainable_variables} == {"float32"}
    for x in tree.flatten(outputs):
        assert keras.backend.standardize_dtype(x.dtype) == half[6:]
    for name in ("output", "context"):
        assert_close(
            float32(outputs[name]), exact[name], rounding_bound(half, ROUNDINGS)
        )


@pytest.mark.parametrize(
    "options", quick_first([{"coverage": True}, {"weighting": "monotonic"}])
)
def test_attention_states_keep_their_precision(rng, options):
    half = "mixed_bfloat16"
    attention = AdditiveAttention(UNITS, dtype=half, **options)
    decoder = decoder_of(CELLS["gru"](dtype=half), attention, half)
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    first = decoder(inputs, value)
    second = decoder(inputs, value, first["state"])
    model = keras.Model([inputs, value], [first["state"], second["state"]])

    arrays = bounded(rng, INPUTS, VALUE)
    before, after = numpy(model(list(arrays)))

    remembered = tree.flatten(before["attention"]), tree.flatten(after["attention"])
    for old, new in zip(*remembered, strict=True):
        assert old.dtype == new.dtype == "float32"
    memory = decoder.cell.attention.memory(arrays[1])
    state = decoder.cell.get_initial_state(BATCH, memory)
    for _ in range(2):
        state = step_by_step(decoder, *arrays, state)["state"]
    # The sum of the weights of all steps has their errors, and is as large as they.
    bound = rounding_bound("bfloat16", 2 * ROUNDINGS)
    assert_close(after["attention"], state["attention"], bound)


@pytest.mark.parametrize(
    "policies",
    quick_first([("float32", "mixed_bfloat16"), ("mixed_bfloat16", "float32")]),
)
def test_a_given_state_has_the_precision_of_the_cell(rng, policies):
    inner, outer = policies
    attention = AdditiveAttention(UNITS, dtype=outer)
    decoder = decoder_of(CELLS["gru"](dtype=inner), attention, outer)
    inputs, value = keras.Input(INPUTS[1:]), keras.Input(VALUE[1:])
    initial_state = keras.Input((STATE_UNITS,))
    state = decoder(inputs, value, {"cell": (initial_state,)})["state"]
    model = keras.Model([inputs, value, initial_state], state["cell"])

    arrays = bounded(rng, INPUTS, VALUE, (BATCH, STATE_UNITS))
    (outputs,) = tree.flatten(model.predict(arrays, verbose=0))

    assert str(outputs.dtype) == ("float32" if inner == "float32" else "bfloat16")
    steps = step_by_step(decoder, *arrays[:2], {"cell": [arrays[2]]})
    # Both round, each in its own order.
    bound = rounding_bound("bfloat16", 2 * ROUNDINGS)
    assert_close(float32(outputs), float32(steps["state"]["cell"][0]), bound)


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="has no float64 by default"
)
@pytest.mark.parametrize("feeding", [False, True])
def test_attentional_vector_has_the_precision_of_the_cell(rng, feeding):
    options = {"attentional_vector": UNITS, "input_feeding": feeding}
    attention = AdditiveAttention(UNITS, dtype="float64")
    decoder = decoder_of(CELLS["gru"](dtype="float64"), attention, "float64", **options)

    outputs = decoder(*draw(rng, INPUTS, VALUE))

    assert keras.backend.standardize_dtype(outputs["output"].dtype) == "float64"


@pytest.mark.parametrize("order", ["previous", "current"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_cell_computes_in_its_own_precision(order, cell, rng):
    inputs, value = bounded(rng, INPUTS, VALUE)
    attention = AdditiveAttention(UNITS, dtype="mixed_bfloat16")
    decoder = decoder_of(
        CELLS[cell](dtype="float32"), attention, "mixed_bfloat16", order=order
    )

    outputs = decoder(inputs, value)

    state = decoder.cell.get_initial_state(BATCH)
    steps = step_by_step(decoder, inputs, value, state)
    whole, stepwise = (float32(x["cell_output"]) for x in (outputs, steps))
    # Only the attention rounds: four times in the pass, and as often in the step.
    assert_close(whole, stepwise, rounding_bound("bfloat16", 8))


@pytest.mark.parametrize(
    ("order", "outer", "options"),
    covering(
        ["previous", "current"],
        ["mixed_bfloat16", "float32"],
        [{}, {"gate": True}, {"input_feeding": True, "attentional_vector": UNITS}],
        strength=1,
    ),
)
def test_attention_computes_in_its_own_precision(order, outer, options, rng, gradients):
    inputs, value = bounded(rng, INPUTS, VALUE)
    inner = "float32" if outer == "mixed_bfloat16" else "mixed_bfloat16"
    options = {"order": order, **options}
    mixed, precise = (
        decoder_of(
            CELLS["gru"](dtype=outer),
            AdditiveAttention(UNITS, dtype=inner),
            outer,
            **options,
        )
        for inner, outer in ((inner, outer), ("float32", "float32"))
    )

    def slopes(decoder):
        def total():
            steps = decoder(inputs, value)
            both = steps["output"] + steps["context"][..., :1]
            return ops.sum(ops.cast(both, "float32"))

        return gradients(total, (), decoder.trainable_variables)

    for actual, expected in zip(slopes(mixed), slopes(precise), strict=True):
        # The backward pass rounds as often as the forward pass.
        bound = rounding_bound("bfloat16", 2 * ROUNDINGS, np.abs(expected).max())
        assert_close(actual, expected, bound)
    memory = mixed.cell.attention.memory(value)
    step, _ = mixed.cell(inputs[:, 0], mixed.cell.get_initial_state(BATCH), memory)
    assert step["context"].dtype == step["output"].dtype


@pytest.mark.skipif(not EXACT, reason="computes in float32")
@pytest.mark.parametrize("choice", ["Luong, fed", "Bahdanau, fed"])
def test_stepping_equals_the_full_pass_in_double_precision(rng, choice):
    decoder = decoder_of_choice(choice, dtype="float64")
    inputs, value = (x.astype("float64") for x in draw(rng, INPUTS, VALUE))
    state = decoder.cell.get_initial_state(BATCH)

    actual = numpy(decoder(inputs, value))

    expected = step_by_step(decoder, inputs, value, state)
    assert_close(actual, expected, atol=1e-10)
    assert {x.dtype for x in tree.flatten(actual)} == {np.dtype("float64")}
