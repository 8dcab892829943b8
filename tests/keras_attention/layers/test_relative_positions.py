"""Relative positions, groups of heads and sliding windows in self-attention."""

import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import (
    assert_close,
    attend,
    draw,
    numpy,
    random_fixture,
    randomized,
)
from attention_testing.combinations import covering
from attention_testing.layers.positions_reference import by_loops
from attention_testing.layers.self_attention_reference import read, stepped
from keras_attention.ops import sliding_windows

BATCH, STEPS, OTHER, DEPTH = 2, 7, 5, 3
# Six heads: the slopes of ALiBi have a special case unless N is a power of two.
HEADS, GROUPS, KEY_DIM, VALUE_DIM = 6, 2, 4, 5
SEQUENCE = (BATCH, STEPS, DEPTH)

x = random_fixture(*SEQUENCE)

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


def build(name, causal=False, layer=ka.SelfAttention, **options):
    sizes = {"num_heads": HEADS, "key_dim": KEY_DIM, "causal": causal}
    options = {**sizes, "bias_initializer": "normal", **options}
    return layer(positions=POSITIONS[name](causal), **options)


def visible(queries, positions, causal, window_size):
    t, s = np.arange(queries)[:, None], np.arange(positions)
    seen = np.ones((queries, positions), "bool")
    if causal:
        seen &= s <= t
    if window_size is not None:
        seen &= abs(s - t) < window_size
    return seen


@pytest.mark.parametrize(
    ("name", "groups", "window_size", "causal", "norm", "use_gate"),
    covering(
        list(POSITIONS),
        [None, GROUPS, 1],
        [None, 3],
        [False, True],
        [None, "rms", "layer"],
        [False, True],
    ),
)
def test_outputs_equal_the_papers(x, name, groups, window_size, causal, norm, use_gate):
    options = {"query_key_norm": norm, "use_gate": use_gate, "value_dim": VALUE_DIM}
    layer = build(
        name, causal, num_key_value_heads=groups, window_size=window_size, **options
    )
    layer.build(SEQUENCE)
    randomized(layer)

    output, weights = attend(layer, x)

    seen = visible(STEPS, STEPS, causal, window_size)
    expected, expected_weights = by_loops(layer, x, valid=seen)
    assert_close(weights, expected_weights, 1e-6)
    assert_close(output, expected)
    assert_close(read(layer, x), expected)
    assert (weights[..., ~seen] == 0).all()


@pytest.mark.parametrize("name", ["rotary", "t5"])
def test_cross_attention_counts_both_sequences_from_zero(rng, name):
    layer = build(name, layer=ka.MultiHeadAttention, window_size=4)
    query, value = draw(rng, SEQUENCE, (BATCH, OTHER, DEPTH))
    value[:, 0] = np.nan
    mask = np.arange(OTHER)[None] != [[0], [0]]

    output = read(layer, query, value, value_mask=mask)

    seen = visible(STEPS, OTHER - 1, False, 4)
    expected, _ = by_loops(layer, query, value[:, 1:], valid=seen)
    sees = seen.any(-1)
    np.testing.assert_allclose(output[:, sees], expected[:, sees], atol=1e-5)
    memory = layer.memory(value, value_mask=mask)
    actual, _ = layer.step(
        query[:, 2:3], memory, query_positions=ops.full((1, 1), 2, "int32")
    )
    assert_close(actual["context"][:, 0], output[:, 2])


MASK = np.array([[1, 1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]], "bool")


@pytest.mark.parametrize(("name", "window_size"), [("alibi", None), ("none", 3)])
def test_memory_has_the_positions_of_masked_sequences(x, name, window_size):
    layer = build(name, window_size=window_size)

    memory = layer.memory(x, value_mask=MASK)

    positions = numpy(memory["positions"])
    np.testing.assert_array_equal(positions[MASK], [0, 1, 2, 3, 4, 0, 1, 2, 3])
    assert "positions" not in layer.memory(x)
    assert "positions" not in build("none").memory(x, value_mask=MASK)


@pytest.mark.parametrize("name", list(POSITIONS))
def test_masked_steps_do_not_count(x, name):
    window_size = None if name == "t5" else 3
    options = {"query_key_norm": "layer", "use_gate": True, "dropout": 0.5}
    layer = build(
        name, True, num_key_value_heads=GROUPS, window_size=window_size, **options
    )
    expected, expected_weights = attend(layer, x, query_mask=MASK)
    # The valid steps have the outputs of a sequence without the masked steps.
    for row, mask in enumerate(MASK):
        assert_close(expected[row : row + 1, mask], layer(x[row : row + 1, mask]))
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
    x = draw(rng, (BATCH, 2 * STEPS, DEPTH))
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
