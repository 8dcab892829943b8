"""Features of translations, worked by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from keras_attention_apps.common.inference import Hypothesis
from keras_attention_apps.nmt.confidence_features import features_of
from keras_attention_apps.nmt.lexicon import Lexicon


def features(words, probabilities, lexicon=None):
    """Return the features of a translation of "the zoo"."""
    logarithms = np.log(probabilities)
    hypothesis = Hypothesis(
        np.arange(len(probabilities)),
        score=-1.0,
        log_probability=float(logarithms.sum()),
        token_log_probabilities=logarithms,
        length=len(probabilities),
        weights=np.ones((len(probabilities), 2)),
    )
    translation = SimpleNamespace(
        words=words,
        source_words=["the", "zoo"],
        weights=np.full((len(words), 2), 0.5),
        word_probabilities=probabilities[:-1],
        mean_log_probability=float(logarithms.mean()),
    )
    word_indices = np.array([0, 1])
    return features_of(translation, word_indices, hypothesis, [hypothesis], lexicon)


def test_shares_and_ratios():
    few = features(["der", "Tierpark"], [0.95, 0.5, 0.91, 0.2])
    # Eleven characters for six, and two subwords of four.
    assert few["character_ratio"] == pytest.approx(math.log(11 / 6))
    assert few["sure_share"] == 0.5
    assert few["least_word_log_probability"] == pytest.approx(math.log(0.2))
    empty = features([], [0.95])
    assert empty["character_ratio"] == pytest.approx(math.log(6))
    assert empty["sure_share"] == 1.0


def test_the_lexicon_finds_words_that_are_only_copied():
    lexicon = Lexicon({"the": (999, ["der"]), "zoo": (1, ["tierpar"])})
    right = features(["der", "Tierpark"], [0.9, 0.9, 0.9], lexicon)
    copied = features(["der", "Zoo"], [0.9, 0.9, 0.9], lexicon)
    assert (right["copied"], copied["copied"]) == (0, lexicon.rarity("zoo"))
    assert copied["copied"] > 2
    # "the" is too frequent to be rare.
    assert right["mean_rarity"] == lexicon.rarity("zoo") / 2
    assert "copied" not in features(["der"], [0.9, 0.9])
