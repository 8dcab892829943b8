"""Options of a decoder step: checks, and the layers that are made from them."""

import keras

from keras_attention.validation import check_boolean
from keras_attention.validation import check_choice
from keras_attention.validation import check_positive_integer

ORDERS = ("previous", "current")


def check_order(order, input_in_query):
    """Raise `ValueError` unless the order is known and allows `input_in_query`.

    Args:
        order, input_in_query: As in `AttentionCell`.
    """
    check_choice("order", order, ORDERS)
    check_boolean("input_in_query", input_in_query)
    if input_in_query and order != "previous":
        raise ValueError(
            "input_in_query needs order='previous': the current state depends on the "
            f"input already. Received: order={order!r}"
        )


def attentional_layer(width, dtype):
    """Return the layer that computes the attentional vector, or `None`.

    Args:
        width: Width of the vector, a layer, which is returned unchanged, or `None`.
        dtype: Dtype policy of a new layer.
    """
    if width is None or isinstance(width, keras.layers.Layer):
        return width
    return keras.layers.Dense(
        check_positive_integer("attentional_vector", width),
        activation="tanh",
        use_bias=False,
        dtype=dtype,
        name="attentional_vector",
    )


def context_gate(gate, dtype):
    """Return the layer that computes the gate, or `None`.

    Args:
        gate: Whether to gate the context, or a layer, which is returned unchanged.
        dtype: Dtype policy of a new layer.
    """
    if isinstance(gate, keras.layers.Layer):
        return gate
    if not isinstance(gate, bool):
        raise ValueError(f"gate must be a boolean or a layer. Received: {gate!r}")
    if not gate:
        return None
    return keras.layers.Dense(1, activation="sigmoid", dtype=dtype, name="context_gate")
