import dataclasses
import itertools

import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, numpy
from attention_testing.captioner.image_files import noise
from keras_attention_apps.captioner.metrics import attention_figures
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.captioner.network.networks import attention_entropy
from keras_attention_apps.common.network.decoder_network import DeepOutput
from keras_attention_apps.common.tokenizer import PAD, START, UNKNOWN

from .conftest import TINY, TRANSFORMER, untrained


def test_weights_change_when_the_state_changes(captioner, batch):
    # An additive model whose state shifts all scores alike has one map for all words.
    weights = ops.convert_to_numpy(captioner.network(batch)["weights"])

    change = np.abs(np.diff(weights, axis=2)).max(axis=-1)
    # The first image has a caption with padding.
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


def likelihoods(outputs, captions):
    """The log-probability of each caption."""
    logits, targets = numpy(outputs["logits"]).astype("float64"), captions[..., 1:]
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    likely = np.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
    return (likely * (targets != PAD)).sum(axis=-1)


def test_the_loss_is_cross_entropy_and_penalty_per_word(captioner, batch, monkeypatch):
    network = captioner.network
    outputs = numpy(network(batch))
    mask = batch["captions"][..., 1:] != PAD
    seen = (outputs["weights"] * mask[..., None]).sum(axis=2)
    total = -likelihoods(outputs, batch["captions"]).sum()
    total += 0.7 * ((1 - seen) ** 2).sum()

    monkeypatch.setattr(network.loss_options, "doubly_stochastic", 0.7)
    loss = network.compute_loss(batch, None, outputs)
    np.testing.assert_allclose(float(loss), total / mask.sum(), rtol=1e-5)


def test_entropy_and_similarity_of_the_attention_are_penalised_per_word(
    captioner, batch, monkeypatch
):
    network = captioner.network
    outputs = numpy(network(batch))
    mask = batch["captions"][..., 1:] != PAD
    weights = outputs["weights"].astype("float64")
    entropies = -(weights * np.log(weights)).sum(axis=-1)
    total = -likelihoods(outputs, batch["captions"]).sum()
    total += 0.7 * (entropies * mask).sum()
    for image, caption in itertools.product(*map(range, mask.shape[:2])):
        maps = weights[image, caption][mask[image, caption]]
        # The mean over all pairs of words, for every word.
        total += 0.3 * len(maps) * attention_figures([maps])["cosine"]

    monkeypatch.setattr(network.loss_options, "attention_entropy", 0.7)
    monkeypatch.setattr(network.loss_options, "attention_similarity", 0.3)
    loss = network.compute_loss(batch, None, outputs)
    np.testing.assert_allclose(float(loss), total / mask.sum(), rtol=1e-5)


def test_weights_of_zero_have_no_entropy():
    weights = np.array([[1.0, 0.0], [0.5, 0.5]], "float32")
    assert_close(attention_entropy(weights), [0.0, np.log(2)], atol=1e-6)


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
    likelihood = likelihoods(outputs, batch["captions"])
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
    hard_captioner, batch, monkeypatch
):
    network = hard_captioner.network
    captions = batch["captions"].copy()
    captions[0, 1] = PAD
    batch = {**batch, "captions": captions}
    outputs = network(batch, training=True)
    outputs["sampled"] = ops.ones_like(outputs["sampled"])
    likelihood = likelihoods(outputs, captions)[captions.any(axis=-1)]

    for smoothing in (0.0, 0.1):
        monkeypatch.setattr(network.loss_options, "label_smoothing", smoothing)
        network.reinforce.baseline.assign(-3.0)
        network.compute_loss(batch, None, outputs, training=True)
        behind = float(ops.convert_to_numpy(network.reinforce.baseline))
        expected = 0.9 * -3.0 + 0.1 * likelihood.mean()
        assert behind == pytest.approx(expected, rel=1e-5)


def test_sampled_captions_are_scored_in_inference_mode(hard_captioner, batch):
    advantages = np.ones((2, 3), "float32")
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
    inputs = {"features": batch["features"]}
    chosen, mean = (
        hard_captioner.search_model(maps=maps).predict_on_batch(inputs)
        for maps in ("weights", "probabilities")
    )
    length = chosen["lengths"][0, 0]
    weights, probabilities = (x["weights"][0, 0, :length] for x in (chosen, mean))

    np.testing.assert_array_equal(weights, np.eye(4)[probabilities.argmax(axis=-1)])
    assert (probabilities.max(axis=-1) < 1).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-5)


def test_attention_supervision_is_added_to_the_loss(captioner, batch, monkeypatch):
    network = captioner.network
    outputs = numpy(network(batch))
    regions = np.zeros_like(outputs["weights"])
    regions[1, 2, 3, :2] = 1, 0.5
    words = (batch["captions"][..., 1:] != PAD).sum()
    weights = outputs["weights"][1, 2, 3]
    reported = -(np.log(weights[0]) + 0.5 * np.log(weights[1])) / 1.5

    batch = {**batch, "coverage": regions}
    without = float(network.compute_loss(batch, None, outputs))
    monkeypatch.setattr(network.loss_options, "supervision", 0.3)
    loss = float(network.compute_loss(batch, None, outputs))

    assert loss - without == pytest.approx(0.3 * reported / words, rel=1e-3)


@pytest.mark.parametrize("config", [TINY, TRANSFORMER], ids=["lstm", "transformer"])
def test_the_search_agrees_with_the_training_pass(eager, config, batch):
    captioner, features = untrained(config), {"features": batch["features"]}
    # Otherwise Keras on JAX runs a search eagerly before it compiles it.
    layers = captioner.network._flatten_layers()
    assert [layer.name for layer in layers if not layer.built] == []

    hypotheses = captioner.search_model(beam_size=3).predict_on_batch(features)
    rows = hypotheses["token_ids"]
    captions = np.concatenate([np.full((*rows.shape[:2], 1), START), rows], axis=-1)
    outputs = captioner.network({**features, "captions": captions.astype("int32")})
    log_probs = numpy(ops.log_softmax(outputs["logits"], axis=-1))

    assert not np.isin(rows, [PAD, START, UNKNOWN]).any()
    for row, beam in itertools.product(range(2), range(3)):
        length = hypotheses["lengths"][row, beam]
        total = sum(log_probs[row, beam, t, rows[row, beam, t]] for t in range(length))
        np.testing.assert_allclose(hypotheses["log_probs"][row, beam], total, atol=1e-4)
        assert_close(
            hypotheses["weights"][row, beam, :length],
            numpy(outputs["weights"])[row, beam, :length],
        )


@pytest.fixture(scope="module")
def mobilenet():
    return Backbone("MobileNetV2", 64)


def test_the_backbone_reads_pixels_as_its_application_does(mobilenet):
    pixels = noise(64, 64)[None]
    scaled = pixels.astype("float32") / 127.5 - 1

    regions = ops.convert_to_numpy(mobilenet(pixels))
    grid = ops.convert_to_numpy(mobilenet.cnn(scaled, training=False))
    np.testing.assert_allclose(regions, grid.reshape(1, 4, 1280), atol=1e-4)


def test_batch_normalisation_stays_in_inference_mode_while_training(mobilenet):
    images = np.stack([noise(64, 64), noise(64, 64)[::-1]])
    before = mobilenet.cnn.get_weights()
    first = ops.convert_to_numpy(mobilenet(images, training=True))

    for old, new in zip(before, mobilenet.cnn.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert_close(mobilenet(images, training=False), first, 1e-6)
