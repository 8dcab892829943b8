"""What surrounds every training."""

import contextlib

import keras


@contextlib.contextmanager
def numerics(seed, precision):
    """Fixes all random numbers, and sets what Keras computes with for the while.

    Args:
        seed: Integer.
        precision: Name of a Keras dtype policy.
    """
    keras.utils.set_random_seed(seed)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
