"""An additional position of every query, beside those that all queries share.

Shapes: B batch, T queries, S shared positions.
"""

from keras import ops

from keras_attention.ops.masks import combine_masks
from keras_attention.sizes import is_symbol


def append_score(scores, valid, extra, query_mask):
    """Append the scores of the extra positions, which are valid for valid queries.

    Args:
        scores: Scores of the shared positions, `(B, T, S)`.
        valid: Boolean, broadcastable to the scores, or `None`.
        extra: Scores of the extra positions, `(B, T, 1)`.
        query_mask: Boolean `(B, T)`, or `None`.

    Returns:
        The scores, `(B, T, S + 1)`, and their mask or `None`.
    """
    if valid is not None:
        valid = ops.broadcast_to(valid, ops.shape(scores))
        query_mask = None if query_mask is None else query_mask[..., None]
        is_query = combine_masks(ops.ones_like(extra, "bool"), query_mask)
        valid = _append(valid, is_query)
    return _append(scores, extra), valid


def _append(x, last):
    """Return `x` `(..., S)` with one more entry per row, `last` `(..., 1)`."""
    if not is_symbol(x.shape[-1]):
        return ops.concatenate([x, last], axis=-1)
    # The converter of JAX to ONNX takes S for the length of the concatenation.
    padding = [[0, 0] for _ in x.shape[1:]] + [[0, 1]]
    at_end = ops.pad(ops.zeros_like(x), padding, constant_values=1) == 1
    return ops.where(at_end, last, ops.pad(x, padding))


def split_weight(outputs):
    """Return the outputs of a weighting with the last weight as `"extra_weight"`.

    Args:
        outputs: Dict with `"weights"` `(B, T, S + 1)`.
    """
    weights = outputs["weights"]
    return {
        **outputs,
        "weights": weights[..., :-1],
        "extra_weight": weights[..., -1],
    }
