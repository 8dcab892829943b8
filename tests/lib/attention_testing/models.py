"""Functions and small models of tests: compiled, trained, and in files."""

import keras
import numpy as np
import pytest

COMPILES = keras.backend.backend() != "torch"
# For exports, conversions, and graphs of unknown sizes.
needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only TensorFlow has it"
)


def compiled(function, signature=None, *, xla=False):
    """Return the function as its backend compiles it; PyTorch runs it as it is.

    Args:
        function: A function of tensors.
        signature: Symbolic tensors, for a graph of TensorFlow with unknown sizes.
        xla: Whether TensorFlow compiles it by XLA, as JAX does.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        if signature is not None:
            signature = keras.tree.map_structure(
                lambda x: tf.TensorSpec(x.shape, x.dtype), signature
            )
        # Without AutoGraph, whose conversion takes most of the time of a trace.
        return tf.function(
            function, input_signature=signature, jit_compile=xla, autograph=False
        )
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def fit(model, inputs, target, *, optimizer="sgd", loss="mse", **options):
    """Compile a built model, train it, and return the finite loss of every epoch.

    Its optimizer is built before, or TensorFlow would trace the first step twice.

    Args:
        model: The model.
        inputs: Its inputs.
        target: The target.
        optimizer: An optimizer, or its name.
        loss: A loss, or its name.
        **options: Further arguments of `fit`, and `jit_compile`.
    """
    jit_compile = options.pop("jit_compile", COMPILES)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    model.optimizer.build(model.trainable_variables)
    history = model.fit(inputs, target, verbose=0, **options).history["loss"]
    assert np.isfinite(history).all()
    return history


def reloaded(model, folder):
    """Return a copy of a model from a `.keras` file."""
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")
