"""Dimensions of self-attention, and helpers of its tests."""

import keras
import numpy as np
from keras import ops

from attention_testing.arrays import attend, numpy
from keras_attention import MultiHeadAttention, SelfAttention

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS, HEADS = 2, 3, 5, 7
QUERY_DIM, KEY_DEPTH, VALUE_DEPTH = 11, 13, 17
KEY_DIM, VALUE_DIM, OUTPUT_DIM = 19, 23, 29
WORDS, SLOTS = 31, 37

QUERY = (BATCH, QUERIES, QUERY_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DEPTH)
KEY = (BATCH, POSITIONS, KEY_DEPTH)
SEQUENCE = (BATCH, POSITIONS, QUERY_DIM)

BACKEND = keras.backend.backend()


def read(layer, *tensors, **options):
    """The output alone, as a NumPy array."""
    return ops.convert_to_numpy(layer(*tensors, **options))


def both_ways(layer, *tensors, **options):
    """The output without and with weights in the outputs."""
    yield read(layer, *tensors, **options)
    yield attend(layer, *tensors, **options)[0]


def biased(num_heads=HEADS, key_dim=KEY_DIM, **options):
    """A layer whose biases would show in a row that should be zero."""
    return SelfAttention(num_heads, key_dim, bias_initializer="normal", **options)


def biased_cross(num_heads=HEADS, key_dim=KEY_DIM, **options):
    """The same layer from a query to a value."""
    return MultiHeadAttention(num_heads, key_dim, bias_initializer="normal", **options)


def project(x, projection, heads=1):
    """Apply a projection in float64, `(B, T, N, D)` for N heads."""
    kernel, *bias = map(np.float64, numpy(projection.weights))
    return (x @ kernel + sum(bias)).reshape(*x.shape[:2], heads, -1)


def stepped(layer, x, slots=SLOTS, **options):
    """Outputs and weights of one step at a time, and the cache they leave."""
    cache = layer.get_initial_cache(len(x), slots)
    outputs, weights = [], []
    for t in range(x.shape[1]):
        of_step = {name: mask[:, t] for name, mask in options.items()}
        output, weight, cache = layer(
            x[:, t], cache=cache, return_attention_scores=True, **of_step
        )
        outputs.append(ops.convert_to_numpy(output))
        weights.append(ops.convert_to_numpy(weight))
    return np.stack(outputs, 1), np.stack(weights, 2), cache


def projected(layer, query, value):
    """Scores `(B, N, T, S)` and values `(B, N, S, D)` of a layer."""
    q = project(query, layer.step.query_projection, HEADS)
    k = project(value, layer.memory.key_projection, HEADS)
    v = project(value, layer.memory.value_projection, HEADS)
    scores = np.einsum("btnd,bsnd->bnts", q, k) * KEY_DIM**-0.5
    return scores, v.swapaxes(1, 2)


def joined(weights, values):
    """The output without a projection."""
    context = (weights @ values).swapaxes(1, 2)
    return context.reshape(*context.shape[:2], -1)
