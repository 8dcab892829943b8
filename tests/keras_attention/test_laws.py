"""Laws that hold for all weights: of time, permutations, windows and shifts."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import assert_close

BATCH, STEPS, DEPTH = 2, 7, 6

CAUSAL = {
    "additive": lambda: ka.AdditiveAttention(5, causal=True),
    "general": lambda: ka.LuongAttention("general", causal=True),
    "local-m": lambda: ka.LuongAttention(
        "dot", window="local-m", half_width=2, causal=True
    ),
    "heads": lambda: ka.MultiHeadAttention(2, 3, causal=True),
    "sparsemax heads": lambda: ka.MultiHeadAttention(
        2, 3, causal=True, weighting="sparsemax"
    ),
}


def numpy(x):
    return ops.convert_to_numpy(x)


def sequence(rng, steps=STEPS):
    return rng.normal(size=(BATCH, steps, DEPTH)).astype("float32")


@pytest.mark.parametrize("name", CAUSAL)
def test_the_future_does_not_change_the_past(name, rng):
    attention, x = CAUSAL[name](), sequence(rng)
    changed = x.copy()
    changed[:, 4:] = sequence(rng)[:, 4:]

    before, after = numpy(attention(x, x)), numpy(attention(changed, changed))

    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.allclose(before[:, 4:], after[:, 4:])


def test_later_words_do_not_change_earlier_steps_of_a_decoder(rng):
    cell = ka.AttentionCell(keras.layers.GRUCell(5), ka.AdditiveAttention(4))
    decoder = ka.AttentionDecoder(cell)
    words, value = sequence(rng), sequence(rng, 9)
    changed = words.copy()
    changed[:, 4:] = sequence(rng)[:, 4:]

    before, after = (numpy(decoder(x, value=value)["output"]) for x in (words, changed))

    assert_close(before[:, :4], after[:, :4], 1e-6)
    assert not np.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ka.AdditiveAttention(5),
        lambda: ka.LuongAttention("general"),
        lambda: ka.LuongAttention("dot", weighting="entmax"),
        lambda: ka.MultiHeadAttention(2, 3),
    ],
)
def test_a_permutation_of_the_source_permutes_the_weights(make, rng):
    attention, query, value = make(), sequence(rng), sequence(rng, 9)
    order = rng.permutation(9)
    options = {"return_attention_scores": True}

    context, weights = attention(query, value, **options)
    permuted_context, permuted_weights = attention(query, value[:, order], **options)

    assert_close(permuted_context, context, 1e-5)
    assert_close(permuted_weights, numpy(weights)[..., order], 1e-5)


@pytest.mark.parametrize(
    ("make", "window"),
    [
        (partial(ka.LuongAttention, "dot"), {"window": "local-m", "half_width": STEPS}),
        (partial(ka.SelfAttention, 2, 3), {"window_size": STEPS}),
        (partial(ka.SelfAttention, 2, 3, causal=True), {"window_size": STEPS}),
    ],
)
def test_a_window_as_wide_as_the_sequence_is_global(make, window, rng):
    wide, unlimited, x = make(**window), make(), sequence(rng)
    inputs = (x,) if isinstance(wide, ka.SelfAttention) else (x, x)
    wide(*inputs), unlimited(*inputs)
    unlimited.set_weights(wide.get_weights())

    assert_close(wide(*inputs), unlimited(*inputs), 1e-6)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "t5", "shaw"])
def test_a_shift_of_all_positions_changes_nothing(positions, rng):
    attention = ka.SelfAttention(2, 4, positions=positions, causal=True)
    if positions == "shaw":
        attention = ka.SelfAttention(2, 4, positions=ka.ShawPositions(3), causal=True)
    x = sequence(rng)
    padded = np.concatenate([sequence(rng, 3), x], axis=1)
    mask = np.arange(STEPS + 3) >= 3

    expected = attention(x)
    shifted = attention(padded, mask=np.tile(mask, (BATCH, 1)))

    assert_close(numpy(shifted)[:, 3:], expected, 1e-5)


NAMES_OF_KERAS = {
    "query_projection": "query",
    "key_projection": "key",
    "value_projection": "value",
    "output_projection": "attention_output",
}


def give_random_weights(ours, theirs, rng):
    """Draw the weights of an attention of Keras, and copy them to ours.

    Keras keeps the heads in axes of their own, which are the same numbers.
    """
    drawn = {}
    for weight in theirs.weights:
        weight.assign(rng.normal(size=weight.shape))
        drawn[tuple(weight.path.split("/")[-2:])] = numpy(weight)
    for weight in ours.weights:
        layer, kind = weight.path.split("/")[-2:]
        weight.assign(drawn[NAMES_OF_KERAS[layer], kind].reshape(weight.shape))


def test_grouped_heads_equal_those_of_keras(rng):
    ours = ka.MultiHeadAttention(4, 3, num_key_value_heads=2)
    theirs = keras.layers.GroupQueryAttention(3, 4, 2)
    query, value = sequence(rng), sequence(rng, 9)
    ours(query, value), theirs(query, value)
    give_random_weights(ours, theirs, rng)

    assert_close(ours(query, value), theirs(query, value), 1e-5)


def test_attention_axes_equal_those_of_keras(rng):
    ours = ka.MultiHeadAttention(2, 3, attention_axes=(2,))
    theirs = keras.layers.MultiHeadAttention(2, 3, attention_axes=(2,))
    x = rng.normal(size=(BATCH, 4, 5, DEPTH)).astype("float32")
    ours(x, x), theirs(x, x)
    give_random_weights(ours, theirs, rng)

    assert_close(ours(x, x), theirs(x, x), 1e-5)
