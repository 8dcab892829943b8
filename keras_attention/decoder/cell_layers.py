"""Layers that a decoder step makes from its options."""

import keras

from keras_attention.validation import check_positive_integer


def attentional_layer(width, dtype):
    """Return the layer of the attentional vector; `None` for none, a layer as it is."""
    if width is None or isinstance(width, keras.layers.Layer):
        return width
    check_positive_integer("attentional_vector", width)
    return keras.layers.Dense(
        width, activation="tanh", use_bias=False, dtype=dtype, name="attentional_vector"
    )


def context_gate(gate, dtype):
    """Return the layer of the gate; `None` for `False`, a layer as it is."""
    if isinstance(gate, keras.layers.Layer):
        return gate
    if not isinstance(gate, bool):
        raise ValueError(f"gate must be a boolean or a layer. Received: {gate!r}")
    if not gate:
        return None
    return keras.layers.Dense(1, activation="sigmoid", dtype=dtype, name="context_gate")
