"""Attention with relative positions, groups and windows, as slow loops in float64."""

import math

import numpy as np

from attention_testing.arrays import numpy, sigmoid, softmax
from attention_testing.layers.self_attention_reference import project


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
    number = 0
    if bidirectional:
        num_buckets //= 2
        if offset > 0:
            number = num_buckets
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = num_buckets // 2
    if distance < exact:
        return number + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return number + min(exact + int(share * (num_buckets - exact)), num_buckets - 1)


def normalised(x, norm):
    """Zhang and Sennrich, or Ba et al., whose normalisation has a bias, too."""
    if norm is None:
        return x
    gain, *bias = numpy(norm.weights)
    x = x - x.mean(-1, keepdims=True) if bias else x
    return gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) + sum(bias)


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
        distance = max(-part.max_distance, min(s - t, part.max_distance))
        of_keys, of_values = numpy(part.weights)
        k = k + of_keys[distance + part.max_distance]
        v = v + of_values[distance + part.max_distance]
    score = q @ k
    if kind == "AlibiPositions":
        score -= slope(n, heads) * abs(s - t)
    if kind == "T5Positions":
        row = bucket(s - t, part.num_buckets, part.max_distance, part.bidirectional)
        score += numpy(part.biases)[row, n]
    return score, v


def by_loops(layer, query, value=None, key=None, valid=True):
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
    valid = np.broadcast_to(valid, (batch, queries, positions))
    step, memory, heads = layer.step, layer.memory, layer.num_heads
    groups = layer.num_key_value_heads or heads
    q = normalised(project(query, step.query_projection, heads), step.query_norm)
    k = normalised(project(key, memory.key_projection, groups), memory.key_norm)
    v = project(value, memory.value_projection, groups)
    q = q * (layer.scale or layer.key_dim**-0.5)
    context = np.zeros((batch, queries, heads, v.shape[-1]))
    weights = np.zeros((batch, heads, queries, positions))
    for b, n, t in np.ndindex(batch, heads, queries):
        (seen,) = np.nonzero(valid[b, t])
        g = n * groups // heads
        pairs = [
            pair(layer.positions, heads, n, q[b, t, n], k[b, s, g], v[b, s, g], t, s)
            for s in seen
        ]
        if pairs:
            scores, read = zip(*pairs, strict=True)
            weights[b, n, t, seen] = softmax(np.array(scores))
            context[b, t, n] = weights[b, n, t, seen] @ read
    context = context.reshape(batch, queries, -1)
    if layer.use_gate:
        context *= sigmoid(project(query, step.gate_projection)[:, :, 0])
    output = project(context, step.output_projection)[:, :, 0]
    return output * valid.any(-1)[..., None], weights
