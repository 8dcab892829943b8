"""Searches over a self-attention decoder with a cache."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import assert_close
from keras_attention import (
    MultiHeadAttention,
    PositionEncoding,
    SelfAttention,
    beam_search,
    greedy_search,
)

pytestmark = pytest.mark.usefixtures("seeded")

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, POSITIONS, WORDS, LENGTH, BEAM = 2, 7, 11, 5, 3
HEADS, HEAD_DIM = 2, 3
DEPTH = HEADS * HEAD_DIM
START, END = 1, 2


class Decoder:
    """One layer of a Transformer's decoder, over all steps or one at a time."""

    def __init__(self, value):
        self.embed = keras.layers.Embedding(WORDS, DEPTH)
        self.positions = PositionEncoding()
        self.look_back = SelfAttention(HEADS, HEAD_DIM, causal=True)
        self.look = MultiHeadAttention(HEADS, HEAD_DIM)
        self.classify = keras.layers.Dense(WORDS, kernel_initializer="random_normal")
        self.value = value

    def read(self, x):
        """Log-probabilities and weights for `(B, T, D)`, which may be T hypotheses."""
        context, weights = self.look(x, self.value, return_attention_scores=True)
        # Sharper than a model that has learned nothing.
        logits = 50 * self.classify(x + context)
        return ops.log_softmax(logits), ops.mean(weights, axis=1)

    def all_at_once(self, token_ids):
        x = self.positions(self.embed(token_ids))
        return self.read(x + self.look_back(x))

    def step(self, token_ids, state):
        shape = ops.shape(token_ids)
        position = ops.one_hot(state["cache"]["length"], LENGTH)
        table = self.positions(ops.zeros((1, LENGTH, DEPTH)))[0]
        x = self.embed(token_ids) + ops.matmul(position, table)
        # The cache has a single batch axis.
        rows = tree.map_structure(
            lambda x: ops.reshape(x, (-1, *x.shape[2:])), state["cache"]
        )
        seen, cache = self.look_back(ops.reshape(x, (-1, 1, DEPTH)), cache=rows)
        cache = tree.map_structure(
            lambda x: ops.reshape(x, (*shape, *x.shape[1:])), cache
        )
        # Hypotheses are on the axis of the queries, so the memory is not copied.
        log_probs, weights = self.read(x + ops.reshape(seen, (*shape, DEPTH)))
        return log_probs, {"cache": cache}, weights


@pytest.mark.parametrize("search", [beam_search, greedy_search])
def test_a_search_with_a_cache_equals_the_full_pass(search):
    value = np.random.default_rng(1).normal(size=(BATCH, POSITIONS, DEPTH))
    decoder = Decoder(value.astype("float32"))
    decoder.all_at_once(np.zeros((BATCH, LENGTH), "int32"))
    state = {"cache": decoder.look_back.get_initial_cache(BATCH, LENGTH)}
    options = {"beam_size": BEAM} if search is beam_search else {}

    result = search(
        decoder.step, state, start=START, end=END, max_length=LENGTH, **options
    )

    result = tree.map_structure(ops.convert_to_numpy, result)
    for k in range(result["token_ids"].shape[1]):
        tokens, lengths = result["token_ids"][:, k], result["lengths"][:, k]
        before = np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=START)
        log_probs, weights = map(ops.convert_to_numpy, decoder.all_at_once(before))
        picked = np.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        exists = np.arange(LENGTH) < lengths[:, None]
        assert_close(result["token_log_probs"][:, k], picked * exists, 1e-4)
        assert_close(result["weights"][:, k], weights * exists[..., None])
    # Otherwise all results would be equal.
    assert len(np.unique(result["token_ids"])) > 2
