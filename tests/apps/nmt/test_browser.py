"""Translators of every kind in the library of apps/browser, beside Python."""

import base64

import numpy as np
import pytest

from attention_testing.nmt import marian as published
from attention_testing.web_pages import opened
from keras_attention_apps.common.confidence import Confidence
from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.commands import export
from keras_attention_apps.nmt.commands.import_model import read_translator
from keras_attention_apps.nmt.lexicon import Lexicon
from keras_attention_apps.nmt.markup import translate_html

from .conftest import untrained

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.browser

# Words to copy, a sentence that is cut, an empty one, and two.
SENTENCES = ("the dog sees Zürich 2024", "a red cat " * 9, "", "The dog. The cat.")


# All features count, and sure and unsure translations occur.
CONFIDENCE = Confidence(
    data=["a"],
    count=9,
    bias=3.0,
    weights={
        "mean_log_probability": 0.3,
        "least_word_log_probability": 0.1,
        "log_source_length": -0.2,
        "length_ratio": 0.4,
        "rare_words": -0.1,
        "coverage": 0.5,
        "agreement": 0.6,
        "untranslated": -0.02,
        "rarest_untranslated": 0.05,
        "unexplained": 0.03,
        "unexplained_share": -0.4,
        "copied": -0.07,
        "mean_rarity": -0.11,
        "character_ratio": 0.3,
        "sure_share": -0.6,
    },
    threshold=0.8,
    auc=0.9,
    doubtful_below=0.01,
)
LEXICON = {"the": (90, ["the"]), "dog": (5, ["cat", "zürich"]), "sees": (5, ["red"])}


@pytest.mark.parametrize(
    ("attention", "options"),
    [("luong", {"copy": True}), ("bahdanau", {}), ("none", {})],
    ids=["copying", "bahdanau", "none"],
)
def test_translations_are_those_of_python(
    library, subwords, attention, options, tmp_path, monkeypatch
):
    # Convert two signatures instead of four.
    monkeypatch.setattr(export, "TARGET_LENGTHS", (16,))
    path = tmp_path / "tiny.tflite"
    translator = untrained(subwords, attention, **options)
    translator.confidence, translator.lexicon = CONFIDENCE, Lexicon(LEXICON)
    search = translator.search_options(beam_size=3, max_length_ratio=2.0)
    export.save_lite_translator(translator, path, search=search, quantize="none")
    expected = list(LiteTranslator(path).translate_each(SENTENCES, n_best=2))

    actual = library(
        """async ([model, sentences]) => {
            const bytes = Uint8Array.from(atob(model), x => x.charCodeAt(0));
            const translator = await library.load(bytes.buffer);
            const found = [];
            for (const sentence of sentences) {
                found.push(await translator.translate(sentence, {nBest: 2}));
            }
            return found;
        }""",
        [base64.b64encode(path.read_bytes()).decode(), SENTENCES],
    )

    for entries, translations in zip(actual, expected, strict=True):
        for entry, translation in zip(entries, translations, strict=True):
            assert entry["text"] == translation.text
            assert entry["words"] == translation.words
            assert entry["subwords"] == translation.subwords
            assert entry["cut"] == translation.cut
            assert entry["confidence"] == pytest.approx(
                translation.confidence, abs=1e-3
            )
            assert entry["doubtful"] == translation.doubtful
            assert entry["untranslated"] == translation.untranslated
            assert entry["unsure"] == translation.unsure
            assert ("reason" in entry) == translation.unsure
            assert entry["score"] == pytest.approx(translation.score, abs=1e-3)
            assert [tuple(pair) for pair in entry["alignment"]] == translation.alignment
            weights = np.reshape(entry["weights"], translation.weights.shape)
            np.testing.assert_allclose(weights, translation.weights, atol=1e-3)


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """The LiteRT file of an imported model with two target languages."""
    folder = tmp_path_factory.mktemp("many")
    published.write_transformers(
        folder / "opus-mt-en-mul",
        languages=[">>deu<<", ">>fra<<"],
        # With these weights, translations have words, and depend on the language.
        seed=6,
        end_bias=1.0,
        max_position_embeddings=16,
    )
    translator = read_translator(folder / "opus-mt-en-mul")
    search = translator.search_options(beam_size=3, max_length_ratio=1.0)
    path = folder / "many.tflite"
    with pytest.MonkeyPatch.context() as patch:
        # As for a model of the usual size: one length of sources.
        patch.setattr(export, "MAX_WEIGHTS", 1000)
        export.save_lite_translator(translator, path, search=search, quantize="none")
    return path


# A ligature, unknown characters, a sentence that names its language, and a long one.
IMPORTED_SENTENCES = (
    "Two cats sleep on the roof.",
    "A dog ru\ufb01n. The snow!",
    ">>fra<< Two cats.",
    "\u0436\u0437 z dog \uff12",
    "",
    "the red roof " * 9,
)


def test_imported_models_translate_as_in_python(library, multilingual):
    lite = LiteTranslator(multilingual)
    page = "<p>Two <b>cats</b> sleep.</p>"

    description, actual, pages, error = library(
        """async ([model, sentences, languages, page]) => {
            const bytes = Uint8Array.from(atob(model), x => x.charCodeAt(0));
            const translator = await library.load(bytes.buffer);
            const found = [];
            const pages = [];
            for (const targetLanguage of languages) {
                const options = {nBest: 2, targetLanguage};
                for (const sentence of sentences) {
                    found.push(await translator.translate(sentence, options));
                }
                pages.push(await translator.translateHtml(page, {targetLanguage}));
            }
            const error = await translator.translate("a", {targetLanguage: "xyz"}).then(
                () => "", (error) => error.message);
            return [translator.description, found, pages, error];
        }""",
        [
            base64.b64encode(multilingual.read_bytes()).decode(),
            IMPORTED_SENTENCES,
            ["deu", "fra"],
            page,
        ],
    )

    assert description["targetLanguages"] == ["deu", "fra"]
    assert description["languages"] == ["en", "mul"]
    assert error == "Expected as target language one of deu, fra. Received: xyz."
    expected = []
    for language in ("deu", "fra"):
        options = {"n_best": 2, "target_language": language}
        expected += lite.translate_each(IMPORTED_SENTENCES, **options)
    texts = [ranked[0].text for ranked in expected]
    assert texts[: len(IMPORTED_SENTENCES)] != texts[len(IMPORTED_SENTENCES) :]
    for several, others in zip(actual, expected, strict=True):
        for one, other in zip(several, others, strict=True):
            assert one["text"] == other.text
            assert one["words"] == other.words
            assert one["sourceWords"] == other.source_words
            assert one["subwords"] == other.subwords
            assert one["cut"] == other.cut
            assert one["score"] == pytest.approx(other.score, abs=1e-3)
            assert [tuple(pair) for pair in one["alignment"]] == other.alignment
            weights = np.reshape(one["weights"], other.weights.shape)
            np.testing.assert_allclose(weights, other.weights, atol=1e-3)
            np.testing.assert_allclose(one["endWeights"], other.end_weights, atol=1e-3)
    for actual, language, code in zip(pages, ("deu", "fra"), ("de", "fr"), strict=True):
        assert actual["text"] == translate_html(
            lite, page, language=code, target_language=language
        )


def test_the_page_has_a_menu_of_target_languages(browser, built, serve, multilingual):
    lite, sentence = LiteTranslator(multilingual), IMPORTED_SENTENCES[0]
    texts = {
        name: lite.translate(sentence, target_language=language).text
        for name, language in (("German", "deu"), ("French", "fra"))
    }
    assert texts["German"] and texts["French"] and texts["German"] != texts["French"]

    with opened(browser, f"{serve(built)}/#translator") as (page, _):
        assert not page.get_by_label("Target language").is_visible()
        page.locator("#translator .model input").first.set_input_files(multilingual)
        page.locator("#translator .model b", has_text="translator").wait_for()
        menu = page.get_by_label("Target language")
        assert menu.locator("option").all_text_contents() == ["German", "French"]
        page.get_by_label("Sentence", exact=True).last.fill(sentence)
        headline = page.locator("#translator h2")
        for name in ("German", "French", "German"):
            menu.select_option(label=name)
            headline.filter(has_text=texts[name]).first.wait_for()
            assert headline.first.text_content() == texts[name]
