"""Diverse beam search, against a search with lists."""

import hypothesis
import pytest

from attention_testing.search.reference import (
    BATCH,
    PENALTY,
    assert_sound,
    compiled,
    eagerly,
    few_examples,
    hypotheses,
    language,
    languages,
    plain_beam_search,
    run_beam,
)


def check(table, state, penalty, how, early_stopping=False):
    options = {"beam_size": 6, "beam_groups": 3, "early_stopping": early_stopping}
    options |= {"diversity_penalty": penalty, "length_penalty": PENALTY}

    result = run_beam(table, state, how=how, **options)

    assert_sound(result, table, state, beam_size=6, drawn=True)
    for row in range(BATCH):
        expected, closest = plain_beam_search(table, state, row, **options)
        # Without a penalty, all groups find the same.
        if closest > 1e-4 or not penalty:
            assert hypotheses(result, row) == expected


@pytest.mark.exhaustive
@few_examples
@hypothesis.given(
    language=languages,
    penalty=hypothesis.strategies.sampled_from([0.0, 0.3, 2.0, 50.0]),
)
def test_groups_equal_a_plain_search(language, penalty):
    check(*language, penalty, compiled)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.5, 5.0])
def test_groups_penalise_tokens_of_earlier_groups(penalty, early_stopping):
    check(*language(3, sharpness=1.0), penalty, eagerly, early_stopping)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_groups": 0}, "beam_groups must be a positive integer.*: 0"),
        ({"beam_groups": 2}, "beam_groups must divide beam_size, 3.*: 2"),
        ({"diversity_penalty": -1.0}, "diversity_penalty must be fin.*: -1.0"),
        ({"diversity_penalty": None}, "diversity_penalty must be fin.*: None"),
    ],
)
def test_wrong_groups_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        run_beam(*language(3), how=eagerly, **options)
