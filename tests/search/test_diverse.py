"""Diverse beam search, against a search with lists."""

import math

import hypothesis
import numpy as np
import pytest
from search.reference import (
    BATCH,
    END,
    LENGTH,
    PENALTY,
    assert_agree,
    assert_sound,
    compiled,
    eagerly,
    few_examples,
    hypotheses,
    languages,
    next_log_probs,
    random_state,
    random_table,
    run_beam,
    score,
)

GROUPS, SIZE = 3, 2


def plain_diverse_search(table, state, row, *, beam_groups, group_size, penalty):
    """Diverse beam search for one row, up to `max_length`.

    The second result is the smallest gap between two scores that were compared.
    """
    closest = math.inf
    groups = [{"alive": [((), 0.0)], "finished": []} for _ in range(beam_groups)]

    def best(keyed, count):
        nonlocal closest
        keyed = sorted(keyed, key=lambda x: -x[0])
        keys = [key for key, _ in keyed[: count + 1]]
        closest = min([closest, *-np.diff(keys)])
        return [x for _, x in keyed[:count]]

    def scored(found):
        options = {"length_penalty": PENALTY}
        return [(score(table, state, row, *x, **options), x) for x in found]

    for _ in range(LENGTH):
        chosen = []
        for group in groups:
            candidates = []
            for tokens, total in group["alive"]:
                gains = next_log_probs(table, state, row, tokens)
                for token, gain in enumerate(gains):
                    key = total + gain - penalty * chosen.count(token)
                    candidates.append((key, ((*tokens, token), total + gain)))
            ranked = best(candidates, group_size)
            ended = [x for x in ranked if x[0][-1] == END]
            group["finished"] = best(scored(group["finished"] + ended), group_size)
            going = [x for x in candidates if x[1][0][-1] != END]
            group["alive"] = best(going, group_size)
            chosen += [tokens[-1] for tokens, _ in group["alive"]]
    found = []
    for group in groups:
        finished = scored(group["finished"])
        alive = scored(group["alive"])
        alive.sort(key=lambda x: -x[0])
        found += [(False, x) for x in finished]
        found += [(True, x) for x in alive[: group_size - len(finished)]]
    found.sort(key=lambda x: (x[0], -x[1][0]))
    return [tokens for _, (_, (tokens, _)) in found], closest


@pytest.mark.exhaustive
@few_examples
@hypothesis.given(
    language=languages,
    penalty=hypothesis.strategies.sampled_from([0.0, 0.3, 2.0, 50.0]),
)
def test_groups_equal_a_plain_search(language, penalty):
    check(*language, penalty)


@pytest.mark.parametrize("penalty", [0.5, 5.0])
def test_groups_penalise_tokens_of_earlier_groups(penalty):
    check(random_table(3, sharpness=1.0), random_state(3), penalty)


def check(table, state, penalty):
    result = run_beam(
        table,
        state,
        beam_size=GROUPS * SIZE,
        beam_groups=GROUPS,
        diversity_penalty=penalty,
        how=eagerly,
    )
    for row in range(BATCH):
        expected, closest = plain_diverse_search(
            table, state, row, beam_groups=GROUPS, group_size=SIZE, penalty=penalty
        )
        # Without a penalty, all groups find the same.
        if closest > 1e-4 or not penalty:
            assert hypotheses(result, row) == expected


def test_groups_without_a_penalty_are_beam_searches():
    table, state = random_table(5), random_state(5)
    result = run_beam(table, state, beam_size=6, beam_groups=2, diversity_penalty=0)
    single = run_beam(table, state, beam_size=3)

    for row in range(BATCH):
        found = hypotheses(single, row)
        assert sorted(hypotheses(result, row)) == sorted(2 * found)


@pytest.mark.exhaustive
def test_a_large_penalty_finds_different_first_tokens():
    table, state = random_table(5), random_state(5)
    # The end of a hypothesis is not penalised.
    state["offset"][:, END] = -np.inf
    options = {"beam_size": 4, "beam_groups": 4, "diversity_penalty": 100.0}
    result = run_beam(table, state, **options, how=compiled)

    for row in range(BATCH):
        firsts = {tokens[0] for tokens in hypotheses(result, row)}
        assert len(firsts) == 4
    assert_agree(result, run_beam(table, state, **options, how=eagerly))
    assert_sound(result, table, state, beam_size=4)


def test_early_stopping_ends_each_group():
    table, state = random_table(11), random_state(11)
    # The first group is full after one step, the second one later.
    state["offset"][:, END] = 3.0
    options = {"beam_size": 2, "beam_groups": 2, "diversity_penalty": 9.0}
    result = run_beam(table, state, **options, early_stopping=True)
    first = run_beam(table, state, beam_size=1, early_stopping=True)

    for row in range(BATCH):
        assert hypotheses(first, row)[0] in hypotheses(result, row)
        assert all(tokens[-1] == END for tokens in hypotheses(result, row))


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
        run_beam(random_table(3), random_state(3), how=eagerly, **options)
