import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from attention_testing.web_pages import SAMPLE
from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.captioner.config import PRESETS
from keras_attention_apps.captioner.inference import Captioner

NAMES = sorted(folder.name for folder in PRESETS.iterdir() if folder.is_dir())
pytestmark = pytest.mark.usefixtures("cached_models", "freed_models", "eager")


def test_there_is_one_of_each_kind():
    kinds = {Captioner.read_config(name).attention for name in NAMES}

    assert kinds == {"hard", "soft"}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_captions_the_sample_image(name):
    caption = Captioner.from_preset(name).caption(SAMPLE)

    assert {"man", "camera"} <= set(caption.words)


@pytest.mark.exhaustive
def test_ngram_blocking_prevents_repetitions():
    captioner = Captioner.from_preset("flickr8k-coco-soft")
    usual, once = (
        [x.words for x in next(captioner.caption_each([SAMPLE], **options))[1]]
        for options in ({"n_best": 5}, {"n_best": 5, "no_repeat_ngrams": 1})
    )

    assert any(len(set(words)) < len(words) for words in usual)
    assert all(len(set(words)) == len(words) > 3 for words in once)


def test_the_litert_file_of_a_preset_gives_similar_results():
    pytest.importorskip("ai_edge_litert")
    [(_, expected)], [(_, actual)] = (
        runtime.from_preset("flickr8k-coco-ensemble").caption_each([SAMPLE], n_best=5)
        for runtime in (Captioner, LiteCaptioner)
    )
    expected = {x.text: x for x in expected}
    both = [(x, expected[x.text]) for x in actual if x.text in expected]
    assert actual[0].text in expected and len(both) >= 2
    for caption, reference in both:
        # The file computes in 8-bit integers.
        assert caption.score == pytest.approx(reference.score, abs=0.1)
        np.testing.assert_allclose(caption.weights, reference.weights, atol=0.03)
        np.testing.assert_allclose(
            caption.probabilities, reference.probabilities, atol=0.1
        )


@pytest.mark.slow
def test_both_runtimes_caption_a_data_set_alike():
    """Needs images: a folder that `CAPTIONER_IMAGES` names."""
    images = sorted(Path(os.environ["CAPTIONER_IMAGES"]).glob("*.jpg"))[:200]
    captions = [
        runtime.from_preset("flickr8k-coco-ensemble").caption(images)
        for runtime in (Captioner, LiteCaptioner)
    ]
    same = [x.text == y.text for x, y in zip(*captions, strict=True)]
    print(f"{same.count(False)} of {len(same)} captions differ")
    # Among captions that are about equally probable, the best one depends on rounding.
    assert len(same) == 200 and same.count(False) <= 40
    for caption, reference in itertools.compress(zip(*captions, strict=True), same):
        assert caption.score == pytest.approx(reference.score, abs=0.2)
