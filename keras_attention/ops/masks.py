"""Boolean masks: `True` marks a valid entry."""

from keras import ops, tree


def combine_masks(*masks):
    """Return the logical and of the masks that are not `None`; `None` if all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def where_rows(mask, x, otherwise):
    """Return `ops.where` with a mask `(B, ...)` of the first axes of nested tensors."""

    def choose(x, otherwise):
        missing = len(x.shape) - len(mask.shape)
        rows = ops.reshape(mask, (*ops.shape(mask), *[1] * missing))
        return ops.where(rows, x, otherwise)

    return tree.map_structure(choose, x, otherwise)


def clear_masked(x, mask):
    """Return `x` `(..., D)` with zeros where its mask `(...)` is `False`."""
    return ops.where(ops.cast(mask, "bool")[..., None], x, ops.zeros_like(x))
