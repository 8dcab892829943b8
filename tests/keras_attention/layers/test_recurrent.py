import json

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import (
    EXACT,
    assert_close,
    assert_numerical_gradients,
    draw,
    numpy,
    randomized,
    sigmoid,
)
from attention_testing.rounding import rounding_bound
from keras_attention import LayerNormGRUCell, LayerNormLSTMCell

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, DEPTH, UNITS = 2, 3, 5, 7

INPUTS = (BATCH, STEPS, DEPTH)

BACKEND = keras.backend.backend()

CELLS = {"lstm": LayerNormLSTMCell, "gru": LayerNormGRUCell}
KERAS_CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}
every_cell = pytest.mark.parametrize("name", CELLS)


def random_cell(kind, units=UNITS, depth=DEPTH, **options):
    """A cell whose weights, gains and biases included, are all drawn at random."""
    cell = CELLS[kind](units, **options)
    cell.build((None, depth))
    return randomized(cell)


def random_state(rng, name):
    return draw(rng, *[(BATCH, UNITS)] * (2 if name == "lstm" else 1), (0,))[:-1]


def weights_of(cell):
    return {
        x.name: np.float64(ops.convert_to_numpy(x)) for x in cell.trainable_variables
    }


def run(cell, inputs, state, **options):
    rnn = keras.layers.RNN(cell, return_sequences=True, **options)
    return rnn(inputs, initial_state=state)


def normalized(a, gain, epsilon=1e-5):
    a = a - a.mean(axis=-1, keepdims=True)
    return gain * a / np.sqrt((a**2).mean(axis=-1, keepdims=True) + epsilon)


def lstm_as_in_the_paper(w, x, state):
    """One step; the shifts that the paper adds to `b` are in `b`."""
    h, c = state
    sums = (
        normalized(h @ w["recurrent_kernel"], w["recurrent_gain"])
        + normalized(x @ w["kernel"], w["input_gain"])
        + w["bias"]
    )
    i, f, g, o = np.split(sums, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(normalized(c, w["carry_gain"]) + w["carry_bias"])
    return h, [h, c]


def gru_as_in_the_paper(w, x, state):
    """One step. Keras lets the gate z say how much is kept, hence the sign."""
    (h,) = state
    gates, new = slice(2 * UNITS), slice(2 * UNITS, None)

    def ln(sums, gain, bias, part):
        return normalized(sums[..., part], w[gain][part]) + bias[part]

    of_h, of_x = h @ w["recurrent_kernel"], x @ w["kernel"]
    b_x, b_h = w["bias"]
    sums = ln(of_h, "recurrent_gain", b_h, gates) + ln(of_x, "input_gain", b_x, gates)
    z, r = np.split(sums, 2, axis=-1)
    proposal = np.tanh(
        ln(of_x, "input_gain", b_x, new)
        + sigmoid(r) * ln(of_h, "recurrent_gain", b_h, new)
    )
    h = (1 - sigmoid(-z)) * h + sigmoid(-z) * proposal
    return h, [h]


PAPERS = {"lstm": lstm_as_in_the_paper, "gru": gru_as_in_the_paper}


def by_the_paper(name, weights, inputs, state):
    """The outputs of all steps, `(B, T, U)`."""
    outputs = []
    for t in range(STEPS):
        output, state = PAPERS[name](weights, inputs[:, t], state)
        outputs.append(output)
    return np.stack(outputs, axis=1)


@every_cell
def test_follows_the_paper(rng, name):
    cell = random_cell(name)
    inputs, state = draw(rng, INPUTS), random_state(rng, name)

    output = run(cell, inputs, state)

    assert_close(output, by_the_paper(name, weights_of(cell), inputs, state))


@every_cell
def test_gradients_equal_finite_differences_of_the_paper(rng, gradients, name):
    cell = random_cell(name, dtype="float64")
    inputs, state = np.float64(draw(rng, INPUTS)), random_state(rng, name)
    state = [np.float64(x) for x in state]
    readout = rng.normal(size=(BATCH, STEPS, UNITS))
    names = [x.name for x in cell.trainable_variables]

    def read(inputs, *state):
        total, state = 0.0, list(state)
        for t in range(STEPS):
            output, state = cell(inputs[:, t], state)
            total = total + ops.sum(ops.multiply(output, readout[:, t]))
        return total

    def read_the_paper(inputs, *points):
        state, arrays = points[: len(points) - len(names)], points[-len(names) :]
        weights = dict(zip(names, arrays, strict=True))
        return (by_the_paper(name, weights, inputs, state) * readout).sum()

    grads = gradients(read, [inputs, *state], cell.trainable_variables)

    points = [inputs, *state, *weights_of(cell).values()]
    assert len(points) == len(grads)
    atol = 1e-7 if EXACT else 1e-4
    assert_numerical_gradients(grads, read_the_paper, points, rng, 3, atol)


@every_cell
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_other_dtypes_give_nearly_the_same(rng, name, dtype):
    cell, exact = random_cell(name, dtype=dtype), random_cell(name)
    for variable in [*cell.trainable_variables, *exact.trainable_variables]:
        if "kernel" not in variable.name:
            # Small gains and biases: no step enlarges the error of the step before.
            variable.assign(variable / 4)
    inputs, state = draw(rng, INPUTS), random_state(rng, name)
    expected = run(exact, inputs, state)

    actual = run(cell, inputs, state, dtype=dtype)

    if not (BACKEND == "jax" and dtype == "float64"):
        assert keras.backend.standardize_dtype(actual.dtype) == cell.compute_dtype
    actual, expected = numpy([ops.cast(x, "float32") for x in (actual, expected)])
    # A step rounds twelve times in turn; states are smaller than two.
    half = dtype != "float64"
    bound = rounding_bound(dtype, 12 * STEPS, magnitude=2) if half else 1e-5
    np.testing.assert_allclose(actual, expected, atol=bound, rtol=0)


@every_cell
def test_the_normalisation_computes_in_float32(name):
    # Squares of these sums are beyond float16, and their mean rounds to itself.
    cell = CELLS[name](UNITS, dtype="mixed_float16", kernel_initializer="ones")
    cell.build((None, 1))
    cell.kernel.assign(np.arange(cell.kernel.shape[1])[None] + 1024.0)
    exact = CELLS[name](UNITS)
    exact.build((None, 1))
    exact.set_weights(cell.get_weights())

    actual, expected = (
        c(np.ones((BATCH, 1), c.compute_dtype), c.get_initial_state(BATCH))[0]
        for c in (cell, exact)
    )

    assert_close(actual, expected, 2e-3)


@every_cell
def test_a_variance_of_zero_gives_finite_results(rng, gradients, name):
    cell = CELLS[name](UNITS, kernel_initializer="zeros")
    cell.build((None, DEPTH))
    inputs, state = draw(rng, (BATCH, DEPTH)), np.zeros((BATCH, UNITS), "float32")
    states = [state] * (2 if name == "lstm" else 1)

    def read(inputs):
        return ops.sum(cell(inputs, states)[0] ** 2)

    grads = gradients(read, [inputs], cell.trainable_variables)

    assert (numpy(cell(inputs, states)[0]) == 0).all()
    assert all(np.isfinite(x).all() for x in grads)


@every_cell
@pytest.mark.parametrize("recurrent", [0.0, 0.5])
def test_dropout_is_that_of_keras(rng, name, recurrent):
    cell = random_cell(name, dropout=0.5, recurrent_dropout=recurrent, seed=3)
    inputs, state = np.ones((BATCH, DEPTH), "float32"), random_state(rng, name)

    outputs, _ = numpy(cell(inputs, state, training=True))
    used, _ = numpy(cell(inputs, state, training=False))

    # Keras cells keep the masks that they draw: one, or one for each gate.
    masks = {"kernel": numpy(cell.get_dropout_mask(inputs))}
    if recurrent:
        masks["recurrent_kernel"] = numpy(cell.get_recurrent_dropout_mask(state[0]))
    for mask in masks.values():
        assert set(np.unique(mask)) == {0, 2}
        assert np.ndim(mask) == (3 if recurrent else 2)
    assert_close(used, PAPERS[name](weights_of(cell), inputs, state)[0])
    for b in range(BATCH):
        weights = weights_of(cell)
        for kernel, mask in masks.items():
            columns = np.reshape(mask, (-1, *np.shape(mask)[-2:]))[:, b].T
            repeats = weights[kernel].shape[1] // columns.shape[1]
            weights[kernel] *= np.repeat(columns, repeats, axis=1)
        row = [x[b] for x in state]
        assert_close(outputs[b], PAPERS[name](weights, inputs[b], row)[0])


OPTIONS = {
    "activation": "relu",
    "recurrent_activation": "hard_sigmoid",
    "use_bias": False,
    "kernel_initializer": "he_normal",
    "recurrent_initializer": "glorot_normal",
    "bias_initializer": "ones",
    "kernel_regularizer": "l2",
    "recurrent_regularizer": "l1",
    "bias_regularizer": "l2",
    "kernel_constraint": "max_norm",
    "recurrent_constraint": "unit_norm",
    "bias_constraint": "non_neg",
    "dropout": 0.25,
    "recurrent_dropout": 0.5,
    "seed": 3,
    "epsilon": 1e-3,
    "gain_initializer": "zeros",
}


@every_cell
def test_takes_every_option_of_the_cell_of_keras(name):
    expected = KERAS_CELLS[name](UNITS, name="cell").get_config()

    actual = CELLS[name](UNITS, name="cell").get_config()

    assert {x: actual[x] for x in expected} == expected
    assert actual.keys() - expected.keys() == {"epsilon", "gain_initializer"}


@every_cell
def test_comes_back_from_its_config(name):
    cell = CELLS[name](UNITS, **OPTIONS)

    config = json.loads(json.dumps(keras.saving.serialize_keras_object(cell)))
    restored = keras.saving.deserialize_keras_object(config)

    assert type(restored) is CELLS[name]
    assert restored.get_config() == cell.get_config()
    defaults = CELLS[name](UNITS).get_config()
    # Nothing was lost on the way: every option differs from its default.
    assert all(restored.get_config()[x] != defaults[x] for x in OPTIONS)


@every_cell
def test_gains_start_at_one_and_shifts_at_zero(name):
    cell = CELLS[name](UNITS)
    cell.build((None, DEPTH))
    weights = weights_of(cell)

    gains = [x for x in weights if x.endswith("gain")]
    assert len(gains) == (3 if name == "lstm" else 2)
    assert all((weights[x] == 1).all() for x in gains)
    assert weights["bias"].sum() == (UNITS if name == "lstm" else 0)
    without = CELLS[name](UNITS, use_bias=False)
    without.build((None, DEPTH))
    assert [x for x in weights_of(without) if "bias" in x] == []


@every_cell
def test_works_without_biases_and_with_a_bare_state(rng, name):
    cell = random_cell(name, use_bias=False)
    inputs, state = draw(rng, (BATCH, DEPTH)), random_state(rng, name)

    outputs, _ = numpy(cell(inputs, state))

    zeros = np.zeros((2, 3 * UNITS) if name == "gru" else 4 * UNITS)
    weights = {"bias": zeros, "carry_bias": 0.0, **weights_of(cell)}
    assert_close(outputs, PAPERS[name](weights, inputs, state)[0])
    if name == "gru":
        output, new = numpy(cell(inputs, state[0]))
        np.testing.assert_array_equal(output, outputs)
        np.testing.assert_array_equal(new, outputs)


def test_the_reset_gate_applies_to_the_normalised_product():
    with pytest.raises(ValueError, match=r"reset_after must be True.*Received: False"):
        LayerNormGRUCell(UNITS, reset_after=False)
