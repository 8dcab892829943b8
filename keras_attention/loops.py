"""The loop over time steps, in the form that is fastest on each backend."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import traces_for_litert
from keras_attention.sizes import at_least_one
from keras_attention.typing import Nested, Tensor


def scan(
    step: Callable[..., Any], state: Nested, inputs: Nested
) -> tuple[Nested, Nested]:
    """Run `step` along the first axis of `inputs` and stack its outputs.

    TensorFlow gets a `while_loop` over tensor arrays (it exports, it compiles under
    XLA, and its compilation time does not grow with the length), JAX its `scan`,
    PyTorch a plain loop.

    Args:
        step: Function `(state, inputs_t) -> (state, outputs_t)`. The structure,
            shapes and dtypes of the state must not change.
        state: Nested structure of tensors.
        inputs: Nested structure of tensors `(time, ...)`. Without any step, the
            state is returned unchanged and the outputs are empty.

    Returns:
        The state after the last step, and the outputs stacked to `(time, ...)`.
    """
    inputs = tree.map_structure(ops.convert_to_tensor, inputs)
    backend = keras.backend.backend()
    if backend == "jax":
        return ops.scan(step, state, inputs)
    if tree.flatten(inputs)[0].shape[0] == 0:
        part = tree.map_structure(lambda x: at_least_one(x)[0], inputs)
        _, template = step(state, part)
        return state, tree.map_structure(
            lambda x: ops.zeros((0, *ops.shape(x)), x.dtype), template
        )
    if backend == "tensorflow":
        return _scan_tensorflow(step, state, inputs)
    return _scan_eagerly(step, state, inputs)


def _scan_eagerly(
    step: Callable[..., Any], state: Nested, inputs: Nested
) -> tuple[Nested, Nested]:
    outputs = []
    # Unlike indexing, this costs one pass in the backward pass, too.
    sequences = [ops.unstack(x) for x in tree.flatten(inputs)]
    for part in zip(*sequences, strict=True):
        state, output = step(state, tree.pack_sequence_as(inputs, list(part)))
        outputs.append(output)
    return state, tree.map_structure(lambda *steps: ops.stack(steps), *outputs)


def _scan_tensorflow(
    step: Callable[..., Any], state: Nested, inputs: Nested
) -> tuple[Nested, Nested]:
    import tensorflow as tf

    if tf.executing_eagerly():
        return _scan_eagerly(step, state, inputs)
    first, before = tree.flatten(inputs)[0], state
    known, steps = first.shape[0] is not None, ops.shape(first)[0]
    # A tensor array without elements has no shape. For an empty sequence, the loop
    # therefore runs one step, whose results are dropped.
    length = steps if known else ops.maximum(steps, 1)
    inputs = tree.map_structure(at_least_one, inputs)

    def unstack(x: Tensor) -> Any:
        array = tf.TensorArray(x.dtype, size=length, element_shape=x.shape[1:])
        return array.unstack(x)

    # Indexing would add a gradient of the size of the whole sequence at every step.
    unstacked = [unstack(x) for x in tree.flatten(inputs)]

    def read(t: Any) -> Nested:
        return tree.pack_sequence_as(inputs, [array.read(t) for array in unstacked])

    # This call only finds the structure of the outputs; graph pruning removes it.
    _, template = step(state, read(0))
    for_litert = traces_for_litert()

    def empty(x: Tensor) -> Any:
        if for_litert:
            return ops.zeros((length, *ops.shape(x)), x.dtype)
        return tf.TensorArray(x.dtype, size=length, element_shape=x.shape)

    def write(array: Any, t: Any, x: Tensor) -> Any:
        if for_litert:
            # The operators of a tensor array there change the shapes of tensors.
            return ops.slice_update(array, (t, *[0] * len(x.shape)), x[None])
        return array.write(t, x)

    def body(t: Any, state: Nested, arrays: Any) -> tuple[Tensor, Nested, list[Any]]:
        state, output = step(state, read(t))
        outputs = zip(arrays, tree.flatten(output), strict=True)
        return t + 1, state, [write(array, t, x) for array, x in outputs]

    _, state, arrays = tf.while_loop(
        lambda t, *_: t < length,
        body,
        (0, state, [empty(x) for x in tree.flatten(template)]),
        maximum_iterations=first.shape[0],
    )
    stacked = arrays if for_litert else [array.stack() for array in arrays]
    if not known:
        stacked = [x[:steps] for x in stacked]
        state = tree.map_structure(
            lambda new, old: ops.where(steps > 0, new, old), state, before
        )
    return state, tree.pack_sequence_as(template, stacked)
