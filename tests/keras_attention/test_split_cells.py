import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import EXACT, assert_close, randomized
from attention_testing.cells import CELLS
from attention_testing.combinations import quick_first
from keras_attention import backends, loops
from keras_attention.split_cells import split_cell

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, DEPTH, CONTEXT_DIM, UNITS = 2, 3, 5, 7, 11


def random_cell(name, depth, **options):
    cell = CELLS[name](UNITS, **options)
    cell.build((None, depth))
    return randomized(cell)


def run(cell, inputs, contexts, state, *, split):
    """Outputs of all steps.

    The context of a step is its row of `contexts`, and what comes back from the state.
    """
    splitter = split_cell(cell, inputs, cell.compute_dtype) if split else None
    sequence = {"now": splitter.sequences if split else inputs}
    if contexts is not None:
        sequence["context"] = contexts

    def step(state, now):
        context = now.get("context")
        if context is not None:
            context = context + state[0][:, :CONTEXT_DIM]
        known = [] if context is None else [context]
        if split:
            output, new_state = splitter(now["now"], context, state)
        else:
            x = ops.concatenate([now["now"], *known], axis=-1)
            output, new_state = cell(x, state)
        return list(new_state), {"output": output, "seen": [*known, state[0]]}

    _, outputs = loops.scan(step, state, sequence)
    if split:
        *contexts, states = outputs["seen"]
        splitter.record_kernel_inputs(contexts[0] if contexts else None, states)
    return outputs["output"]


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context": False},
        {"use_bias": False},
        pytest.param({"dtype": "float64"}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_equals_the_cell_in_one_piece(rng, gradients, name, options):
    context, dtype = options.get("context", True), options.get("dtype", "float32")
    atol = 1e-10 if EXACT and dtype == "float64" else 1e-5
    cell_options = {"dtype": dtype, "use_bias": options.get("use_bias", True)}
    cell = random_cell(name, DEPTH + context * CONTEXT_DIM, **cell_options)
    shapes = [(STEPS, BATCH, DEPTH), (STEPS, BATCH, CONTEXT_DIM)][: 1 + context]
    shapes += [(BATCH, UNITS)] * len(cell.get_initial_state(batch_size=1))
    arrays = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    readout = rng.normal(size=(STEPS, BATCH, UNITS))

    def outputs_of(inputs, *rest, split):
        contexts, state = (rest[0], rest[1:]) if context else (None, rest)
        return run(cell, inputs, contexts, list(state), split=split)

    def read(split):
        def read(*tensors):
            outputs = outputs_of(*tensors, split=split)
            return ops.sum(ops.multiply(outputs, readout.astype(dtype)))

        return gradients(read, arrays, cell.trainable_variables)

    actual, expected = (
        outputs_of(*map(ops.convert_to_tensor, arrays), split=split)
        for split in (True, False)
    )
    assert_close(actual, expected, atol)
    slopes = read(split=False)
    assert_close(read(split=True), slopes, atol)
    assert all((slope != 0).any() for slope in slopes)


class Subclass(keras.layers.GRUCell):
    """A cell that may override the computation of its base class."""


@pytest.mark.parametrize(
    "cell",
    [
        keras.layers.LSTMCell(UNITS, dropout=0.1),
        ka.LayerNormGRUCell(UNITS, recurrent_dropout=0.1),
        keras.layers.GRUCell(UNITS, reset_after=False),
        keras.layers.StackedRNNCells([keras.layers.GRUCell(UNITS)]),
        Subclass(UNITS),
    ],
    ids=["dropout", "recurrent dropout", "reset before", "stacked", "subclass"],
)
def test_other_cells_stay_in_one_piece(cell):
    assert split_cell(cell, np.zeros((STEPS, BATCH, DEPTH), "float32"), None) is None


@pytest.mark.parametrize("name", quick_first(sorted(CELLS)))
def test_deferred_gradients_are_freed(name, monkeypatch):
    # A gradient function that is not freed belongs to a cycle of tensors.
    made, custom_gradient = [], ops.custom_gradient

    def remembering(function):
        def call(*tensors):
            results, gradient = function(*tensors)
            made.append(weakref.ref(gradient))
            return results, gradient

        return custom_gradient(call)

    monkeypatch.setattr(ops, "custom_gradient", remembering)
    x = np.ones((BATCH, STEPS, DEPTH), "float32")
    value = np.ones((BATCH, 2, CONTEXT_DIM), "float32")
    cells = [CELLS[name](UNITS) for _ in range(3)]
    attention = ka.AdditiveAttention(CONTEXT_DIM)
    decoder = ka.AttentionDecoder(ka.AttentionCell(cells[0], attention))
    outputs = ka.RecurrentEncoder(*cells[1:])(x), decoder(x, value)
    assert made or not backends.defers_gradients(np.zeros(1))
    del outputs, decoder
    gc.collect()

    assert [gradient for gradient in made if gradient() is not None] == []
