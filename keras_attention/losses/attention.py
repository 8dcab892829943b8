"""Penalties on attention weights.

Each penalty is one number per sequence, summed over its steps. To add it to a mean loss
per token, divide the sum over the batch by the number of tokens.

Shapes: T target steps, S positions.
"""

from keras import ops

from keras_attention.losses.masking import masked
from keras_attention.ops.precision import at_least_float32, log_floor
from keras_attention.typing import Tensor
from keras_attention.validation import as_tensor, check_rank, may_be_equal


def doubly_stochastic_penalty(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Doubly stochastic attention: squared distance of total attention from one.

        penalty = sum over s of (1 - sum over t of weights[t, s]) ** 2

    The penalty is zero if the attention that each position receives over time sums to
    one. The weights of each step sum to one by construction.

    Args:
        weights: Attention weights, `(..., T, S)`.
        mask: Boolean `(..., T)`; steps that are `False` do not count. A padded position
            of the source adds one to the penalty, and nothing to the gradient.

    Returns:
        One penalty per sequence, `(...)`, in float32 at least.

    Raises:
        ValueError: If the mask has another shape.

    Example:

    Two steps that attend to the first of three positions only:

    >>> weights = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    >>> float(doubly_stochastic_penalty(weights))
    3.0

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 14.
    """
    weights = _weights(weights, mask)
    return ops.sum(ops.square(1.0 - ops.sum(weights, axis=-2)), axis=-1)


def coverage_loss(weights: Tensor, mask: Tensor | None = None) -> Tensor:
    """Coverage loss: attention to positions that earlier steps attended to.

        coverage[t, s] = sum over t' < t of weights[t', s]
        loss           = sum over t, s of min(weights[t, s], coverage[t, s])

    Unlike `doubly_stochastic_penalty`, it does not penalise positions that no step
    attends to. It suits summaries, which must not repeat themselves, but need not cover
    their source.

    Steps whose mask is `False` have no loss and no coverage. Arguments and results are
    as for `doubly_stochastic_penalty`.

    Example:

    The second step gives half of its attention to the position of the first step:

    >>> float(coverage_loss(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])))
    0.5

    Reference:
        [See et al., 2017](https://arxiv.org/abs/1704.04368), section 2.3.
    """
    weights = _weights(weights, mask)
    # The first step has no coverage, and no step follows the last.
    coverage = ops.cumsum(weights[..., :-1, :], axis=-2)
    return ops.sum(ops.minimum(weights[..., 1:, :], coverage), axis=(-2, -1))


def attention_supervision(
    weights: Tensor, target_weights: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Supervised attention: cross-entropy between target and attention weights.

        target[t] = target_weights[t] / sum over s of target_weights[t, s]
        loss      = -sum over t, s of target[t, s] log weights[t, s]

    Targets are word alignments or, for an image, the regions in the box of the object
    that a word names. A step whose target is zero everywhere, such as a function word
    without a box, contributes nothing. Weights below 1e-30 (1e-4 in float16, where
    gradients would overflow) count as that number and have no gradient.

    Args:
        weights: Attention weights, `(..., T, S)`.
        target_weights: Target distribution, not negative, not necessarily normalised,
            `(..., T, S)`; may be boolean.
        mask: Boolean `(..., T)`; steps that are `False` do not count.

    Returns:
        One loss per sequence, `(...)`, in float32 at least.

    Raises:
        ValueError: If the shapes of weights and target weights differ, or the mask has
            another shape.

    Example:

    The object covers the last two of four regions, which have a weight of 1/4 each. The
    second word names no object:

    >>> weights = np.array([[0.5, 0.0, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]])
    >>> box = np.array([[False, False, True, True], [False] * 4])
    >>> round(float(attention_supervision(weights, box)), 4)  # ln 4
    1.3863

    Reference:
        [Liu et al., 2016](https://arxiv.org/abs/1609.04186), section 4, for
        translation; [Liu et al., 2017](https://arxiv.org/abs/1605.09553), "strong
        supervision", for captions.
    """
    weights = as_tensor("weights", weights)
    target_weights = as_tensor("target_weights", target_weights)
    if not may_be_equal(weights.shape, target_weights.shape):
        raise ValueError(
            "weights and target_weights must have the same shape. Received: "
            f"{tuple(weights.shape)} and {tuple(target_weights.shape)}"
        )
    floor = log_floor(weights.dtype)
    weights = masked(at_least_float32(weights), mask, rows=True)
    target = masked(ops.cast(target_weights, weights.dtype), mask, rows=True)
    mass = ops.sum(target, axis=-1, keepdims=True)
    target = target / ops.where(mass > 0, mass, 1.0)
    log_weights = ops.log(ops.maximum(weights, floor))
    return -ops.sum(target * log_weights, axis=(-2, -1))


def _weights(weights: Tensor, mask: Tensor) -> Tensor:
    """Return weights `(..., T, S)` in float32 at least, with zeros in masked steps."""
    weights = as_tensor("weights", weights)
    if len(weights.shape) < 2:
        check_rank("weights", weights.shape, (2,), "(..., steps, positions)")
    return masked(at_least_float32(weights), mask, rows=True)
