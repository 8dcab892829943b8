"""Relative positions, groups of heads and sliding windows in self-attention."""

import keras
import numpy as np
import pytest
from arrays import assert_close, attend, draw, numpy
from combinations import covering
from keras import ops
from layers.positions_reference import by_loops
from layers.self_attention_reference import read, stepped

import keras_attention as ka
from keras_attention.ops import sliding_windows

BATCH, STEPS, OTHER, DEPTH = 2, 7, 5, 3
# Six heads: the slopes of ALiBi have a special case unless N is a power of two.
HEADS, GROUPS, KEY_DIM, VALUE_DIM = 6, 2, 4, 5
SEQUENCE = (BATCH, STEPS, DEPTH)

POSITIONS = {
    "none": lambda causal: None,
    "rotary": lambda causal: ka.RotaryPositions(30.0, fraction=0.6, scaling_factor=1.5),
    "ntk": lambda causal: ka.RotaryPositions(30.0, scaling="ntk", scaling_factor=1.5),
    "alibi": lambda causal: ka.AlibiPositions(),
    "t5": lambda causal: ka.T5Positions(
        8, 5, bidirectional=not causal, bias_initializer="normal"
    ),
    "shaw": lambda causal: ka.ShawPositions(2, embeddings_initializer="normal"),
}


def build(name, causal=False, num_heads=HEADS, key_dim=KEY_DIM, **options):
    positions = POSITIONS[name](causal)
    options = {"bias_initializer": "normal", "causal": causal, **options}
    return ka.SelfAttention(num_heads, key_dim, positions=positions, **options)


def visible(queries, positions, causal, window_size):
    t, s = np.arange(queries)[:, None], np.arange(positions)
    seen = np.ones((queries, positions), "bool")
    if causal:
        seen &= s <= t
    if window_size is not None:
        seen &= abs(s - t) < window_size
    return seen


@pytest.mark.parametrize(
    ("name", "groups", "window_size", "causal"),
    covering(list(POSITIONS), [None, GROUPS, 1], [None, 3], [False, True]),
)
def test_outputs_equal_the_papers(rng, name, groups, window_size, causal):
    layer = build(
        name,
        causal,
        value_dim=VALUE_DIM,
        num_key_value_heads=groups,
        window_size=window_size,
    )
    x = draw(rng, SEQUENCE)

    output, weights = attend(layer, x)

    seen = visible(STEPS, STEPS, causal, window_size)
    expected, expected_weights = by_loops(layer, x, valid=seen)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(read(layer, x), expected, atol=1e-5)
    assert (weights[..., ~seen] == 0).all()


@pytest.mark.parametrize("name", ["rotary", "t5"])
def test_cross_attention_counts_both_sequences_from_zero(rng, name):
    layer = build(name, window_size=4)
    query, value = draw(rng, SEQUENCE, (BATCH, OTHER, DEPTH))
    value[:, 0] = np.nan
    mask = np.arange(OTHER)[None] != [[0], [0]]

    output = read(layer, query, value, value_mask=mask)

    seen = visible(STEPS, OTHER - 1, False, 4)
    expected, _ = by_loops(layer, query, value[:, 1:], valid=seen)
    sees = seen.any(-1)
    np.testing.assert_allclose(output[:, sees], expected[:, sees], atol=1e-5)
    memory = layer.memory(value, value_mask=mask)
    found, _ = layer.step(
        query[:, 2:3], memory, query_positions=ops.full((1, 1), 2, "int32")
    )
    assert_close(ops.convert_to_numpy(found["context"])[:, 0], output[:, 2])


MASK = np.array([[1, 1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], "bool")


@pytest.mark.parametrize(("name", "window_size"), [("alibi", None), ("none", 3)])
def test_memory_has_the_positions_of_masked_sequences(rng, name, window_size):
    layer = build(name, window_size=window_size)
    value = draw(rng, SEQUENCE)

    memory = layer.memory(value, value_mask=MASK)

    found = ops.convert_to_numpy(memory["positions"])
    np.testing.assert_array_equal(found[MASK], [0, 1, 2, 3, 4, 0, 1, 2, 3])
    assert "positions" not in layer.memory(value)
    assert "positions" not in build("none").memory(value, value_mask=MASK)


@pytest.mark.parametrize("name", list(POSITIONS))
def test_masked_steps_do_not_count(rng, name):
    window_size = None if name == "t5" else 3
    layer = build(
        name, True, num_key_value_heads=GROUPS, window_size=window_size, dropout=0.5
    )
    x = draw(rng, SEQUENCE)
    expected, expected_weights = attend(layer, x, query_mask=MASK)
    # The valid steps have the outputs of a sequence without the masked steps.
    for row, mask in enumerate(MASK):
        alone = read(layer, x[row : row + 1, mask])
        np.testing.assert_allclose(expected[row, mask], alone[0], atol=1e-5)
    x[~MASK] = np.nan

    output, weights, cache = stepped(layer, x, STEPS, query_mask=MASK)

    np.testing.assert_allclose(output, expected, atol=1e-5)
    assert tuple(cache["keys"].shape) == (BATCH, GROUPS, STEPS, KEY_DIM)
    last = expected_weights[0][..., MASK[0]]
    np.testing.assert_allclose(weights[0, ..., : MASK[0].sum()], last, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "causal", "window_size", "mask"),
    covering(list(POSITIONS), [False, True], [1, 2, 4], [None, MASK], strength=2),
)
def test_blocks_equal_all_positions(rng, name, causal, window_size, mask, monkeypatch):
    monkeypatch.setattr(sliding_windows, "MIN_BLOCK", 2)
    layer = build(name, causal, num_key_value_heads=GROUPS, window_size=window_size)
    x, mask = draw(rng, (BATCH, 2 * STEPS, DEPTH)), None if mask is None else mask
    mask = None if mask is None else np.concatenate([mask, ~mask], axis=1)
    expected, _ = attend(layer, x, query_mask=mask)
    if mask is not None:
        x[~mask] = np.nan

    scored = []
    weigh = type(layer.step)._attend

    def count(step, query, keys, *args, **options):
        scored.append(keys.shape[2])
        return weigh(step, query, keys, *args, **options)

    monkeypatch.setattr(type(layer.step), "_attend", count)
    output = read(layer, x, query_mask=mask)

    np.testing.assert_allclose(output, expected, atol=1e-5)
    blocks = (2 if causal else 3) * max(window_size, 2)
    assert scored == [blocks if blocks < 2 * STEPS else 2 * STEPS]


@pytest.mark.parametrize(
    ("causal", "window_size", "use_gate"), [(True, 3, False), (False, 3, True)]
)
def test_grouped_heads_equal_keras(rng, causal, window_size, use_gate):
    options = {"bias_initializer": "normal", "use_gate": use_gate}
    peer = keras.layers.GroupQueryAttention(
        KEY_DIM, HEADS, GROUPS, sliding_window=window_size, **options
    )
    layer = build(
        *("none", causal),
        num_key_value_heads=GROUPS,
        window_size=window_size,
        use_gate=use_gate,
    )
    x, value = draw(rng, SEQUENCE, SEQUENCE)
    mask = np.arange(STEPS) < [[STEPS], [4]]
    options = {"query_mask": mask, "value_mask": mask}
    expected, weights = peer(
        x, value, use_causal_mask=causal, return_attention_scores=True, **options
    )
    layer.build(x.shape, value.shape)
    projections = {
        "query": layer.step.query_projection,
        "key": layer.memory.key_projection,
        "value": layer.memory.value_projection,
        "gate": layer.step.gate_projection if use_gate else None,
        "attention_output": layer.step.output_projection,
    }
    for sublayer in peer._flatten_layers():
        if sublayer.name in projections:
            own = projections[sublayer.name]
            given = zip(own.weights, sublayer.get_weights(), strict=True)
            own.set_weights([x.reshape(w.shape) for w, x in given])

    output, found = attend(layer, x, value, **options)

    expected, weights = numpy([expected, weights])
    np.testing.assert_allclose(output[mask], expected[mask], atol=1e-5)
    by_query = mask[:, None, :, None]
    np.testing.assert_allclose(found * by_query, weights * by_query, atol=1e-6)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_queries_and_keys_are_normalised_in_each_head(rng, kind):
    layer = build("none", True, num_key_value_heads=GROUPS, query_key_norm=kind)
    x = draw(rng, SEQUENCE)
    layer.build(SEQUENCE)
    for norm in (layer.step.query_norm, layer.memory.key_norm):
        norm.set_weights([rng.normal(size=w.shape) for w in norm.weights])

    def normalise(x, norm):
        gain, *shift = numpy(norm.weights)
        x = np.float64(x)
        x = x - x.mean(-1, keepdims=True) if kind == "layer" else x
        deviation = np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x / deviation * gain + (shift[0] if shift else 0)

    query, key = numpy([layer.step.query_projection(x), layer.memory.key_projection(x)])
    query = normalise(
        query.reshape(BATCH, STEPS, HEADS, KEY_DIM), layer.step.query_norm
    )
    key = normalise(key.reshape(BATCH, STEPS, GROUPS, KEY_DIM), layer.memory.key_norm)
    key = key.repeat(HEADS // GROUPS, axis=2)
    odds = np.exp(np.einsum("btnd,bsnd->bnts", query, key) * KEY_DIM**-0.5)
    odds *= np.tri(STEPS)
    expected, weights = attend(layer, x)
    np.testing.assert_allclose(weights, odds / odds.sum(-1, keepdims=True), atol=1e-5)

    output, _, _ = stepped(layer, x, STEPS)

    np.testing.assert_allclose(output, expected, atol=1e-5)
