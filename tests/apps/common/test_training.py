import re

import keras
import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import MODEL_FILES
from keras_attention_apps.common.training.checkpoints import CHECKPOINTS, Checkpoints
from keras_attention_apps.common.training.runner import (
    ReportTime,
    StopOnInvalidLoss,
    check_output,
    ema_momentum,
    warm_up_and_cosine,
)


def test_a_model_folder_is_no_output_unless_it_holds_a_training(tmp_path):
    check_output(tmp_path / "new")
    check_output(tmp_path)
    for name in MODEL_FILES:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match="Received the folder of a model"):
        check_output(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(MODEL_FILES)

    Checkpoints(tmp_path / CHECKPOINTS, {}).next_phase()
    check_output(tmp_path)


def test_a_training_does_not_replace_its_start_model(tmp_path):
    for name in ("model", "checkpoints/1", "epochs/3"):
        with pytest.raises(UserError, match="not an input"):
            check_output(
                tmp_path, [tmp_path / name], ("model", "checkpoints", "epochs")
            )
    check_output(tmp_path, [None, tmp_path / "train.en"])


@pytest.mark.parametrize(
    "steps_per_epoch, momentum",
    [(1, 0.5), (5, 0.9), (50, 0.99), (250, 0.998), (10_000, 0.998)],
)
def test_the_moving_average_spans_at_most_two_epochs(steps_per_epoch, momentum):
    assert ema_momentum(None, steps_per_epoch, 500) == pytest.approx(momentum)
    assert ema_momentum(0.0, steps_per_epoch, 500) == 0.0


@pytest.mark.parametrize("target, name", [(np.nan, "nan"), (1e30, "inf")])
def test_a_loss_that_is_not_finite_ends_the_training(target, name, capsys):
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(loss="mse", run_eagerly=True)
    seen = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(None))
    x, y = np.ones((5, 3)), np.full((5, 2), target)

    model.fit(x, np.ones((5, 2)), callbacks=[StopOnInvalidLoss(), note], verbose=0)
    with pytest.raises(UserError, match=f"the loss of step 1 of epoch 1 is {name}"):
        model.fit(x, y, callbacks=[StopOnInvalidLoss(), note], verbose=0)

    # The error is on a line of its own, behind the bar of the progress.
    assert capsys.readouterr().out == "\n"
    # Later callbacks, such as that of checkpoints, do not run.
    assert len(seen) == 1


def test_the_log_says_when_a_phase_ends(capsys):
    now = [0.0]
    reporter = ReportTime(epochs=3, steps=10, begin=1, clock=lambda: now[0])

    def run(epoch, first, other):
        """Run an epoch whose steps take these seconds."""
        reporter.on_epoch_begin(epoch)
        for step in range(10):
            now[0] += other if step else first
            reporter.on_train_batch_end(step)
        now[0] += 60
        reporter.on_epoch_end(epoch)
        return capsys.readouterr().out.splitlines()

    # Of 20 steps, four have taken 24 seconds; 15 are left. An epoch took 54 seconds
    # after the first step, and a minute of validation.
    first, steps, epoch = run(1, first=30, other=6)
    assert first == "The first step took 30 s"
    assert steps.startswith("Without validation, about 90 s are left in this phase, ")
    assert epoch.startswith("After epoch 2, about 2 min are left in this phase, until")
    assert re.fullmatch(r".* until [^ ]+ \d\d:\d\d", epoch)
    assert run(2, first=6, other=6) == []


def test_the_rate_rises_and_falls():
    rates = [float(warm_up_and_cosine(2.0, 4, 8)(step)) for step in (0, 2, 4, 6, 8)]
    np.testing.assert_allclose(rates, [0.02, 1.01, 2.0, 1.0, 0.0], atol=1e-6)

    rates = [float(warm_up_and_cosine(2.0, 0, 8)(step)) for step in (0, 4, 8)]
    np.testing.assert_allclose(rates, [2.0, 1.0, 0.0], atol=1e-6)

    assert float(warm_up_and_cosine(2.0, 0, 0)(0)) == 2.0
