"""The captioner whose decoder is a Transformer."""

import dataclasses
import itertools

import numpy as np
import pytest

from attention_testing.arrays import numpy

from .conftest import TRANSFORMER, untrained


@pytest.fixture(scope="module")
def captioner():
    return untrained(TRANSFORMER)


def test_captions_of_an_image_are_independent(captioner, batch):
    together = numpy(captioner.network(batch))
    assert together["weights"].shape == (2, 3, 5, 4)
    np.testing.assert_allclose(together["weights"].sum(axis=-1), 1.0, rtol=1e-5)

    for row, column in itertools.product(range(2), range(3)):
        alone = {
            "features": batch["features"][row : row + 1],
            "captions": batch["captions"][row : row + 1, column : column + 1],
        }
        for name, expected in numpy(captioner.network(alone)).items():
            actual = together[name][row, column]
            np.testing.assert_allclose(actual, expected[0, 0], atol=1e-5)


def test_a_word_depends_on_the_words_before_it_and_their_order(captioner, batch):
    changed = batch["captions"].copy()
    changed[..., [2, 3]] = changed[..., [3, 2]]
    before, after = (
        numpy(captioner.network({**batch, "captions": x})["logits"])
        for x in (batch["captions"], changed)
    )

    np.testing.assert_allclose(before[:, :, :2], after[:, :, :2], atol=1e-6)
    assert np.abs(before[:, :, 2:] - after[:, :, 2:]).max(axis=-1).min() > 1e-4


@pytest.mark.parametrize("decoder", ["recurrent", "transformer"])
def test_a_configuration_counts_no_more_weights_than_there_are(decoder):
    config = dataclasses.replace(TRANSFORMER, decoder=decoder)
    network = untrained(config).network
    weights = network.decoder.trainable_weights + network.embedding.weights
    counted = sum(np.prod(x.shape, dtype=int) for x in weights)
    assert 0.7 * counted < config.fewest_weights(13) <= counted
