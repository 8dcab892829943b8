"""How models are made to compute: compiled by XLA, or in half precision."""

import contextlib

import keras
from keras_attention_apps.common.cli import UserError


def compiles(jit_compile):
    """Whether to compile: where it is asked for, and always on JAX.

    Raises:
        UserError: If it is asked for on PyTorch.
    """
    backend = keras.backend.backend()
    if jit_compile and backend == "torch":
        raise UserError("jit_compile needs TensorFlow or JAX. Received: PyTorch")
    return jit_compile or backend == "jax"


@contextlib.contextmanager
def computing_in(precision):
    """Layers that are made inside compute in this precision.

    Args:
        precision: Name of a Keras dtype policy; `None` for the one that is set.
    """
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision or policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def power_of_two(count, largest):
    """The smallest power of two that is not less than `count`, at most `largest`."""
    return min(1 << (count - 1).bit_length(), largest)
