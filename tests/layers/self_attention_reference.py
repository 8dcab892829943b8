"""Self-attention as in the paper, as slow loops, and helpers of its tests."""

import keras
import numpy as np
from arrays import numpy
from keras import ops

from keras_attention.layers.multi_head import SelfAttention

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


def attend(layer, *tensors, **options):
    """Output and weights, as NumPy arrays."""
    return numpy(layer(*tensors, return_attention_scores=True, **options))


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


def embedded(rng, depth, *shape):
    """Token numbers with some zeros, and their embedding that masks them."""
    token_ids = rng.integers(1, WORDS, shape)
    token_ids[:, 1] = 0
    token_ids[0, -1] = 0
    return token_ids, keras.layers.Embedding(WORDS, depth, mask_zero=True)(token_ids)


def dense(projection):
    """Kernel and bias of a projection, in float64."""
    kernel = ops.convert_to_numpy(projection.kernel).astype("float64")
    bias = ops.convert_to_numpy(projection.bias) if projection.use_bias else 0.0
    return kernel, bias


def as_in_the_paper(layer, query, value=None, key=None, valid=None):
    """Section 3.2: one head, one query, one score at a time."""
    query = np.float64(query)
    value = query if value is None else np.float64(value)
    key = value if key is None else np.float64(key)
    batch, queries, positions = len(query), query.shape[1], value.shape[1]
    if valid is None:
        valid = np.ones((batch, queries, positions), "bool")
    w_q, b_q = dense(layer.step.query_projection)
    w_k, b_k = dense(layer.memory.key_projection)
    w_v, b_v = dense(layer.memory.value_projection)
    w_o, b_o = dense(layer.step.output_projection)
    d_k, d_v = layer.key_dim, layer.memory.value_dim
    output = np.zeros((batch, queries, w_o.shape[1]))
    weights = np.zeros((batch, layer.num_heads, queries, positions))
    for b in range(batch):
        for t in range(queries):
            (seen,) = np.nonzero(valid[b, t])
            if not len(seen):
                continue
            heads = []
            for n in range(layer.num_heads):
                of_key = slice(n * d_k, (n + 1) * d_k)
                of_value = slice(n * d_v, (n + 1) * d_v)
                q = (query[b, t] @ w_q + b_q)[of_key]
                scores = [q @ (key[b, s] @ w_k + b_k)[of_key] for s in seen]
                odds = np.exp(np.array(scores) / np.sqrt(d_k))
                weights[b, n, t, seen] = odds / odds.sum()
                head = np.zeros(d_v)
                for s in seen:
                    head += weights[b, n, t, s] * (value[b, s] @ w_v + b_v)[of_value]
                heads.append(head)
            output[b, t] = np.concatenate(heads) @ w_o + b_o
    return output, weights


def stepped(layer, x, places=SLOTS, **options):
    """Outputs and weights of one step at a time, and the cache they leave."""
    cache = layer.get_initial_cache(len(x), places)
    outputs, weights = [], []
    for t in range(x.shape[1]):
        of_step = {name: mask[:, t] for name, mask in options.items()}
        output, weight, cache = layer(
            x[:, t], cache=cache, return_attention_scores=True, **of_step
        )
        outputs.append(ops.convert_to_numpy(output))
        weights.append(ops.convert_to_numpy(weight))
    return np.stack(outputs, 1), np.stack(weights, 2), cache
