import itertools

import pytest
from combinations import covering, quick_first

AXES = (["a", "b", "c"], [1, 2], [True, False, None])


def quick_rows(parameters):
    return [tuple(p.values) for p in parameters if not p.marks]


def test_every_pair_is_covered_by_fewer_rows_than_the_product():
    parameters = covering(*AXES)

    quick = quick_rows(parameters)
    assert {tuple(p.values) for p in parameters} == set(itertools.product(*AXES))
    assert 9 <= len(quick) <= 11
    for (i, one), (j, other) in itertools.combinations(enumerate(AXES), 2):
        for pair in itertools.product(one, other):
            assert any((row[i], row[j]) == pair for row in quick), pair


def test_strength_one_covers_every_value():
    quick = quick_rows(covering(*AXES, strength=1))

    assert len(quick) == 3
    for place, axis in enumerate(AXES):
        assert {row[place] for row in quick} == set(axis)


def test_rows_that_are_not_quick_are_exhaustive():
    parameters = covering(*AXES)

    marked = [p for p in parameters if p.marks]
    assert len(marked) == 18 - len(quick_rows(parameters))
    assert all(p.marks == [pytest.mark.exhaustive] for p in marked)


def test_params_keep_their_ids_and_marks():
    slow = pytest.param(7, marks=pytest.mark.slow, id="seven")

    (one, *_) = covering([slow], ["x"])

    assert one.values == (7, "x")
    assert one.id == "seven-x"
    assert [mark.name for mark in one.marks] == ["slow"]


def test_quick_first():
    parameters = quick_first(["a", "b", "c"], quick=2)

    assert quick_rows(parameters) == [("a",), ("b",)]
