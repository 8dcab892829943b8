"""Translators as LiteRT files, beside the same ones on Keras."""

import json
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from attention_testing.programs import assert_same_results, check_types_of_outputs
from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.commands import export
from keras_attention_apps.nmt.commands.export import save_lite_translator
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main

from .conftest import untrained

pytest.importorskip("ai_edge_litert")
pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="conversion needs TensorFlow"
)

# With this ratio, 8 is the longest source of translations of up to 16 tokens.
SEARCH = {"beam_size": 3, "length_penalty": 0.8, "max_length_ratio": 2.0}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SEARCH.items()]
# A sentence of one word, one as long as a signature, an empty one, and a long one.
SENTENCES = ["dog", "the old dog sees a red bird", "", "a red cat " * 9]


@pytest.fixture(scope="module", autouse=True)
def few_lengths():
    """Convert two signatures instead of four."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "TARGET_LENGTHS", (16,))
        yield


@pytest.fixture(scope="module")
def exported(model_folder, tmp_path_factory):
    """The file of a tiny translator with options of its own."""
    path = tmp_path_factory.mktemp("litert") / "tiny.tflite"
    options = [*OPTIONS, "--quantize", "none"]
    assert main(["export", str(path), "--model", str(model_folder), *options]) == 0
    return path


def same(actual, expected):
    """Check that two lists of translations of one sentence are the same."""
    assert_same_results(actual, expected)
    for translation, reference in zip(actual, expected, strict=True):
        assert translation.cut == reference.cut
        assert translation.source_words == reference.source_words
        np.testing.assert_allclose(
            translation.end_weights, reference.end_weights, atol=1e-4
        )


def test_browsers_can_read_all_outputs(exported):
    check_types_of_outputs(exported)


@pytest.mark.parametrize("threads", [1, 3])
def test_translations_are_as_on_keras(cached_models, exported, model_folder, threads):
    lite = LiteTranslator(exported, threads=threads)
    options = {"n_best": 3, **SEARCH}
    expected = Translator.from_preset(model_folder).translate_each(SENTENCES, **options)
    actual = lite.translate_each(SENTENCES, **options)
    for translations, references in zip(actual, expected, strict=True):
        same(translations, references)


def test_a_sentence_is_padded_to_the_next_length(exported):
    lite = LiteTranslator(exported)
    assert lite.lengths == [8, 20]
    ids = lite.tokenizer.encode(SENTENCES[1])[-8:]
    for count in (1, 8, 9, 20):
        source = [*(ids * 3)[:count]]
        [[hypothesis]] = lite._search([source], 1, 1, SEARCH)
        assert hypothesis.weights.shape[-1] == (8 if count <= 8 else 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("attention", ["self-attention", "luong", "none"])
def test_every_attention_is_converted(subwords, tmp_path, attention):
    translator = untrained(subwords, attention)
    path = tmp_path / "model.tflite"
    save_lite_translator(translator, path, search=SEARCH, quantize="none")
    lite = LiteTranslator(path)
    for sentence in SENTENCES[:2]:
        same([lite.translate(sentence)], [translator.translate(sentence, **SEARCH)])


# Runs in a process of its own, whose imported modules are checked.
RUN = """
import json, sys
from keras_attention_apps.nmt.main import main
code = main(sys.argv[1:])
print(json.dumps([code, [x for x in sys.modules if x in ("keras", "tensorflow")]]))
"""


def test_the_command_needs_no_keras(cached_models, exported, model_folder, tmp_path):
    folder, plots = tmp_path / "model", tmp_path / "plots"
    shutil.copytree(model_folder, folder)
    shutil.copy(exported, folder / "model.tflite")
    options = ["--json", f"--model={folder}", f"--plot={plots}", *OPTIONS]
    command = [sys.executable, "-c", RUN, "translate", *options]
    text = "".join(f"{x}\n" for x in SENTENCES[:3])
    *lines, last = subprocess.check_output(command, input=text, text=True).splitlines()
    assert json.loads(last) == [0, []]
    expected = Translator.from_preset(model_folder).translate(SENTENCES[:3], **SEARCH)
    for line, translation in zip(lines, expected, strict=True):
        entry = json.loads(line)
        assert entry["translation"] == translation.text
        assert entry["words"] == translation.words
        assert entry["score"] == pytest.approx(translation.score, abs=2e-4)
    assert any(plots.iterdir())


def test_scores_are_those_of_keras(exported, corpus, model_folder, capsys):
    options = ["--data", str(corpus), "--pair", "en-fr"]
    assert main(["evaluate", *options, "--model", str(exported)]) == 0
    lite = capsys.readouterr().out.removeprefix(str(exported))
    assert main(["evaluate", *options, "--model", str(model_folder), *OPTIONS]) == 0
    assert lite == capsys.readouterr().out.removeprefix(str(model_folder))
