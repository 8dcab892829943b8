"""Small models of tests: their training, and their files."""

import keras
import numpy as np

COMPILES = keras.backend.backend() != "torch"


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
