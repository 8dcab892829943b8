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


def warm_up_and_cosine(peak, warm_up, steps):
    """Return a schedule: linear warm-up to a peak, then a cosine to zero."""
    decay_steps = max(steps - warm_up, 1)
    cosine = keras.optimizers.schedules.CosineDecay
    if not warm_up:
        return cosine(peak, decay_steps)
    return cosine(peak / 100, decay_steps, warmup_target=peak, warmup_steps=warm_up)


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
