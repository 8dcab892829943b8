"""Trainings of a captioner that are interrupted, moved and resumed."""

import functools
import re
import shutil

import pytest

from attention_testing.captioner.trainings import (
    ONE_PHASE,
    SHORT,
    SIZES,
    check_history,
    command,
    history_of,
)
from attention_testing.programs import begin_training
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.captioner.training import train
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.training.checkpoints import Checkpoints


@pytest.fixture
def begin(monkeypatch):
    """A function that starts a training and interrupts it before its first step."""
    return functools.partial(begin_training, main, monkeypatch)


@pytest.mark.exhaustive
def test_a_preset_may_move_but_not_change(
    squares, captioner, tmp_path, capsys, begin, monkeypatch
):
    def run(preset):
        changes = {"from-preset": preset, "self-critical-epochs": 0}
        return command(squares, tmp_path / "run", sizes={}, **changes)

    base = tmp_path / "first" / "base"
    captioner.save(base)
    begin(run(base))
    moved = shutil.copytree(base, tmp_path / "second" / "base")
    monkeypatch.chdir(tmp_path)
    begin(run("./second/base"))

    # Another model, with other words in the same number, is now in its place.
    words = captioner.tokenizer.words[4:]
    other = Vocabulary(["cow", "tree", *words[2:]])
    Captioner(captioner.config, other, captioner.network).save(moved)
    capsys.readouterr()
    assert main(run(moved)) == 2
    err = capsys.readouterr().err
    assert "another training: from_preset's vocabulary was 'digest " in err


def test_a_file_of_weights_may_move_but_not_change(squares, tmp_path, capsys, begin):
    def run(file):
        return command(squares, tmp_path / "run", **{"backbone-weights": file})

    first, second = (tmp_path / x / "cnn.weights.h5" for x in ("first", "second"))
    first.parent.mkdir()
    second.parent.mkdir()
    Backbone("SmallCNN", SIZES["image-size"]).cnn.save_weights(first)
    shutil.copy(first, second)
    begin(run(first))
    begin(run(second))

    Backbone("SmallCNN", SIZES["image-size"]).cnn.save_weights(second)
    capsys.readouterr()
    assert main(run(second)) == 2
    assert "training: backbone_weights_file was 'digest " in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_resumed_training_equals_an_uninterrupted_one(
    eager, squares, tmp_path, interrupting
):
    output, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    assert main(command(squares, undisturbed, SHORT, **ONE_PHASE)) == 0
    with interrupting():
        assert main(command(squares, output, SHORT, **ONE_PHASE)) == 130
    # The state after a kill while the model was replaced.
    (output / "model").rename(output / ".old-7-model")
    assert main(command(squares, output, SHORT, **ONE_PHASE)) == 0

    assert not list(output.glob(".*"))
    check_history(output, undisturbed)
    for name in ("steps.csv", "epochs.csv"):
        numbers = [(x / name).read_text() for x in (output, undisturbed)]
        # The last digits depend on rounding, and the seconds on the machine.
        steps = [re.findall(r"^\d+,[^,]+,\d*", x, re.MULTILINE) for x in numbers]
        assert steps[0] == steps[1] and len(steps[0]) >= 2
    reports = [(x / "report.html").read_text() for x in (output, undisturbed)]
    # The last digits depend on rounding.
    assert re.sub(r"[0-9.]+", "", reports[0]) == re.sub(r"[0-9.]+", "", reports[1])


@pytest.mark.slow
def test_every_phase_continues_after_an_interruption(squares, tmp_path, interrupting):
    output, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    assert main(command(squares, undisturbed)) == 0
    with interrupting():
        for _ in range(4):
            assert main(command(squares, output)) == 130
    assert main(command(squares, output)) == 0
    check_history(output, undisturbed)


@pytest.mark.exhaustive
def test_a_phase_that_stopped_early_does_not_resume(
    eager, without_steps, squares, tmp_path, monkeypatch
):
    scores, output = iter([5.0, 4.0, 3.0, 2.0]), tmp_path / "run"
    changes = {"epochs": 3, "fine-tune-epochs": 0, "self-critical-epochs": 3}
    changes["batch-images"] = 12
    run = command(squares, output, SHORT, patience=1, **changes)
    save = Checkpoints.save

    def interrupt(self, *arguments):
        save(self, *arguments)
        if self.progress.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(train, "caption_scores", lambda *texts: {"cider": next(scores)})
    monkeypatch.setattr(Checkpoints, "save", interrupt)

    assert [main(run) for _ in range(3)] == [130, 130, 0]
    assert [figures["cider"] for figures in history_of(output)] == [5, 4, 3, 2]
