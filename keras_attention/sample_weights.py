"""Sample weights in the shapes that Keras accepts."""

from keras import ops

from keras_attention.validation import check_shape


def broadcast_sample_weights(given, weighed):
    """Expand sample weights to the rank of a tensor `(B, ...)`.

    Args:
        given: Tensor `(B,)`, `(B, ...)`, or with one more axis of size 1.
        weighed: The tensor that they weigh; the result has its dtype.

    Raises:
        ValueError: If the shape does not fit.
    """
    weights, rank = ops.cast(given, weighed.dtype), len(weighed.shape)
    if len(weights.shape) == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while len(weights.shape) < rank:
        weights = weights[..., None]
    check_shape("sample_weight", weights, weighed.shape, broadcasts=True)
    return weights
