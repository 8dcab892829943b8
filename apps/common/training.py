"""What surrounds every training."""

import contextlib
import importlib.util
import math

import keras
from keras_attention_apps.common.checkpoints import (
    PROGRESS,
    SaveEveryEpoch,
    ValidateDecoded,
)
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import MODEL, check_folder, holds
from keras_attention_apps.common.network.compiling import computing_in

# Folders in the output folder: of the best model, and of the checkpoints.
BEST = "model"
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


def tell_best(best):
    """Print in which folder a finished training has its best model.

    Raises:
        UserError: If there is none any more.
    """
    if not holds(best, MODEL):
        raise UserError(
            f"the training is finished, but its best model is no longer in {best}. "
            "Put it back, or choose another output folder"
        )
    print(f"The best model is in {best}")


@contextlib.contextmanager
def numerics(seed, precision):
    """Fixes all random numbers, and sets what Keras computes with for the while.

    Args:
        seed: Integer.
        precision: Name of a Keras dtype policy.
    """
    keras.utils.set_random_seed(seed)
    with computing_in(precision):
        yield


def ema_momentum(chosen, steps_per_epoch, longest):
    """Momentum of the moving average of the weights.

    If none was chosen, it is an average over two epochs, or so many steps at most: a
    longer one would still remember the start when a short training ends.

    Args:
        chosen: What was asked for, or `None`.
        steps_per_epoch: Training steps of an epoch.
        longest: Number of steps.
    """
    if chosen is not None:
        return chosen
    return 1 - 1 / max(min(2 * steps_per_epoch, longest), 1)


@contextlib.contextmanager
def all_devices(wanted=True):
    """Models that are built and trained inside share every batch out to all devices.

    Each device computes the gradients of its part of the batch, and they are averaged.

    Args:
        wanted: `False` leaves everything on the first device.

    Yields:
        The number of devices. The rows of every batch must be a multiple of it.

    Raises:
        UserError: On PyTorch, for which Keras distributes nothing.
    """
    backend = keras.backend.backend()
    if not wanted:
        yield 1
    elif backend == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        with tf.distribute.MirroredStrategy(devices).scope():
            yield len(devices)
    elif backend == "jax":
        keras.distribution.set_distribution(keras.distribution.DataParallel())
        try:
            yield len(keras.distribution.list_devices())
        finally:
            keras.distribution.set_distribution(None)
    else:
        raise UserError(
            "training on all devices needs TensorFlow or JAX. Received: the backend "
            f"{backend!r}"
        )


class LossIsANumber(keras.callbacks.Callback):
    """Ends a training whose loss is not finite. Comes first of the callbacks.

    The model cannot learn any more, and what the epochs before have written stays.
    """

    def on_epoch_end(self, epoch, logs=None):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            # Behind the bar of the progress.
            print(flush=True)
            raise UserError(
                f"the loss of epoch {epoch + 1} is {loss}, so that nothing can be "
                "learned any more. Try a smaller learning rate, and another output "
                "folder; what earlier epochs have written stays"
            )


def callbacks_of_phase(config, checkpoints, score, rank, keep):
    """What validates and saves every epoch of a phase.

    Args:
        config: With `output`, `patience` and `tensorboard`.
        checkpoints: The `Checkpoints` of the training.
        score, rank, keep: See `ValidateDecoded`.

    Returns:
        List of callbacks; `None` if the phase was too long without improvement already.
    """
    progress = checkpoints.progress
    validation = ValidateDecoded(
        score, rank, keep, progress=progress, patience=config.patience
    )
    if validation.exhausted:
        return None
    callbacks = [LossIsANumber(), validation, SaveEveryEpoch(checkpoints)]
    if config.tensorboard:
        logs = config.output / "logs" / f"phase-{progress.phase}"
        callbacks.append(keras.callbacks.TensorBoard(logs))
    return callbacks
