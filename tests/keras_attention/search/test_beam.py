import hypothesis
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import numpy
from attention_testing.combinations import quick_first
from attention_testing.search.reference import (
    ATTENTION,
    BACKEND,
    BATCH,
    BEAM,
    END,
    EXACT_BEAM,
    LENGTH,
    MASK,
    PENALTY,
    POSITIONS,
    REQUIRED,
    VOCABULARY,
    all_hypotheses,
    assert_agree,
    assert_sound,
    compiled,
    eagerly,
    few_examples,
    hypotheses,
    language,
    languages,
    make_step,
    plain_beam_search,
    quickly,
    random_state,
    random_table,
    run_beam,
    to_tensors,
)
from keras_attention import NoRepeatNgrams, beam_search

PENALTIES = {
    "probability": {"length_penalty": 0.0},
    "power": {"length_penalty": 0.7},
    "average": {"length_penalty": 1.0},
    "gnmt": {"length_penalty": 1.5, "length_penalty_form": "gnmt"},
    "power and coverage": {"length_penalty": 0.7, "coverage_penalty": 2.0},
    "gnmt and coverage with a mask": {
        "length_penalty": 1.5,
        "length_penalty_form": "gnmt",
        "coverage_penalty": 0.3,
        "coverage_mask": MASK,
    },
}


@pytest.mark.parametrize("penalties", PENALTIES.values(), ids=PENALTIES.keys())
def test_wide_beam_finds_what_enumeration_finds(penalties):
    # 31 finished and 32 unfinished sequences exist, and at most 16 are alive when
    # the last of three tokens is chosen: nothing is ever dropped before the end.
    table, state = language(3, vocabulary=3)
    options = {"beam_size": EXACT_BEAM, **penalties}

    result = run_beam(table, state, **options)

    assert_sound(result, table, state, **options)
    for row in range(BATCH):
        expected = all_hypotheses(table, state, row, **penalties)
        assert hypotheses(result, row) == expected + [()] * (EXACT_BEAM - len(expected))


# The plain search runs to the last step: the bound of a row must never be too low.
@pytest.mark.parametrize(
    "options",
    quick_first(
        [
            {"beam_size": 5, **PENALTIES["average"]},
            {"beam_size": 2, **PENALTIES["gnmt and coverage with a mask"]},
            {
                "beam_size": BEAM,
                **PENALTIES["power and coverage"],
                "early_stopping": True,
            },
            {"beam_size": BEAM, **PENALTIES["power"]},
            {"beam_size": BEAM, **PENALTIES["power and coverage"]},
            {"beam_size": 2, **PENALTIES["average"], "early_stopping": True},
        ],
        quick=1,
    ),
)
@few_examples
@hypothesis.given(language=languages)
def test_narrow_beam_equals_a_plain_beam_search(options, language):
    table, state = language
    expected = [plain_beam_search(table, state, row, **options) for row in range(BATCH)]
    hypothesis.assume(min(closest for _, closest in expected) > 1e-4)

    result = run_beam(table, state, how=compiled, **options)

    assert_sound(result, table, state, **options)
    for row in range(BATCH):
        assert hypotheses(result, row) == expected[row][0]


@pytest.mark.parametrize(
    ("early_stopping", "number", "how"),
    [
        (False, ops.convert_to_tensor, compiled),
        (True, float, eagerly),
        pytest.param(True, np.int64, compiled, marks=pytest.mark.exhaustive),
        pytest.param(True, float, compiled, marks=pytest.mark.exhaustive),
    ],
)
def test_a_limit_ends_the_search_as_a_shorter_one_would(early_stopping, number, how):
    table, state = language(5)
    table[:, END] -= 3.0

    early = {"early_stopping": early_stopping}

    @how
    def run(table, state, limit):
        options = {"beam_size": BEAM, "length_penalty": PENALTY, **early, **REQUIRED}
        return beam_search(make_step(table), state, limit=limit, **options)

    for limit in (1, 3, LENGTH + 1):
        actual = numpy(run(*to_tensors((table, state)), number(limit)))
        length = min(limit, LENGTH)
        expected = run_beam(table, state, max_length=length, **early)
        for name, empty in (("token_ids", END), ("token_log_probs", 0), ("weights", 0)):
            assert (actual[name][:, :, length:] == empty).all()
            actual[name] = actual[name][:, :, :length]
        assert_agree(actual, expected)
        assert (actual["lengths"] == length).any()


@pytest.mark.skipif(BACKEND == "torch", reason="has no graphs")
def test_a_limit_that_is_not_known_counts_as_one_at_least():
    table, state = language(5)
    table[:, END] -= 3.0

    @compiled
    def run(table, state, limit):
        return beam_search(make_step(table), state, limit=limit, **REQUIRED)

    empty, single = (
        numpy(run(*to_tensors((table, state)), ops.convert_to_tensor(limit)))
        for limit in ([3, 0], [3, 1])
    )
    assert np.isfinite(empty["scores"]).all()
    assert_agree(empty, single)


@pytest.mark.parametrize(
    "options",
    quick_first(
        [
            {"coverage_penalty": 0.3, "constraints": [NoRepeatNgrams(1)]},
            {"early_stopping": True},
            {},
        ],
        quick=2,
    ),
)
def test_every_row_may_have_a_limit_of_its_own(options):
    limits = np.array([3, LENGTH + 1, 1, 4])
    table, state = language(5, batch=len(limits))
    table[:, END] -= 3.0

    options = {"beam_size": BEAM, **REQUIRED, **options}

    @quickly
    def run(table, state, limit):
        return beam_search(make_step(table, ATTENTION), state, limit=limit, **options)

    actual = numpy(run(*to_tensors((table, state, limits))))
    for row, limit in enumerate(limits):
        expected = run(*to_tensors((table, state, limit)))
        row_alone = tree.map_structure(lambda x, row=row: x[row : row + 1], expected)
        here = {name: x[row : row + 1] for name, x in actual.items()}
        assert_agree(here, numpy(row_alone))
    assert (actual["lengths"].max(axis=1) == np.minimum(limits, LENGTH)).all()


def test_nested_state_of_several_ranks_and_dtypes_moves_together():
    # The step returns half precision, but the search must add in float32.
    table = random_table(53).astype("float16").astype("float32")
    plain, plain_state = make_step(table), random_state(53)

    def push(register, now):
        now = ops.cast(now, register.dtype)
        return ops.concatenate([register[:, :, 1:], now[:, :, None]], axis=2)

    def step(token_ids, state):
        log_probs, plain_state, weights = plain(token_ids, state["plain"])
        one_hot, [pairs] = state["registers"]
        one_hot = push(one_hot, ops.one_hot(token_ids, VOCABULARY, dtype="bool"))
        pairs = push(pairs, ops.stack([token_ids, -token_ids], axis=-1))
        last = ops.argmax(ops.cast(one_hot, "int32"), axis=-1)
        looks = [weights, last, pairs[..., 0], -pairs[..., 1]]
        attention = ops.concatenate([ops.cast(x, "float16") for x in looks], axis=-1)
        state = {"plain": plain_state, "registers": (one_hot, [pairs])}
        return ops.cast(log_probs, "float16"), state, attention

    plain_state["seen"][:] = 0
    one_hot = np.zeros((BATCH, POSITIONS, VOCABULARY), "bool")
    pairs = np.zeros((BATCH, POSITIONS, 2), "float16")
    state = {"plain": plain_state, "registers": (one_hot, [pairs])}
    options = {"beam_size": BEAM, "length_penalty": PENALTY, **REQUIRED}
    run = quickly(lambda state: beam_search(step, state, **options))

    result = numpy(run(to_tensors(state)))

    for look in np.split(result["weights"], 4, axis=-1):
        assert_sound({**result, "weights": look}, table, plain_state)


def test_the_search_continues_while_coverage_may_still_grow():
    # Tokens end, A, B, C, D, start, and the logarithms of their probabilities.
    table = np.full((6, 6), -50.0, "float32")
    end, a, b, c, d, start = range(6)
    table[start, [end, a, b]] = -1.2, -1.0, -1.5
    table[a, [end, c]] = -0.5, -2.0
    table[b, d] = -0.5
    table[[c, d], end] = 0.0
    attention = np.zeros((6, 2), "float32")
    attention[[start, a, d]] = 0.5

    def step(token_ids, state):
        log_probs = ops.take(table, token_ids, axis=0)
        return log_probs, state, ops.take(attention, token_ids, axis=0)

    options = {"start": start, "end": end, "max_length": 3, "beam_size": 2}
    options |= {"length_penalty": 0.0, "coverage_penalty": 1.0}
    run = quickly(lambda state: beam_search(step, state, **options))

    result = numpy(run(ops.zeros((1, 1))))

    # After two steps "A end" (-1.5) and "end" (-1.2 + log .25 = -2.6) have finished.
    # "A C" (-3) leads before "B D" (-2 + log .25 = -3.4), which alone may overtake.
    assert hypotheses(result, 0) == [(a, end), (b, d, end)]
    np.testing.assert_allclose(result["scores"], [[-1.5, -2.0]], rtol=1e-6)
