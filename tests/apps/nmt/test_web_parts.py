"""Parts of the page of the translator that need no browser."""

import dataclasses
import importlib
import re

import numpy as np
import pytest

from attention_testing.nmt import marian as published
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.config import (
    DEFAULT_MODEL,
    REVERSE_MODEL,
    ChosenModel,
    WebConfig,
)
from keras_attention_apps.nmt.main import main
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

    def translations(sentence, language, search, *, n_best=1, other=None):
        asked.append((sentence, other))
        return outputs

    outputs = page.translations("A dog runs.", None, {}, n_best=1)
    monkeypatch.setattr(page, "translations", translations)
    options = 5, 1.0

    sentence, is_reversed = page.swap("A dog runs.", False, None, *options)
    assert (sentence, is_reversed) == (outputs[0].text, True)
    assert page.swap(sentence, is_reversed, None, *options) == (outputs[0].text, False)
    page.show_translations(sentence, True, None, 1, *options)
    assert asked == [("A dog runs.", None), *[(sentence, REVERSE_MODEL)] * 2]
    # The other models translate in the first direction only.
    assert page.show_others(sentence, True, None, True, *options)["value"] == ""


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """The folder of a translator with two target languages."""
    folder = tmp_path_factory.mktemp("many")
    published.write_transformers(
        folder / "opus-mt-en-mul", languages=[">>fra<<", ">>deu<<"], end_bias=2.0
    )
    model = str(folder / "model")
    main(["import", str(folder / "opus-mt-en-mul"), "--output", model])
    return model


def test_the_page_of_a_multilingual_model_has_its_target_languages(multilingual):
    model, sentence = ChosenModel(name=multilingual), "Two cats sleep."
    config = WebConfig(model=model, compare=(DEFAULT_MODEL,), target_language="deu")
    page = web.TranslationPage(config)

    assert page.languages == {"French": "fra", "German": "deu"}
    assert page.language == "deu"
    translator = page.load({})
    for language in page.languages.values():
        (best,) = page.translations(sentence, language, {})
        expected = translator.translate(sentence, target_language=language)
        assert (best.text, best.score) == (expected.text, expected.score)
        # The language that a sentence names itself counts.
        (best,) = page.translations(f">>{language}<< {sentence}", "fra", {})
        assert best.score == expected.score
    # A model without target languages is compared, too.
    options = 5, 1.0
    assert (
        "ka-words" in page.show_others(sentence, False, "deu", True, *options)["value"]
    )
    config = dataclasses.replace(config, target_language=None)
    assert web.TranslationPage(config).language == "fra"
    config = dataclasses.replace(config, target_language="xyz")
    with pytest.raises(UserError, match=r"must be one of fra, deu. Received: 'xyz'"):
        web.TranslationPage(config)
    blocks = web.build(dataclasses.replace(config, target_language="deu"))
    (menu,) = [
        x
        for x in blocks.blocks.values()
        if getattr(x, "label", "") == "Target language"
    ]
    assert menu.visible and menu.value == "deu"
    assert menu.choices == [("French", "fra"), ("German", "deu")]


def test_every_value_that_a_client_sends_has_a_type():
    """A model of one target language has no menu of them."""
    page = importlib.import_module("keras_attention_apps.common.web.page")
    pydantic = pytest.importorskip("pydantic")

    blocks = web.build(WebConfig())

    inputs = {
        component._id: component
        for function in blocks.fns.values()
        for component in function.inputs
        if not component.stateful
    }
    assert "Target language" not in [x.label for x in inputs.values()]
    for component in inputs.values():
        pydantic.TypeAdapter(page._type_of(component))
