"""Boolean masks: `True` marks a valid entry.

Shapes: S scores of a query, D depth.
"""

from typing import Any

from keras import ops, tree

from keras_attention.backends import mask_scores, softmax
from keras_attention.ops.rows import LOWEST
from keras_attention.typing import Nested, Tensor


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of scores `(..., S)`, exactly zero where the mask is `False`.

    The scores are in float32 or float64, and the mask is broadcastable to them. A row
    with no valid position is a row of zeros with zero gradients; a score of minus
    infinity counts as not valid.
    """
    scores, has_valid = mask_scores(scores, mask, LOWEST)
    return softmax(scores) * ops.cast(has_valid, scores.dtype)


def combine_masks(*masks: Any) -> Tensor | None:
    """Return the logical and of the masks that are not `None`; `None` if all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def where_rows(mask: Tensor, x: Nested, otherwise: Nested) -> Nested:
    """Return `ops.where` with a mask `(B, ...)` of the first axes of nested tensors."""

    def choose(x: Tensor, otherwise: Tensor) -> Tensor:
        missing = len(x.shape) - len(mask.shape)
        rows = ops.reshape(mask, (*ops.shape(mask), *[1] * missing))
        return ops.where(rows, x, otherwise)

    return tree.map_structure(choose, x, otherwise)


def clear_masked(x: Tensor, mask: Tensor) -> Tensor:
    """Return `x` `(..., D)` with zeros where its mask `(...)` is `False`."""
    return ops.where(ops.cast(mask, "bool")[..., None], x, ops.zeros_like(x))
