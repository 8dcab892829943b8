"""Parameters of tests: a few that cover every pair quickly, the rest on demand."""

import itertools

import pytest


def covering(*axes, strength=2):
    """Return `pytest.param`s for the full product of `axes`.

    The quick suite runs a subset in which every pair of values of two axes occurs (or
    every combination of `strength` of them); the other combinations carry the marker
    `exhaustive`. The subset is chosen greedily and is the same in every run.

    Args:
        *axes: Values of each parameter, such as a list or the keys of a dict. A value
            may be a `pytest.param` with an id.
        strength: Number of axes whose combinations are covered; 1 covers each value.
    """
    axes = [list(axis) for axis in axes]
    rows = list(itertools.product(*[range(len(axis)) for axis in axes]))
    strength = min(strength, len(axes))
    open_tuples = {chosen for row in rows for chosen in _tuples(row, strength)}
    quick = set()
    while open_tuples:
        best = max(rows, key=lambda row: len(open_tuples & _tuples(row, strength)))
        quick.add(best)
        open_tuples -= _tuples(best, strength)
    return [
        _param(
            [axis[place] for axis, place in zip(axes, row, strict=True)],
            [] if row in quick else [pytest.mark.exhaustive],
        )
        for row in rows
    ]


def quick_first(values, quick=1):
    """Return `pytest.param`s of which only the first `quick` run in the quick suite."""
    return [
        _param([value], [] if place < quick else [pytest.mark.exhaustive])
        for place, value in enumerate(values)
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
