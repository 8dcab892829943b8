"""XLA compilation and half precision."""

import contextlib

import keras
from keras import ops
from keras_attention_apps.common.cli import UserError


def compiles(jit_compile):
    """Return whether to compile: if requested, and always on JAX.

    Raises:
        UserError: If it is requested on PyTorch.
    """
    backend = keras.backend.backend()
    if jit_compile and backend == "torch":
        raise UserError("jit_compile needs TensorFlow or JAX. Received: PyTorch")
    return jit_compile or backend == "jax"


@contextlib.contextmanager
def computing_in(precision):
    """Set the precision of the layers that are created inside.

    Args:
        precision: Name of a Keras dtype policy; `None` for the current one.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision or policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def with_cast_weights(step, network):
    """Return the step of a search with weights that are cast once.

    In mixed precision a layer casts its weights in every call, hence in every step of a
    search, which for few rows takes longer than the matrix products.

    Args:
        step: Function that calls layers of the network.
        network: A built Keras model. If it computes in the precision of its weights,
            the step is returned unchanged.
    """
    if network.compute_dtype == network.variable_dtype:
        return step
    values = [
        # Layers such as normalisations need their vectors in full precision.
        ops.cast(x.value, network.compute_dtype) if len(x.shape) > 1 else x.value
        for x in network.weights
    ]

    def cast_step(*arguments):
        with keras.StatelessScope() as scope:
            for update in zip(network.weights, values, strict=True):
                scope.add_update(update)
            return step(*arguments)

    return cast_step


def shape_multiple(size=8):
    """Return the multiple to which the size of an axis is rounded up.

    JAX compiles for every shape, so it is `size` there. Elsewhere it is 1.
    """
    return size if keras.backend.backend() == "jax" else 1


def rounded_up(size, multiple):
    """Return the smallest multiple of a number that is at least `size`."""
    return -(-size // multiple) * multiple


def power_of_two(count, largest):
    """Return the smallest power of two that is at least `count`, at most `largest`."""
    return min(1 << (count - 1).bit_length(), largest)
