"""Scheduled sampling in a training: its checks and its probability."""

import keras
import numpy as np
from keras import ops
from keras_attention_apps.common.cli import UserError

from keras_attention import InverseSigmoidRate


def check_sampling(config, *, recurrent):
    """Raise a `UserError` if a decoder cannot be trained with scheduled sampling.

    Args:
        config: The `TrainConfig`.
        recurrent: Whether the decoder is recurrent.
    """
    if config.scheduled_sampling and not recurrent:
        raise UserError(
            "scheduled_sampling needs a recurrent decoder, which reads one word after "
            "the other; self-attention is trained on all words of a sentence at once. "
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

    Args:
        kind: `"constant"`, `"linear"` or `"inverse-sigmoid"`.
        most: Largest probability.
        steps: Steps of the training.

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

    Args:
        network: Network whose `decoder` has `sampling`, unless it is disabled.
        config: The `TrainConfig`.
        steps: Steps over which the rate grows; with 0 it has its largest value.
    """
    if config.scheduled_sampling:
        sampling = network.decoder.sampling
        kind = config.sampling_schedule if steps else "constant"
        sampling.rate = SamplingRate(kind, config.scheduled_sampling, steps)
        sampling.passes.assign(0)
