"""The loop over time steps, as each backend runs it best."""

import keras
from keras import ops, tree


def scan(step, state, inputs):
    """Run `step` along the first axis of `inputs` and stack its outputs.

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

    # Indexing would add a gradient of the size of the whole sequence at every step.
    unstacked = [unstack(x) for x in tree.flatten(inputs)]

    def read(t):
        return tree.pack_sequence_as(inputs, [array.read(t) for array in unstacked])

    # This call only finds the structure of the outputs; graph pruning removes it.
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
