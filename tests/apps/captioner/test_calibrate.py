"""`captioner calibrate`, and captions of which the model is unsure."""

import json
import shutil

import keras
import pytest

from attention_testing.programs import calibration_of, error_of, first_line
from keras_attention_apps.captioner import LiteCaptioner
from keras_attention_apps.captioner.commands.export import save_lite_captioner
from keras_attention_apps.captioner.config import ChosenModel, WebConfig
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.models import update_sealed


@pytest.fixture(scope="module")
def calibrated(model_folder, squares, tmp_path_factory):
    """A captioner that is unsure of half of its captions."""
    model = tmp_path_factory.mktemp("calibrated") / "tiny"
    folder = shutil.copytree(model_folder, model)
    assert main(["calibrate", str(folder), "--data", str(squares)]) == 0
    calibration = calibration_of(folder)
    calibration["threshold"] = calibration["quantiles"][5]
    update_sealed(folder / "config.json", {"calibration": calibration})
    return folder


def images(squares):
    return sorted((squares / "Images").iterdir())


def test_a_model_has_the_quantiles_of_its_captions(calibrated, squares):
    captions = Captioner.from_preset(calibrated).caption(images(squares))
    scores = [x.mean_log_probability for x in captions]
    calibration = calibration_of(calibrated)
    assert (calibration["data"], calibration["count"]) == (squares.name, 4)
    assert (
        min(scores) - 1e-4
        <= calibration["quantiles"][0]
        <= calibration["quantiles"][-1]
        <= 0
    )


def test_unsure_captions_are_named(calibrated, squares, tmp_path, capsys):
    paths = [*map(str, images(squares))]
    output = tmp_path / "captions.jsonl"
    command = ["caption", *paths, "--model", str(calibrated), "--json"]
    for more in ([], ["--output", str(output)]):
        assert main([*command, *more]) == 0
        printed, error = capsys.readouterr()
        text = output.read_text() if more else printed
        entries = [json.loads(line) for line in text.splitlines()]
        limit = calibration_of(calibrated)["threshold"]
        for entry in entries:
            assert entry["unsure"] == (entry["mean_log_probability"] < limit)
            warning = f"warning: {entry['image']!r}: unsure of the caption"
            assert (warning in error) == entry["unsure"]
        assert 0 < sum(entry["unsure"] for entry in entries) < len(entries)


def test_a_threshold_and_a_purpose_are_written(
    model_folder, squares, tmp_path, capsys, cached_models
):
    folder = shutil.copytree(model_folder, tmp_path / "tiny")
    data = ["--data", str(squares), "--out-of-domain", str(squares)]
    assert main(["calibrate", str(folder), *data, "--purpose", "squares"]) == 0

    printed = capsys.readouterr().out
    assert "0.50  area under the ROC curve" in printed
    assert f"{squares.name} and" in printed and f"{squares.name}-2" in printed
    config = json.loads((folder / "config.json").read_text())
    assert config["purpose"] == "squares"
    assert config["calibration"]["out_of_domain"] == f"{squares.name}-2"
    # Saved again, a model keeps both.
    captioner = Captioner.from_preset.__wrapped__(folder)
    captioner.save(tmp_path / "copy")
    assert calibration_of(tmp_path / "copy") == config["calibration"]


def test_what_cannot_be_calibrated_is_an_error_at_once(model_folder, squares, capsys):
    data = ["--data", squares]
    error = error_of(main, ["calibrate", model_folder], capsys)
    assert "expected --data, or --purpose alone" in error
    error = error_of(main, ["calibrate", f"{model_folder}+x", *data], capsys)
    assert "expected the name of a preset" in error
    purpose = ["--purpose", "x" * 201]
    error = error_of(main, ["calibrate", model_folder, *data, *purpose], capsys)
    assert "at most 200 characters" in error


def test_the_help_says_what_the_default_model_is_for(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "presets" / "flickr8k-coco-ensemble"
    folder.mkdir(parents=True)
    presets = "keras_attention_apps.captioner.main.config.PRESETS"
    monkeypatch.setattr(presets, tmp_path / "presets")
    purpose = '{"purpose": "everyday photographs"}'
    for content, expected in ((purpose, True), ("{}", False)):
        (folder / "config.json").write_text(content)
        for command in ("caption", "web"):
            with pytest.raises(SystemExit):
                main([command, "--help"])
            output = " ".join(capsys.readouterr().out.split())
            line = "Default model: everyday photographs (flickr8k-coco-ensemble)."
            assert (line in output) == expected


@pytest.mark.exhaustive
def test_the_page_says_what_its_model_is_for(calibrated, tmp_path):
    pytest.importorskip("gradio")
    from keras_attention_apps.captioner.web import build

    folder = shutil.copytree(calibrated, tmp_path / "model")
    assert main(["calibrate", str(folder), "--purpose", "<b> & c"]) == 0
    page = build(WebConfig(model=ChosenModel(name=str(folder)), compare=""))
    title = "<h1>captioner</h1><p><b>&lt;b&gt; &amp; c</b></p><p>Captions"
    assert title in first_line(page)


@pytest.mark.exhaustive
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="conversion needs TensorFlow"
)
def test_litert_files_are_calibrated(calibrated, squares, tmp_path, capsys):
    pytest.importorskip("ai_edge_litert")
    captioner = Captioner.from_preset(calibrated)
    captioner.purpose = "squares"
    path = tmp_path / "tiny.tflite"
    save_lite_captioner(captioner, path, search=captioner.search_options())
    content = path.read_bytes()
    lite = LiteCaptioner(path)
    assert lite.calibration == captioner.calibration and lite.purpose == "squares"
    expected = lite.caption(images(squares))
    assert {x.unsure for x in expected} == {True, False}

    # Both files of a folder change together.
    folder = shutil.copytree(calibrated, tmp_path / "both")
    shutil.copy(path, folder / "model.tflite")
    assert main(["calibrate", str(folder), "--data", str(squares)]) == 0
    lite = LiteCaptioner(folder / "model.tflite")
    assert lite.calibration == Captioner.from_preset(folder).calibration
    assert lite.calibration.threshold is None and lite.purpose == "squares"
    changed = [x.text for x in lite.caption(images(squares))]
    assert changed == [x.text for x in expected]

    assert main(["calibrate", str(path), "--purpose", "other squares"]) == 0
    assert LiteCaptioner(path).purpose == "other squares"
    assert main(["calibrate", str(path), "--purpose", "squares"]) == 0
    assert path.read_bytes() == content
