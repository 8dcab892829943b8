"""The training of both programs: checks, schedules, phases, validation, resuming."""

import dataclasses
import functools
import math
import time
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import keras

from keras_attention_apps.common import distribution
from keras_attention_apps.common.calibration import fit_calibration
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    check_distinct,
    check_folder,
    check_read_once,
    holds,
)
from keras_attention_apps.common.models import BEST, LAST, MODEL_FILES, model_names
from keras_attention_apps.common.output import shows_bars
from keras_attention_apps.common.task import Task
from keras_attention_apps.common.training import data_sets
from keras_attention_apps.common.training.checkpoints import (
    CHECKPOINTS,
    MOVABLE,
    Checkpoints,
    Progress,
    check_checkpoints,
    is_begun,
)
from keras_attention_apps.common.training.logs import EVENTS, Log, check_logs
from keras_attention_apps.common.training.report import (
    Report,
    Samples,
    best_of,
    check_report,
)

# Folders that every training writes.
FOLDERS = (BEST, LAST, CHECKPOINTS, EVENTS)


class StopOnInvalidLoss(keras.callbacks.Callback):
    """End a training whose loss is not finite. Must be the first callback.

    Otherwise the next callbacks would save the invalid weights. A loss is read when the
    next step has begun, so that no step waits for the one before it.
    """

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self._last = None

    def on_train_batch_end(self, batch, logs=None):
        last = self._last
        self._last = logs, f"step {batch + 1} of epoch {self.epoch + 1}"
        if last:
            self._check(*last)

    def on_epoch_end(self, epoch, logs=None):
        if self._last:
            self._check(*self._last)
        self._check(logs, f"epoch {epoch + 1}")

    def _check(self, logs, moment):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            # The progress bar has not ended its line.
            print(flush=True)
            raise UserError(
                f"the training has diverged: the loss of {moment} is {loss}. Try a "
                "smaller learning rate or a smaller clip_norm (gradient clipping), and "
                "another output folder. The last valid checkpoint is kept"
            )


class LogSteps(keras.callbacks.Callback):
    """Log every step of a phase. Must come before callbacks that keep the metrics.

    The metrics of Keras are means of an epoch. Those whose names begin with `step_` are
    of one step: they are removed from the others.

    Args:
        training: The `Training`.
        title: That of the phase.
        epochs: Number of epochs of the phase.
        steps: Number of steps of an epoch.
        schedule: Function from the number of steps of the phase to the learning rate.
    """

    def __init__(self, training, title, *, epochs, steps, schedule):
        super().__init__()
        self.training, self.title, self.schedule = training, title, schedule
        self.epochs, self.steps = epochs, steps

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._begun = epoch, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        values = _pop_step_metrics(logs)
        rate = self.schedule(self._epoch * self.steps + batch)
        values |= {"learning_rate": float(rate), "seconds": now - self._begun}
        self._begun = now
        self.training.log.add_step(self.title, self._epoch + 1, values)
        self.training.report.refresh(
            f"{self.title}, epoch {self._epoch + 1} of {self.epochs}, "
            f"step {batch + 1:,} of {self.steps:,}"
        )

    def on_epoch_end(self, epoch, logs=None):
        _pop_step_metrics(logs)


def _pop_step_metrics(logs):
    """Remove the metrics of the last step; return them without their prefix."""
    names = [name for name in logs if name.startswith("step_")]
    return {name.removeprefix("step_"): logs.pop(name) for name in names}


class ReportTime(keras.callbacks.Callback):
    """Print how long a phase takes: after the first steps, and after each epoch.

    The first step, which compiles the network, does not count. A phase may end earlier
    than predicted, if its patience runs out.

    Args:
        epochs: Number of epochs of the phase.
        steps: Number of steps of an epoch.
        begin: Number of epochs before the first one.
        clock: Function that returns the seconds since the epoch.
    """

    # Seconds of training after which the time of a step is known well enough.
    AFTER = 20

    def __init__(self, epochs, steps, begin=0, clock=time.time):
        super().__init__()
        self.epochs, self.steps, self.clock = epochs, steps, clock
        self._begun, self._compiled = clock(), None
        self._first = self._epoch = begin
        self._is_predicted = False

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        now = self.clock()
        if self._compiled is None:
            self._compiled = now
            self._print(f"The first step took {duration(now - self._begun)}")
        elif not self._is_predicted and now - self._compiled >= self.AFTER:
            self._is_predicted = True
            steps = (self._epoch - self._first) * self.steps + batch
            left = (self.epochs - self._first) * self.steps - steps - 1
            seconds = left * (now - self._compiled) / max(steps, 1)
            self._print(f"Without validation, {self._until(now, seconds)}")

    def on_epoch_end(self, epoch, logs=None):
        left = self.epochs - epoch - 1
        if left and self._compiled is not None:
            now = self.clock()
            seconds = left * (now - self._compiled) / (epoch + 1 - self._first)
            self._is_predicted = True
            self._print(f"After epoch {epoch + 1}, {self._until(now, seconds)}")

    def _until(self, now, seconds):
        end = time.strftime("%a %H:%M", time.localtime(now + seconds))
        return f"about {duration(seconds)} are left in this phase, until {end}"

    @staticmethod
    def _print(text):
        # On a terminal, it would break the bar of Keras, which has a prediction, too.
        if not shows_bars():
            print(text, flush=True)


def duration(seconds):
    """Return a number of seconds in words, rounded.

    >>> duration(7.2), duration(150), duration(8000)
    ('7 s', '2 min', '2 h 13 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{round(seconds)} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


class ValidateDecoded(keras.callbacks.Callback):
    """Validate decoded output, keep the best and the last model, and stop early.

    The EMA of the weights is validated if there is one. `score()` returns a dict of
    metrics, and `rank` a value of it that is larger for better epochs; `keep_best()`
    stores the model if it is the best of all epochs of the training, and `keep_last()`
    in every epoch.
    """

    def __init__(self, score, rank, keep_best, keep_last, *, progress, patience):
        super().__init__()
        self.score = score
        self.rank = rank
        self.keep_best = keep_best
        self.keep_last = keep_last
        self.history = [*progress.history]
        ranks = [rank(metrics) for metrics in self.history]
        # The ranks of this phase alone, for early stopping.
        self.ranks = ranks[len(ranks) - progress.epoch :]
        self.patience = patience
        self.averages = keras.callbacks.SwapEMAWeights()

    def set_model(self, model):
        super().set_model(model)
        self.averages.set_model(model)

    @property
    def exhausted(self):
        """Whether patience has run out since the best epoch of this phase."""
        latest = self.ranks[::-1]
        return bool(latest) and latest.index(max(latest)) >= self.patience

    def on_epoch_end(self, epoch, logs=None):
        optimizer = self.model.optimizer
        # In float16, a loss-scaling optimiser wraps it.
        averages = getattr(optimizer, "inner_optimizer", optimizer).use_ema
        if averages:
            self.averages.on_test_begin()
        metrics = self.score()
        logs.update(metrics)
        self.ranks.append(self.rank(metrics))
        self.history.append({**logs})
        if best_of(self.history, self.rank) == len(self.history) - 1:
            self.keep_best()
        self.keep_last()
        if averages:
            self.averages.on_test_end()
        if self.exhausted:
            self.model.stop_training = True


def _floats(logs):
    return {name: float(value) for name, value in (logs or {}).items()}


def ema_momentum(chosen, steps_per_epoch, longest):
    """Return the momentum of the EMA of the weights.

    By default it averages over two epochs, but at most `longest` steps: in a short
    training, a longer average would still contain the first steps.
    """
    if chosen is not None:
        return chosen
    return 1 - 1 / max(min(2 * steps_per_epoch, longest), 1)


def warm_up_and_cosine(peak, warm_up, steps):
    """Return a schedule: linear warm-up to a peak, then a cosine to zero."""
    decay_steps = max(steps - warm_up, 1)
    cosine = keras.optimizers.schedules.CosineDecay
    if not warm_up:
        return cosine(peak, decay_steps)
    return cosine(peak / 100, decay_steps, warmup_target=peak, warmup_steps=warm_up)


def check_output(output, inputs=(), folders=FOLDERS, files=()):
    """Raise a `UserError` if a training must not write to a folder.

    It must not be a model itself, unless it holds a training, nor have other files in
    place of what a training writes. What the training reads must not be replaced.
    """
    if holds(output, MODEL_FILES) and not is_begun(output):
        raise UserError(
            "expected the name of a new folder, or of one that holds a training. "
            f"Received the folder of a model: {str(output)!r}"
        )
    check_read_once(*inputs)
    check_distinct(inputs, output, whole=False)
    check_distinct(inputs, *(output / folder for folder in folders))
    for folder in folders:
        if (output / folder).is_file():
            raise UserError(
                f"expected an output folder whose {folder}, if any, is a folder. "
                f"Received a file: {str(output / folder)!r}"
            )
    for name in (BEST, LAST):
        check_folder(output / name, model_names)
    check_checkpoints(output / CHECKPOINTS, files)
    check_report(output)
    check_logs(output)


def check_epochs(*epochs):
    """Raise a `UserError` if every phase is given as 0 epochs."""
    if all(x == 0 for x in epochs):
        raise UserError(
            "expected at least one epoch in one of the phases. Received: 0 in each"
        )


def training_options(config, private=()):
    """Return the options of a training as a dict, without folders of this machine."""
    options = dataclasses.asdict(config)
    display_options = ("open_report", "tensorboard")
    for name in ("output", "model", "devices", "reading", *display_options, *private):
        del options[name]
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = [x.name if isinstance(x, Path) else x for x in value]
        elif value is not None and (isinstance(value, Path) or name in MOVABLE):
            options[name] = Path(value).name
    return options


@dataclasses.dataclass(eq=False)
class Training:
    """A training in phases, each of which continues where it was interrupted.

    Subclasses implement `phases` and `validate`.

    `config` is a `TrainConfig`. `rank` is a function from the metrics of an epoch to a
    value that is larger for better epochs; `metric` is the first metric of that value.
    The `title` and the `data_summary`, one line about the data, are those of the
    report. The `options` are saved with the best model.
    """

    config: typing.Any
    task: Task
    checkpoints: Checkpoints
    _: dataclasses.KW_ONLY
    metric: str
    rank: Callable
    samples: Samples
    title: str
    data_summary: str
    options: dict
    # The default of Keras.
    beta_2: float = 0.999

    def __post_init__(self):
        self.network = self.task.network
        self.progress = self.checkpoints.progress
        self.best = self.config.output / BEST
        self.log = Log(
            self.config.output, self.progress, tensorboard=self.config.tensorboard
        )
        self.report = Report(self)
        self._begun = False

    def phases(self) -> Sequence[Callable[[], None]]:
        """Return the functions of the phases, in order."""
        raise NotImplementedError

    def validate(self) -> dict[str, float]:
        """Return the metrics of the network before the first phase."""
        raise NotImplementedError

    def run(self):
        """Run the unfinished phases, and return the folder of the best model.

        A training from a preset begins with the metrics of the preset as epoch 0, and
        the preset is the best model until an epoch exceeds it.
        """
        try:
            best = self._run()
        except BaseException:
            if self._begun:
                self.report.end(interrupted=True)
            raise
        finally:
            self.log.close()
        self.report.end()
        return best

    def _run(self):
        if self.config.from_preset and self.progress == Progress():
            title = f"Epoch 0: {Path(self.config.from_preset).name}"
            print(f"{title}, before training", flush=True)
            self._begin()
            metrics = _floats(distribution.broadcast_metrics(self.validate()))
            self.save_best()
            self.add_epoch(title, metrics)
            self.checkpoints.begin(metrics)
        for phase in self.phases()[self.progress.phase :]:
            phase()
            self.checkpoints.next_phase()
        if not holds(self.best, MODEL_FILES):
            raise UserError(
                "the training is finished, but its best model is no longer in "
                f"{self.best}. Put it back, or choose another output folder"
            )
        history = self.progress.history
        best = history[best_of(history, self.rank)]
        described = ", ".join(f"{name} {x:.4g}" for name, x in best.items())
        print(f"The best model is in {self.best}: {described}")
        return self.best

    def _begin(self):
        """Open the log and the report, once the data are known to be valid."""
        if not self._begun:
            self._begun = True
            self.log.begin()
            self.report.begin(opens_browser=self.config.open_report)

    def add_epoch(self, phase, metrics):
        """Log an epoch, or another model that was validated."""
        self.log.add_epoch(phase, metrics)
        self.report.add_epoch(phase, metrics)

    def load_best(self):
        """Load the weights of the best model so far, if there is one."""
        # Before the first epoch, a model in that folder is from another training.
        if self.progress.history:
            distribution.wait_for_hosts("best model")
            best = type(self.task).from_preset(self.best)
            self.network.set_weights(best.network.get_weights())

    def save_best(self, task=None, **metadata):
        """Save the trained model, or another one, as the best."""
        save = (task or self.task).save
        distribution.on_first_host(save, self.best, training=self.options, **metadata)

    def save_last(self):
        """Save the trained model as that of the last epoch."""
        last = self.config.output / LAST
        distribution.on_first_host(self.task.save, last, training=self.options)

    def scored(self, task, outputs, references, parts, scores_of, digits=1):
        """Print and return the metrics of outputs for the validation data.

        `parts` has the slice of each data set by its name. The outputs also calibrate
        the task, and are the samples of the report.
        """
        task.calibrate(fit_calibration(" and ".join(parts), outputs))
        outputs = list(map(task.marked, outputs))
        for index, output in enumerate(outputs):
            self.samples.keep(index, output)
        texts = [output.text for output in outputs]
        scores = {
            name: scores_of(texts[part], references[part])
            for name, part in parts.items()
        }
        print(data_sets.formatted_scores(scores, digits))
        return data_sets.combined_scores(scores)

    def fit(
        self, title, batches, validate, *, epochs, learning_rate, warm_up, ema_momentum
    ):
        """Train for the remaining epochs of a phase.

        The warm-up has at most a tenth of all steps.
        """

        def validated():
            if shows_bars():
                # That of Keras has not ended its line.
                print()
            return distribution.broadcast_metrics(validate())

        def end_epoch(epoch, logs):
            self.add_epoch(title, _floats(logs))
            self.checkpoints.save(self.network, _floats(logs))

        steps = len(batches) * epochs
        schedule = warm_up_and_cosine(learning_rate, min(warm_up, steps // 10), steps)
        self.network.compile(
            optimizer=distribution.AdamW(
                schedule,
                weight_decay=self.config.weight_decay,
                global_clipnorm=self.config.clip_norm,
                beta_2=self.beta_2,
                use_ema=ema_momentum > 0,
                ema_momentum=ema_momentum,
            ),
            jit_compile=keras.backend.backend() == "jax",
        )
        self.checkpoints.restore(self.network)
        validation = ValidateDecoded(
            validated,
            self.rank,
            self.save_best,
            self.save_last,
            progress=self.progress,
            patience=self.config.patience,
        )
        if validation.exhausted:
            return
        self._begin()
        # Keras counts the epochs of each phase from 1.
        print(f"{title}, epochs: {epochs}")
        print(
            f"{len(batches)} steps in an epoch; the first one compiles the network",
            flush=True,
        )
        fit = getattr(batches, "fit", None)
        fit = fit or functools.partial(self.network.fit, batches, shuffle=False)
        fit(
            epochs=epochs,
            initial_epoch=self.progress.epoch,
            callbacks=[
                StopOnInvalidLoss(),
                LogSteps(
                    self, title, epochs=epochs, steps=len(batches), schedule=schedule
                ),
                validation,
                keras.callbacks.LambdaCallback(on_epoch_end=end_epoch),
                ReportTime(epochs, len(batches), self.progress.epoch),
            ],
            # 2 is a line for each epoch.
            verbose=1 if shows_bars() else 2,
        )
