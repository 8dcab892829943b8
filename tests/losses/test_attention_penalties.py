import keras
import numpy as np
import pytest
from keras import ops
from losses.values import BATCH, POSITIONS, STEPS, numpy

from keras_attention import (
    attention_supervision,
    coverage_loss,
    doubly_stochastic_penalty,
)


def penalty_of(*arguments):
    tensors = [ops.convert_to_tensor(x) for x in arguments]
    return ops.convert_to_numpy(doubly_stochastic_penalty(*tensors))


def test_penalty_worked_by_hand():
    # Over time the three positions receive 1.5, 0.5 and 0: (0.5, 0.5, 1) squared.
    weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], "float32")

    assert penalty_of(weights) == pytest.approx(0.25 + 0.25 + 1)


def test_penalty_follows_the_formula_for_every_sequence(weights):
    found = penalty_of(np.stack([weights, weights[::-1]]))

    assert found.shape == (2, BATCH)
    for b in range(BATCH):
        expected = 0
        for s in range(POSITIONS):
            expected += (1 - sum(weights[b, t, s] for t in range(STEPS))) ** 2
        assert found[0, b] == pytest.approx(expected, rel=1e-5)
        assert found[1, BATCH - 1 - b] == pytest.approx(expected, rel=1e-5)


def test_masked_steps_do_not_count_whatever_they_hold(weights, gradients):
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    expected = [penalty_of(weights[0, :2]), penalty_of(weights[1, :1])]
    weights[~mask] = np.nan

    found = penalty_of(weights, mask)
    (gradient,) = gradients(
        lambda x: ops.sum(doubly_stochastic_penalty(x, mask)), [weights]
    )

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_penalty_of_half_precision_is_summed_in_float32(dtype):
    # 4099 positions without any attention.
    weights = ops.cast(np.zeros((STEPS, 4099)), dtype)

    assert float(doubly_stochastic_penalty(weights)) == 4099


def test_coverage_worked_by_hand():
    # Seen before the second step: (.5, .5, 0), before the third: (.7, .5, .8).
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.0, 0.9, 0.1]], "float32")

    assert numpy(coverage_loss, weights) == pytest.approx(0.2 + (0.5 + 0.1))


def test_coverage_follows_the_formula_for_every_sequence(weights):
    found = numpy(coverage_loss, np.stack([weights, weights[::-1]]))

    assert found.shape == (2, BATCH)
    for b in range(BATCH):
        expected, coverage = 0, np.zeros(POSITIONS)
        for t in range(STEPS):
            for s in range(POSITIONS):
                expected += min(weights[b, t, s], coverage[s])
            coverage += weights[b, t]
        assert found[0, b] == pytest.approx(expected, rel=1e-5)
        assert found[1, BATCH - 1 - b] == pytest.approx(expected, rel=1e-5)


def test_masked_steps_neither_pay_nor_cover(weights, gradients):
    mask = np.array([[1, 0, 1], [1, 1, 0]], "bool")
    expected = [numpy(coverage_loss, weights[b][mask[b]]) for b in range(BATCH)]
    weights[~mask] = np.nan

    (gradient,) = gradients(lambda x: ops.sum(coverage_loss(x, mask)), [weights])

    np.testing.assert_allclose(numpy(coverage_loss, weights, mask), expected, rtol=1e-6)
    assert (gradient[~mask] == 0).all()
    assert np.isfinite(gradient).all() and (gradient[mask] != 0).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_coverage_of_half_precision_is_summed_in_float32(dtype):
    weights = ops.cast(np.ones((2, 4099)), dtype)

    assert float(coverage_loss(weights)) == 4099


def test_supervision_worked_by_hand():
    weights = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], "float32")
    target = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], "float32")

    loss = numpy(attention_supervision, weights, target)

    assert loss == pytest.approx(0.75 * np.log(2) + 0.25 * np.log(4))


def test_supervision_follows_the_formula_for_every_sequence(weights, rng):
    target = rng.random(weights.shape).astype("float32")
    target[1, 2] = 0

    found = numpy(attention_supervision, weights, target)

    assert found.shape == (BATCH,)
    for b in range(BATCH):
        expected = 0
        for t in range(STEPS):
            mass = sum(target[b, t])
            for s in range(POSITIONS):
                if mass > 0:
                    expected -= target[b, t, s] / mass * np.log(weights[b, t, s])
        assert found[b] == pytest.approx(expected, rel=1e-5)


def test_targets_are_booleans_or_masses_of_any_size(weights, rng):
    target = rng.random(weights.shape) < 0.5

    of_booleans = numpy(attention_supervision, weights, target)

    for mass in (1e-6, 1.0, 1e6):
        found = numpy(attention_supervision, weights, mass * target.astype("float32"))
        np.testing.assert_allclose(found, of_booleans, rtol=1e-6)


def test_steps_without_a_target_or_masked_teach_nothing(weights, rng, gradients):
    target = rng.random(weights.shape).astype("float32")
    target[0, 1] = 0
    mask = np.array([[1, 1, 0], [0, 1, 1]], "bool")
    expected = numpy(
        attention_supervision, weights, np.where(mask[..., None], target, 0)
    )
    weights[~mask] = target[~mask] = np.nan

    def loss(weights):
        return attention_supervision(weights, ops.convert_to_tensor(target), mask)

    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [weights])

    np.testing.assert_allclose(numpy(loss, weights), expected, rtol=1e-6)
    teaching = mask.copy()
    teaching[0, 1] = False
    assert (gradient[~teaching] == 0).all()
    assert (gradient[teaching] < 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_zero_cost_much_and_have_finite_gradients(gradients, dtype):
    smallest = {"float16": 6e-8}.get(dtype, 1e-38)

    def loss(weights):
        return attention_supervision(ops.cast(weights, dtype), np.eye(3)[:, :2])

    weights = np.array([[0, 1], [1, smallest], [0, 1]], "float32")
    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [weights])

    found = numpy(loss, weights)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert 2 * 9 < found < 200
    assert np.isfinite(gradient).all()


def test_small_weights_have_the_slope_of_the_logarithm(gradients):
    weights = np.array([[1e-9, 1.0]], "float32")
    target = np.array([[1.0, 0.0]], "float32")

    (gradient,) = gradients(
        lambda x: attention_supervision(x, ops.convert_to_tensor(target)), [weights]
    )

    np.testing.assert_allclose(gradient, [[-1e9, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5), (1, 3, 5)])
def test_target_weights_of_another_shape_are_named(weights, shape):
    with pytest.raises(ValueError, match="same shape") as caught:
        attention_supervision(weights, np.zeros(shape, "float32"))

    assert str(caught.value).endswith(f"Received: (2, 3, 5) and {shape}")
