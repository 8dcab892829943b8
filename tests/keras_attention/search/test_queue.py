"""Lists that are longer than a batch; `test_beam.py` tests the results of a row."""

import functools

import numpy as np
import pytest
from keras import tree

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.search.reference import (
    ATTENTION,
    BACKEND,
    BANNED,
    END,
    LENGTH,
    POSITIONS,
    REQUIRED,
    VOCABULARY,
    assert_agree,
    compiled,
    ends_at_once,
    make_step,
    never_ends,
    quickly,
    random_state,
    random_table,
    to_tensors,
)

ROWS, PLACES = 13, 3
TABLE = random_table(3)
MASK = np.random.default_rng(3).random((ROWS, POSITIONS)) < 0.7
PREFIX = np.where(np.arange(ROWS)[:, None] % 3 == 0, [3, 4], -1).astype("int32")
LIMIT = np.resize([LENGTH, 3, 5, 2], ROWS).astype("int32")
OPTIONS = {
    "plain": {},
    "all": {
        "coverage_penalty": 0.3,
        "constraints": lambda memory: [
            ka.NoRepeatNgrams(1),
            ka.MinLength(2),
            ka.Prefix(memory["prefix"]),
        ],
    },
}
BY_ROW = {"plain": {}, "all": {"coverage_mask": MASK, "limit": LIMIT}}


def make_step_over(memory):
    """Return a step whose log-probabilities depend on the memory of each row."""
    step = make_step(TABLE, ATTENTION)

    def step_over(token_ids, state):
        log_probs, state, weights = step(token_ids, state)
        return log_probs + memory["offset"][:, None], state, weights

    return step_over


def long_list():
    """Return memory and state of rows of very different lengths."""
    hurry = np.random.default_rng(3).permutation(ROWS)[:, None] - 6.0
    to_end = np.arange(VOCABULARY) == END
    offset = np.where(to_end, np.minimum(hurry, 0), np.minimum(-hurry, 0))
    memory = {"offset": offset.astype("float32"), "prefix": PREFIX}
    return memory, random_state(3, batch=ROWS)


def short_list(rows):
    return tree.map_structure(lambda x: x[:rows], long_list())


@functools.cache
def queue_of(options, how):
    return ka.BeamSearchQueue(
        make_step_over, batch_size=PLACES, compiler=how, **REQUIRED, **OPTIONS[options]
    )


@functools.cache
def all_at_once(options):
    """Return the result of one call of `beam_search` for the whole list."""

    @quickly
    def run(memory, state, by_row):
        common = {**REQUIRED, **OPTIONS[options], **by_row}
        make_constraints = common.pop("constraints", lambda memory: [])
        common["constraints"] = make_constraints(memory)
        return ka.beam_search(make_step_over(memory), state, **common)

    return numpy(run(*to_tensors((*long_list(), BY_ROW[options]))))


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ("plain", compiled),
        ("all", quickly),
        pytest.param("all", compiled, marks=pytest.mark.exhaustive),
    ],
)
def test_a_list_finds_what_its_rows_find(options, how):
    actual = queue_of(options, how)(*long_list(), **BY_ROW[options])

    expected = all_at_once(options)
    assert_agree(actual, expected)
    assert len(set(actual["lengths"][:, 0])) > 2, "the example is too easy"


def test_constraints_hold_in_all_rounds():
    # An iterator can be read once only.
    options = {"constraints": iter([ka.Ban(BANNED)]), **REQUIRED}
    queue = ka.BeamSearchQueue(make_step_over, batch_size=PLACES, **options)

    rows = short_list(PLACES + 1)
    assert not np.isin(queue(*rows)["token_ids"], BANNED).any()


@pytest.mark.parametrize("rows", [1, PLACES, PLACES + 1])
def test_short_lists_leave_places_empty(rows):
    actual = queue_of("plain", compiled)(*short_list(rows))

    expected = all_at_once("plain")
    assert_agree(actual, {name: x[:rows] for name, x in expected.items()})


@pytest.mark.skipif(
    BACKEND == "jax", reason="its loops call the step once, to trace it"
)
@pytest.mark.parametrize(
    # A row takes 11 steps or 2, and three go at once: at best 24 and 12 in all.
    ("long_rows", "at_most"),
    [(range(0, ROWS, 3), 31), pytest.param(range(1), 16, marks=pytest.mark.exhaustive)],
)
def test_short_rows_do_not_wait_for_the_longest(long_rows, at_most):
    memory, state = long_list()
    for row in range(ROWS):
        (never_ends if row in long_rows else ends_at_once)(memory, row)
    calls = []

    def make_counted(memory):
        step = make_step_over(memory)

        def counted(token_ids, state):
            calls.append(token_ids)
            return step(token_ids, state)

        return counted

    options = {**REQUIRED, "max_length": 11, "length_penalty": 0.0}
    queue = ka.BeamSearchQueue(make_counted, batch_size=PLACES, **options)
    result = queue(memory, state)

    assert len(calls) <= at_most
    lengths = [11 if row in long_rows else 1 for row in range(ROWS)]
    assert result["lengths"][:, 0].tolist() == lengths


def test_one_place_is_enough_and_nothing_is_compiled_twice():
    calls = []

    def make_counted(memory):
        calls.append("made")
        return make_step_over(memory)

    options = {"compiler": compiled, **REQUIRED}
    queue = ka.BeamSearchQueue(make_counted, batch_size=1, **options)
    actual = queue(*short_list(3))
    made = len(calls)
    again = queue(*short_list(3))

    expected = {name: x[:3] for name, x in all_at_once("plain").items()}
    assert_agree(actual, expected)
    assert_agree(again, expected)
    if BACKEND != "torch":
        assert len(calls) == made


def test_limits_may_be_a_list():
    queue, limits = queue_of("plain", quickly), [3, LENGTH, 2]

    actual, expected = (
        queue(*short_list(3), limit=x) for x in (limits, np.array(limits))
    )

    assert_agree(actual, expected)


@pytest.mark.parametrize(
    ("batch_size", "rows", "message"),
    [
        (0, {}, "batch_size must be a positive integer. Received: 0"),
        (3, {"memory": np.zeros((5, 2))}, r"number of rows.* Received: \[5, 7\]"),
        (3, {"coverage_mask": np.zeros((6, 2))}, r"rows.* Received: \[6, 7\]"),
        (3, {"coverage_mask": np.full((7, 2), -1e9)}, "coverage_mask must be bool"),
        (3, {"limit": np.arange(7)}, "limit must be a positive integer. Rec.*0, 1, 2"),
    ],
)
def test_wrong_arguments_are_named_with_what_came(batch_size, rows, message):
    rows = {"memory": np.zeros((7, 2)), "state": np.zeros((7, 1)), **rows}

    with pytest.raises(ValueError, match=message):
        ka.BeamSearchQueue(make_step_over, batch_size=batch_size, **REQUIRED)(**rows)


def test_an_unknown_option_is_named_when_the_queue_is_made():
    options = {**REQUIRED, "beam_width": 5}

    with pytest.raises(TypeError, match="BeamSearchQueue has no argument beam_width"):
        ka.BeamSearchQueue(make_step_over, batch_size=PLACES, **options)
