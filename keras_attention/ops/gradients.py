"""Gradient functions for `keras.ops.custom_gradient`."""


def with_upstream(gradient):
    """Adapt a function of the upstream gradient to the calls of all backends.

    TensorFlow and JAX call `adapted(upstream)`, PyTorch calls
    `adapted(*inputs, upstream=upstream)`.

    Args:
        gradient: Function from the gradient of the only output to the gradients of the
            inputs.
    """

    def adapted(*upstreams, upstream=None):
        return gradient(upstreams[0] if upstream is None else upstream)

    return adapted
