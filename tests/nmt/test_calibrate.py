"""`nmt calibrate`, translations of which the model is unsure, and `--min-score`."""

import json
import shutil

import numpy as np
import pytest
from keras_attention_apps.common.models import update_sealed
from keras_attention_apps.nmt.config import ChosenModel, WebConfig
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.translations import Translation
from programs import calibration_of, first_line

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
    found = calibration_of(folder)
    assert (found["data"], found["count"]) == (corpus.name, 8)
    assert found["out_of_domain"] == few.name and 0 <= found["auc"] <= 1
    found["threshold"] = found["quantiles"][5]
    update_sealed(folder / "config.json", {"calibration": found})
    return folder


@pytest.fixture
def command(corpus):
    return ["translate", "--input", str(corpus / "val.en")]


def entries(capsys, command, *more):
    assert main([*command, "--json", *map(str, more)]) == 0
    printed, error = capsys.readouterr()
    return [json.loads(line) for line in printed.splitlines()], error


def test_unsure_translations_are_named(calibrated, command, capsys):
    found, error = entries(capsys, command, "--model", calibrated)
    limit = calibration_of(calibrated)["threshold"]
    for entry in found:
        assert entry["unsure"] == (entry["mean_log_probability"] < limit)
        warning = f"line {entry['line']}: unsure of the translation"
        assert (warning in error) == entry["unsure"]
    assert 0 < sum(entry["unsure"] for entry in found) < len(found)
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
    found, error = entries(capsys, command, "--model", model_folder)
    assert error == "" and not any("unsure" in entry for entry in found)
    for entry in found:
        assert entry["mean_log_probability"] == pytest.approx(
            entry["log_probability"] / len(entry["subwords"]), abs=1e-3
        )


def test_improbable_translations_are_left_out(model_folder, command, capsys):
    command = [*command, "--model", str(model_folder)]
    found, _ = entries(capsys, command)
    scores = sorted(entry["mean_log_probability"] for entry in found)
    least = ["--min-score", f"{(scores[2] + scores[3]) / 2:.6f}"]
    left_out = [entry["mean_log_probability"] <= scores[2] for entry in found]

    kept, error = entries(capsys, command, *least)
    for before, after, out in zip(found, kept, left_out, strict=True):
        known = {name: before[name] for name in ("line", "mean_log_probability")}
        assert after == ({**known, "translation": None} if out else before)
        assert (f"line {before['line']}: no translation with" in error) == out

    assert main([*command, *least]) == 0
    assert [line == "" for line in capsys.readouterr().out.split("\n")[:-1]] == left_out
    assert main([*command, *least, "--n-best", "2"]) == 0
    shown = {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()}
    pairs = zip(found, left_out, strict=True)
    assert shown == {str(entry["line"]) for entry, out in pairs if not out}

    several, _ = entries(capsys, command, *least, "--n-best", "2")
    for entry, before, out in zip(several, found, left_out, strict=True):
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


def test_min_score_must_not_be_positive(capsys):
    assert main(["translate", "A dog.", "--min-score", "0.5"]) == 2
    assert "min_score must be at most 0" in capsys.readouterr().err
