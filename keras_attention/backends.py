"""Properties of the backends, and functions that suit each of them."""

import contextlib
import contextvars
import functools
import math
import sys

import keras
from keras import ops

# Assumed length where it is unknown.
USUAL_LENGTH = 1024

# Maximum number of scores for which elementwise products and sums are the fastest.
FEW_SCORES = 2**12
# The same number of queries in LiteRT.
FEW_QUERIES = 8

_for_litert = contextvars.ContextVar("for_litert", default=False)


@contextlib.contextmanager
def tracing_for_litert():
    """Context in which TensorFlow traces graphs for LiteRT."""
    token = _for_litert.set(True)
    try:
        yield
    finally:
        _for_litert.reset(token)


def traces_for_litert():
    """Return whether TensorFlow is tracing a graph that LiteRT will run."""
    return _for_litert.get()


def traces_for_cpu():
    """Return whether TensorFlow is tracing a graph that it will run on a CPU."""
    if keras.backend.backend() != "tensorflow" or _for_litert.get():
        return False
    import tensorflow as tf

    return not (tf.executing_eagerly() or tf.config.list_logical_devices("GPU"))


def exports_to_onnx():
    """Return whether TensorFlow is tracing a graph for `model.export(format="onnx")`.

    Its converter has no operator for functions that XLA compiles, and Keras does not
    tell the layers the format.
    """
    frame = sys._getframe() if traces_for_cpu() else None
    while frame is not None:
        if frame.f_globals.get("__name__") == "keras.src.export.onnx":
            return True
        frame = frame.f_back
    return False


def has_few_scores(shape, dtype):
    """Return whether sums of products are the fastest for scores `(..., T, S)`.

    In graphs for CPUs, TensorFlow computes softmax and matrix products in float32 with
    a library whose overhead then exceeds the cost of the sums themselves. LiteRT
    rearranges a matrix for every product, which few queries do not repay.
    """
    if _for_litert.get():
        return shape[-2] is not None and shape[-2] <= FEW_QUERIES
    # Checked first: unknown sizes of JAX are symbols, which cannot be compared.
    if not traces_for_cpu() or keras.backend.standardize_dtype(dtype) != "float32":
        return False
    *leading, length = shape
    if None in leading:
        return False
    return math.prod((*leading, length or USUAL_LENGTH)) <= FEW_SCORES


def softmax(x):
    """Return the softmax of every row, by the fastest implementation."""
    if isinstance(x.shape[-1], int) and x.shape[-1] == 1:
        # Keras warns of the softmax of a single number. NaN must propagate.
        return 1 + 0 * x
    if traces_for_cpu() and has_few_scores(x.shape, x.dtype):
        return ops.exp(ops.log_softmax(x, axis=-1))
    return ops.softmax(x, axis=-1)


def take(x, indices):
    """Return `x[indices]` along the first axis, for indices that are not negative."""
    if keras.backend.backend() != "tensorflow":
        return ops.take(x, indices, axis=0)
    import tensorflow as tf

    # Keras corrects negative indices, which takes three operations.
    return tf.gather(x, indices)


def project_rows(dense, x):
    """Apply a `Dense` layer, or another function of matrices, to the last axis of `x`.

    For tensors of higher rank, the products of TensorFlow are slower, and do not
    compile under XLA inside a loop over a batch of unknown size. A Keras model, such as
    a `Sequential`, takes matrices only if it was built for them.
    """
    takes_any_rank = not isinstance(dense, keras.Model)
    if len(x.shape) == 2 or (
        takes_any_rank and keras.backend.backend() != "tensorflow"
    ):
        return dense(x)
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


@functools.cache
def xla_compiled(function):
    """Return a function of tensors that TensorFlow always compiles by XLA.

    TensorFlow compiles it once for every set of shapes. JAX compiles it with its
    caller; PyTorch runs it uncompiled.
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


def defers_gradients(x):
    """Return whether custom gradients may read tensors computed after the forward pass.

    JAX traces both passes together, before these tensors exist. PyTorch cannot export
    custom gradients.

    Args:
        x: Any tensor of the forward pass.
    """
    backend = keras.backend.backend()
    # An export has tensors for sizes.
    exports = backend == "torch" and not isinstance(x.shape[0], int)
    return backend != "jax" and not exports


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
