"""Boolean masks: `True` marks a valid entry.

Shapes: B batch, T queries or S positions.
"""

from keras import ops


def combine_masks(*masks):
    """Return the logical and of masks of which each may be `None`; `None` for none."""
    masks = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    if len(masks) < 2:
        return masks[0] if masks else None
    return ops.logical_and(masks[0], combine_masks(*masks[1:]))


def clear_masked(x, mask):
    """Return `x` `(B, T, ...)` with zeros where its mask `(B, T)` is `False`."""
    return ops.where(ops.cast(mask, "bool")[..., None], x, ops.zeros_like(x))
