"""Additive attention as in the paper, as slow loops, and helpers of its tests."""

import keras
import numpy as np
from arrays import numpy

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
QUERY_DIM, KEY_DIM, VALUE_DIM, UNITS = 7, 11, 13, 17
WORDS = 19
QUERY = (BATCH, QUERIES, QUERY_DIM)
VALUE = (BATCH, POSITIONS, VALUE_DIM)
KEY = (BATCH, POSITIONS, KEY_DIM)


def attend(layer, *tensors, **options):
    """Context and weights, as NumPy arrays."""
    return numpy(layer(*tensors, return_attention_scores=True, **options))


def weights_of_the_paper(layer):
    """W_a, U_a, v_a and the bias, with the shapes that the paper gives to them."""
    score, dense = layer.step.score, layer.memory.key_projection
    kernels = score.query_projection.kernel, dense.kernel, score.scale
    bias = dense.bias if dense.use_bias else np.zeros(layer.units)
    w_a, u_a, v_a, bias = (np.float64(x) for x in numpy([*kernels, bias]))
    return w_a.T, u_a.T, v_a, bias


def as_in_the_paper(layer, query, value, key=None, valid=None):
    """Appendix A.1.2: one score, one softmax, one sum at a time."""
    return paper_attention(*weights_of_the_paper(layer), query, value, key, valid)


def paper_attention(w_a, u_a, v_a, bias, query, value, key=None, valid=None):
    query, value = np.float64(query), np.float64(value)
    key = value if key is None else np.float64(key)
    batch, queries, positions = len(query), query.shape[1], value.shape[1]
    if valid is None:
        valid = np.ones((batch, queries, positions), "bool")
    context = np.zeros((batch, queries, value.shape[2]))
    weights = np.zeros((batch, queries, positions))
    for b in range(batch):
        for i in range(queries):
            e = {}
            for j in range(positions):
                if valid[b, i, j]:
                    e[j] = v_a @ np.tanh(w_a @ query[b, i] + u_a @ key[b, j] + bias)
            for j in e:
                weights[b, i, j] = np.exp(e[j]) / sum(np.exp(e_k) for e_k in e.values())
                context[b, i] += weights[b, i, j] * value[b, j]
    return context, weights


def built_layer(layer):
    layer.build(QUERY, VALUE, KEY)
    return layer


def embedded(rng, *shape):
    """Token numbers with some zeros, and their embedding that masks them."""
    token_ids = rng.integers(1, WORDS, shape)
    token_ids[:, 1] = 0
    token_ids[0, -1] = 0
    return token_ids, keras.layers.Embedding(WORDS, QUERY_DIM, mask_zero=True)(
        token_ids
    )
