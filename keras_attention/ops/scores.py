"""Scores of queries against keys.

Shapes: B batch, T queries, S positions, U depth of projected queries and keys. Keys are
`(B, S, U)`, or `(B, T, S, U)` where every query has positions of its own.
"""

from keras import ops

from keras_attention.ops.precision import accumulation_dtype


def dot_scores(query, keys):
    """Return the dot product of every query and every key.

        scores[b, t, s] = query[b, t] . keys[b, s]

    Args:
        query: Tensor `(B, T, U)`.
        keys: Tensor `(B, [T,] S, U)`.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1.
    """
    if len(keys.shape) == 4:
        return ops.matmul(keys, query[..., None])[..., 0]
    return ops.matmul(query, ops.swapaxes(keys, 1, 2))


def additive_scores(query, keys, scale, shift=None):
    """Score every projected query against every projected key.

        scores[b, t, s] = scale . tanh(query[b, t] + keys[b, s] + shift[b, t, s])

    The hidden layer `(B, T, S, U)` is computed as a whole, in float32 at least:
    processors need longer for a tanh in half precision.

    Args:
        query: Projected queries, `(B, T, U)`.
        keys: Projected keys, `(B, [T,] S, U)`.
        scale: Vector that turns the hidden layer into one number, `(U,)`.
        shift: Another term of the hidden layer, `(B, T, S, U)`; optional.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """
    dtype = accumulation_dtype(query.dtype)
    hidden = sums_of_pairs(ops.cast(query, dtype), ops.cast(keys, dtype))
    if shift is not None:
        hidden = hidden + ops.cast(shift, dtype)
    scores = project_to_scalars(ops.tanh(hidden), ops.cast(scale, dtype))
    return ops.cast(scores, query.dtype)


def sums_of_pairs(query, keys):
    """Return the sum of every query and every key, `(B, T, S, U)`."""
    if len(keys.shape) == 3 and query.shape[1] == 1:
        # For one query, as in a decoder step, the gradient then sums over fewer axes.
        return ops.expand_dims(query + keys, 1)
    # Not `keys[:, None]`: the gradient of indexing is another array of this size.
    if len(keys.shape) == 3:
        keys = ops.expand_dims(keys, 1)
    return ops.expand_dims(query, 2) + keys


def project_to_scalars(hidden, scale):
    """Return `hidden . scale` for every vector of `(..., U)`."""
    # One matrix product is much faster than a product and a sum over the last axis.
    flat = ops.reshape(hidden, (-1, hidden.shape[-1]))
    return ops.reshape(ops.matmul(flat, scale[:, None]), ops.shape(hidden)[:-1])
