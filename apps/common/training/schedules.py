"""Learning-rate schedules, and the momentum of the EMA of the weights."""

import keras
import numpy as np
from keras import ops


def ema_momentum(chosen, steps_per_epoch, longest):
    """Return the momentum of the EMA of the weights.

    By default it averages over two epochs, but at most `longest` steps: in a short
    training, a longer average would still contain the first steps.

    Args:
        chosen: The momentum that the user chose, or `None`.
        steps_per_epoch: Training steps of an epoch.
        longest: Maximum number of steps over which the EMA averages.
    """
    if chosen is not None:
        return chosen
    return 1 - 1 / max(min(2 * steps_per_epoch, longest), 1)


@keras.saving.register_keras_serializable(package="keras_attention_apps")
class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Learning-rate schedule: linear warm-up to a peak, then constant or decaying.

        rate[t] = start + (peak - start) t / warm_up                        before
        rate[t] = peak                                                  (constant)
        rate[t] = peak * sqrt(warm_up / t)                   (inverse-square-root)
        rate[t] = peak * (1 + cos(pi (t - warm_up) / (steps - warm_up))) / 2
                                                                          (cosine)

    Args:
        kind: `"constant"`, `"inverse-square-root"` or `"cosine"`.
        peak: Peak learning rate.
        warm_up: Steps of the warm-up.
        steps: Steps of the training.
        start: Rate at `t = 0`.
        first: The `t` of the first step, 0 or 1.
    """

    def __init__(self, kind, peak, warm_up, steps, start=0.0, first=1):
        self.kind = kind
        self.peak = peak
        self.warm_up = warm_up
        self.steps = steps
        self.start = start
        self.first = first

    def __call__(self, step):
        step = ops.cast(step, "float32") + self.first
        warm_up = float(max(self.warm_up, self.first))
        # Without warm-up, the first step has the peak rate.
        progress = ops.minimum(step / warm_up, 1.0) if warm_up else 1.0
        rising = self.start + (self.peak - self.start) * progress
        falling = 1.0
        if self.kind == "inverse-square-root":
            falling = ops.rsqrt(ops.maximum(step / max(warm_up, 1.0), 1.0))
        elif self.kind == "cosine":
            done = (step - warm_up) / max(self.steps - warm_up, 1.0)
            falling = (1 + ops.cos(np.pi * ops.clip(done, 0.0, 1.0))) / 2
        return rising * falling

    def get_config(self):
        return {
            "kind": self.kind,
            "peak": self.peak,
            "warm_up": self.warm_up,
            "steps": self.steps,
            "start": self.start,
            "first": self.first,
        }
