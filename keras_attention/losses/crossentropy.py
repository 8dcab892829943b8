"""Cross-entropy of tokens: a function of logits, and a loss for `compile`.

Shapes: B batch, T target steps, N vocabulary size.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_attention.losses.masking import (
    broadcast_sample_weights,
    check_label_smoothing,
    check_token_ids,
    explaining_token_ids,
    masked,
)
from keras_attention.ops.precision import at_least_float32
from keras_attention.serialization import config_of
from keras_attention.typing import Config, Nested, Tensor
from keras_attention.validation import as_tensor, check_integer


def sequence_crossentropy(
    token_ids: Tensor,
    logits: Tensor,
    mask: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of every token, with label smoothing.

        loss = -(1 - e) log p(token) - e / N * sum over n of log p(n)

    Args:
        token_ids: Target tokens, integers `(..., T)`.
        logits: Unnormalised log-probabilities, `(..., T, N)`.
        mask: Boolean `(..., T)`; tokens that are `False` have a loss of exactly zero,
            even if their token ids or logits are invalid.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread
            evenly over the vocabulary.

    Returns:
        One loss per token, `(..., T)`, in float32 at least. `SequenceCrossentropy` is
        the mean over valid tokens.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or a shape does not fit.

    Example:

    Two tokens of equal probability:

    >>> loss = sequence_crossentropy(np.array([1]), np.zeros((1, 2)))
    >>> round(float(loss[0]), 4)  # ln 2
    0.6931

    Reference:
        [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7.
    """
    check_label_smoothing(label_smoothing)
    token_ids, logits = as_tensor("token_ids", token_ids), as_tensor("logits", logits)
    logits = masked(at_least_float32(logits), mask, rows=True)
    check_token_ids("token_ids", token_ids, "logits", logits)
    token_ids = masked(token_ids, mask)
    with explaining_token_ids(token_ids, logits.shape[-1]):
        losses = ops.sparse_categorical_crossentropy(
            token_ids, logits, from_logits=True
        )
    if label_smoothing:
        uniform_losses = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform_losses
    return masked(losses, mask)


class _MaskOf(keras.layers.Layer):
    """Layer that returns the Keras mask of a tensor, or `None`."""

    def call(self, inputs: Nested, mask: Tensor | None = None) -> Tensor:
        return mask

    def compute_mask(self, inputs: Nested, previous_mask: Any) -> None:
        return None


@keras.saving.register_keras_serializable(package="keras_attention")
class SequenceCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of valid tokens, for `compile`.

        loss = sum of weight * crossentropy(token) / sum of weight

    over all tokens of the batch, see `sequence_crossentropy`. The weight of a token is
    zero if it is `pad` or masked by the Keras mask of the logits, otherwise its
    `sample_weight` or one. Every token counts the same, in long and in short sequences,
    and padding does not change the loss. A batch without valid tokens has a loss of
    zero.

    Args:
        pad: Padding token, or `None` if there is no padding.
        label_smoothing: Share in `[0, 1)` of the probability that is spread evenly
            over the vocabulary.
        reduction: As in `keras.losses.Loss`. The default is the mean above; `"sum"` is
            its numerator, `None` returns the weighted losses `(B, T)`, and
            `"sum_over_batch_size"` divides by the number of all tokens, padding
            included.
        name: Name of the loss; that of the function if `None`.

    Call arguments:
        y_true: Target tokens, integers `(B, T)` or `(B, T, 1)`.
        y_pred: Unnormalised log-probabilities, `(B, T, N)`.
        sample_weight: `(B,)`, `(B, T)` or `(B, T, 1)`.

    Returns:
        A scalar, unless `reduction` is `None`; in float32 at least.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or a shape does not fit.

    Example:

    >>> loss = SequenceCrossentropy(pad=0)
    >>> token_ids = np.array([[2, 1, 0], [3, 0, 0]])
    >>> round(float(loss(token_ids, np.zeros((2, 3, 4)))), 4)  # ln 4
    1.3863

    Reference:
        [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7, for label
        smoothing.
    """

    crossentropy: ClassVar[Callable[..., Tensor]] = staticmethod(sequence_crossentropy)

    def __init__(
        self,
        *,
        pad: int | None = None,
        label_smoothing: float = 0.0,
        reduction: str | None = "mean_with_sample_weight",
        name: str | None = None,
    ) -> None:
        check_label_smoothing(label_smoothing)
        pad = check_integer("pad", pad, optional=True)
        # Keras casts the token ids to this dtype, too; half precision would round them.
        dtype = keras.backend.result_type(keras.config.floatx(), "float32")
        name = name or self.crossentropy.__name__
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.pad = pad
        self.label_smoothing = label_smoothing
        self._mask_of = _MaskOf(autocast=False, name="mask_of")

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        y_true, y_pred = as_tensor("y_true", y_true), as_tensor("y_pred", y_pred)
        mask = self._mask_of(y_pred)
        if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1:] == (1,):
            # Keras allows labels with one more axis.
            y_true = y_true[..., 0]
        check_token_ids("y_true", y_true, "y_pred", y_pred)
        valid = (
            ops.ones_like(y_true, "bool") if self.pad is None else y_true != self.pad
        )
        weights = ops.cast(valid, self.dtype)
        if mask is not None:
            weights = weights * ops.cast(mask, self.dtype)
        if sample_weight is not None:
            weights = weights * broadcast_sample_weights(sample_weight, weights)
        # A token of weight zero may have logits of NaN.
        counts = weights != 0
        y_true, y_pred = masked(y_true, counts), masked(y_pred, counts, rows=True)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        y_true = ops.cast(y_true, "int32")
        smoothing = self.label_smoothing
        return self.crossentropy(y_true, y_pred, label_smoothing=smoothing)

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "pad label_smoothing")}
