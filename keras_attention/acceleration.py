"""Properties of the backend that decide which of several equal ways is the quickest."""

import functools
import math

import keras

# What is assumed of a length that is not known.
USUAL_LENGTH = 1024


# At most so many scores are a handful.
HANDFUL = 2**12


def fuses():
    """Whether a compiler makes one loop of several operations on large tensors."""
    return keras.backend.backend() != "torch"


def traces_for_cpu():
    """Whether operations become a graph of TensorFlow that no GPU carries out."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not (tf.executing_eagerly() or tf.config.list_logical_devices("GPU"))


def is_handful(shape, dtype):
    """Whether scores `(..., S)` are so few that plain operations are the quickest.

    In graphs for CPUs, TensorFlow leaves softmax and products of matrices in float32 to
    a library that takes longer to begin than sums need for so few numbers.
    """
    # First: what JAX does not know is no `None`, and cannot be compared.
    if not traces_for_cpu() or keras.backend.standardize_dtype(dtype) != "float32":
        return False
    *leading, length = shape
    if None in leading:
        return False
    return math.prod((*leading, length or USUAL_LENGTH)) <= HANDFUL


def fused(function):
    """The same function of tensors, compiled as a whole even inside a plain graph.

    TensorFlow compiles it by itself, once for every set of shapes; JAX compiles
    what its caller compiles; PyTorch runs it as it is.
    """

    @functools.cache
    def compiled():
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)

    def call(*tensors):
        if keras.backend.backend() != "tensorflow":
            return function(*tensors)
        return compiled()(*tensors)

    return call


def looks_back():
    """Whether the gradient of an operation may use what was computed after it."""
    return keras.backend.backend() != "jax"
