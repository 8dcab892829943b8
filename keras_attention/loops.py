"""The loop over time steps: the one place that knows what each backend does best."""

import functools
import math

import keras
from keras import ops, tree

# What is assumed of a length that is not known.
USUAL_LENGTH = 1024

# At most so many scores are a handful.
HANDFUL = 2**12


def scan(step, state, inputs):
    """Run `step` along the first axis of `inputs` and stack what it returns.

    TensorFlow gets a `while_loop` over tensor arrays (it exports, it compiles under
    XLA, and its compilation time does not grow with the length), JAX its `scan`,
    PyTorch a plain loop.

    Args:
        step: Function `(state, inputs_t) -> (state, outputs_t)`. The structure,
            shapes and dtypes of the state must not change.
        state: Nested structure of tensors.
        inputs: Nested structure of tensors `(time, ...)`, at least one step long.

    Returns:
        The state after the last step, and the outputs stacked to `(time, ...)`.

    Raises:
        ValueError: If there is no step.
    """
    inputs = tree.map_structure(ops.convert_to_tensor, inputs)
    if tree.flatten(inputs)[0].shape[0] == 0:
        raise ValueError("a sequence must have at least one step. Received: 0 steps")
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _scan_tensorflow(step, state, inputs)
    if backend == "jax":
        return ops.scan(step, state, inputs)
    return _scan_eagerly(step, state, inputs)


def _scan_eagerly(step, state, inputs):
    outputs = []
    for t in range(tree.flatten(inputs)[0].shape[0]):
        state, output = step(state, tree.map_structure(lambda x, t=t: x[t], inputs))
        outputs.append(output)
    return state, tree.map_structure(lambda *steps: ops.stack(steps), *outputs)


def _scan_tensorflow(step, state, inputs):
    import tensorflow as tf

    if tf.executing_eagerly():
        return _scan_eagerly(step, state, inputs)
    first = tree.flatten(inputs)[0]
    length = ops.shape(first)[0]

    def unstack(x):
        array = tf.TensorArray(x.dtype, size=length, element_shape=x.shape[1:])
        return array.unstack(x)

    # Indexing would add up a gradient of the whole sequence at every step.
    unstacked = [unstack(x) for x in tree.flatten(inputs)]

    def read(t):
        return tree.pack_sequence_as(inputs, [array.read(t) for array in unstacked])

    # This call only tells the structure of the outputs; graph pruning removes it.
    _, template = step(state, read(0))
    arrays = [
        tf.TensorArray(x.dtype, size=length, element_shape=x.shape)
        for x in tree.flatten(template)
    ]

    def body(t, state, arrays):
        state, output = step(state, read(t))
        outputs = zip(arrays, tree.flatten(output), strict=True)
        return t + 1, state, [array.write(t, x) for array, x in outputs]

    _, state, arrays = tf.while_loop(
        lambda t, *_: t < length,
        body,
        (0, state, arrays),
        maximum_iterations=first.shape[0],
    )
    stacked = [array.stack() for array in arrays]
    return state, tree.pack_sequence_as(template, stacked)


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
