import dataclasses
import itertools

import numpy as np
import pytest
from arrays import assert_close, numpy
from keras import ops
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.common.network.base import DeepOutput
from keras_attention_apps.common.text import END, PAD, START, UNKNOWN

from .conftest import TINY, TRANSFORMER, untrained

IMAGES, CAPTIONS, WORDS = 2, 3, 5


@pytest.fixture(scope="module")
def batch(captioner):
    random = np.random.default_rng(0)
    token_ids = random.integers(4, 12, (IMAGES, CAPTIONS, WORDS + 1)).astype("int32")
    token_ids[..., 0] = START
    token_ids[0, 1, 3:] = [END, PAD, PAD]
    features = random.normal(size=(IMAGES, 4, 130)).astype("float32")
    return {"features": features, "captions": token_ids}


def test_weights_change_when_the_state_changes(captioner, batch):
    # An additive model whose state shifts all scores alike has one map for all words.
    weights = ops.convert_to_numpy(captioner.network(batch)["weights"])

    for first, second in itertools.pairwise(range(WORDS)):
        change = np.abs(weights[:, :, first] - weights[:, :, second]).max(axis=-1)
        assert (change[1:] > 1e-6).all()


def test_the_initial_state_comes_from_the_mean_region(captioner, batch):
    network = captioner.network
    regions = network.regions(batch)
    state = network.initial_state(regions)["cell"]
    mean = ops.convert_to_numpy(regions).mean(axis=1)

    for part, dense in zip(
        state, (network.initial_output, network.initial_carry), strict=True
    ):
        kernel, bias = (ops.convert_to_numpy(w) for w in dense.weights)
        expected = np.tanh(mean @ kernel + bias)
        np.testing.assert_allclose(ops.convert_to_numpy(part), expected, atol=1e-5)


def test_deep_output_is_the_equation_of_the_paper():
    random = np.random.default_rng(1)
    y, h, z = (random.normal(size=(2, n)).astype("float32") for n in (7, 11, 13))
    layer = DeepOutput(7, dropout=0.5)
    result = ops.convert_to_numpy(layer(y, h, z))

    l_h, bias, l_z = (ops.convert_to_numpy(w) for w in layer.weights)
    np.testing.assert_allclose(result, np.tanh(y + h @ l_h + bias + z @ l_z), atol=1e-5)


def test_the_loss_is_cross_entropy_and_penalty_per_word(captioner, batch):
    network = captioner.network
    outputs = {k: ops.convert_to_numpy(v) for k, v in network(batch).items()}
    targets, total, words = batch["captions"][..., 1:], 0.0, 0
    for row, column in itertools.product(range(IMAGES), range(CAPTIONS)):
        seen = np.zeros(4)
        for step, token in enumerate(targets[row, column]):
            if token == PAD:
                continue
            logits = outputs["logits"][row, column, step].astype("float64")
            total += np.log(np.exp(logits).sum()) - logits[token]
            seen += outputs["weights"][row, column, step]
            words += 1
        total += 0.7 * ((1 - seen) ** 2).sum()

    network.loss_options.doubly_stochastic, before = (
        0.7,
        network.loss_options.doubly_stochastic,
    )
    try:
        loss = network.compute_loss(batch, None, outputs)
    finally:
        network.loss_options.doubly_stochastic = before
    np.testing.assert_allclose(float(loss), total / words, rtol=1e-5)


def test_hard_attention_looks_at_one_region(hard_captioner, batch):
    network = hard_captioner.network
    best = numpy(network(batch))
    draws = [numpy(network(batch, training=True)) for _ in range(20)]

    one_hot = np.eye(4)[best["probabilities"].argmax(axis=-1)]
    np.testing.assert_array_equal(best["weights"], one_hot)
    for drawn in draws:
        hard, soft = (
            drawn["weights"][drawn["sampled"][..., 0] == kind] for kind in (1, 0)
        )
        np.testing.assert_array_equal(np.sort(hard)[..., -1], 1.0)
        assert (soft.max(axis=-1) < 1).all()
    # Half of the captions are trained with soft attention.
    sampled = np.mean([drawn["sampled"] for drawn in draws])
    assert 0.3 < sampled < 0.7


def test_the_loss_of_hard_attention_is_that_of_reinforce(hard_captioner, batch):
    network = hard_captioner.network
    outputs = numpy(network(batch, training=True))
    mask = batch["captions"][..., 1:] != PAD
    logits = outputs["logits"].astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    likely = np.take_along_axis(log_probs, batch["captions"][..., 1:, None], axis=-1)
    likelihood = (likely[..., 0] * mask).sum(axis=-1)
    chosen = (outputs["log_probability"] * mask).sum(axis=-1)
    chosen = np.where(outputs["sampled"][..., 0], chosen, 0.0)
    network.reinforce.baseline.assign(-3.0)
    expected = likelihood + 0.1 * (likelihood + 3.0) * chosen
    expected += 0.002 * (outputs["entropy"] * mask).sum(axis=-1)

    loss = network.compute_loss(batch, None, outputs, training=True)
    behind = float(ops.convert_to_numpy(network.reinforce.baseline))

    np.testing.assert_allclose(float(loss), -expected.sum() / mask.sum(), rtol=1e-5)
    drawn = likelihood[outputs["sampled"][..., 0]]
    moved = 0.9 * -3.0 + 0.1 * drawn.mean() if len(drawn) else -3.0
    assert behind == pytest.approx(moved, rel=1e-5)


def test_the_reinforce_reward_has_no_smoothing_and_no_missing_captions(
    hard_captioner, batch
):
    network = hard_captioner.network
    captions = batch["captions"].copy()
    captions[0, 1] = PAD
    batch = {**batch, "captions": captions}
    outputs = network(batch, training=True)
    outputs["sampled"] = ops.ones_like(outputs["sampled"])
    logits, targets = ops.convert_to_numpy(outputs["logits"]), captions[..., 1:, None]
    logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    likely = np.take_along_axis(logs, targets, axis=-1)[..., 0]
    likelihood = (likely * (targets[..., 0] != PAD)).sum(axis=-1)
    there = captions.any(axis=-1)

    for smoothing in (0.0, 0.1):
        network.loss_options.label_smoothing = smoothing
        network.reinforce.baseline.assign(-3.0)
        network.compute_loss(batch, None, outputs, training=True)
        behind = float(ops.convert_to_numpy(network.reinforce.baseline))
        expected = 0.9 * -3.0 + 0.1 * likelihood[there].mean()
        assert behind == pytest.approx(expected, rel=1e-5)
    network.loss_options.label_smoothing = 0.0


def test_sampled_captions_are_scored_in_inference_mode(hard_captioner, batch):
    advantages = np.ones((IMAGES, CAPTIONS), "float32")
    outputs = hard_captioner.network({**batch, "advantages": advantages}, training=True)
    expected = hard_captioner.network(batch, training=False)

    np.testing.assert_array_equal(
        *map(numpy, (outputs["weights"], expected["weights"]))
    )
    assert_close(outputs["logits"], expected["logits"], 1e-6)


def test_straight_through_needs_no_reward(batch):
    config = dataclasses.replace(
        TINY, attention="hard", estimator="straight-through", soft_probability=0.0
    )
    network = untrained(config).network
    outputs = numpy(network(batch, training=True))

    assert network.reinforce is None
    np.testing.assert_array_equal(np.sort(outputs["weights"])[..., -1], 1.0)


def test_maps_of_a_search_are_weights_or_probabilities(eager, hard_captioner, batch):
    found = {
        maps: hard_captioner.search_model(maps=maps).predict_on_batch(
            {"features": batch["features"]}
        )
        for maps in ("weights", "probabilities")
    }
    length = found["weights"]["lengths"][0, 0]
    weights, probabilities = (found[x]["weights"][0, 0, :length] for x in found)

    np.testing.assert_array_equal(weights, np.eye(4)[probabilities.argmax(axis=-1)])
    assert (probabilities.max(axis=-1) < 1).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-5)


def test_attention_supervision_is_added_to_the_loss(captioner, batch):
    network = captioner.network
    outputs = numpy(network(batch))
    regions = np.zeros((IMAGES, CAPTIONS, WORDS, 4), "float32")
    regions[1, 2, 3, :2] = 1, 0.5
    words = (batch["captions"][..., 1:] != PAD).sum()
    weights = outputs["weights"][1, 2, 3]
    reported = -(np.log(weights[0]) + 0.5 * np.log(weights[1])) / 1.5

    losses = []
    for supervision in (0.0, 0.3):
        network.loss_options.supervision = supervision
        loss = network.compute_loss({**batch, "coverage": regions}, None, outputs)
        losses.append(float(loss))
    network.loss_options.supervision = 0.0

    assert losses[1] - losses[0] == pytest.approx(0.3 * reported / words, rel=1e-3)


@pytest.mark.parametrize("config", [TINY, TRANSFORMER], ids=["lstm", "transformer"])
def test_the_search_agrees_with_the_training_pass(eager, config, batch):
    captioner, features = untrained(config), {"features": batch["features"]}
    # Otherwise Keras on JAX runs a search eagerly before it compiles it.
    layers = captioner.network._flatten_layers()
    assert [layer.name for layer in layers if not layer.built] == []

    found = captioner.search_model(beam_size=3).predict_on_batch(features)
    rows = found["token_ids"]
    captions = np.concatenate([np.full((*rows.shape[:2], 1), START), rows], axis=-1)
    outputs = captioner.network({**features, "captions": captions.astype("int32")})
    log_probs = numpy(ops.log_softmax(outputs["logits"], axis=-1))

    assert not np.isin(rows, [PAD, START, UNKNOWN]).any()
    for row, beam in itertools.product(range(IMAGES), range(3)):
        length = found["lengths"][row, beam]
        total = sum(log_probs[row, beam, t, rows[row, beam, t]] for t in range(length))
        np.testing.assert_allclose(found["log_probs"][row, beam], total, atol=1e-4)
        assert_close(
            found["weights"][row, beam, :length],
            numpy(outputs["weights"])[row, beam, :length],
        )


@pytest.fixture(scope="module")
def mobilenet():
    return Backbone("MobileNetV2", 64)


def test_the_backbone_reads_pixels_as_its_application_does(mobilenet):
    pixels = np.random.default_rng(2).integers(0, 256, (1, 64, 64, 3)).astype("uint8")
    scaled = pixels.astype("float32") / 127.5 - 1

    regions = ops.convert_to_numpy(mobilenet(pixels))
    grid = ops.convert_to_numpy(mobilenet.cnn(scaled, training=False))
    np.testing.assert_allclose(regions, grid.reshape(1, 4, 1280), atol=1e-4)


def test_batch_normalisation_stays_in_inference_mode_while_training(mobilenet):
    images = np.random.default_rng(2).integers(0, 256, (2, 64, 64, 3)).astype("uint8")
    before = [ops.convert_to_numpy(v) for v in mobilenet.cnn.non_trainable_variables]
    first = ops.convert_to_numpy(mobilenet(images, training=True))

    after = [ops.convert_to_numpy(v) for v in mobilenet.cnn.non_trainable_variables]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    second = ops.convert_to_numpy(mobilenet(images, training=False))
    np.testing.assert_allclose(first, second, atol=1e-6)
