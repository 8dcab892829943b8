"""The captioner whose decoder is a Transformer."""

import dataclasses
import itertools

import numpy as np
import pytest
from arrays import numpy
from keras_attention_apps.common.text import START

from .conftest import TRANSFORMER, untrained

IMAGES, CAPTIONS, WORDS, REGIONS = 2, 3, 5, 4


@pytest.fixture(scope="module")
def captioner():
    return untrained(TRANSFORMER)


@pytest.fixture(scope="module")
def photographs(squares):
    return sorted((squares / "Images").iterdir())[:3]


@pytest.fixture(scope="module")
def batch():
    random = np.random.default_rng(0)
    token_ids = random.integers(4, 12, (IMAGES, CAPTIONS, WORDS + 1)).astype("int32")
    token_ids[..., 0] = START
    features = random.normal(size=(IMAGES, REGIONS, 130)).astype("float32")
    return {"features": features, "captions": token_ids}


def test_captions_of_an_image_are_independent(captioner, batch):
    together = numpy(captioner.network(batch))
    assert together["weights"].shape == (IMAGES, CAPTIONS, WORDS, REGIONS)
    np.testing.assert_allclose(together["weights"].sum(axis=-1), 1.0, rtol=1e-5)

    for row, column in itertools.product(range(IMAGES), range(CAPTIONS)):
        alone = {
            "features": batch["features"][row : row + 1],
            "captions": batch["captions"][row : row + 1, column : column + 1],
        }
        for name, expected in numpy(captioner.network(alone)).items():
            found = together[name][row, column]
            np.testing.assert_allclose(found, expected[0, 0], atol=1e-5)


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
