import shutil

import numpy as np
import pytest
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.metrics import (
    attention_figures,
    caption_scores,
    pointing,
)

REFERENCES = [
    ["A dog runs over the grass .", "the brown dog is running"],
    ["Two men play football .", "men in the park play with a ball"],
]


def test_a_perfect_caption_scores_full_marks_whatever_its_case():
    scores = caption_scores(
        ["a DOG runs over the grass", "men in the park, play with a ball"], REFERENCES
    )

    for n in range(1, 5):
        assert scores[f"bleu-{n}"] == pytest.approx(100, abs=1e-3)
    assert scores["rouge-l"] == pytest.approx(100)


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("java"), reason="METEOR needs Java")
def test_meteor_of_a_perfect_caption():
    captions = ["a dog runs over the grass", "men in the park, play with a ball"]
    scores = caption_scores(captions, REFERENCES, meteor=True)

    assert scores["meteor"] == pytest.approx(100, abs=1)


def test_bleu_by_hand():
    # Five of six unigrams occur (one "the" too many), no brevity penalty: 7 > 6.
    scores = caption_scores(["the the dog runs over grass a"], [REFERENCES[0]])
    assert scores["bleu-1"] == pytest.approx(100 * 6 / 7, abs=1e-3)


def test_short_captions_pay_the_brevity_penalty():
    # Three right words where the closest reference has five: exp(1 - 5 / 3).
    scores = caption_scores(["the brown dog"], [REFERENCES[0]])
    assert scores["bleu-1"] == pytest.approx(51.34, abs=0.01)


def test_changes_and_entropy_worked_by_hand():
    maps = [
        np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.25, 0.75]]]),
        np.array([[[0.5, 0.5]]]),
    ]
    figures = attention_figures(maps)

    assert figures["changes"] == 50
    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert figures["entropy"] == pytest.approx((quarter + np.log(2)) / 4)


def test_cider_needs_several_images():
    scores = caption_scores(["the brown dog"], REFERENCES[:1])
    assert [*scores] == ["bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l"]
    assert "cider" in caption_scores(["the brown dog", "men"], REFERENCES)


def test_cider_prefers_the_rarer_words():
    references = [["a dog runs"], ["a cat sleeps"], ["a bird flies"]]
    common = caption_scores(["a", "a", "a"], references)["cider"]
    rare = caption_scores(["dog", "cat", "bird"], references)["cider"]
    assert rare > common


def test_pointing_counts_words_that_name_an_object():
    boxes = {"dog": [(0.5, 0, 1, 1)], "cat": [(0, 0, 0.5, 1)]}
    words = ["a", "dog", "sees", "cat", "dog"]
    weights = np.array([[[1.0, 0.0]], [[0.4, 0.6]], [[1, 0]], [[0, 1]], [[0.9, 0.1]]])
    caption = Caption(
        " ".join(words), words, 0.0, 0.0, 0.0, [1.0] * len(words), weights
    )

    assert pointing([caption], [boxes]) == (1, 3)
    assert pointing([caption], [{}]) == (0, 0)
