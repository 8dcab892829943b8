"""The skeleton of every training: phases, optimiser, validation and resuming."""

import dataclasses
import functools
import importlib.util
from pathlib import Path

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import MODEL_FILES, check_folder, holds
from keras_attention_apps.common.hosts import (
    broadcast_metrics,
    on_first_host,
    wait_for_hosts,
)
from keras_attention_apps.common.inputs import Inputs
from keras_attention_apps.common.network.replicas import AdamW
from keras_attention_apps.common.network.weights import copy_weights
from keras_attention_apps.common.presets import BEST, model_names
from keras_attention_apps.common.reading import check_read_once
from keras_attention_apps.common.training.callbacks import (
    ReportEveryEpoch,
    SaveEveryEpoch,
    StopOnInvalidLoss,
    ValidateDecoded,
)
from keras_attention_apps.common.training.checkpoints import (
    PROGRESS,
    Progress,
    check_checkpoints,
)
from keras_attention_apps.common.training.report import Report, check_report

# Folder of the checkpoints in the output of a training.
CHECKPOINTS = "checkpoints"


def check_output(
    output, tensorboard=False, inputs=(), folders=(BEST, CHECKPOINTS), files=()
):
    """Raise a `UserError` if a training must not write to a folder.

    The folder must not be a model itself, unless it holds a training, and must not have
    other files in place of the best model, the checkpoints and the report. What the
    training reads must not be replaced.

    Args:
        output: Folder of the training.
        tensorboard: Whether TensorBoard logs are written, for which it must be
            installed.
        inputs: Files and folders that the training reads; `None` is left out.
        folders: Folders of the output that are replaced.
        files: Names of files that are written to the folder of the checkpoints before
            the first checkpoint.
    """
    if tensorboard and not importlib.util.find_spec("tensorboard"):
        raise UserError(
            "tensorboard needs TensorBoard, which is not installed: "
            "python -m pip install tensorboard"
        )
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
    """Raise a `UserError` if no phase of a training has an epoch.

    Args:
        *epochs: Number of epochs of each phase.
    """
    if not any(epochs):
        raise UserError(
            "expected at least one epoch in one of the phases. Received: 0 in each"
        )


def training_options(config, private=(), paths=()):
    """Return the options of a training as a dict, without the folders of this machine.

    Args:
        config: The `TrainConfig`.
        private: Names of options to leave out, in addition to `output` and `model`.
        paths: Names of string options that are paths. Of these, of every `Path`, and of
            the paths in a tuple, only the last part is kept.
    """
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
        optimizer: Dict of further arguments of the optimiser.
        **report: Further arguments of the `Report`.

    Attributes:
        best: Folder of the best model.
        report: The `Report`.
    """

    def __init__(
        self, config, task, checkpoints, *, rank, options, optimizer=None, **report
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

        Args:
            phases: Functions without arguments.
            validate: Function without arguments that returns a dict of metrics.
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
        self.save_best()
        self.report.add_epoch(title, metrics)
        self.checkpoints.begin(metrics)

    def load_best(self):
        """Load the weights of the best model so far, if there is one."""
        # Before the first epoch, a model in that folder is from another training.
        if self.progress.history:
            wait_for_hosts("best model")
            best = type(self.task).from_preset(self.best)
            copy_weights(best.network, self.task.network)

    def save_best(self, task=None, **metadata):
        """Save the trained model, or another one, as the best."""
        save = (task or self.task).save
        on_first_host(save, self.best, training=self.options, **metadata)

    def fit(self, title, batches, validate, *, epochs, schedule, ema_momentum):
        """Train for the remaining epochs of a phase.

        Args:
            title: Title of the phase, which is printed and reported.
            batches: A `PyDataset`, or a `SelfCritical` training.
            validate: Function without arguments that returns a dict of metrics.
            epochs: Epochs of the phase.
            schedule: Learning rate, or its schedule.
            ema_momentum: Momentum of the moving average of the weights; 0 for none.
        """
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
        fit(epochs=epochs, initial_epoch=self.progress.epoch, callbacks=callbacks)

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
            ReportEveryEpoch(self.report, title),
            SaveEveryEpoch(self.checkpoints),
        ]
        if config.tensorboard:
            logs = config.output / "logs" / f"phase-{progress.phase}"
            callbacks.append(keras.callbacks.TensorBoard(logs))
        return callbacks

    def _report_best(self):
        """Print the folder of the best model.

        Raises:
            UserError: If the model is no longer there.
        """
        if not holds(self.best, MODEL_FILES):
            raise UserError(
                "the training is finished, but its best model is no longer in "
                f"{self.best}. Put it back, or choose another output folder"
            )
        print(f"The best model is in {self.best}")
