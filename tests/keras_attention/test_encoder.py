import re

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import assert_close, draw, numpy, randomized
from attention_testing.cells import CELLS
from attention_testing.combinations import covering, quick_first
from attention_testing.models import COMPILES, fit, reloaded
from attention_testing.rounding import rounding_bound
from keras_attention import LayerNormGRUCell, RecurrentEncoder

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, DEPTH, UNITS, BACKWARD_UNITS = 3, 5, 7, 11, 13
INPUTS = (BATCH, STEPS, DEPTH)
# Padding behind, before and between; the last row has nothing else.
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], "bool")


@keras.saving.register_keras_serializable(package="tests")
class Sum(keras.layers.Layer):
    """A minimal RNN cell of Keras, whose state is the sum of its inputs."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def build(self, inputs_shape):
        self.kernel = self.add_weight(shape=(inputs_shape[-1], self.units))
        self.built = True

    def call(self, inputs, states):
        state = states[0] + ops.matmul(inputs, self.kernel)
        return ops.tanh(state), [state]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def stacked(units, **options):
    stack = keras.layers.LSTMCell(units + 2), keras.layers.SimpleRNNCell(units)
    return keras.layers.StackedRNNCells(stack, **options)


EVERY_CELL = {**CELLS, "custom": Sum, "stacked": stacked}


def random_cells(name, bidirectional=True, scale=0.5, **options):
    """Cells whose weights, biases included, are all drawn at random."""
    sizes = (UNITS, BACKWARD_UNITS)[: 1 + bidirectional]
    cells = [EVERY_CELL[name](units, **options) for units in sizes]
    for cell in cells:
        cell.build((None, DEPTH))
    return [randomized(cell, scale, seed) for seed, cell in enumerate(cells)]


def as_keras_does(cells, inputs, mask=None, states=None):
    """Return the outputs of `keras.layers.RNN`, zero at masked steps."""
    annotations, last = [], []
    states = states or [None] * len(cells)
    for cell, state, backwards in zip(cells, states, (False, True), strict=False):
        rnn = keras.layers.RNN(
            cell,
            return_sequences=True,
            return_state=True,
            go_backwards=backwards,
            zero_output_for_mask=True,
        )
        outputs, *after = rnn(inputs, mask=mask, initial_state=state)
        annotations.append(ops.flip(outputs, 1) if backwards else outputs)
        last += after
    return [ops.concatenate(annotations, axis=-1), *last]


def assert_equal(actual, expected, atol=1e-5):
    assert_close(tree.flatten(actual), tree.flatten(expected), atol)


@pytest.mark.parametrize(
    ("name", "bidirectional"), covering(EVERY_CELL, [True, False], strength=1)
)
def test_equals_the_layers_of_keras(rng, gradients, name, bidirectional):
    cells, inputs = random_cells(name, bidirectional), draw(rng, INPUTS)
    encoder = RecurrentEncoder(*cells, return_state=True)
    variables = [x for cell in cells for x in cell.trainable_variables]

    actual = encoder(inputs, mask=MASK)

    expected = as_keras_does(cells, inputs, MASK)
    readouts = [draw(rng, x.shape) for x in tree.flatten(expected)]
    assert_equal(actual, expected)

    def read(encode):
        def read(inputs):
            pairs = zip(tree.flatten(encode(inputs)), readouts, strict=True)
            return sum(ops.sum(ops.multiply(x, y)) for x, y in pairs)

        return gradients(read, [inputs], variables)

    slopes = read(lambda inputs: as_keras_does(cells, inputs, MASK))
    assert_close(read(lambda inputs: encoder(inputs, mask=MASK)), slopes, 1e-4)
    assert all((slope != 0).any() for slope in slopes)


@pytest.mark.parametrize("name", ["lstm", "normalized gru", "stacked"])
def test_starts_with_the_states_it_is_given(rng, name):
    cells, inputs = random_cells(name), draw(rng, INPUTS)
    states = [cell.get_initial_state(batch_size=BATCH) for cell in cells]
    states = tree.map_structure(lambda x: draw(rng, x.shape), states)
    encoder = RecurrentEncoder(*cells, return_state=True)

    outputs = encoder(inputs, [x for state in states for x in state], mask=MASK)

    assert_equal(outputs, as_keras_does(cells, inputs, MASK, states))
    # A row without a valid step keeps its initial state.
    last, returned = ([x[2] for x in tree.flatten(y)] for y in (outputs[1:], states))
    assert_close(last, returned)


@pytest.mark.parametrize(
    ("name", "padding"),
    covering(["gru", "normalized lstm", "stacked"], [np.nan, np.inf], strength=1),
)
def test_padding_reaches_nothing(rng, gradients, name, padding):
    cells, inputs = random_cells(name), draw(rng, INPUTS)
    padded = np.where(MASK[..., None], inputs, np.float32(padding))
    encoder = RecurrentEncoder(*cells, return_state=True)
    variables = [x for cell in cells for x in cell.trainable_variables]

    def read(inputs):
        outputs = tree.flatten(encoder(inputs, mask=MASK))
        return sum(ops.sum(ops.sin(x)) for x in outputs)

    assert_equal(encoder(padded, mask=MASK), encoder(inputs, mask=MASK))
    grads = gradients(read, [padded], variables)
    assert_close(grads, gradients(read, [inputs], variables))
    assert (grads[0][~MASK] == 0).all()


def test_an_implicit_mask_is_used_and_handed_on(rng):
    cells = random_cells("gru")
    encoder = RecurrentEncoder(*cells)
    embedding = keras.layers.Embedding(17, DEPTH, mask_zero=True)
    embedded = embedding(np.where(MASK, 3, 0))
    states = [*draw(rng, (BATCH, UNITS), (BATCH, BACKWARD_UNITS))]
    bare = ops.convert_to_numpy(embedded)

    outputs = encoder(embedded)
    with_states = encoder(embedded, states)
    explicit = encoder(embedded, mask=~MASK)

    assert_equal(outputs, encoder(bare, mask=MASK))
    assert_equal(with_states, encoder(bare, states, mask=MASK))
    assert_equal(explicit, encoder(bare, mask=~MASK))
    mask = keras.src.backend.get_keras_mask(outputs)
    np.testing.assert_array_equal(numpy(mask), MASK)


@pytest.mark.parametrize("name", ["gru", "normalized lstm", "stacked"])
def test_saves_and_loads_within_a_model(rng, tmp_path, name):
    cells = random_cells(name)
    inputs = keras.Input((None, DEPTH))
    mask = keras.Input((None,), dtype="bool")
    outputs = RecurrentEncoder(*cells, return_state=True)(inputs, mask=mask)
    assert outputs[0].shape == (None, None, UNITS + BACKWARD_UNITS)
    model = keras.Model([inputs, mask], outputs)
    loaded = reloaded(model, tmp_path)

    data = [draw(rng, INPUTS), MASK]
    assert_equal(loaded(data), model(data), atol=0)
    assert_equal(model(data), as_keras_does(cells, *data))


@pytest.mark.parametrize("dropout", quick_first([0.2, 0]))
def test_trains_with_a_mask(rng, dropout):
    cells = LayerNormGRUCell(UNITS), keras.layers.SimpleRNNCell(UNITS, dropout=dropout)
    model = keras.Sequential([keras.layers.Masking(), RecurrentEncoder(*cells)])
    inputs = draw(rng, INPUTS) * MASK[..., None]
    model.build((None, None, DEPTH))
    before = [numpy(x) for x in model.trainable_variables]

    target = draw(rng, (BATCH, STEPS, 2 * UNITS))
    fit(model, inputs, target, jit_compile=COMPILES and not dropout)

    for variable, old in zip(model.trainable_variables, before, strict=True):
        assert (numpy(variable) != old).any(), variable.path
        assert np.isfinite(numpy(variable)).all()
    assert_equal(model(inputs), as_keras_does(cells, inputs, MASK)[0])


def test_drops_the_same_at_every_step_and_anew_at_every_call():
    # All steps have the same dropout mask, so each state is the mask times the step.
    class Dropped(keras.layers.SimpleRNNCell):
        def call(self, inputs, states, training=None):
            mask = self.get_dropout_mask(inputs)
            return states[0] + mask, [states[0] + mask]

    encoder = RecurrentEncoder(Dropped(DEPTH, dropout=0.5))
    inputs = np.ones((BATCH, STEPS, DEPTH), "float32")

    outputs, other = (numpy(encoder(inputs, training=True)) for _ in range(2))

    steps = np.arange(1, STEPS + 1)[:, None]
    np.testing.assert_allclose(outputs, outputs[:, :1] * steps)
    assert (outputs != other).any()


@pytest.mark.parametrize("name", ["gru", "normalized lstm", "stacked"])
def test_mixed_precision(rng, name):
    # Weights so small that no step enlarges the error of the step before.
    cells = random_cells(name, scale=0.1)
    inputs = rng.uniform(-1, 1, INPUTS).astype("float32")
    exact = RecurrentEncoder(*cells, return_state=True)(inputs, mask=MASK)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        halves = random_cells(name, scale=0.1)
        encoder = RecurrentEncoder(*halves, return_state=True)
    finally:
        keras.config.set_dtype_policy("float32")

    outputs = encoder(inputs, mask=MASK)

    for x in tree.flatten(outputs):
        assert keras.backend.standardize_dtype(x.dtype) == "float16"
    # A step rounds eight times in turn; two cells do twice that. Halved at every step,
    # the errors of all steps add up to twice those of one.
    assert_equal(outputs, exact, atol=rounding_bound("float16", 32))


def test_wrong_arguments():
    cell = keras.layers.GRUCell(UNITS)
    inputs = np.zeros(INPUTS, "float32")
    with pytest.raises(ValueError, match=r"cell must .* Received: 'gru'"):
        RecurrentEncoder("gru")
    with pytest.raises(ValueError, match=r"backward_cell must .* Received: <RNN"):
        RecurrentEncoder(cell, keras.layers.RNN(keras.layers.GRUCell(UNITS)))
    with pytest.raises(ValueError, match="must be another cell"):
        RecurrentEncoder(cell, cell)
    encoder = RecurrentEncoder(cell)
    with pytest.raises(ValueError, match=r"Received: \(3, 7\)"):
        encoder(inputs[:, 0])
    with pytest.raises(ValueError, match=r"Received: \(3, 5, 1\)"):
        encoder(inputs, mask=MASK[..., None])
    with pytest.raises(ValueError, match=r"mask must .* \(3, 5\). .*: \(3, 1\)"):
        encoder(inputs, mask=MASK[:, :1])
    for shape in ((BATCH, 2), (UNITS,), (1, UNITS)):
        state = np.zeros(shape, "float32")
        with pytest.raises(ValueError, match=rf"Received: \[{re.escape(str(shape))}\]"):
            encoder(inputs, [state])


def test_a_frozen_encoder_has_no_trainable_weights():
    inputs = keras.Input(INPUTS[1:])
    encoder = RecurrentEncoder(keras.layers.GRUCell(UNITS), trainable=False)

    model = keras.Model(inputs, encoder(inputs))

    assert len(model.weights) == 3 and model.trainable_weights == []
