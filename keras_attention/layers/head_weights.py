"""Weightings and their noise for several heads.

Shapes: B batch, T queries, S positions, N heads.
"""

from keras import ops
from keras import tree


def weigh_heads(weighting, scores, mask, noise, training):
    """Return the outputs of a weighting for all heads, tensors `(B, N, T, ...)`.

    Args:
        weighting: The `Weighting`.
        scores: Tensor of shape `(B, N, T, S)`.
        mask: Boolean, broadcastable to the scores, or `None`.
        noise: Dict of tensors `(B, N, T, ...)`; empty or `None` for no noise.
        training: Whether the layer trains.
    """
    if weighting.takes_heads:
        outputs, _ = weighting(scores, mask, {}, noise, training=training)
        return outputs
    batch, heads, queries, _ = shape = ops.shape(scores)

    def joined(x):
        return ops.reshape(x, (batch, heads * queries, *ops.shape(x)[3:]))

    if mask is not None:
        mask = joined(ops.broadcast_to(mask, shape))
    noise = noise and tree.map_structure(joined, noise)
    outputs, _ = weighting(joined(scores), mask, {}, noise, training=training)
    return tree.map_structure(
        lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[2:])), outputs
    )


def draw_for_scores(weighting, dropout, shape):
    """Return noise of a weighting and of dropout for scores, `(B, N, T, ...)`.

    Args:
        weighting, dropout: The `Weighting` and the `WeightDropout`.
        shape: That of the scores, `(B, N, T, S)`.
    """
    batch, heads, queries, length = shape
    # `HardWeighting` draws one coin (soft or hard) per example for all heads of a step.
    # The queries of all heads take the place of heads here, so they share the coin.
    noise = draw_for_steps(weighting, dropout, heads * queries, (1, batch, 1, length))
    return tree.map_structure(
        lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[4:])), noise
    )


def draw_for_steps(weighting, dropout, heads, shape):
    """Return noise of a weighting and of dropout, `(steps, B, T, N, ...)`.

    Args:
        weighting, dropout: The `Weighting` and the `WeightDropout`.
        heads: N.
        shape: `(steps, B, T, S)`.
    """
    steps, *leading, length = shape

    def by_head(x):
        x = ops.reshape(x, (steps, heads, *ops.shape(x)[1:]))
        return ops.moveaxis(x, 1, 3)

    noise = weighting.draw((steps * heads, *leading, length))
    noise = {
        "weighting": tree.map_structure(by_head, noise),
        "dropout": dropout.draw((steps, *leading, heads, length)),
    }
    return {name: x for name, x in noise.items() if x}


def check_for_heads(weighting, dropout):
    """Raise `ValueError` for a weighting that several heads cannot have."""
    if weighting.sequential or weighting.state_names:
        raise ValueError(
            "With several heads, a weighting must handle all queries at once, and "
            "monotonic attention cannot. Use it in LuongAttention or "
            f"AdditiveAttention. Received: {type(weighting).__name__}"
        )
    if dropout and not weighting.allows_scaling:
        raise ValueError(
            "dropout cannot drop the only position of a hard choice. "
            f"Received: {type(weighting).__name__}, dropout={dropout}"
        )
