"""The skeleton of every training: phases, optimiser, validation and resuming."""

import dataclasses
import functools
import math
from pathlib import Path

import keras
from keras_attention_apps.common.distribution import (
    AdamW,
    broadcast_metrics,
    on_first_host,
    wait_for_hosts,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    MODEL_FILES,
    Inputs,
    check_folder,
    check_read_once,
    holds,
)
from keras_attention_apps.common.models import BEST, model_names
from keras_attention_apps.common.network.weights import copy_weights
from keras_attention_apps.common.progress import fit_verbosity
from keras_attention_apps.common.training.card import model_card
from keras_attention_apps.common.training.checkpoints import (
    PROGRESS,
    Progress,
    check_checkpoints,
)
from keras_attention_apps.common.training.report import Report, best_of, check_report
from keras_attention_apps.common.training.schedules import warm_up_and_cosine


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

    def _check(self, logs, place):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            # The progress bar has not ended its line.
            print(flush=True)
            raise UserError(
                f"the training has diverged: the loss of {place} is {loss}. Try a "
                "smaller learning rate or a smaller clip_norm (gradient clipping), and "
                "another output folder. The last valid checkpoint is kept"
            )


class SaveEveryEpoch(keras.callbacks.Callback):
    """Write a checkpoint at the end of every epoch.

    Must follow the validation and the report.
    """

    def __init__(self, checkpoints):
        super().__init__()
        self.checkpoints = checkpoints

    def on_epoch_end(self, epoch, logs=None):
        self.checkpoints.save(self.model, _floats(logs))


class ValidateDecoded(keras.callbacks.Callback):
    """Validate decoded output, keep the best model, and stop early.

    The EMA of the weights is validated if there is one.

    Args:
        score: Function without arguments that returns a dict of metrics.
        rank: Function from these metrics to a value that is larger for better epochs.
        keep: Function of the metrics that stores the model as the best.
        progress: The `Progress` of the training: a model is kept if it is the best of
            all finished epochs; see `best_of`.
        patience: Patience: epochs without improvement before a phase stops early.
    """

    def __init__(self, score, rank, keep, *, progress, patience):
        super().__init__()
        self.score = score
        self.rank = rank
        self.keep = keep
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
            self.keep(metrics)
        if averages:
            self.averages.on_test_end()
        if self.exhausted:
            self.model.stop_training = True


def _floats(logs):
    return {name: float(value) for name, value in (logs or {}).items()}


# Folder of the checkpoints in the output of a training.
CHECKPOINTS = "checkpoints"


def check_output(output, inputs=(), folders=(BEST, CHECKPOINTS), files=()):
    """Raise a `UserError` if a training must not write to a folder.

    The folder must not be a model itself, unless it holds a training, and must not have
    other files in place of the best model, the checkpoints and the report. What the
    training reads must not be replaced.
    """
    if holds(output, MODEL_FILES) and not is_begun(output):
        raise UserError(
            "expected the name of a new folder, or of one that holds a training. "
            f"Received the folder of a model: {str(output)!r}"
        )
    check_read_once(*inputs)
    inputs = Inputs(*inputs)
    inputs.check(output, whole=False)
    inputs.check(*(output / folder for folder in folders))
    for folder in folders:
        if (output / folder).is_file():
            raise UserError(
                f"expected an output folder whose {folder}, if any, is a folder. "
                f"Received a file: {str(output / folder)!r}"
            )
    check_folder(output / BEST, model_names)
    check_checkpoints(output / CHECKPOINTS, files)
    check_report(output)


def is_begun(output):
    """Return whether a folder holds a training with a checkpoint, which is resumed."""
    return (output / CHECKPOINTS / PROGRESS).exists()


def check_epochs(*epochs):
    """Raise a `UserError` if every phase is given as 0 epochs."""
    if all(x == 0 for x in epochs):
        raise UserError(
            "expected at least one epoch in one of the phases. Received: 0 in each"
        )


def training_options(config, private=(), paths=()):
    """Return the options of a training as a dict, without folders of this machine."""
    options = dataclasses.asdict(config)
    for name in ("output", "model", "devices", "reading", *private):
        del options[name]
    for name, value in options.items():
        if isinstance(value, tuple):
            options[name] = [x.name if isinstance(x, Path) else x for x in value]
        elif value is not None and (isinstance(value, Path) or name in paths):
            options[name] = Path(value).name
    return options


class Runner:
    """Runs the phases of one training, each from where it was interrupted.

    Args:
        config: The `TrainConfig`.
        task: The `Task` whose network is trained.
        checkpoints: The `Checkpoints` of the training.
        rank: Function from the metrics of an epoch to a value that is larger for better
            epochs.
        options: Dict of the options of the training, see `training_options`, which is
            saved with the best model and shown in the report.
        card: Dict of further arguments of `model_card`.
        optimizer: Dict of further arguments of the optimiser.
        **report: Further arguments of the `Report`.

    Attributes:
        best: Folder of the best model.
        report: The `Report`.
    """

    def __init__(
        self,
        config,
        task,
        checkpoints,
        *,
        rank,
        options,
        card,
        optimizer=None,
        **report,
    ):
        self.config = config
        self.task = task
        self.checkpoints = checkpoints
        self.rank = rank
        self.options = options
        self.report = Report(
            config.output,
            checkpoints,
            options={**options, "model": dataclasses.asdict(task.config)},
            rank=rank,
            **report,
        )
        self.card = card
        self.optimizer = optimizer or {}
        self.best = config.output / BEST

    @property
    def progress(self):
        """The `Progress` of the training."""
        return self.checkpoints.progress

    def run(self, phases, validate):
        """Run the unfinished phases in order.

        A training from a preset begins with the metrics of the preset as epoch 0, and
        the preset is the best model until an epoch exceeds it.
        """
        if self.config.from_preset and self.progress == Progress():
            self._begin(validate)
        for phase in phases[self.progress.phase :]:
            phase()
            self.checkpoints.next_phase()
        self._report_best()

    def _begin(self, validate):
        """Validate the preset, and keep it as the best model."""
        title = f"Epoch 0: {Path(self.config.from_preset).name}"
        print(f"{title}, before training")
        metrics = {x: float(y) for x, y in broadcast_metrics(validate()).items()}
        self.save_best(metrics)
        self.report.add_epoch(title, metrics)
        self.checkpoints.begin(metrics)

    def load_best(self):
        """Load the weights of the best model so far, if there is one."""
        # Before the first epoch, a model in that folder is from another training.
        if self.progress.history:
            wait_for_hosts("best model")
            best = type(self.task).from_preset(self.best)
            copy_weights(best.network, self.task.network)

    def save_best(self, metrics, task=None, **metadata):
        """Save the trained model, or another one, as the best, with its model card."""
        base = self.config.from_preset
        card = model_card(
            self.config.output.name,
            f"{self.report.title}: {self.report.data_summary}",
            metrics,
            base=base and Path(base).name,
            **self.card,
        )
        save = (task or self.task).save
        on_first_host(save, self.best, training=self.options, card=card, **metadata)

    def fit(
        self,
        title,
        batches,
        validate,
        *,
        epochs,
        learning_rate,
        warm_up,
        ema_momentum,
    ):
        """Train for the remaining epochs of a phase.

        The warm-up has at most a tenth of all steps.
        """
        steps = len(batches) * epochs
        schedule = warm_up_and_cosine(learning_rate, min(warm_up, steps // 10), steps)
        self._compile(schedule, ema_momentum)
        callbacks = self._callbacks(title, lambda: broadcast_metrics(validate()))
        if callbacks is None:
            return
        # Keras counts the epochs of each phase from 1.
        print(f"{title}, epochs: {epochs}")
        if isinstance(batches, keras.utils.PyDataset):
            fit = functools.partial(self.task.network.fit, batches, shuffle=False)
        else:
            fit = batches.fit
        fit(
            epochs=epochs,
            initial_epoch=self.progress.epoch,
            callbacks=callbacks,
            verbose=fit_verbosity(),
        )

    def _compile(self, schedule, ema_momentum):
        """Compile, and restore the optimiser of an interrupted phase."""
        self.task.network.compile(
            optimizer=AdamW(
                schedule,
                weight_decay=self.config.weight_decay,
                global_clipnorm=self.config.clip_norm,
                use_ema=ema_momentum > 0,
                ema_momentum=ema_momentum,
                **self.optimizer,
            ),
            jit_compile=keras.backend.backend() == "jax",
        )
        self.checkpoints.restore(self.task.network)

    def _callbacks(self, title, validate):
        """Return the callbacks of a phase, or `None` if early stopping has ended it."""
        config, progress = self.config, self.progress
        validation = ValidateDecoded(
            validate,
            self.rank,
            self.save_best,
            progress=progress,
            patience=config.patience,
        )
        if validation.exhausted:
            return None
        callbacks = [
            StopOnInvalidLoss(),
            validation,
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: self.report.add_epoch(
                    title, _floats(logs)
                )
            ),
            SaveEveryEpoch(self.checkpoints),
        ]
        return callbacks

    def _report_best(self):
        """Print the folder of the best model."""
        if not holds(self.best, MODEL_FILES):
            raise UserError(
                "the training is finished, but its best model is no longer in "
                f"{self.best}. Put it back, or choose another output folder"
            )
        figures = self.progress.history[best_of(self.progress.history, self.rank)]
        described = ", ".join(f"{name} {x:.4g}" for name, x in figures.items())
        print(f"The best model is in {self.best}: {described}")
