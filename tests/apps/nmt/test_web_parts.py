"""Parts of the page of the translator that need no browser."""

import dataclasses
import importlib
import re

import numpy as np
import pytest

from keras_attention_apps.nmt.config import (
    DEFAULT_MODEL,
    REVERSE_MODEL,
    ChosenModel,
    WebConfig,
)
from keras_attention_apps.nmt.runtimes import RUNTIMES
from keras_attention_apps.nmt.translations import Translation
from keras_attention_apps.nmt.views import alignment_figure

pytest.importorskip("gradio")
web = importlib.import_module("keras_attention_apps.nmt.web")


def test_figures_of_the_same_title_are_chosen_from_separately():
    weights, end_weights = np.array([[0.2, 0.8], [0.7, 0.1]]), np.array([0.0, 0.2])
    words = ["a", "b"], ["c", "d"]
    translation = Translation("c d", *words, -1.0, -2.0, weights, end_weights)

    figures = [alignment_figure(translation, "model", number) for number in (0, 1)]
    first, second = (set(re.findall('name="(.*?)"', x)) for x in figures)

    assert len(first) == len(second) == 1 and first != second
    assert "Unsure" not in figures[0]
    unsure = dataclasses.replace(translation, unsure=True)
    assert "Unsure: " in alignment_figure(unsure, "model", 0)


@pytest.mark.parametrize(
    ("model", "compare", "others"),
    [
        ("a", ("b", "c"), ["b", "c"]),
        ("a", ("b", "a", "b"), ["b"]),
        ("run/model", ("./run/model", "run/../run/other"), ["run/../run/other"]),
        ("run/model", (), []),
    ],
)
def test_models_are_compared_with_others(model, compare, others, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    config = WebConfig(model=ChosenModel(name=model), compare=compare)
    assert RUNTIMES.others(config.compare, config.model.name) == others


def test_both_presets_are_the_reverse_of_each_other():
    assert web.reverse_of(DEFAULT_MODEL) == REVERSE_MODEL
    assert web.reverse_of(REVERSE_MODEL) == DEFAULT_MODEL
    assert web.reverse_of("multi30k-en-de-luong") is None
    assert web.reverse_of("my-model-en-de") is None


def test_swapping_makes_the_translation_the_next_sentence(monkeypatch):
    page = web.TranslationPage(WebConfig(compare=()))
    asked = []

    def translations(sentence, search, *, n_best=1, other=None):
        asked.append((sentence, other))
        return shown

    shown = page.translations("A dog runs.", {}, n_best=1)
    monkeypatch.setattr(page, "translations", translations)
    options = 5, 1.0

    sentence, is_reversed = page.swap("A dog runs.", False, *options)
    assert (sentence, is_reversed) == (shown[0].text, True)
    assert page.swap(sentence, is_reversed, *options) == (shown[0].text, False)
    page.show_translations(sentence, True, 1, *options)
    assert asked == [("A dog runs.", None), *[(sentence, REVERSE_MODEL)] * 2]
    # The other models translate in the first direction only.
    assert page.show_others(sentence, True, True, *options)["value"] == ""
