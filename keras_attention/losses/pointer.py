"""Cross-entropy of log-probabilities, where some classes are impossible.

Shapes: B batch, T target steps, C classes: positions, or an extended vocabulary.
"""

import math

import keras
from keras import ops

from keras_attention.losses.crossentropy import SequenceCrossentropy
from keras_attention.losses.masking import (
    check_label_smoothing,
    check_token_ids,
    masked,
)
from keras_attention.ops.log_probs import is_possible
from keras_attention.ops.precision import at_least_float32
from keras_attention.typing import Tensor
from keras_attention.validation import as_tensor

# Lower log-probabilities count as this one, and have no gradient.
MIN_LOG_PROB = math.log(1e-30)


def pointer_crossentropy(
    token_ids: Tensor,
    log_probs: Tensor,
    mask: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of a `PointerNetwork` or a `PointerGenerator`.

        loss = -(1 - e) log_probs[target] - e * mean of log_probs over possible classes

    Unlike `sequence_crossentropy`, it takes log-probabilities, and a class of -1e9 is
    impossible: a masked position, or an extra id that its source does not have. Label
    smoothing leaves such classes out. Log-probabilities below -69.1 (a probability of
    1e-30) count as -69.1 and have no gradient, so an impossible target has a finite
    loss. A target outside of 0 to C - 1 is impossible, too.

    Args:
        token_ids: Targets, integers `(..., T)`: positions, or ids of the extended
            vocabulary.
        log_probs: Log-probabilities, `(..., T, C)`.
        mask: Boolean `(..., T)`; targets that are `False` have a loss of exactly zero.
        label_smoothing: Share `e` in `[0, 1)` of the probability that is spread evenly
            over the possible classes.

    Returns:
        One loss per target, `(..., T)`, in float32 at least. `PointerCrossentropy` is
        the mean over valid targets.

    Raises:
        ValueError: If `label_smoothing` is not in `[0, 1)`, or a shape does not fit.

    Example:

    Two of three positions are possible:

    >>> log_probs = np.array([[np.log(0.5), np.log(0.5), -1e9]])
    >>> loss = pointer_crossentropy(np.array([1]), log_probs, label_smoothing=0.1)
    >>> round(float(loss[0]), 4)  # ln 2
    0.6931

    Reference:
        [Vinyals et al., 2015](https://arxiv.org/abs/1506.03134), section 2.3;
        [See et al., 2017](https://arxiv.org/abs/1704.04368), equation 6.
    """
    check_label_smoothing(label_smoothing)
    token_ids = as_tensor("token_ids", token_ids)
    log_probs = as_tensor("log_probs", log_probs)
    log_probs = masked(at_least_float32(log_probs), mask, rows=True)
    check_token_ids("token_ids", token_ids, "log_probs", log_probs)
    token_ids = ops.cast(masked(token_ids, mask), "int32")
    possible = is_possible(log_probs)
    log_probs = ops.maximum(log_probs, MIN_LOG_PROB)
    exists = (token_ids >= 0) & (token_ids < ops.shape(log_probs)[-1])
    token_ids = ops.where(exists, token_ids, 0)
    targets = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)
    losses = -ops.where(exists, targets[..., 0], MIN_LOG_PROB)
    if label_smoothing:
        count = ops.sum(ops.cast(possible, log_probs.dtype), axis=-1)
        total = ops.sum(ops.where(possible, log_probs, 0.0), axis=-1)
        uniform_losses = -total / ops.maximum(count, 1.0)
        losses = (1 - label_smoothing) * losses + label_smoothing * uniform_losses
    return masked(losses, mask)


@keras.saving.register_keras_serializable(package="keras_attention")
class PointerCrossentropy(SequenceCrossentropy):
    """Mean cross-entropy of a `PointerNetwork` or a `PointerGenerator`, for `compile`.

        loss = sum of weight * pointer_crossentropy(target) / sum of weight

    over all targets of the batch. The weights, the arguments and the results are those
    of `SequenceCrossentropy`, except that `y_pred` contains log-probabilities
    `(B, T, C)`. For a pointer network, 0 is a position, so the padding needs another
    number, such as `pad=-1`.

    Example:

    >>> loss = PointerCrossentropy(pad=-1)
    >>> log_probs = np.log(np.full((1, 3, 4), 0.25, "float32"))
    >>> round(float(loss(np.array([[2, 0, -1]]), log_probs)), 4)  # ln 4
    1.3863

    Reference:
        [Vinyals et al., 2015](https://arxiv.org/abs/1506.03134), section 2.3;
        [See et al., 2017](https://arxiv.org/abs/1704.04368), equation 6.
    """

    crossentropy = staticmethod(pointer_crossentropy)
