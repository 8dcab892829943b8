"""`nmt calibrate`, translations of which the model is unsure, and `--min-score`."""

import json
import shutil

import numpy as np
import pytest

from attention_testing.programs import calibration_of, first_line
from keras_attention_apps.common import calibrate as common_calibrate
from keras_attention_apps.common.calibration import fit_calibration
from keras_attention_apps.common.models import update_sealed
from keras_attention_apps.nmt.commands import evaluate
from keras_attention_apps.nmt.config import ChosenModel, WebConfig
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.lexicon import LEXICON
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.translations import Translation

from .conftest import echo_searches

pytestmark = pytest.mark.usefixtures("cached_models", "echoed")


@pytest.fixture(scope="module")
def calibrated(model_folder, few, corpus, tmp_path_factory):
    """A translator that is unsure of half of its translations."""
    folder = tmp_path_factory.mktemp("calibrated") / "tiny"
    shutil.copytree(model_folder, folder)
    data = ["--data", str(corpus), "--out-of-domain", str(few), "--pair", "en-fr"]
    with pytest.MonkeyPatch.context() as patch:
        echo_searches(patch)
        assert main(["calibrate", str(folder), *data]) == 0
    calibration = calibration_of(folder)
    assert (calibration["data"], calibration["count"]) == (corpus.name, 8)
    assert calibration["out_of_domain"] == few.name and 0 <= calibration["auc"] <= 1
    calibration["threshold"] = calibration["quantiles"][5]
    update_sealed(folder / "config.json", {"calibration": calibration})
    return folder


@pytest.fixture
def command(corpus):
    return ["translate", "--input", str(corpus / "val.en")]


def entries(capsys, command, *more):
    assert main([*command, "--json", *map(str, more)]) == 0
    printed, error = capsys.readouterr()
    return [json.loads(line) for line in printed.splitlines()], error


def test_unsure_translations_are_named(calibrated, command, capsys):
    results, error = entries(capsys, command, "--model", calibrated)
    limit = calibration_of(calibrated)["threshold"]
    for entry in results:
        assert entry["unsure"] == (entry["mean_log_probability"] < limit)
        warning = f"line {entry['line']}: unsure of the translation"
        assert (warning in error) == entry["unsure"]
    assert 0 < sum(entry["unsure"] for entry in results) < len(results)
    # An empty sentence has an empty translation, of which the model is sure.
    assert main(["translate", "", "--json", "--model", str(calibrated)]) == 0
    assert json.loads(capsys.readouterr().out)["unsure"] is False


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(False, False, False), (False, True, True), (None, None, None)],
)
def test_a_text_is_unsure_if_one_of_its_sentences_is(first, second, expected):
    nothing = np.zeros((0, 0)), np.zeros(0)
    parts = [
        Translation("", [], [], -1.0, -1.0, *nothing, unsure=unsure)
        for unsure in (first, second)
    ]
    assert Translation.joined(parts).unsure is expected


def test_a_model_without_calibration_says_nothing(model_folder, command, capsys):
    results, error = entries(capsys, command, "--model", model_folder)
    assert error == "" and not any("unsure" in entry for entry in results)
    for entry in results:
        assert entry["mean_log_probability"] == pytest.approx(
            entry["log_probability"] / len(entry["subwords"]), abs=1e-3
        )


def test_improbable_translations_are_left_out(model_folder, command, capsys):
    command = [*command, "--model", str(model_folder)]
    results, _ = entries(capsys, command)
    scores = sorted(entry["mean_log_probability"] for entry in results)
    min_score = ["--min-score", f"{(scores[2] + scores[3]) / 2:.6f}"]
    left_out = [entry["mean_log_probability"] <= scores[2] for entry in results]

    filtered, error = entries(capsys, command, *min_score)
    for before, after, out in zip(results, filtered, left_out, strict=True):
        known = {name: before[name] for name in ("line", "mean_log_probability")}
        assert after == ({**known, "translation": None} if out else before)
        assert (f"line {before['line']}: no translation with" in error) == out

    assert main([*command, *min_score]) == 0
    assert [line == "" for line in capsys.readouterr().out.split("\n")[:-1]] == left_out
    assert main([*command, *min_score, "--n-best", "2"]) == 0
    numbers = {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()}
    pairs = zip(results, left_out, strict=True)
    assert numbers == {str(entry["line"]) for entry, out in pairs if not out}

    two_best, _ = entries(capsys, command, *min_score, "--n-best", "2")
    for entry, before, out in zip(two_best, results, left_out, strict=True):
        assert entry["line"] == before.pop("line")
        assert len(entry["translations"]) == (0 if out else 2)
        assert out or entry["translations"][0] == before
        assert not out or entry["mean_log_probability"] <= scores[2]


def test_the_page_says_what_its_model_is_for(calibrated, tmp_path):
    pytest.importorskip("gradio")
    from keras_attention_apps.nmt.web import build

    folder = tmp_path / "model"
    shutil.copytree(calibrated, folder)
    assert main(["calibrate", str(folder), "--purpose", "<b> & c"]) == 0
    page = build(WebConfig(model=ChosenModel(name=str(folder)), compare=()))
    assert "<h1>nmt</h1><p><b>&lt;b&gt; &amp; c</b></p><p>Trans" in first_line(page)


@pytest.fixture(scope="module")
def confident(model_folder, corpus, tmp_path_factory):
    """A translator with a confidence; every second translation was usable."""
    folder = tmp_path_factory.mktemp("confident") / "tiny"
    shutil.copytree(model_folder, folder)

    def judge(translations, references):
        assert len(translations) == len(references)
        return [i % 2 == 0 for i in range(len(references))]

    with pytest.MonkeyPatch.context() as patch:
        echo_searches(patch)
        patch.setattr(common_calibrate, "MIN_JUDGED", 2)
        patch.setattr(evaluate, "judge", judge)
        data = ["--data", str(corpus), "--pair", "en-fr"]
        assert main(["calibrate", str(folder), *data]) == 0
    return folder


def test_a_confidence_is_fitted_and_stored(confident, corpus, command, capsys):
    config = json.loads((confident / "config.json").read_text())
    assert "calibration" not in config and LEXICON in config["sha256"]
    translator = Translator.from_preset.__wrapped__(confident)
    assert translator.confidence.data == [corpus.name]
    assert translator.confidence.count == 8
    assert translator.confidence.threshold == evaluate.THRESHOLD
    names = {*translator.confidence.weights}
    assert {"untranslated", "coverage", "copied"} < names
    assert "log_source_length" not in names
    assert "chien" in translator.lexicon.entries["dog"][1]

    threshold = translator.confidence.threshold
    results, error = entries(capsys, command, "--model", confident)
    for entry in results:
        assert entry["unsure"] == (entry["confidence"] < threshold)
        warning = f"line {entry['line']}: unsure of the translation"
        assert (warning in error) == entry["unsure"] == ("reason" in entry)
        assert len(entry["word_probabilities"]) == len(entry["words"])
        for i in entry["untranslated_words"]:
            assert 0 <= i < len(entry["source_words"])


def test_a_saved_translator_keeps_confidence_and_lexicon(confident, tmp_path):
    translator = Translator.from_preset.__wrapped__(confident)
    translator.save(tmp_path / "copy")
    copy = Translator.from_preset.__wrapped__(tmp_path / "copy")
    assert copy.confidence == translator.confidence
    assert copy.lexicon.content == translator.lexicon.content
    # They belong to the weights.
    copy.calibrate(fit_calibration("data", copy.translate(["the dog"])))
    assert copy.confidence is copy.lexicon is None and copy.description_files == {}


def test_a_damaged_lexicon_is_an_error(confident, tmp_path, capsys):
    folder = shutil.copytree(confident, tmp_path / "model")
    (folder / LEXICON).write_text("cat\t1\tchat\n")
    assert main(["translate", "the dog", "--model", str(folder)]) == 2
    assert "lexicon.txt is damaged" in capsys.readouterr().err


def test_a_text_names_the_doubtful_words_of_its_sentences():
    nothing = np.zeros((2, 3)), np.zeros(2)
    parts = [
        Translation(
            "A b.",
            ["x", "y", "z"],
            ["A", "b."],
            *(-1.0, -1.0, *nothing),
            confidence=confidence,
            unsure=confidence < 0.5,
            reason=reason,
            doubtful=[1],
            untranslated=[2],
        )
        for confidence, reason in ((0.9, None), (0.2, "why"))
    ]
    joined = Translation.joined(parts)
    assert (joined.confidence, joined.unsure, joined.reason) == (0.2, True, "why")
    assert (joined.doubtful, joined.untranslated) == ([1, 3], [2, 5])


def test_sentences_are_judged_by_their_references():
    translations = [
        Translation(text, [], [], 0.0, 0.0, np.zeros((0, 0)), np.zeros(0))
        for text in (
            "The dog sleeps.",
            "the DOG sleeps.",
            "A cat is here.",
            "The cat sleeps.",
        )
    ]
    usable = evaluate.judge(translations, ["The dog sleeps."] * 4)
    assert usable == [True, True, False, None]


def test_min_score_must_not_be_positive(capsys):
    assert main(["translate", "A dog.", "--min-score", "0.5"]) == 2
    assert "--min-score must be at most 0" in capsys.readouterr().err
