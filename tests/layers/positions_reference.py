"""Attention with relative positions, groups and windows, as slow loops in float64."""

import math

import numpy as np
from keras import ops
from layers.self_attention_reference import dense


def rotated(vector, position, base, depth):
    """Su et al.: features i and i + D / 2 are rotated by an angle."""
    result = np.array(vector)
    for i in range(depth // 2):
        angle = position * base ** (-2 * i / depth)
        turn = np.exp(1j * angle) * (vector[i] + 1j * vector[i + depth // 2])
        result[i], result[i + depth // 2] = turn.real, turn.imag
    return result


def slope(head, num_heads):
    """Press et al., footnote and code: slopes of any number of heads."""
    if math.log2(num_heads).is_integer():
        return 2 ** (-8 * (head + 1) / num_heads)
    power = 2 ** math.floor(math.log2(num_heads))
    if head < power:
        return slope(head, power)
    return slope(2 * (head - power), 2 * power)


def bucket(offset, num_buckets, max_distance, bidirectional):
    """Raffel et al.: as in the code of T5, one offset at a time."""
    found = 0
    if bidirectional:
        num_buckets //= 2
        if offset > 0:
            found = num_buckets
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = num_buckets // 2
    if distance < exact:
        return found + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return found + min(exact + int(share * (num_buckets - exact)), num_buckets - 1)


def pair(part, heads, n, q, k, v, t, s):
    """Score and value of head n for a query at t and a key at s, by the papers."""
    kind = type(part).__name__
    if kind == "RotaryPositions":
        depth = int(part.fraction * len(q)) // 2 * 2
        base, slower = part.max_wavelength, part.scaling_factor
        if part.scaling == "ntk":
            base, slower = base * slower ** (depth / (depth - 2)), 1
        q, k = (rotated(x, p / slower, base, depth) for x, p in ((q, t), (k, s)))
    if kind == "ShawPositions":
        place = max(-part.max_distance, min(s - t, part.max_distance))
        of_keys, of_values = (ops.convert_to_numpy(w) for w in part.weights)
        k = k + of_keys[place + part.max_distance]
        v = v + of_values[place + part.max_distance]
    score = q @ k
    if kind == "AlibiPositions":
        score -= slope(n, heads) * abs(s - t)
    if kind == "T5Positions":
        row = bucket(s - t, part.num_buckets, part.max_distance, part.bidirectional)
        score += ops.convert_to_numpy(part.biases)[row, n]
    return score, v


def by_loops(layer, query, value=None, key=None, valid=None):
    """Output and weights: one head, one query, one score at a time.

    Args:
        layer: A `SelfAttention`.
        query: Its first argument.
        value: Its second argument.
        key: Its third argument.
        valid: `(T, S)` or `(B, T, S)`, which positions each query may see. A query that
            sees none has zeros.
    """
    query = np.float64(query)
    value = query if value is None else np.float64(value)
    key = value if key is None else np.float64(key)
    (batch, queries, _), positions = query.shape, value.shape[1]
    valid = np.broadcast_to(
        True if valid is None else valid, (batch, queries, positions)
    )
    w_q, b_q = dense(layer.step.query_projection)
    w_k, b_k = dense(layer.memory.key_projection)
    w_v, b_v = dense(layer.memory.value_projection)
    w_o, b_o = dense(layer.step.output_projection)
    d_k, d_v, heads = layer.key_dim, layer.memory.value_dim, layer.num_heads
    share = heads // (layer.num_key_value_heads or heads)
    output = np.zeros((batch, queries, w_o.shape[1]))
    output += valid.any(-1)[..., None] * b_o
    weights = np.zeros((batch, heads, queries, positions))
    for b, n, t in np.ndindex(batch, heads, queries):
        q = (query[b, t] @ w_q + b_q)[n * d_k : (n + 1) * d_k] / np.sqrt(d_k)
        of_key, of_value = (
            slice(n // share * d, (n // share + 1) * d) for d in (d_k, d_v)
        )
        (seen,) = np.nonzero(valid[b, t])
        if not len(seen):
            continue
        scores, read = [], []
        for s in seen:
            k = (key[b, s] @ w_k + b_k)[of_key]
            v = (value[b, s] @ w_v + b_v)[of_value]
            score, v = pair(layer.positions, heads, n, q, k, v, t, s)
            scores.append(score)
            read.append(v)
        odds = np.exp(np.array(scores) - max(scores))
        weights[b, n, t, seen] = odds / odds.sum()
        output[b, t] += weights[b, n, t, seen] @ read @ w_o[n * d_v : (n + 1) * d_v]
    return output, weights
