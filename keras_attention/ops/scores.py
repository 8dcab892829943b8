"""How well a query fits a key: scores before any normalisation.

Shapes: B batch, T queries, S positions, U units of the shared projection.
"""

from keras import ops


def additive_scores(query, keys, scale):
    """Score every projected query against every projected key.

        scores[b, t, s] = sum over u of scale[u] * tanh(query[b, t, u] + keys[b, s, u])

    Args:
        query: Projected queries, `(B, T, U)`.
        keys: Projected keys, `(B, S, U)`.
        scale: Vector that turns the hidden layer into one number, `(U,)`.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """
    hidden = ops.tanh(query[:, :, None, :] + keys[:, None, :, :])
    # One product of matrices: far quicker than a product and a sum over the last axis.
    flat = ops.reshape(hidden, (-1, scale.shape[0]))
    return ops.reshape(ops.matmul(flat, scale[:, None]), ops.shape(hidden)[:-1])
