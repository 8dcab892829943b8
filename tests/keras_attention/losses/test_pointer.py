import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy
from keras_attention import PointerCrossentropy, pointer_crossentropy

# Two targets of two rows; the third class of the second row is impossible.
LOG_PROBS = np.log(
    np.array([[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], [[0.5, 0.5, 1], [0.8, 0.2, 1]]])
).astype("float32")
LOG_PROBS[1, :, 2] = -1e9
TARGETS = np.array([[1, 2], [0, 1]])


def test_values_worked_by_hand():
    losses = numpy(pointer_crossentropy(TARGETS, LOG_PROBS))
    np.testing.assert_allclose(losses, -np.log([[0.25, 0.7], [0.5, 0.2]]), rtol=1e-5)

    smooth = numpy(pointer_crossentropy(TARGETS, LOG_PROBS, label_smoothing=0.2))
    spread = -np.array(
        [
            [np.log(0.5 * 0.25 * 0.25) / 3, np.log(0.1 * 0.2 * 0.7) / 3],
            [np.log(0.5 * 0.5) / 2, np.log(0.8 * 0.2) / 2],
        ]
    )
    np.testing.assert_allclose(smooth, 0.8 * losses + 0.2 * spread, rtol=1e-5)


def test_impossible_targets_have_a_finite_loss_and_no_gradient(gradients):
    targets = np.array([[1, 2], [2, 1]])

    losses = numpy(pointer_crossentropy(targets, LOG_PROBS))
    (grads,) = gradients(
        lambda x: ops.sum(pointer_crossentropy(targets, x, label_smoothing=0.1)),
        [LOG_PROBS],
    )

    assert losses[1, 0] == pytest.approx(-np.log(1e-30))
    assert np.isfinite(grads).all() and (grads[1, :, 2] == 0).all()
    assert (grads[:, :, :2] != 0).all()


@pytest.mark.parametrize("target", [-1, 3, 7])
def test_a_target_that_does_not_exist_is_impossible(target, gradients):
    targets = np.array([[1, target], [0, 1]])

    losses = numpy(pointer_crossentropy(targets, LOG_PROBS))
    (grads,) = gradients(
        lambda x: ops.sum(pointer_crossentropy(targets, x)), [LOG_PROBS]
    )

    assert losses[0, 1] == pytest.approx(-np.log(1e-30))
    assert losses[0, 0] == pytest.approx(np.log(4)) and not grads[0, 1].any()


def test_masked_targets_do_not_count_whatever_they_hold(gradients):
    log_probs, targets = LOG_PROBS.copy(), TARGETS.copy()
    mask = np.array([[True, False], [True, True]])
    log_probs[0, 1], targets[0, 1] = np.nan, -7

    losses = numpy(pointer_crossentropy(targets, log_probs, mask, label_smoothing=0.1))
    (grads,) = gradients(
        lambda x: ops.sum(pointer_crossentropy(targets, x, mask)), [log_probs]
    )

    assert losses[0, 1] == 0 and np.isfinite(losses).all()
    assert np.isfinite(grads).all() and not grads[0, 1].any()


def test_the_loss_is_the_mean_over_targets():
    targets = TARGETS.copy()
    targets[0, 1] = -1
    loss = PointerCrossentropy(pad=-1, label_smoothing=0.1)
    loss = keras.losses.deserialize(keras.losses.serialize(loss))

    valid = targets >= 0
    expected = pointer_crossentropy(TARGETS, LOG_PROBS, label_smoothing=0.1)
    expected = numpy(expected)[valid].mean()
    assert float(loss(targets, LOG_PROBS)) == pytest.approx(expected, rel=1e-5)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"label_smoothing .*Received: 1"):
        pointer_crossentropy(TARGETS, LOG_PROBS, label_smoothing=1)
    with pytest.raises(ValueError, match=r"token_ids .*Received: \(2, 1\)"):
        pointer_crossentropy(TARGETS[:, :1], LOG_PROBS)
