"""What captions and images show of the quality of a caption."""

import math

import numpy as np
import pytest

from keras_attention_apps.captioner import confidence_features
from keras_attention_apps.common.inference import Hypothesis, agreement


def hypothesis(token_ids, log_probabilities):
    values = np.array(log_probabilities)
    length = len(values)
    return Hypothesis(
        np.array(token_ids), 0.0, float(values.sum()), values, length, np.zeros(0)
    )


RANKED = [
    hypothesis([7, 9, 2], [-1.0, -2.0, -0.5]),
    hypothesis([7, 8, 2], [-1.0, -3.0, -0.5]),
    hypothesis([7, 2], [-1.0, -4.0]),
]


def test_features_of_a_caption_worked_by_hand():
    features = confidence_features.features_of([7, 9], RANKED[0], RANKED)
    assert features == pytest.approx(
        {
            "mean_log_probability": -3.5 / 3,
            "least_log_probabilities": -3.5 / 3,
            "log_probability_of_all": math.log(sum(map(math.exp, (-3.5, -4.5, -5.0)))),
            "length": 3.0,
            "rarest_word": math.log(10),
            "rarity_of_words": (math.log(8) + math.log(10)) / 2,
            # Of three tokens, the others have two and two.
            "agreement": 2 / 3,
        }
    )


def test_hypotheses_without_others_agree():
    assert agreement(RANKED[0], RANKED[:1]) == 1.0


def test_features_of_an_image_worked_by_hand():
    # Columns of 0, 0, 100 and 103: from left to right, one step of three is equal, one
    # is flat, and one an edge; from top to bottom, all are equal.
    row = np.repeat(np.array([0, 0, 100, 103], np.uint8)[:, None], 3, axis=1)
    image = np.stack([row] * 4)
    contrast = math.log1p(103 / 3 / 2)
    assert confidence_features.image_features(image) == pytest.approx(
        {
            "image_equal": (1 / 3 + 1) / 2,
            "image_flat": (2 / 3 + 1) / 2,
            "image_contrast": contrast,
            "image_squared_contrast": contrast**2,
            "image_direction": math.log(103 / 3 + 1),
            "image_edges": 1 / 3 / 2,
        }
    )


def test_pictures_of_one_colour_differ_from_noise():
    flat = confidence_features.image_features(np.full((8, 8, 3), 200, np.uint8))
    assert flat["image_equal"] == flat["image_flat"] == 1
    assert flat["image_contrast"] == flat["image_direction"] == 0
    random = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    noise = confidence_features.image_features(random)
    assert noise["image_equal"] < 0.01 and noise["image_edges"] > 0.1
