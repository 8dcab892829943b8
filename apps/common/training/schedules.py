"""Schedules: of the learning rate, of the moving average, of scheduled sampling."""

import keras
import numpy as np
from keras import ops
from keras_attention_apps.common.errors import UserError

from keras_attention import InverseSigmoidRate


def ema_momentum(chosen, steps_per_epoch, longest):
    """Return the momentum of the EMA of the weights.

    By default it averages over two epochs, but at most `longest` steps: in a short
    training, a longer average would still contain the first steps.
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


def check_sampling(config):
    """Raise a `UserError` if a decoder cannot be trained with scheduled sampling."""
    if config.scheduled_sampling and config.model.decoder != "recurrent":
        raise UserError(
            "scheduled_sampling needs a recurrent decoder, which reads one word after "
            "the other; a transformer is trained on all words of a sentence at once. "
            f"Received: {config.scheduled_sampling}"
        )
    if config.scheduled_sampling and getattr(config.model, "copy", False):
        raise UserError(
            "scheduled_sampling needs a model without --model.copy: it samples words "
            "of the vocabulary only, and never copies one from the source. "
            f"Received: {config.scheduled_sampling}"
        )


class SamplingRate(keras.optimizers.schedules.LearningRateSchedule):
    """Probability of scheduled sampling that grows over a training.

        rate[i] = most                                               (constant)
        rate[i] = most * min(i / steps, 1)                             (linear)
        rate[i] = most * (1 - k / (k + exp(i / k)))           (inverse-sigmoid)

    The last one is `InverseSigmoidRate`. Its k is chosen such that the probability is
    half of `most` after half of the steps.

    Reference:
        [Bengio et al., 2015](https://arxiv.org/abs/1506.03099), section 2.4.
    """

    def __init__(self, kind, most, steps):
        self.kind = kind
        self.most = most
        self.steps = steps

    def __call__(self, step):
        share = ops.ones((), "float32")
        if self.kind == "linear":
            share = ops.minimum(ops.cast(step, "float32") / max(self.steps, 1), 1.0)
        elif self.kind == "inverse-sigmoid":
            share = InverseSigmoidRate(sigmoid_k(self.steps / 2))(step)
        return self.most * share

    def get_config(self):
        return {"kind": self.kind, "most": self.most, "steps": self.steps}


def sigmoid_k(middle):
    """Return the k of `InverseSigmoidRate` that reaches one half after `middle` steps.

    It solves `k log(k) = middle`.

    >>> round(sigmoid_k(6908), 1)
    1000.0
    """
    low, high = 1.0, middle + 3.0
    for _ in range(60):
        k = (low + high) / 2
        low, high = (k, high) if k * np.log(k) < middle else (low, k)
    return low


def start_sampling(network, config, steps):
    """Set the rate of scheduled sampling of a network for the steps of a phase.

    The checkpoint of an interrupted phase has the number of its passes.
    """
    if config.scheduled_sampling:
        sampling = network.decoder.sampling
        kind = config.sampling_schedule if steps else "constant"
        sampling.rate = SamplingRate(kind, config.scheduled_sampling, steps)
        sampling.passes.assign(0)
