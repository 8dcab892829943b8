"""REINFORCE for hard attention.

Shapes: B batch, T target steps.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.losses.masking import masked
from keras_attention.ops.precision import at_least_float32
from keras_attention.serialization import config_of
from keras_attention.sizes import mean
from keras_attention.typing import Config, Nested, Tensor
from keras_attention.validation import (
    CheckedCall,
    check_fraction,
    check_number,
    check_rank,
    check_shape,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class ReinforceLoss(CheckedCall, keras.layers.Layer):
    """REINFORCE loss for hard attention.

    Hard attention draws one position `s[t]` at every step, and no gradient passes
    through the draw. This loss estimates the gradient, with the log-likelihood of the
    caption `y` of an image with regions `a` as the reward:

        loss = -(log p(y | s, a)
                 + reward_weight * constant(log p(y | s, a) - baseline) * log p(s | a)
                 + entropy_weight * H[s])

    `constant` stops the gradient. The baseline, a moving average of the reward, lowers
    the variance. In training, it is updated after its use:

        baseline <- momentum * baseline + (1 - momentum) * mean over the batch of
                    log p(y | s, a)

    With `reward_weight=1` and `entropy_weight=0`, the gradient is an unbiased estimate
    of the gradient of the lower bound `sum over s of p(s | a) log p(y | s, a)`. The
    defaults are those of the authors' code, which, unlike this layer, also divides the
    reward by the number of steps.

    The loss is a layer so that the baseline, a non-trainable weight, is saved with the
    model. It computes in float32 at least under every dtype policy.

    Args:
        reward_weight: Weight of the reward, lambda_r in the paper.
        entropy_weight: Weight of the entropy, lambda_e in the paper, which keeps the
            attention from becoming deterministic too early.
        momentum: Momentum of the baseline, in `[0, 1]`. With 1 the baseline keeps its
            initial value, zero, or the value assigned to `baseline`.

    Call arguments:
        log_likelihood: Log-likelihood of the target tokens, `(B, T)`, such as the
            negative `sequence_crossentropy`; or its sum over steps, `(B,)`.
        log_probability: Log-probability of the sampled positions, `(B, T)` or `(B,)`.
            Take it from a log-softmax: the logarithm of a weight may be infinite.
        entropy: Entropy of the distributions of the positions, `(B, T)` or `(B,)`.
        mask: Boolean `(B, T)`; steps that are `False` do not count, even if they hold
            NaN.
        sampled: Boolean `(B,)`, such as `steps["sampled"][:, 0]` of a decoder; `False`
            for examples with soft attention, which have no reward term and do not
            change the baseline.
        training: Whether to update the baseline.

    Returns:
        One loss per example, `(B,)`, in float32 at least. Train on its mean.

    Raises:
        ValueError: If `momentum` is not in `[0, 1]`, or if a shape does not fit.

    Example:

    Two captions of two words, whose positions were drawn from four regions uniformly:

    >>> reinforce = ReinforceLoss()
    >>> log_likelihood = np.array([[-1.0, -2.0], [-3.0, -4.0]])
    >>> log_probability = np.full((2, 2), np.log(1 / 4))
    >>> entropy = np.full((2, 2), np.log(4))
    >>> loss = reinforce(log_likelihood, log_probability, entropy, training=True)
    >>> tuple(loss.shape), round(float(reinforce.baseline), 4)
    ((2,), -0.5)

    A model keeps the layer as an attribute, so that the baseline is one of its weights:

    >>> class Captioner(keras.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.reinforce = ReinforceLoss()
    ...
    ...     def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
    ...         loss = self.reinforce(
    ...             -sequence_crossentropy(y, y_pred["logits"]),
    ...             y_pred["log_probability"],
    ...             y_pred["entropy"],
    ...             mask=y != 0,
    ...             training=training,
    ...         )
    ...         return keras.ops.mean(loss)

    A layer calls `self.add_loss(keras.ops.mean(loss))` instead.

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), section 4.1.
    """

    def __init__(
        self,
        *,
        reward_weight: float = 0.1,
        entropy_weight: float = 0.002,
        momentum: float = 0.9,
        **kwargs: Any,
    ) -> None:
        check_fraction("momentum", momentum)
        for name, weight in (
            ("reward_weight", reward_weight),
            ("entropy_weight", entropy_weight),
        ):
            check_number(name, weight, "a finite number", math.isfinite)
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.reward_weight = reward_weight
        self.entropy_weight = entropy_weight
        self.momentum = momentum
        self.baseline = self.add_weight(
            name="baseline",
            shape=(),
            initializer="zeros",
            dtype=keras.backend.result_type(self.variable_dtype, "float32"),
            trainable=False,
            autocast=False,
            # Under a distribution strategy, every replica averages its own examples.
            aggregation="mean",
        )
        self.built = True

    def call(
        self,
        log_likelihood: Tensor,
        log_probability: Tensor,
        entropy: Tensor,
        *,
        mask: Tensor | None = None,
        sampled: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        if sampled is not None:
            check_rank("sampled", sampled.shape, (1,), "(batch,)")
        if mask is not None:
            check_rank("mask", mask.shape, (2,), "(batch, steps)")
        log_likelihood = _total("log_likelihood", log_likelihood, mask)
        log_probability = _total("log_probability", log_probability, mask)
        entropy = _total("entropy", entropy, mask)
        rows = {"log_probability": log_probability, "entropy": entropy}
        for name, x in rows.items():
            check_shape(name, x, log_likelihood.shape)
        baseline = ops.cast(self.baseline, log_likelihood.dtype)
        advantage = ops.stop_gradient(log_likelihood - baseline)
        if training:
            self._update_baseline(masked(advantage, sampled), sampled)
        return -(
            log_likelihood
            + self.reward_weight * advantage * masked(log_probability, sampled)
            + self.entropy_weight * entropy
        )

    def _update_baseline(self, advantage: Tensor, sampled: Tensor) -> None:
        """Update the baseline, unless no example of the batch was sampled."""
        if sampled is None:
            average = mean(advantage)
        else:
            count = ops.sum(ops.cast(sampled, advantage.dtype))
            average = ops.sum(advantage) / ops.maximum(count, 1.0)
        change = (1 - self.momentum) * average
        self.baseline.assign_add(ops.cast(change, self.baseline.dtype))

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        return None

    def get_config(self) -> Config:
        config = config_of(self, "reward_weight entropy_weight momentum")
        return {**super().get_config(), **config}


def _total(name: str, x: Tensor, mask: Tensor) -> Tensor:
    """Return one number per example, `(B,)`: the sum over steps of `(B, T)`."""
    check_rank(name, x.shape, (1, 2), "(batch, steps) or (batch,)")
    x = at_least_float32(x)
    return x if len(x.shape) == 1 else ops.sum(masked(x, mask), axis=-1)
