import csv
import logging
import math

import pytest

from attention_testing.programs import error_of
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.training import logs
from keras_attention_apps.common.training.checkpoints import Progress
from keras_attention_apps.common.training.runner import FOLDERS, LogSteps, check_output
from keras_attention_apps.nmt.main import main


def rows(folder, name):
    with open(folder / name, newline="") as file:
        return [*csv.DictReader(file)]


def run(folder, saved, steps, **options):
    """Run a training of epochs of 3 steps from a checkpoint; return that of its end.

    It is killed after a number of steps; `saved` are the steps and the history of a
    checkpoint.
    """
    progress = Progress(steps=saved.steps, history=[*saved.history])
    log = logs.Log(folder, progress, **options)
    log.begin()
    last = saved
    for step in range(saved.steps + 1, steps + 1):
        epoch = (step - 1) // 3
        values = {"loss": 1 / step, "learning_rate": 0.1, "seconds": 0.5}
        log.add_step("A, first" if epoch < 2 else "B", epoch % 2 + 1, values)
        if step % 3 == 0:
            metrics = {"loss": 0.25, "bleu": epoch} | ({"new": 7} if epoch == 3 else {})
            log.add_epoch("A, first" if epoch < 2 else "B", metrics)
            # Killed between the log and the checkpoint.
            if step < steps:
                progress.history.append(metrics)
                last = Progress(steps=step, history=[*progress.history])
    log.close()
    return last


def test_a_resumed_log_has_every_step_and_epoch_once(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, Progress(), 12)
    saved = Progress()
    for steps in (2, 5, 6, 10, 12):
        saved = run(parts, saved, steps)
        # A row that was not written as a whole.
        with open(parts / logs.STEPS, "a") as file:
            file.write('77,"A')
    run(parts, saved, 12)

    for name in (logs.STEPS, logs.EPOCHS):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    steps, epochs = rows(parts, logs.STEPS), rows(parts, logs.EPOCHS)
    assert [int(x["step"]) for x in steps] == [*range(1, 13)]
    assert steps[5]["phase"] == "A, first" and steps[5]["epoch"] == "2"
    assert float(steps[6]["loss"]) == pytest.approx(1 / 7, abs=1e-6)
    assert steps[6]["reward"] == ""
    assert [x["step"] for x in epochs] == ["3", "6", "9", "12"]
    assert [x["epoch"] for x in epochs] == ["1", "2", "1", "2"]
    assert [x["new"] for x in epochs] == ["", "", "", "7"]


def test_charts_of_a_resumed_training_have_the_steps_before_it(tmp_path):
    saved = run(tmp_path, Progress(), 5)
    log = logs.Log(tmp_path, saved)
    assert [phase for phase, _ in log.rows] == ["A, first"] * 3
    assert [x["loss"] for _, x in log.rows] == pytest.approx(
        [1, 1 / 2, 1 / 3], abs=1e-6
    )


def test_models_that_were_not_trained_have_no_epoch(tmp_path):
    logs.Log(tmp_path, Progress()).add_epoch("Epoch 0: a preset", {"bleu": 3.0})
    (row,) = rows(tmp_path, logs.EPOCHS)
    assert row == {"step": "0", "phase": "Epoch 0: a preset", "epoch": "", "bleu": "3"}


def test_the_steps_of_tensorboard_go_on(tmp_path, monkeypatch):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    monkeypatch.setattr(logging.getLogger("tensorboard"), "disabled", True)
    saved = Progress()
    for steps in (2, 5, 6, 10, 12):
        saved = run(tmp_path, saved, steps, tensorboard=True)
    run(tmp_path, saved, 12, tensorboard=True)

    events = accumulator.EventAccumulator(str(tmp_path / logs.EVENTS))
    events.Reload()
    losses = events.Scalars("step/loss")
    assert [x.step for x in losses] == [*range(1, 13)]
    assert losses[6].value == pytest.approx(1 / 7)
    assert [x.step for x in events.Scalars("epoch/bleu")] == [3, 6, 9, 12]
    assert [x.value for x in events.Scalars("epoch/bleu")] == [0, 1, 2, 3]


def test_the_metrics_of_a_step_are_not_those_of_the_epoch(tmp_path):
    added, counts = [], []

    class Training:
        class log:
            add_step = staticmethod(lambda *step: added.append(step))

        class report:
            refresh = staticmethod(counts.append)

    steps = LogSteps(Training, "A", epochs=7, steps=5, schedule=lambda step: step / 100)
    steps.on_epoch_begin(2)
    metrics = {"loss": 3.0, "step_loss": math.inf, "step_reward": 0.5}
    steps.on_train_batch_end(1, metrics)

    assert metrics == {"loss": 3.0}
    ((phase, epoch, values),) = added
    assert (phase, epoch) == ("A", 3) and values.pop("seconds") >= 0
    assert values == {"loss": math.inf, "reward": 0.5, "learning_rate": 0.11}
    assert counts == ["A, epoch 3 of 7, step 2 of 5"]
    steps.on_epoch_end(2, metrics := {"loss": 3.0, "step_loss": 1.0})
    assert metrics == {"loss": 3.0}


def test_a_file_that_is_no_log_is_not_replaced(tmp_path):
    run(tmp_path, Progress(), 12)
    check_output(tmp_path)
    for name in (logs.STEPS, logs.EPOCHS):
        (tmp_path / name).write_text("name,age\n")
        with pytest.raises(UserError, match=rf"whose {name}, if any, is that of a tra"):
            check_output(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / logs.EVENTS).touch()
    with pytest.raises(UserError, match="whose tensorboard, if any, is a folder"):
        check_output(tmp_path)
    assert logs.EVENTS in FOLDERS


def test_a_log_that_cannot_be_written_does_not_end_a_training(tmp_path, capsys):
    for name in (logs.STEPS, logs.EPOCHS):
        (tmp_path / name).mkdir()
    run(tmp_path, Progress(), 3)
    warnings = capsys.readouterr().err.splitlines()
    # The steps are read, and opened; the epochs are written.
    assert len(warnings) == 3 and all(x.startswith("Warning: ") for x in warnings)
    assert "steps.csv could not be written: Is a directory" in warnings[1]


def test_tensorboard_that_is_not_installed_is_named_at_once(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    arguments = ["train", "--data", tmp_path / "x.tsv", "--output", tmp_path / "run"]
    err = error_of(main, [*arguments, "--tensorboard"], capsys)
    assert "the command needs the extra train" in err
