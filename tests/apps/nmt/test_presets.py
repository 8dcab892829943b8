import itertools

import numpy as np
import pytest

from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.config import PRESETS
from keras_attention_apps.nmt.inference import Translator

NAMES = sorted(folder.name for folder in PRESETS.iterdir() if folder.is_dir())
pytestmark = pytest.mark.usefixtures("cached_models", "freed_models", "eager")


def test_there_is_one_of_each_kind():
    kinds = {Translator.read_config(name).attention for name in NAMES}
    assert kinds == {"bahdanau", "luong", "self-attention"}


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_translates_and_aligns(name):
    source = "Two dogs are playing in the snow."
    target = "Zwei Hunde spielen im Schnee."
    pairs = [("dogs", "Hunde"), ("snow.", "Schnee.")]
    if "de-en" in name:
        source, target = target, "Two dogs play in the snow."
        pairs = [pair[::-1] for pair in pairs]

    translation = Translator.from_preset(name).translate(source)

    assert translation.text == target
    for pair in pairs:
        source, target = translation.source_words, translation.words
        assert (source.index(pair[0]), target.index(pair[1])) in translation.alignment


def test_the_litert_file_of_a_preset_gives_the_same_results():
    pytest.importorskip("ai_edge_litert")
    name = "tatoeba-multi30k-en-de"
    sentences = ["A dog runs in the snow.", "A man sits on a red bench ."]
    runtimes = Translator.from_preset(name), LiteTranslator.from_preset(name)
    flat = itertools.chain.from_iterable
    expected, actual = (
        list(runtime.translate_each(sentences, n_best=3)) for runtime in runtimes
    )
    for translation, reference in zip(*map(flat, (actual, expected)), strict=True):
        assert translation.text == reference.text
        # The weights in the file are of int8.
        assert translation.score == pytest.approx(reference.score, abs=2e-2)
        np.testing.assert_allclose(translation.weights, reference.weights, atol=2e-2)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("en-de", {"BMW": "BMW", "NASA": "NASA", "YES": "JA", "HELLO": "HALLO"}),
        ("en-de", {"X": "X", "Q&A": "Q&A", "?!": "?!", "\u2026": "\u2026"}),
        ("de-en", {"BMW": "BMW", "ADAC": "ADAC", "JA": "YES", "ENDE": "END"}),
    ],
)
def test_what_has_no_words_stays_and_words_in_capitals_are_translated(pair, words):
    pytest.importorskip("ai_edge_litert")
    translator = LiteTranslator.from_preset(f"tatoeba-multi30k-{pair}")
    assert [x.text for x in translator.translate([*words])] == [*words.values()]
