import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, finite_differences, softmax
from attention_testing.losses.values import BATCH, STEPS, numpy
from attention_testing.models import reloaded
from keras_attention import ReinforceLoss

EPISODES = "log_likelihood", "log_probability", "entropy"


@pytest.fixture
def episodes(rng):
    """The three, each `(B, T)`."""
    return [sign * rng.random((BATCH, STEPS)).astype("float32") for sign in (-1, -1, 1)]


def lower_bound(first, second, log_likelihood):
    """Return the bound for three regions and two steps, summed over all paths."""
    return (softmax(first)[:, None] * softmax(second) * log_likelihood).sum()


@pytest.mark.parametrize("baseline", [0.0, -2.5])
def test_estimate_is_on_average_the_gradient_of_the_lower_bound(
    rng, gradients, baseline
):
    arrays = [rng.normal(size=shape) for shape in ((3,), (3, 3), (3, 3))]
    layer = ReinforceLoss(reward_weight=1.0, entropy_weight=0.0, momentum=1.0)
    layer.baseline.assign(baseline)

    def expected_loss(first, second, log_likelihood):
        """Return the sum of the losses of all paths, weighted by their probability."""
        first = ops.repeat(ops.log_softmax(first), 3)
        second = ops.reshape(ops.log_softmax(second, axis=-1), (9,))
        log_probability = ops.stack([first, second], axis=1)
        loss = layer(
            ops.reshape(log_likelihood, (9,)),
            log_probability,
            ops.zeros_like(log_probability),
        )
        probability = ops.exp(ops.sum(log_probability, axis=1))
        return ops.sum(ops.stop_gradient(probability) * loss)

    grads = gradients(expected_loss, [x.astype("float32") for x in arrays])

    bounds = finite_differences(lower_bound, *arrays, step=1e-6)
    assert_close(grads, [-bound for bound in bounds], 2e-6)


def test_loss_of_every_example_follows_the_formula(episodes, gradients):
    layer = ReinforceLoss(reward_weight=0.3, entropy_weight=0.7)
    layer.baseline.assign(-0.5)

    actual = numpy(layer, *episodes)
    gradient = gradients(lambda *x: ops.sum(layer(*x)), episodes)

    for b in range(BATCH):
        log_likelihood, log_probability, entropy = (x[b].sum() for x in episodes)
        reward = 0.3 * (log_likelihood + 0.5)
        expected = -(log_likelihood + reward * log_probability + 0.7 * entropy)
        assert actual[b] == pytest.approx(expected, rel=1e-5)
        # The reward is a constant, the same for all steps.
        for x, slope in zip(gradient, (1, reward, 0.7), strict=True):
            np.testing.assert_allclose(x[b], [-slope] * STEPS, rtol=1e-5)


def test_defaults_are_those_of_the_authors():
    loss = ReinforceLoss()

    assert (loss.reward_weight, loss.entropy_weight, loss.momentum) == (0.1, 0.002, 0.9)


def test_steps_may_be_summed_already(episodes):
    layer = ReinforceLoss()
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    summed = [np.where(mask, x, 0).sum(axis=1) for x in episodes]

    outputs = numpy(layer, *episodes, mask=mask)

    np.testing.assert_allclose(outputs, numpy(layer, *summed), rtol=1e-6)
    mixed = numpy(layer, summed[0], *episodes[1:], mask=mask)
    np.testing.assert_allclose(outputs, mixed, rtol=1e-6)


def test_masked_steps_are_not_rewarded_whatever_they_hold(episodes, gradients):
    layer = ReinforceLoss()
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    expected = numpy(layer, *(np.where(mask, x, 0) for x in episodes))
    for x in episodes:
        x[~mask] = np.nan

    gradient = gradients(lambda *x: ops.sum(layer(*x, mask=mask)), episodes)

    np.testing.assert_allclose(numpy(layer, *episodes, mask=mask), expected, rtol=1e-6)
    for x in gradient:
        assert (x[~mask] == 0).all()
        assert (x[mask] != 0).all()


def test_soft_examples_are_no_part_of_the_estimate(episodes, gradients):
    layer = ReinforceLoss(reward_weight=1.0)
    sampled = np.array([True, False])
    expected = numpy(layer, *episodes)
    likelihood, _, entropy = (x[1].sum() for x in episodes)
    expected[1] = -(likelihood + layer.entropy_weight * entropy)
    episodes[1][1] = -np.inf

    actual = numpy(layer, *episodes, sampled=sampled, training=True)
    gradient = gradients(lambda *x: ops.sum(layer(*x, sampled=sampled)), episodes)

    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert float(layer.baseline) == pytest.approx(0.1 * episodes[0][0].sum(), rel=1e-5)
    assert (gradient[1][1] == 0).all()
    assert (gradient[1][0] != 0).all()
    # Nothing was drawn in this batch.
    before = float(layer.baseline)
    layer(*episodes, sampled=np.zeros(BATCH, "bool"), training=True)
    assert float(layer.baseline) == before


def test_baseline_follows_the_mean_reward_in_training_only(episodes):
    layer = ReinforceLoss(momentum=0.7)
    mean = episodes[0].sum(axis=1).mean()

    first = numpy(layer, *episodes, training=True)
    after_one = float(layer.baseline)
    numpy(layer, *episodes)
    numpy(layer, *episodes, training=False)
    unchanged = float(layer.baseline)
    second = numpy(layer, *episodes, training=True)

    assert after_one == unchanged == pytest.approx(0.3 * mean, rel=1e-5)
    assert float(layer.baseline) == pytest.approx(0.51 * mean, rel=1e-5)
    # An update is used from the next step on.
    change = layer.reward_weight * after_one * episodes[1].sum(axis=1)
    np.testing.assert_allclose(second - first, change, rtol=1e-4)


REGIONS = 3


class Pointer(keras.layers.Layer):
    """Learns which of a few regions is best, from draws that it is given."""

    def __init__(self, adds_loss):
        super().__init__()
        self.adds_loss = adds_loss
        self.reinforce = ReinforceLoss(reward_weight=1.0)
        self.scores = self.add_weight(shape=(REGIONS,), initializer="zeros")
        self.built = True

    def call(self, draws, training=None):
        position, log_likelihood = ops.cast(draws[:, 0], "int32"), draws[:, 1]
        log_weights = ops.log_softmax(ops.convert_to_tensor(self.scores))
        entropy = -ops.sum(ops.exp(log_weights) * log_weights)
        loss = self.reinforce(
            log_likelihood,
            ops.take(log_weights, position),
            ops.broadcast_to(entropy, ops.shape(log_likelihood)),
            training=training,
        )
        if self.adds_loss:
            self.add_loss(ops.mean(loss))
        return loss


class PointerModel(keras.Model):
    def __init__(self, where):
        super().__init__()
        self.where = where
        self.pointer = Pointer(where == "add_loss")

    def call(self, draws, training=None):
        if self.where == "compute_loss":
            return draws
        return self.pointer(draws, training=training)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        if self.where == "add_loss":
            return sum(self.losses)
        if self.where == "call":
            return ops.mean(y_pred)
        return ops.mean(self.pointer(x, training=training))


@pytest.mark.parametrize("where", ["call", "compute_loss", "add_loss"])
def test_fit_moves_the_baseline_and_points_to_the_reward(where):
    # Region 1 has the better words.
    draws = np.array([[0, -3.0], [1, -1.0], [2, -3.0], [1, -1.0]] * 2, "float32")
    model = PointerModel(where)
    model(draws[:1])
    model.compile(keras.optimizers.SGD(0.1))

    model.fit(draws, np.zeros(8), batch_size=4, epochs=2, shuffle=False, verbose=0)

    # Four batches whose mean reward is -2.
    baseline = float(model.pointer.reinforce.baseline)
    assert baseline == pytest.approx(-2 * (1 - 0.9**4), rel=1e-4)
    scores = ops.convert_to_numpy(model.pointer.scores)
    assert scores[1] > scores[0] == pytest.approx(scores[2], abs=1e-6)
    model.evaluate(draws, np.zeros(8), verbose=0)
    assert float(model.pointer.reinforce.baseline) == baseline


def test_saved_model_keeps_the_baseline(episodes, tmp_path):
    inputs = [keras.Input((STEPS,)) for _ in range(3)]
    layer = ReinforceLoss(reward_weight=0.3, entropy_weight=0.7, momentum=0.5)
    model = keras.Model(inputs, layer(*inputs))
    layer.baseline.assign(-7.5)

    again = reloaded(model, tmp_path)

    copy = again.layers[-1]
    assert type(copy) is ReinforceLoss
    assert copy.get_config() == layer.get_config()
    assert float(copy.baseline) == -7.5
    assert copy.trainable_variables == []
    np.testing.assert_array_equal(
        again.predict(episodes, verbose=0), model.predict(episodes, verbose=0)
    )


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16", "mixed_bfloat16"])
def test_rewards_keep_their_precision(dtype):
    layer = ReinforceLoss(dtype=dtype, reward_weight=0.0, entropy_weight=0.0)
    log_likelihood = np.array([-100_000.5], "float32")
    nothing = np.zeros(1, "float32")

    loss = layer(*map(ops.convert_to_tensor, (log_likelihood, nothing, nothing)))
    layer(log_likelihood, nothing, nothing, training=True)

    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss[0]) == 100_000.5
    assert float(layer.baseline) == pytest.approx(-10_000.05)


@pytest.mark.parametrize(
    ("name", "shape", "received"),
    [
        *((name, (2, 3, 1), r"Received: \(2, 3, 1\)") for name in EPISODES),
        *((name, (1, 3), r"\(2,\)\. Received: \(1,\)") for name in EPISODES[1:]),
        ("sampled", (2, 1), r"shape \(batch,.*Received"),
        ("mask", (2,), r"shape \(batch,.*Received"),
    ],
)
def test_an_argument_of_another_shape_is_named(episodes, name, shape, received):
    arguments = {**dict(zip(EPISODES, episodes, strict=True)), name: np.ones(shape)}

    with pytest.raises(ValueError, match=f"{name} must .*{received}"):
        ReinforceLoss()(**arguments)
