"""Translators of every kind in the library of apps/browser, beside Python."""

import base64

import numpy as np
import pytest

from keras_attention_apps.common.confidence import Confidence
from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.commands import export
from keras_attention_apps.nmt.lexicon import Lexicon

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
