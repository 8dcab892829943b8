"""What can be chosen about every program."""

import dataclasses
import math
import typing
from pathlib import Path
from typing import Annotated, Literal

import tyro
from keras_attention_apps.common.cli import UserError
from tyro.conf import Positional

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
ModelName = Annotated[str, tyro.conf.arg(aliases=["--preset"])]
Flags = tyro.conf.OmitArgPrefixes


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option may have, in its annotation."""

    least: float
    most: float = math.inf

    def __str__(self):
        if self.most < math.inf:
            return f"between {self.least} and {self.most}"
        return f"at least {self.least}"


Positive = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
Share = Annotated[float, Range(0, 1)]
Weight = Annotated[float, Range(0)]
# Of all units, or none would be left to learn from.
Dropout = Annotated[float, Range(0, 0.99)]
# What NumPy and Keras take.
Seed = Annotated[int, Range(0, 2**32 - 1)]
# Larger ones only let `length ** length_penalty` overflow.
LengthPenalty = Annotated[float, Range(0, 10)]


def check_ranges(config):
    """Raise a `UserError` for a number that an option of a dataclass may not have."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value)
        for allowed in _ranges(hints[name]):
            if value is None:
                continue
            if not math.isfinite(value):
                raise UserError(f"{name} must be a finite number. Received: {value}")
            if not allowed.least <= value <= allowed.most:
                raise UserError(f"{name} must be {allowed}. Received: {value}")


def parsed(commands, argv, read_config, **program):
    """What a command line asks for, as one of the dataclasses of `commands`.

    A `~` begins a path where the shell has left it, as in `--output=~/model`, too.

    Options of a model that are not given are those of the preset to start from, if any.

    Args:
        commands: Function that returns all commands, as a type; its argument `model`
            is the model of those that train, where nothing is given.
        argv: The arguments; those of the process if `None`.
        read_config: Function from the name of a preset to the configuration of its
            model.
        **program: Those of `tyro.cli`: `prog` and `description`.

    Raises:
        UserError: If a number is out of its range.
    """

    def parse(commands):
        config = _at_home(tyro.cli(commands, args=argv, **program))
        check_ranges(config)
        return config

    config = parse(commands())
    preset = getattr(config, "from_preset", None)
    return parse(commands(model=read_config(preset))) if preset else config


def _at_home(value):
    """A path, or all those in a dataclass or tuple, without `~`."""
    if isinstance(value, Path):
        return value.expanduser()
    if isinstance(value, tuple):
        return tuple(map(_at_home, value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        paths = {name: _at_home(getattr(value, name)) for name in names}
        return dataclasses.replace(value, **paths)
    return value


def _ranges(hint):
    """The `Range`s in a type, or in one of its alternatives."""
    found = [part for part in getattr(hint, "__metadata__", ()) if type(part) is Range]
    for part in typing.get_args(hint):
        found += _ranges(part)
    return found


def check_n_best(n_best, beam_size):
    """Raise a `UserError` if a search cannot give so many."""
    if not 1 <= n_best <= beam_size:
        raise UserError(
            f"n_best must be between 1 and beam_size, {beam_size}. Received: {n_best}"
        )


def check_batch_size(batch_size):
    """Raise a `UserError` for batches that hold nothing."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1. Received: {batch_size}")


def replaced(model, changes, runtime_options):
    """The configuration of a model, but some of its options have other values.

    Args:
        model: The configuration, a dataclass.
        changes: Dict from names of options to values.
        runtime_options: Names of the options that leave its weights as they are.

    Raises:
        UserError: If there is no such option, or it would change the shapes of the
            weights.
    """
    for name, value in changes.items():
        if not hasattr(model, name):
            raise UserError(
                f"expected options of a model, such as {', '.join(runtime_options)}. "
                f"Received: {name!r}"
            )
        if name not in runtime_options and value != getattr(model, name):
            raise UserError(
                f"the model to start from has {name}={getattr(model, name)!r}, which "
                f"cannot be changed. Received: {value!r}"
            )
    return dataclasses.replace(model, **changes)


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """Average the weights of several models that were one, and have learned apart."""

    #: Folder to write.
    output: Positional[Path]
    #: Folders of models.
    models: Positional[tuple[Path, ...]]


@dataclasses.dataclass(frozen=True)
class BeamConfig:
    """How a beam search searches."""

    #: Hypotheses that are kept at every step; 1 is greedy search.
    beam_size: Positive = 5
    #: Hypotheses are ranked by log-probability / length ** length_penalty.
    length_penalty: LengthPenalty = 1.0


@dataclasses.dataclass(frozen=True)
class SearchConfig(BeamConfig):
    """How a beam search searches, and for how many inputs at once."""

    #: Inputs that are worked on together.
    batch_size: Annotated[int, Range(1, 1_000_000)] = 64
