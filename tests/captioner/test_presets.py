from pathlib import Path

import pytest
from keras_attention_apps.captioner.captions import PRESETS
from keras_attention_apps.captioner.inference import Captioner

NAMES = sorted(folder.name for folder in PRESETS.iterdir() if folder.is_dir())
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("loaded_once", "eager")


def test_there_is_one_of_each_kind():
    kinds = {Captioner.from_preset(name).config.attention for name in NAMES}

    assert kinds == {"hard", "soft"}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_captions_the_sample_photograph(name):
    caption = Captioner.from_preset(name).caption(ROOT / "docs" / "photographer.jpg")

    assert {"man", "camera"} <= set(caption.words)


@pytest.mark.exhaustive
def test_words_in_a_row_do_not_come_twice():
    captioner = Captioner.from_preset("flickr8k-soft")
    usual, once = (
        captioner.caption(ROOT / "docs" / "photographer.jpg", **options).words
        for options in ({}, {"no_repeat_ngrams": 1})
    )

    assert len(set(usual)) < len(usual)
    assert len(set(once)) == len(once) > 3
