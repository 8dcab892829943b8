import itertools

import pytest

from attention_testing.combinations import covering, quick_first

AXES = (["a", "b", "c"], [1, 2], [True, False, None])


def quick_rows(parameters):
    return [tuple(p.values) for p in parameters if not p.marks]


@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_is_covered_by_fewer_rows_than_the_product(strength):
    axes = [*AXES, ["x", "y"]]
    parameters = covering(*axes, strength=strength)

    rows = [tuple(p.values) for p in parameters]
    assert len(set(rows)) == len(rows) < 3 * 2 * 3 * 2
    for covered, size in ((quick_rows(parameters), strength), (rows, strength + 1)):
        for chosen in itertools.combinations(range(4), size):
            covered_values = {tuple(row[axis] for axis in chosen) for row in covered}
            assert covered_values == set(itertools.product(*(axes[x] for x in chosen)))
    marks = [mark for p in parameters for mark in p.marks]
    assert marks == [pytest.mark.exhaustive] * (len(rows) - len(quick_rows(parameters)))


def test_params_keep_their_ids_and_marks():
    slow = pytest.param(7, marks=pytest.mark.slow, id="seven")

    (case, *_) = covering([slow], ["x"])

    assert case.values == (7, "x")
    assert case.id == "seven-x"
    assert [mark.name for mark in case.marks] == ["slow"]


def test_quick_first():
    parameters = quick_first(["a", "b", "c"], quick=2)

    assert quick_rows(parameters) == [("a",), ("b",)]
