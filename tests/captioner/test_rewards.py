import numpy as np
import pytest
import sacrebleu
from keras_attention_apps.captioner.text import tokenize
from keras_attention_apps.captioner.training.self_critical import (
    BleuReward,
    CiderReward,
)
from pycocoevalcap.cider.cider import Cider

REFERENCES = [
    ["A dog runs over the grass .", "the brown dog is running"],
    ["Two men play football .", "men in the park play with a ball", "a ball game"],
    ["A girl in a red dress sits on a swing", "the girl is swinging"],
]
CAPTIONS = [
    "a dog runs",
    "two men men men play with the ball in the park of the big city today",
    "something else entirely",
]


def test_the_cider_reward_equals_the_metric():
    reward = CiderReward(REFERENCES)
    ours = [reward(tokenize(text), i) for i, text in enumerate(CAPTIONS)]

    def ended(text):
        return " ".join([*tokenize(text), "<end>"])

    truth = {i: [ended(text) for text in texts] for i, texts in enumerate(REFERENCES)}
    captions = {i: [ended(text)] for i, text in enumerate(CAPTIONS)}
    _, theirs = Cider().compute_score(truth, captions)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    assert ours[0] > 0.1


def test_an_incomplete_caption_has_a_lower_reward():
    reward = CiderReward(REFERENCES)

    whole = reward(tokenize("men in the park play with a ball"), 1)
    broken = reward(tokenize("men in the park play with a"), 1)
    assert broken < 0.8 * whole


def test_repeating_a_word_does_not_raise_the_reward():
    reward = CiderReward(REFERENCES)

    assert reward(["dog", "dog", "dog"], 0) < reward(["dog"], 0)


@pytest.mark.parametrize("kind", [CiderReward, BleuReward])
@pytest.mark.parametrize("words", [[], ["unheard-of"]])
def test_worthless_captions_have_a_small_finite_reward(kind, words):
    assert 0 <= kind(REFERENCES)(words, 2) < 0.5


@pytest.mark.parametrize("photograph, text", [*enumerate(CAPTIONS), (0, "a dog")])
def test_the_bleu_reward_equals_the_smoothed_metric(photograph, text):
    found = BleuReward(REFERENCES)(tokenize(text), photograph)

    references = [" ".join(tokenize(text)) for text in REFERENCES[photograph]]
    truth = sacrebleu.sentence_bleu(
        " ".join(tokenize(text)),
        references,
        smooth_method="add-k",
        smooth_value=1,
        tokenize="none",
    )
    assert found == pytest.approx(truth.score / 100, abs=1e-9)
