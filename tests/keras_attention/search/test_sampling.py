import collections
import math

import hypothesis
import keras
import numpy as np
import pytest

from attention_testing.search.reference import (
    BANNED,
    BATCH,
    BEAM,
    END,
    VOCABULARY,
    assert_sound,
    compiled,
    eagerly,
    few_examples,
    hypotheses,
    language,
    languages,
    never_ends,
    next_log_probs,
    plain_greedy_search,
    run_greedy,
    run_sample,
)


def first_samples(result, count):
    """Return the result for the first samples of every row."""
    return {x: y if x == "finite" else y[:, :count] for x, y in result.items()}


def endless_language(seed, **options):
    table, state = language(seed, **options)
    for row in range(BATCH):
        never_ends(state, row)
    return table, state


@few_examples
@hypothesis.given(language=languages)
def test_greedy_equals_a_plain_loop(language):
    table, state = language
    expected = [plain_greedy_search(table, state, row) for row in range(BATCH)]
    hypothesis.assume(min(closest for _, closest in expected) > 1e-4)

    result = run_greedy(table, state, how=compiled)

    assert_sound(result, table, state, beam_size=1, length_penalty=0)
    for row in range(BATCH):
        assert hypotheses(result, row) == expected[row][0]


def test_sequences_are_drawn_in_proportion_to_their_probabilities():
    table, state = language(7, sharpness=1.0)
    state["offset"][:, [4, VOCABULARY - 2]] = -np.inf
    count, temperature, max_length = 10007, 0.5, 2
    options = {"temperature": temperature, "max_length": max_length}

    result = run_sample(table, state, samples=count, banned=BANNED, **options)

    def probabilities(row, tokens):
        log_probs = next_log_probs(table, state, row, tokens)
        log_probs[list(BANNED)] = -np.inf
        odds = np.exp(log_probs / temperature)
        return odds / odds.sum()

    for row in range(BATCH):
        drawn = collections.Counter(hypotheses(result, row))
        first = probabilities(row, ())
        for token in range(VOCABULARY):
            if token == END:
                expected = {(END,): first[END]}
            else:
                second = first[token] * probabilities(row, (token,))
                expected = {(token, other): p for other, p in enumerate(second)}
            for tokens, p in expected.items():
                # Five standard deviations, and what a rare sequence may add.
                tolerance = 5 * math.sqrt(count * p) + 5 if p else 0
                assert abs(drawn[tokens] - count * p) <= tolerance, tokens
    # Log-probabilities are not those of the sharpened distribution.
    some = first_samples(result, 29)
    assert_sound(some, table, state, 0, 29, max_length, drawn=True)


def test_rows_and_samples_are_drawn_independently():
    table, state = endless_language(11, sharpness=0.5)
    state["code"][:] = state["code"][0]

    result = run_sample(table, state)

    samples = {*hypotheses(result, 0), *hypotheses(result, 1)}
    assert len(samples) == BATCH * BEAM


def test_a_seed_generator_goes_on_and_can_be_repeated():
    table, state = endless_language(17, sharpness=0.5)
    generator, same = keras.random.SeedGenerator(1), keras.random.SeedGenerator(1)
    first, second, again = (
        run_sample(table, state, seed=seed, how=eagerly)["token_ids"]
        for seed in (generator, generator, same)
    )

    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("temperature", [1e9, 2**40, 1e300, math.inf])
@pytest.mark.parametrize("cut", [{}, {"top_k": VOCABULARY}, {"top_p": 1.0}])
def test_impossible_tokens_are_not_drawn_at_any_temperature(temperature, cut):
    table, state = language(31)
    state["offset"][:, 4] = -np.inf
    count = 1009
    options = {"samples": count, "max_length": 1, "banned": BANNED, **cut}

    result = run_sample(table, state, temperature=temperature, **options)

    for row in range(BATCH):
        drawn = np.bincount(result["token_ids"][row, :, 0], minlength=VOCABULARY)
        assert not drawn[[4, *BANNED]].any()
        # All others alike: five standard deviations.
        expected = count / (VOCABULARY - 1 - len(BANNED))
        others = np.delete(drawn, [4, *BANNED])
        assert (np.abs(others - expected) <= 5 * math.sqrt(expected)).all()


def plain_cut(probabilities, top_k=None, top_p=None, min_p=0.0):
    """The most probable tokens, one after the other, until there are enough."""
    result, mass = np.zeros_like(probabilities), 0.0
    ranked = np.argsort(-probabilities)[:top_k]
    for token in ranked:
        is_in_nucleus = top_p is None or mass < top_p * probabilities[ranked].sum()
        if is_in_nucleus and probabilities[token] >= min_p * probabilities.max():
            result[token] = probabilities[token]
        mass += probabilities[token]
    return result / result.sum()


@pytest.mark.parametrize(
    "cut",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_k": 4, "top_p": 0.8},
        {"top_k": 100, "top_p": 1.0},
        {"min_p": 0.2},
        {"top_k": 5, "top_p": 0.8, "min_p": 0.2},
    ],
)
def test_only_the_most_probable_are_drawn_in_proportion(cut):
    table, state = language(23, sharpness=1.0)
    count, temperature = 10007, 0.8

    result = run_sample(
        table, state, samples=count, temperature=temperature, max_length=1, **cut
    )

    for row in range(BATCH):
        odds = np.exp(next_log_probs(table, state, row, ()) / temperature)
        expected = count * plain_cut(odds / odds.sum(), **cut)
        drawn = np.bincount(result["token_ids"][row, :, 0], minlength=VOCABULARY)
        assert not drawn[expected == 0].any()
        assert (np.abs(drawn - expected) <= 5 * np.sqrt(expected)).all()
    # Log-probabilities are those of all tokens.
    some = first_samples(result, 29)
    assert_sound(some, table, state, 0, 29, max_length=1, drawn=True)


COLD = [{"temperature": x} for x in (1e-3, 1e-39, 1e-50, 5e-324)]
CUT = {"top_k": 3, "top_p": 0.9}


# The last two temperatures are zero in single precision, and one over the one before
# is infinite.
@pytest.mark.parametrize(
    "options",
    [
        *({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}),
        *COLD,
        *({**cold, **CUT} for cold in COLD),
    ],
    ids=str,
)
def test_sampling_from_one_token_or_near_zero_is_greedy_search(options):
    table, state = language(29)

    result = run_sample(table, state, **options)

    assert_sound(result, table, state, length_penalty=0, drawn=True)
    greedy = run_greedy(table, state)["token_ids"]
    np.testing.assert_array_equal(result["token_ids"], greedy.repeat(BEAM, axis=1))


@pytest.mark.parametrize("run", [run_greedy, run_sample])
def test_a_row_ends_at_its_limit(run):
    table, state = endless_language(13)

    whole, cut = run(table, state), run(table, state, limit=(2, 4))

    assert cut["lengths"].tolist() == [[n] * cut["lengths"].shape[1] for n in (2, 4)]
    for row, limit in enumerate((2, 4)):
        for key in ("token_ids", "token_log_probs", "weights"):
            expected = whole[key][row, :, :limit]
            np.testing.assert_array_equal(cut[key][row, :, :limit], expected)
        assert (cut["token_ids"][row, :, limit:] == END).all()
