import json
import shutil

import numpy as np
import pytest

from keras_attention_apps.captioner import metrics
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.metrics import (
    attention_figures,
    caption_scores,
    cider_of_probable,
    pointing,
)

from .conftest import COLOURS

REFERENCES = [
    ["A dog runs over the grass .", "the brown dog is running"],
    ["Two men play football .", "men in the park play with a ball"],
]


PERFECT = ["a DOG runs over the grass", "men in the park, play with a ball"]


def test_a_perfect_caption_scores_full_marks_whatever_its_case():
    scores = caption_scores(PERFECT, REFERENCES)

    for n in range(1, 5):
        assert scores[f"bleu-{n}"] == pytest.approx(100, abs=1e-3)
    assert scores["rouge-l"] == pytest.approx(100)


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("java"), reason="METEOR needs Java")
def test_meteor_of_a_perfect_caption():
    scores = caption_scores(PERFECT, REFERENCES, meteor=True)
    assert scores["meteor"] == pytest.approx(100, abs=1)


def test_bleu_by_hand():
    # Five of six unigrams occur (one "the" too many), no brevity penalty: 7 > 6.
    scores = caption_scores(["the the dog runs over grass a"], [REFERENCES[0]])
    assert scores["bleu-1"] == pytest.approx(100 * 6 / 7, abs=1e-3)


def test_short_captions_pay_the_brevity_penalty():
    # Three right words where the closest reference has five: exp(1 - 5 / 3).
    scores = caption_scores(["the brown dog"], [REFERENCES[0]])
    assert scores["bleu-1"] == pytest.approx(51.34, abs=0.01)


def test_figures_of_attention_worked_by_hand():
    maps = [
        np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.25, 0.75]]]),
        np.array([[[0.5, 0.5]]]),
    ]
    figures = attention_figures(maps)

    assert figures["changes"] == 50
    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert figures["entropy"] == pytest.approx((quarter + np.log(2)) / 4)
    # The first two words look at different regions; (1, 3) has the length sqrt(10).
    assert figures["cosine"] == pytest.approx((0 + 1 / 10**0.5 + 3 / 10**0.5) / 3)


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
    caption = Caption(" ".join(words), words, 0.0, 0.0, 0.0, [1.0] * 5, weights)

    assert pointing([caption], [boxes]) == (1, 3)
    assert pointing([caption], [{}]) == (0, 0)


class QuarterMeteor:
    """Replaces METEOR, whose Java program needs eight seconds to start."""

    def compute_score(self, references, captions):
        assert references.keys() == captions.keys()
        return 0.25, [0.25] * len(captions)


def test_evaluation_prints_scores_and_writes_coco_results(
    cached_models, squares, model_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr("pycocoevalcap.meteor.meteor.Meteor", QuarterMeteor)
    results = tmp_path / "results.json"
    arguments = ["--data", str(squares), "--model", str(model_folder)]
    assert main(["evaluate", *arguments, "--output", str(results)]) == 0

    out = capsys.readouterr().out
    for name in ("bleu-1", "bleu-4", "cider", "rouge-l", "meteor    25.00"):
        assert name in out
    reported = json.loads(results.read_text())
    images = {f"{colour}-32" for colour in COLOURS}
    assert {entry["image_id"] for entry in reported} == images
    assert all(isinstance(entry["caption"], str) for entry in reported)


@pytest.mark.exhaustive
def test_cider_of_a_single_image_is_not_printed(
    cached_models, without_java, squares, model_folder, tmp_path, capsys
):
    data = shutil.copytree(squares, tmp_path / "data")
    (data / "devImages.txt").write_text("red-32.png")
    command = ["evaluate", "--data", str(data), "--model", str(model_folder)]
    assert main(command) == 0

    lines = capsys.readouterr().out.splitlines()
    cider = [line for line in lines if line.startswith("cider")]
    assert cider == ["cider    needs several images"]


def test_an_evaluation_does_not_replace_its_data(
    cached_models, without_java, squares, model_folder, tmp_path, capsys
):
    data = shutil.copytree(squares, tmp_path / "data")
    captions = (data / "captions.txt").read_text()
    command = ["evaluate", "--data", str(data), "--model", str(model_folder)]
    assert main([*command, "--output", str(data / "captions.txt")]) == 2
    assert "not an input" in capsys.readouterr().err
    assert (data / "captions.txt").read_text() == captions
    # Results are not data.
    for _ in range(2):
        assert main([*command, "--output", str(data / "results.json")]) == 0


def test_cider_of_the_most_probable_captions():
    captions = ["a dog runs in the snow", "a cat", "wrong words here", "two men sit"]
    references = [[captions[0]], ["a black cat"], ["a bird"], [captions[3]]]
    log_probabilities = np.array([-0.1, -0.4, -0.9, -0.2])
    scores_by_share = cider_of_probable(
        captions, references, log_probabilities, (1, 0.75, 0.5)
    )
    assert [minimum for minimum, _ in scores_by_share] == [-0.9, -0.4, -0.2]
    whole, three, two = (cider for _, cider in scores_by_share)
    # The last one has no word of its reference.
    assert three == pytest.approx(whole * 4 / 3)
    assert two > three > whole > 0


def test_compared_scores_are_those_of_single_models():
    references = [["a dog runs on the grass", "the dog is running"], ["two cats"] * 3]
    references += [["a red bird sits on a tall tree", "a bird in a tree"]]
    good = ["a dog runs on the green grass", "two cats", "a red bird sits in a tree"]
    bad = ["a cat", "two dogs run on the grass", "a red bird"]
    compared = metrics.compared_scores([good, bad, good], references)
    for i, captions in enumerate((good, bad)):
        scores = metrics.caption_scores(captions, references)
        for name, of_models in compared.items():
            assert of_models[i].score == pytest.approx(scores[name], abs=0.05), name
    assert {x[0].p_value for x in compared.values()} == {None}
    assert {x[2].p_value for x in compared.values()} == {1.0}
