import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.losses.values import BATCH, numpy

every_penalty = pytest.mark.parametrize(
    "penalty", [ka.doubly_stochastic_penalty, ka.coverage_loss]
)


@pytest.mark.parametrize(
    ("penalty", "weights", "expected"),
    [
        # Over time the three positions receive 1.5, 0.5 and 0.
        (ka.doubly_stochastic_penalty, [[1, 0, 0], [0.5, 0.5, 0]], 0.25 + 0.25 + 1),
        # Seen before the second step: (.5, .5, 0), before the third: (.7, .5, .8).
        (
            ka.coverage_loss,
            [[0.5, 0.5, 0], [0.2, 0, 0.8], [0, 0.9, 0.1]],
            0.2 + (0.5 + 0.1),
        ),
    ],
)
def test_penalty_of_every_sequence_worked_by_hand(penalty, weights, expected):
    actual = numpy(penalty, np.float32([[weights, weights]]))

    np.testing.assert_allclose(actual, [[expected, expected]], rtol=1e-6)


@every_penalty
def test_masked_steps_do_not_count_whatever_they_hold(penalty, weights, gradients):
    mask = np.array([[1, 0, 1], [1, 1, 0]], "bool")
    expected = [numpy(penalty, weights[b][mask[b]]) for b in range(BATCH)]
    weights[~mask] = np.nan

    (gradient,) = gradients(lambda x: ops.sum(penalty(x, mask)), [weights])

    np.testing.assert_allclose(numpy(penalty, weights, mask), expected, rtol=1e-6)
    assert (gradient[~mask] == 0).all()
    assert np.isfinite(gradient).all() and (gradient[mask] != 0).any()


@every_penalty
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_penalty_of_half_precision_is_summed_in_float32(penalty, dtype):
    # 4099 positions without any attention, or with a weight of one twice.
    weights = np.full((2, 4099), penalty is ka.coverage_loss)

    assert float(penalty(ops.cast(weights, dtype))) == 4099


def test_supervision_of_every_sequence_worked_by_hand():
    weights = np.array([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]] * 2, "float32")
    target = np.zeros(weights.shape, "float32")
    target[0, 0] = target[1, 1] = [3, 1, 0]

    losses = numpy(ka.attention_supervision, weights, target)

    expected = [0.75 * np.log(2) + 0.25 * np.log(4), np.log(10)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_targets_are_booleans_or_masses_of_any_size(weights, rng):
    target = rng.random(weights.shape) < 0.5

    of_booleans = numpy(ka.attention_supervision, weights, target)

    for mass in (1e-6, 1.0, 1e6):
        masses = mass * target.astype("float32")
        outputs = numpy(ka.attention_supervision, weights, masses)
        np.testing.assert_allclose(outputs, of_booleans, rtol=1e-6)


def test_steps_without_a_target_or_masked_teach_nothing(weights, rng, gradients):
    target = rng.random(weights.shape).astype("float32")
    target[0, 1] = 0
    mask = np.array([[1, 1, 0], [0, 1, 1]], "bool")
    masked = np.where(mask[..., None], target, 0)
    expected = numpy(ka.attention_supervision, weights, masked)
    weights[~mask] = target[~mask] = np.nan

    def loss(weights):
        return ka.attention_supervision(weights, ops.convert_to_tensor(target), mask)

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
        return ka.attention_supervision(ops.cast(weights, dtype), np.eye(3)[:, :2])

    weights = np.array([[0, 1], [1, smallest], [0, 1]], "float32")
    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [weights])

    outputs = numpy(loss, weights)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert 2 * 9 < outputs < 200
    assert np.isfinite(gradient).all()


def test_small_weights_have_the_slope_of_the_logarithm(gradients):
    weights = np.array([[1e-9, 1.0]], "float32")
    target = np.array([[1.0, 0.0]], "float32")

    (gradient,) = gradients(
        lambda x: ka.attention_supervision(x, ops.convert_to_tensor(target)), [weights]
    )

    np.testing.assert_allclose(gradient, [[-1e9, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5), (1, 3, 5)])
def test_target_weights_of_another_shape_are_named(weights, shape):
    with pytest.raises(ValueError, match="same shape") as caught:
        ka.attention_supervision(weights, np.zeros(shape, "float32"))

    assert str(caught.value).endswith(f"Received: (2, 3, 5) and {shape}")
