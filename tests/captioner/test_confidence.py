"""How sure the captioner is of a caption: probabilities, and captions left out."""

import json
import math

import numpy as np
import pytest
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.metrics import cider_of_probable

pytestmark = pytest.mark.usefixtures("cached_models")


@pytest.fixture
def photographs(squares):
    return sorted((squares / "Images").iterdir())[:4]


def entries(capsys, *command):
    assert main([*map(str, command)]) == 0
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_the_probabilities_of_the_words_and_of_the_end_multiply(captioner, photographs):
    [(_, captions)] = captioner.caption_each(photographs[:1], n_best=5)
    for caption in captions:
        count = len(caption.words)
        assert len(caption.probabilities) == count
        product = math.log(math.prod(caption.probabilities))
        # The end token, which usually follows the last word, has a probability, too.
        assert product > caption.log_probability
        mean = caption.log_probability / (count + 1)
        assert caption.mean_log_probability == pytest.approx(mean)


def test_improbable_captions_are_left_out(photographs, model_folder, tmp_path, capsys):
    command = ["caption", *photographs, "--model", model_folder, "--json"]
    found, _ = entries(capsys, *command)
    scores = sorted(x["mean_log_probability"] for x in found)
    threshold = (scores[1] + scores[2]) / 2
    some = ["--min-score", f"{threshold:.6f}", "--overlay", tmp_path]
    kept, error = entries(capsys, *command, *some)
    for before, after in zip(found, kept, strict=True):
        left_out = before["mean_log_probability"] < threshold
        if not left_out:
            assert after == before
        assert (after["caption"] is None) == left_out
        assert (f"warning: {before['image']!r} has no caption" in error) == left_out
    assert error.count("\n") == len(list(tmp_path.iterdir())) == 2


def test_of_several_captions_some_are_left_out(photographs, model_folder, capsys):
    path = photographs[0]
    command = ["caption", path, "--model", model_folder, "--json", "--n-best", "3"]
    [whole], _ = entries(capsys, *command)
    scores = [x["mean_log_probability"] for x in whole["captions"]]
    threshold = sum(sorted(scores)[:2]) / 2
    [kept], error = entries(capsys, *command, "--min-score", threshold)
    assert kept["captions"] == [
        x for x in whole["captions"] if x["mean_log_probability"] >= threshold
    ]
    assert 0 < len(kept["captions"]) < 3 and not error


def test_cider_of_the_most_probable_captions():
    captions = ["a dog runs in the snow", "a cat", "wrong words here", "two men sit"]
    references = [
        ["a dog runs in the snow"],
        ["a black cat"],
        ["a bird"],
        ["two men sit"],
    ]
    log_probabilities = np.array([-0.1, -0.4, -0.9, -0.2])
    found = cider_of_probable(captions, references, log_probabilities, (1, 0.75, 0.5))
    assert [least for least, _ in found] == [-0.9, -0.4, -0.2]
    whole, three, two = (cider for _, cider in found)
    # The last one has no word of its reference.
    assert three == pytest.approx(whole * 4 / 3)
    assert two > three > whole > 0
