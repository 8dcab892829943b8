"""Boolean masks: `True` marks a valid entry."""

from keras import ops


def combine_masks(*masks):
    """Return the logical and of the masks that are not `None`; `None` if all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def clear_masked(x, mask):
    """Return `x` `(..., D)` with zeros where its mask `(...)` is `False`."""
    return ops.where(ops.cast(mask, "bool")[..., None], x, ops.zeros_like(x))
