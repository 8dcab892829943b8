"""The schema of options: ranges of numbers, and dataclasses read from JSON.

The annotations of a dataclass are its schema: they validate the options of a command
line and those in the files of a model alike. This module needs no command line, so
that LiteRT models run where tyro is not installed.
"""

import builtins
import dataclasses
import math
import types
import typing
from typing import Annotated, Literal

from keras_attention_apps.common.cli import UserError


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed range of an option, for its annotation."""

    least: float
    most: float = math.inf

    def __str__(self):
        if self.most == math.inf:
            return f"at least {self.least}"
        if self.least == -math.inf:
            return f"at most {self.most}"
        return f"between {self.least} and {self.most}"


Positive = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
# Depth of a layer, number of layers and of tokens: more than any machine can train.
MAX_UNITS = 65_536
Units = Annotated[int, Range(1, MAX_UNITS)]
Layers = Annotated[int, Range(1, 100)]
Length = Annotated[int, Range(1, 10_000)]
Fraction = Annotated[float, Range(0, 1)]
NonNegative = Annotated[float, Range(0)]
# With a momentum of 1, an average never changes.
Momentum = Annotated[float, Range(0, 0.99999)]
# A rate of 1 would drop everything.
Dropout = Annotated[float, Range(0, 0.99)]
# Hypotheses kept at each step. A larger one is most likely a mistake.
BeamSize = Annotated[int, Range(1, 1000)]
# How often an epoch of a training goes through a data set.
Weight = Annotated[float, Range(0, 1000)]
# Logarithm of a probability.
LogProbability = Annotated[float, Range(-math.inf, 0)]
# The range that NumPy and Keras accept.
Seed = Annotated[int, Range(0, 2**32 - 1)]
# Maximum length of a translation relative to its source.
LengthRatio = Annotated[float, Range(0.1, 1000)]
# With larger penalties, `length ** length_penalty` overflows.
LengthPenalty = Annotated[float, Range(0, 10)]


def check_ranges(config):
    """Raise a `UserError` if an option of a dataclass is out of its range."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value)
        for allowed in _ranges(hints[name]):
            for number in value if isinstance(value, (list, tuple)) else (value,):
                _check_range(name, number, allowed)


def _check_range(name, value, allowed):
    if value is None:
        return
    if value != value or value in (math.inf, -math.inf):
        raise UserError(f"{name} must be a finite number. Received: {value}")
    if not allowed.least <= value <= allowed.most:
        raise UserError(f"{name} must be {allowed}. Received: {value!s:.60}")


def from_json(kind, options):
    """Return a dataclass from a dict that was read from JSON, and validate it.

    Args:
        kind: The dataclass. Its fields are bools, numbers, strings, `Literal`s of
            strings, lists, dicts from strings, and unions of them.
        options: The dict. Fields with a default may be omitted.

    Raises:
        UserError: If an option is missing, unknown, of another type, or out of its
            range.
    """
    if not isinstance(options, dict):
        raise UserError(f"expected an object with options. Received: {options!r:.60}")
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and field.name not in options:
            raise UserError(f"{field.name} is missing")
    for name, value in options.items():
        if name not in hints:
            raise UserError(f"there is no option {name!r:.60}")
        if not _fits(hints[name], value):
            expected = described(hints[name])
            raise UserError(f"{name} must be {expected}. Received: {value!r:.60}")
    found = kind(**options)
    check_ranges(found)
    return found


def _fits(hint, value):
    """Return whether a value from JSON is of the annotated type."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return type(value) is str and value in parts
        case typing.Union | types.UnionType:
            return any(_fits(part, value) for part in parts)
        case builtins.list:
            return type(value) is list and all(_fits(parts[0], x) for x in value)
        case builtins.dict:
            return type(value) is dict and all(
                _fits(parts[1], x) for x in value.values()
            )
    return type(value) is hint or (hint is float and type(value) is int)


def described(hint):
    """Return the name of a type in JSON."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(parts)}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(described, parts))
    names = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    expected = names[typing.get_origin(hint) or hint]
    return f"{expected} of {described(parts[-1])}" if parts else expected


def _ranges(hint):
    """Return the `Range`s in a type, or in the types of a union."""
    found = [part for part in getattr(hint, "__metadata__", ()) if type(part) is Range]
    for part in typing.get_args(hint):
        found += _ranges(part)
    return found


def replaced(model, changes, runtime_options):
    """Return the configuration of a model with some options replaced.

    Args:
        model: The configuration, a dataclass.
        changes: Dict from names of options to values, which may be NumPy scalars; those
            that are `None` are not given.
        runtime_options: Names of the options that do not change its weights.

    Raises:
        UserError: If there is no such option, it would change the weights, or its value
            is invalid.
    """
    given = {}
    for name, value in changes.items():
        if not hasattr(model, name):
            raise UserError(
                f"expected options of a model, such as {', '.join(runtime_options)}. "
                f"Received: {name!r}"
            )
        if value is None:
            continue
        # A scalar of NumPy, which is not imported here: commands start faster without.
        value = value.item() if hasattr(value, "item") else value
        given[name] = value
        if name not in runtime_options and value != getattr(model, name):
            raise UserError(
                f"the weights fix {name}={getattr(model, name)!r}. "
                f"Received: {name}={value!r}"
            )
    return from_json(type(model), {**dataclasses.asdict(model), **given})


@dataclasses.dataclass(frozen=True)
class BeamConfig:
    """Options of the beam search."""

    #: Beam width: number of hypotheses kept at each step; 1 is greedy search.
    beam_size: BeamSize = 5
    #: Length penalty: hypotheses are ranked by log-probability / length ** penalty.
    length_penalty: LengthPenalty = 1.0
    #: Diverse beam search: number of groups, a divisor of the beam width. Each group
    #: avoids the tokens of the groups before it. 1 is standard beam search.
    beam_groups: Positive = 1
    #: Diversity penalty of diverse beam search.
    diversity_penalty: NonNegative = 0.5

    def __post_init__(self):
        if self.beam_groups < 1 or self.beam_size % self.beam_groups:
            raise UserError(
                f"beam_groups must divide beam_size, {self.beam_size}. "
                f"Received: {self.beam_groups}"
            )
