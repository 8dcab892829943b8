"""The output folder of a training: which models are kept, averaged and removed."""

import json
import shutil

import pytest

from attention_testing.nmt.trainings import command, contents, small
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.subwords import Subwords
from keras_attention_apps.nmt.training import train as training

pytestmark = pytest.mark.usefixtures("untrained_copies")


@pytest.mark.parametrize("name", ["checkpoints", "model"])
def test_a_folder_with_other_contents_is_refused(tmp_path, name, capsys):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    assert main(command("nowhere", tmp_path)) == 2

    assert "Received a folder with other contents" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["model", "checkpoints", "epochs"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, name, capsys):
    (tmp_path / name).write_text("mine")
    assert main(command("nowhere", tmp_path)) == 2
    assert f"Received a file: '{tmp_path / name}'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_training_that_fails_at_once_deletes_nothing(
    corpus, model_folder, tmp_path, capsys
):
    shutil.copytree(model_folder, tmp_path / "epochs" / "epoch-0001")
    (tmp_path / "subwords.model").write_bytes(b"mine")
    before = contents(tmp_path)
    assert main(command(corpus, tmp_path, **{"vocabulary-size": 10})) == 2

    assert "vocabulary_size must be at least" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_models_of_another_training_are_not_used(few, model_folder, tmp_path):
    output = tmp_path / "run"
    names = ["epoch-0001", "epoch-0002", ".part-7-epoch-0003", ".old-7-epoch-0003"]
    for name in (*names, "epoch-of-mine", ".part-7-mine"):
        shutil.copytree(model_folder, output / "epochs" / name)
    (output / "epochs" / "epoch-0004").mkdir()
    (output / "epochs" / "epoch-0004" / "config.json").write_text("mine")
    other = Subwords.train(["other words"], 300)
    (output / "subwords.model").write_bytes(other.content)
    assert main(small(few, output, epochs=1, average=0)) == 0

    assert "\u2581the" in Translator.from_preset(output / "model").tokenizer.pieces
    left = {folder.name for folder in (output / "epochs").iterdir()}
    assert left == {"epoch-0004", "epoch-of-mine", ".part-7-mine"}


def test_only_its_own_epochs_are_averaged_and_removed(few, tmp_path, model_folder):
    shutil.copytree(model_folder, tmp_path / "epochs" / "epoch-of-mine")
    before = contents(tmp_path / "epochs")
    assert main(small(few, tmp_path)) == 0
    assert contents(tmp_path / "epochs") == before


@pytest.mark.exhaustive
def test_the_average_is_kept_where_the_best_epoch_is_equal(few, tmp_path, monkeypatch):
    scores = {"bleu": 0.0, "chrf": 0.0}
    monkeypatch.setattr(training, "translation_scores", lambda *_: (scores, {}))
    assert main(small(few, tmp_path)) == 0

    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["average_of"] == ["epoch-0001", "epoch-0002"]
    # The average has a calibration of its own.
    assert config["calibration"]["count"] == 2


@pytest.mark.exhaustive
def test_where_bleu_is_zero_chrf_decides(few, tmp_path, monkeypatch):
    chrf = iter([5.0, 9.0, 3.0, 8.0])

    def score(*_):
        return {"bleu": 0.0, "chrf": next(chrf)}, {}

    monkeypatch.setattr(training, "translation_scores", score)
    averaged, average = [], training.average_models

    def record(folders, load):
        averaged.extend(folder.name for folder in folders)
        return average(folders, load)

    monkeypatch.setattr(training, "average_models", record)
    assert main(small(few, tmp_path, epochs=3)) == 0

    assert averaged == ["epoch-0001", "epoch-0002"]
    # The second epoch was better than the average.
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "average_of" not in config


def test_epochs_stay_until_their_average_is_recorded(
    few, tmp_path, capsys, monkeypatch
):
    def die(folder):
        epochs = list(folder.glob("epoch-*"))
        if epochs:
            shutil.rmtree(epochs[0])
            raise KeyboardInterrupt

    begun = small(few, tmp_path / "run", average=2)
    with monkeypatch.context() as patch:
        patch.setattr(training, "_remove_epochs", die)
        assert main(begun) == 130
    assert "The average of 2 epochs" in capsys.readouterr().out

    assert main(begun) == 0
    assert "The average of" not in capsys.readouterr().out
    assert not (tmp_path / "run" / "epochs").exists()
