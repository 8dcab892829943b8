"""Sampling search; `test_search.py` has what all searches share."""

import numpy as np
import pytest
from keras import ops

from keras_attention import greedy_search, sample_search

START, END, VOCABULARY, LENGTH = 0, 1, 5, 7
TABLE = np.random.default_rng(3).normal(size=(VOCABULARY, VOCABULARY)).astype("float32")
TABLE -= np.log(np.exp(TABLE).sum(axis=-1, keepdims=True))
OPTIONS = {"start": START, "end": END, "max_length": LENGTH}


def step(token_ids, state):
    """The next token depends on the last one; the weights say which that was."""
    log_probs = ops.take(ops.convert_to_tensor(TABLE), token_ids, axis=0)
    return log_probs, state + 1, ops.one_hot(token_ids, VOCABULARY)


def sample(**options):
    found = sample_search(step, ops.zeros((2, 1)), **{**OPTIONS, **options})
    return {name: ops.convert_to_numpy(x) for name, x in found.items()}


def test_tokens_come_as_often_as_the_model_says():
    first = sample(samples=4001, seed=1)["token_ids"][..., 0].ravel()

    frequency = np.bincount(first, minlength=VOCABULARY) / len(first)
    np.testing.assert_allclose(frequency, np.exp(TABLE[START]), atol=0.025)


def test_the_temperature_sharpens_the_distribution():
    first = sample(samples=4001, seed=2, temperature=0.5)["token_ids"][..., 0].ravel()

    squared = np.exp(2 * TABLE[START])
    frequency = np.bincount(first, minlength=VOCABULARY) / len(first)
    np.testing.assert_allclose(frequency, squared / squared.sum(), atol=0.025)


def test_a_temperature_near_zero_is_greedy_search():
    cold = sample(samples=11, seed=3, temperature=1e-3)
    greedy = greedy_search(step, ops.zeros((2, 1)), **OPTIONS)

    expected = ops.convert_to_numpy(greedy["token_ids"])
    np.testing.assert_array_equal(cold["token_ids"], expected.repeat(11, axis=1))


def test_log_probabilities_and_weights_are_those_of_the_tokens():
    found = sample(samples=13, seed=4, temperature=2.0)

    for row in range(2):
        for k in range(13):
            length = found["lengths"][row, k]
            token_ids = found["token_ids"][row, k]
            before = [START, *token_ids[: length - 1]]
            total = TABLE[before, token_ids[:length]].sum()
            np.testing.assert_allclose(found["log_probs"][row, k], total, rtol=1e-5)
            weights = found["weights"][row, k]
            assert weights[:length].argmax(axis=-1).tolist() == before
            assert not weights[length:].any()
            assert (token_ids[length:] == END).all()


def test_the_seed_decides():
    first, again, other = (sample(samples=17, seed=s)["token_ids"] for s in (5, 5, 6))

    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_banned_tokens_are_never_drawn():
    token_ids = sample(samples=501, seed=7, banned=(2, 4))["token_ids"]

    assert set(token_ids.ravel()) == {0, 1, 3}


@pytest.mark.parametrize(
    "options, said",
    [
        ({"samples": 0}, "samples must be a positive integer. Received: 0"),
        ({"temperature": 0}, "temperature must be positive. Received: 0"),
        ({"max_length": 0}, "max_length must be a positive integer. Received: 0"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        sample(**options)
