"""Contrastive search, against a loop with lists."""

import math
from functools import partial

import numpy as np
import pytest
from keras import ops

from attention_testing.combinations import quick_first
from attention_testing.search.reference import (
    BATCH,
    END,
    HISTORIES,
    LENGTH,
    VOCABULARY,
    assert_agree,
    assert_sound,
    code_after,
    compiled,
    hypotheses,
    language,
    next_log_probs,
    random_state,
    run_greedy,
    runner,
)
from keras_attention import contrastive_search

DEPTH = 3
HIDDEN = np.random.default_rng(0).normal(size=(HISTORIES, DEPTH)).astype("float32")


def hidden(state):
    return ops.take(HIDDEN, state["code"], axis=0)


run = runner("contrastive", contrastive_search, hidden=hidden)


def plain_contrastive_search(table, state, row, *, top_k, alpha, banned=(), shortest=0):
    """Contrastive search for one row, and the smallest gap between two scores."""

    def vector(tokens):
        x = np.float64(HIDDEN[code_after(table, state, row, tokens)])
        return x / np.linalg.norm(x)

    tokens, closest = (), math.inf
    while len(tokens) < LENGTH and END not in tokens:
        log_probs = next_log_probs(table, state, row, tokens)
        log_probs[list(banned)] = -np.inf
        if len(tokens) + 1 < shortest:
            log_probs[END] = -np.inf
        order = np.argsort(-log_probs)[:top_k]
        past = [vector(tokens[:n]) for n in range(len(tokens) + 1)]

        def score(token, log_probs=log_probs, past=past, tokens=tokens):
            now = vector((*tokens, token))
            similarity = max(float(now @ x) for x in past)
            return (1 - alpha) * math.exp(log_probs[token]) - alpha * similarity

        ranked = sorted(order, key=score, reverse=True)
        closest = min([closest, *-np.diff([score(token) for token in ranked])])
        closest = min(closest, *-np.diff(np.sort(-log_probs)[: top_k + 1] * -1))
        tokens = (*tokens, int(ranked[0]))
    return tokens, closest


@pytest.mark.parametrize("seed", quick_first(range(1, 6)))
@pytest.mark.parametrize("alpha", quick_first([0.6, 0.2]))
def test_it_equals_a_plain_loop(seed, alpha):
    table, state = language(seed, sharpness=1.0)
    options = {"banned": (3,), "min_length": 3, "degeneration_penalty": alpha}
    result = run(table, state, top_k=4, **options)

    assert_sound(result, table, state, beam_size=1, length_penalty=0)
    for row in range(BATCH):
        expected, closest = plain_contrastive_search(
            table, state, row, top_k=4, alpha=alpha, banned=[3], shortest=3
        )
        if closest > 1e-5:
            assert hypotheses(result, row) == [expected]


def hidden_of_nan(state):
    return hidden(state) * np.nan


@pytest.mark.parametrize(
    # Hidden states of NaN count as repetitions.
    "options",
    [{"degeneration_penalty": 0.0}, {"top_k": 1}, {"hidden": hidden_of_nan}],
)
def test_without_differences_between_candidates_it_is_greedy_search(options):
    table, state = language(5)

    assert_agree(run(table, state, **options), run_greedy(table, state))


def test_the_limit_ends_a_row():
    table, state = language(5)
    state["offset"][:, END] = -np.inf
    result = run(table, state, limit=(2, 4))

    assert result["lengths"][:, 0].tolist() == [2, 4]
    whole = run(table, state)["token_ids"]
    np.testing.assert_array_equal(result["token_ids"][1, 0, :4], whole[1, 0, :4])


def test_tokens_of_nan_are_reported_and_not_chosen():
    table, state = language(5)
    state["offset"][0, 4] = np.nan
    result = run(table, state)

    assert result["finite"].tolist() == [False, True]
    assert 4 not in result["token_ids"][0]
    nothing = random_state(5)
    nothing["offset"][0] = -np.inf
    result = run(table, nothing)
    assert result["lengths"][:, 0].tolist()[0] == 0 < result["lengths"][1, 0]


@pytest.mark.exhaustive
def test_compiled_searches_agree_also_without_rows():
    table, state = language(7)
    under_xla = run(table, state, how=partial(compiled, xla=True))
    assert_agree(under_xla, run(table, state))
    empty = run(table, random_state(7, batch=0), how=compiled)
    assert empty["token_ids"].shape == (0, 1, LENGTH)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k must be a positive integer.*: 0"),
        ({"degeneration_penalty": 1.5}, "must be between 0 and 1.*: 1.5"),
        ({"degeneration_penalty": None}, "must be between 0 and 1.*: None"),
        (
            {"hidden": lambda state: state["code"]},
            r"hidden must have the shape \(batch, hypotheses, depth\).*: \(2, 1\)",
        ),
        ({"start": VOCABULARY}, "start must be a token between 0 and 10.*: 11"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        run(*language(5), **options)
