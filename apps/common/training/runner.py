"""The skeleton of every training: phases, optimiser, validation and resuming."""

import dataclasses
import functools
import importlib.util
from pathlib import Path

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import MODEL, check_folder, holds
from keras_attention_apps.common.presets import BEST
from keras_attention_apps.common.training.callbacks import (
    SaveEveryEpoch,
    StopOnInvalidLoss,
    ValidateDecoded,
)
from keras_attention_apps.common.training.checkpoints import PROGRESS

# Folder of the checkpoints in the output of a training.
CHECKPOINTS = "checkpoints"


def check_output(output, tensorboard=False):
    """Raise a `UserError` for a folder that no training must write to.

    That is one that is itself a model, unless a training is in it, and one with
    something else than a model where the best one is to be.

    Args:
        output: Folder of the training.
        tensorboard: Whether logs of TensorBoard are to be there, too, for which it
            must be installed: TensorFlow does not bring it.
    """
    if tensorboard and not importlib.util.find_spec("tensorboard"):
        raise UserError(
            "tensorboard needs TensorBoard, which is not installed: "
            "python -m pip install tensorboard"
        )
    if holds(output, MODEL) and not (output / CHECKPOINTS / PROGRESS).exists():
        raise UserError(
            "expected the name of a new folder, or of one that holds a training. "
            f"Received the folder of a model: {str(output)!r}"
        )
    check_folder(output / BEST, MODEL)


def training_record(config, private=(), paths=()):
    """Return how a model was trained, without the folders of this machine.

    Args:
        config: The `TrainConfig`.
        private: Names of options that are left out, beside `output` and `model`.
        paths: Names of options of which only the last part of the path is kept, beside
            those that are a `Path`.
    """
    record = dataclasses.asdict(config)
    for name in ("output", "model", *private):
        del record[name]
    for name, value in record.items():
        if value is not None and (isinstance(value, Path) or name in paths):
            record[name] = Path(value).name
    return record


class Runner:
    """Runs the phases of one training, each from where it was interrupted.

    Args:
        config: The `TrainConfig`.
        task: The `Task` whose network is trained.
        checkpoints: The `Checkpoints` of the training.
        rank: Function from the figures of an epoch to a value that is larger for better
            ones.
        record: Dict that describes the training, saved with the best model.
        optimizer: Dict of further arguments of the optimiser.

    Attributes:
        best: Folder of the best model.
    """

    def __init__(self, config, task, checkpoints, *, rank, record, optimizer=None):
        self.config = config
        self.task = task
        self.checkpoints = checkpoints
        self.rank = rank
        self.record = record
        self.optimizer = optimizer or {}
        self.best = config.output / BEST

    @property
    def progress(self):
        """The `Progress` of the training."""
        return self.checkpoints.progress

    def run(self, phases):
        """Run the phases that are left, functions without arguments, in order."""
        for phase in phases[self.progress.phase :]:
            phase()
            self.checkpoints.next_phase()
        self._report_best()

    def load_best(self):
        """Continue with the weights of the best model so far, if there is one."""
        # Before the first epoch, a model in that folder is of another training.
        if self.progress.history:
            best = type(self.task).from_preset(self.best)
            self.task.network.set_weights(best.network.get_weights())

    def save_best(self, task=None, **about):
        """Save the trained model, or another one, as the best."""
        (task or self.task).save(self.best, training=self.record, **about)

    def fit(self, batches, validate, *, epochs, schedule, ema_momentum):
        """Train for the epochs of a phase that are left.

        Args:
            batches: A `PyDataset`, or a `SelfCritical` training.
            validate: Function without arguments that returns a dict of figures.
            epochs: Epochs of the phase.
            schedule: Learning rate, or its schedule.
            ema_momentum: Momentum of the moving average of the weights; 0 for none.
        """
        self._compile(schedule, ema_momentum)
        callbacks = self._callbacks(validate)
        if callbacks is None:
            return
        if isinstance(batches, keras.utils.PyDataset):
            fit = functools.partial(self.task.network.fit, batches, shuffle=False)
        else:
            fit = batches.fit
        fit(epochs=epochs, initial_epoch=self.progress.epoch, callbacks=callbacks)

    def _compile(self, schedule, ema_momentum):
        """Compile with a new optimiser, or the one of an interrupted phase."""
        self.task.network.compile(
            optimizer=keras.optimizers.AdamW(
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

    def _callbacks(self, validate):
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
        callbacks = [StopOnInvalidLoss(), validation, SaveEveryEpoch(self.checkpoints)]
        if config.tensorboard:
            logs = config.output / "logs" / f"phase-{progress.phase}"
            callbacks.append(keras.callbacks.TensorBoard(logs))
        return callbacks

    def _report_best(self):
        """Print the folder of the best model.

        Raises:
            UserError: If the model is no longer there.
        """
        if not holds(self.best, MODEL):
            raise UserError(
                "the training is finished, but its best model is no longer in "
                f"{self.best}. Put it back, or choose another output folder"
            )
        print(f"The best model is in {self.best}")
