"""Parameters of tests: a few that cover every pair quickly, the rest on demand."""

import itertools

import pytest


def covering(*axes, strength=2):
    """Return `pytest.param`s of combinations of the values of `axes`.

    In those of the quick suite, every pair of values of two axes occurs, or every
    combination of `strength` of them. Those with the marker `exhaustive` complete them
    to every combination of one more. They are chosen greedily, in every run the same.

    Args:
        *axes: Values of each parameter, such as a list or the keys of a dict. A value
            may be a `pytest.param` with an id.
        strength: Number of axes whose combinations are covered; 1 covers each value.
    """
    axes = [list(axis) for axis in axes]
    rows = list(itertools.product(*[range(len(axis)) for axis in axes]))
    quick = _covering_rows(rows, [], min(strength, len(axes)))
    chosen = _covering_rows(rows, quick, min(strength + 1, len(axes)))
    return [
        _param(
            [axis[index] for axis, index in zip(axes, row, strict=True)],
            [] if row in quick else [pytest.mark.exhaustive],
        )
        for row in sorted(chosen)
    ]


def _covering_rows(rows, chosen, strength):
    """Return the chosen rows, and others until all combinations of axes occur."""
    missing = {x for row in rows for x in _tuples(row, strength)}
    missing -= {x for row in chosen for x in _tuples(row, strength)}
    chosen = list(chosen)
    while missing:
        best = max(rows, key=lambda row: len(missing & _tuples(row, strength)))
        chosen.append(best)
        missing -= _tuples(best, strength)
    return chosen


def quick_first(values, quick=1):
    """Return `pytest.param`s of which only the first `quick` run in the quick suite."""
    return [
        _param([value], [] if index < quick else [pytest.mark.exhaustive])
        for index, value in enumerate(values)
    ]


def _tuples(row, strength):
    """Return which values of which axes a row combines."""
    return set(itertools.combinations(enumerate(row), strength))


def _param(values, marks):
    """Join the values, marks and ids of several parameters into one."""
    ids, joined = [], []
    for value in values:
        if hasattr(value, "values") and hasattr(value, "marks"):
            joined += value.values
            marks = [*marks, *value.marks]
            ids.append(value.id)
        else:
            joined.append(value)
            ids.append(None)
    names = [name or _name(value) for name, value in zip(ids, values, strict=True)]
    return pytest.param(
        *joined, marks=marks, id="-".join(names) if all(names) else None
    )


def _name(value):
    """Return the id that pytest would give to a simple value, or `None`."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    return getattr(value, "__name__", None)
