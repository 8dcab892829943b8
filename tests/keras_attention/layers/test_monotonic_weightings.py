"""Monotonic weights: recursive, parallel and hard."""

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, finite_differences
from attention_testing.layers.weightings_reference import (
    BATCH,
    DTYPES,
    EXACT,
    POSITIONS,
    QUERIES,
    monotonic_by_the_paper,
    tensor,
)
from keras_attention.layers.monotonic import (
    monotonic_hard,
    monotonic_parallel,
    monotonic_recursive,
)


def monotonic(function, p, previous, dtype="float32"):
    if keras.backend.backend() == "jax":
        import jax

        # Otherwise the loop is compiled in every call.
        function = jax.jit(function)
    return ops.convert_to_numpy(function(tensor(p, dtype), tensor(previous, dtype)))


def draw_monotonic(rng, *shape):
    """Probabilities, a few of them zero or one, and the weights of a step before."""
    p = rng.random(shape) ** 2
    p[rng.random(shape) < 0.15] = 0
    p[rng.random(shape) < 0.15] = 1
    previous = rng.random(shape)
    return p, previous / previous.sum(-1, keepdims=True) * rng.random((*shape[:-1], 1))


@pytest.mark.parametrize("positions", [1, 2, 7, 16, 37])
def test_recursive_form_follows_the_paper(positions, rng):
    p, previous = draw_monotonic(rng, BATCH, QUERIES, positions)

    weights = monotonic(monotonic_recursive, p, previous)

    expected = monotonic_by_the_paper(p, previous)
    np.testing.assert_allclose(weights, expected, rtol=3e-6, atol=1e-30)


def test_parallel_form_agrees_for_moderate_probabilities_only(rng):
    p, previous = 0.3 * rng.random((2, QUERIES, 37))
    weights = monotonic(monotonic_parallel, p, previous)
    np.testing.assert_allclose(weights, monotonic_by_the_paper(p, previous), rtol=1e-4)

    p, previous = np.full(37, 0.9), np.eye(37)[30]
    exact = monotonic(monotonic_recursive, p, previous)
    np.testing.assert_array_equal(exact[:30], 0)
    np.testing.assert_allclose(exact[30:], 0.9 * 0.1 ** np.arange(7), rtol=1e-5)
    lost = monotonic(monotonic_parallel, p, previous)
    np.testing.assert_allclose(lost[30], 9e-21, rtol=1e-3)


def test_a_position_of_probability_zero_is_skipped(rng):
    p, previous = draw_monotonic(rng, QUERIES, POSITIONS)
    mask = np.array([1, 0, 1, 1, 0], "bool")
    previous[:, ~mask] = 0
    p[:, ~mask] = 0

    for function in (monotonic_recursive, monotonic_parallel, monotonic_hard):
        weights = monotonic(function, p, previous)
        left = monotonic(function, p[:, mask], previous[:, mask])
        np.testing.assert_array_equal(weights[:, ~mask], 0)
        np.testing.assert_allclose(weights[:, mask], left, atol=1e-6)


@pytest.mark.parametrize("function", [monotonic_recursive, monotonic_parallel])
def test_monotonic_gradients_equal_finite_differences(function, rng, gradients):
    p, previous = draw_monotonic(rng, QUERIES, 7)
    if function is monotonic_parallel:
        p = 0.5 * p
    readout = rng.normal(size=p.shape)

    def read(p, previous):
        return ops.sum(ops.multiply(function(p, previous), readout))

    dtype = "float64" if EXACT else "float32"
    actual = gradients(read, [p.astype(dtype), previous.astype(dtype)])

    def read_the_paper(p, previous):
        return (monotonic_by_the_paper(p, previous) * readout).sum()

    expected = finite_differences(read_the_paper, p, previous)
    # The parallel form adds with `ops.cumsum`, in float32 on PyTorch.
    exact = EXACT and (
        function is monotonic_recursive or keras.backend.backend() == "tensorflow"
    )
    assert_close(actual, expected, 1e-8 if exact else 1e-5)


def test_parallel_form_has_finite_gradients_where_it_underflows(gradients):
    p = np.array([[0.9] * 37, [1.0] * 37, [0.0] * 37], "float32")
    previous = np.tile(np.eye(37, dtype="float32")[30], (3, 1))

    grads = gradients(lambda *x: ops.sum(monotonic_parallel(*x)), [p, previous])

    assert np.isfinite(grads).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_choice_moves_on_to_the_next_position_that_stops(dtype):
    p = [0.9, 0.25, 0.5, 0.75, 1, 0]
    starts = np.concatenate([np.eye(6), np.zeros((1, 6))])

    weights = monotonic(monotonic_hard, np.tile(p, (7, 1)), starts, dtype)

    # A probability of 0.5 does not stop. Weights stay zero after the last position.
    expected = [np.eye(6)[stop] for stop in (0, 3, 3, 3, 4)] + [np.zeros(6)] * 2
    np.testing.assert_array_equal(weights, expected)


def test_nan_propagates():
    p, previous = [0.1, np.nan, 0.2, 0.9], [1, 0, 0, 0]

    for function in (monotonic_recursive, monotonic_parallel, monotonic_hard):
        assert np.isnan(monotonic(function, p, previous)).any()
