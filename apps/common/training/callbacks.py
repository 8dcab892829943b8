"""Callbacks of every training: validation, report, checkpoints, invalid losses."""

import math

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.training.ranking import best_of


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


class ReportEveryEpoch(keras.callbacks.Callback):
    """Add every epoch to the `Report` of the training. Must follow the validation.

    Args:
        report: The `Report`.
        phase: Title of the phase.
    """

    def __init__(self, report, phase):
        super().__init__()
        self.report = report
        self.phase = phase

    def on_epoch_end(self, epoch, logs=None):
        self.report.add_epoch(self.phase, _floats(logs))


class ValidateDecoded(keras.callbacks.Callback):
    """Validate decoded output, keep the best model, and stop early.

    The EMA of the weights is validated if there is one.

    Args:
        score: Function without arguments that returns a dict of metrics.
        rank: Function from these metrics to a value that is larger for better epochs.
        keep: Function without arguments that stores the model as the best.
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
            self.keep()
        if averages:
            self.averages.on_test_end()
        if self.exhausted:
            self.model.stop_training = True


def _floats(logs):
    return {name: float(value) for name, value in (logs or {}).items()}
