"""Checks of the arguments and of the calls of `SelfAttention`."""

import math

from keras_attention.layers.base import check_shapes
from keras_attention.layers.cache import check_cache
from keras_attention.layers.projections import NORMS
from keras_attention.validation import check_boolean
from keras_attention.validation import check_choice
from keras_attention.validation import check_number


def check_arguments(arguments):
    """Raise `ValueError` for arguments, a dict by name, that do not fit."""
    num_heads, groups = arguments["num_heads"], arguments["num_key_value_heads"]
    if groups is not None and num_heads % groups:
        raise ValueError(
            f"num_key_value_heads must divide num_heads={num_heads}. Received: {groups}"
        )
    output_dim = arguments["output_dim"]
    if output_dim is not None and not arguments["use_output_projection"]:
        raise ValueError(
            "output_dim must be None without an output projection. "
            f"Received: {output_dim!r}"
        )
    if arguments["query_key_norm"] is not None:
        check_choice("query_key_norm", arguments["query_key_norm"], NORMS)
    if arguments["scale"] is not None:
        expected = "a finite number or None"
        check_number("scale", arguments["scale"], expected, math.isfinite)
    for name in ("causal", "use_output_projection", "use_bias", "use_gate"):
        check_boolean(name, arguments[name])


def check_independent_queries(layer, situation):
    """Raise `ValueError` if weights depend on the position of the query."""
    if layer.causal or layer.step.needs_positions:
        raise ValueError(
            f"A SelfAttention {situation} must neither be causal nor have positions or "
            "a window_size, because its query has no position in a sequence. "
            f"Received: causal={layer.causal}, positions={layer.positions}, "
            f"window_size={layer.window_size}"
        )


def check_call(layer, query, value, key, use_causal_mask, return_details, cache):
    """Raise `ValueError` for arguments of a call that do not fit."""
    if value is None and key is not None:
        raise ValueError(
            "key needs a value with the same number of positions. Received: key "
            f"{tuple(key.shape)}, value None"
        )
    if cache is not None:
        check_cache(layer, cache, query, value)
    shapes = [None if x is None else x.shape for x in (query, value, key)]
    if layer.axes is not None:
        shapes = layer.axes.fold_shapes(*shapes)
        if return_details and len(query.shape) > 3:
            raise ValueError(
                "With attention_axes, return_details must be False. Received: "
                f"return_details={return_details}, attention_axes={layer.axes.axes}"
            )
    query_shape, value_shape, key_shape = shapes
    # Without a value, a single query is a sequence of length one, or the next step of
    # a cache.
    ordered = value is not None and (
        layer.causal or use_causal_mask or layer.step.needs_positions
    )
    shapes = query_shape, value_shape or (None,) * 3, key_shape
    shapes = (None if x is None else tuple(x) for x in shapes)
    check_shapes(*shapes, ordered=ordered)
