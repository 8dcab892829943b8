"""Options that both programs have, and their validation.

The annotations of a dataclass are its schema: they validate the options of a command
line and those in the files of a model alike.
"""

import builtins
import dataclasses
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Literal

import tyro
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.reading import MAX_BYTES
from tyro.conf import Positional

Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
ModelName = Annotated[str, tyro.conf.arg(aliases=["--preset"])]
Flags = tyro.conf.OmitArgPrefixes


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed range of an option, for its annotation."""

    least: float
    most: float = math.inf

    def __str__(self):
        if self.most < math.inf:
            return f"between {self.least} and {self.most}"
        return f"at least {self.least}"


Positive = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
# Depth of a layer, number of layers and of tokens: more than any machine can train.
MAX_UNITS = 65_536
Units = Annotated[int, Range(1, MAX_UNITS)]
Layers = Annotated[int, Range(1, 100)]
Length = Annotated[int, Range(1, 10_000)]
Share = Annotated[float, Range(0, 1)]
Weight = Annotated[float, Range(0)]
# A rate of 1 would drop everything.
Dropout = Annotated[float, Range(0, 0.99)]
# The range that NumPy and Keras accept.
Seed = Annotated[int, Range(0, 2**32 - 1)]
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
            for number in value if isinstance(value, list) else (value,):
                _check_range(name, number, allowed)


def _check_range(name, value, allowed):
    if value is None:
        return
    if value != value or value in (math.inf, -math.inf):
        raise UserError(f"{name} must be a finite number. Received: {value}")
    if not allowed.least <= value <= allowed.most:
        raise UserError(f"{name} must be {allowed}. Received: {value!s:.60}")


def from_json(kind, options):
    """Return a dataclass from a dict as JSON holds it, validated.

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
            expected = _described(hints[name])
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


def _described(hint):
    """Return the name of a type in JSON."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(parts)}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_described, parts))
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
    return f"{expected} of {_described(parts[-1])}" if parts else expected


def parsed(commands, argv, read_config, **program):
    """Parse a command line into one of the dataclasses of `commands`.

    A leading `~` of a path is expanded, also in `--output=~/model`, which the shell
    leaves as it is. With `--from-preset`, the options of the preset's model are the
    defaults.

    Args:
        commands: Function that returns all commands as a type; its argument `model` is
            the default model of the commands that train.
        argv: The arguments; `sys.argv[1:]` if `None`.
        read_config: Function from the name of a preset to the configuration of its
            model.
        **program: `prog` and `description`, as for `tyro.cli`.

    Raises:
        UserError: If a number is out of its range.
    """

    def parse(commands):
        config = _expanded(tyro.cli(commands, args=argv, **program))
        check_ranges(config)
        return config

    config = parse(commands())
    preset = getattr(config, "from_preset", None)
    return parse(commands(model=read_config(preset))) if preset else config


def _expanded(value):
    """Return a value with `~` expanded in all its paths."""
    if isinstance(value, Path):
        return value.expanduser()
    if isinstance(value, tuple):
        return tuple(map(_expanded, value))
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        paths = {name: _expanded(getattr(value, name)) for name in names}
        return dataclasses.replace(value, **paths)
    return value


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
        changes: Dict from names of options to values.
        runtime_options: Names of the options that do not change its weights.

    Raises:
        UserError: If there is no such option, or it would change the weights.
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
class ReadingConfig:
    """Reading of files."""

    #: Maximum size in bytes of a file that is read as a whole, of a line, and of the
    #: weights of a model.
    max_bytes: Positive = MAX_BYTES


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """Average the weights of several models, such as epochs of one training."""

    #: Output folder.
    output: Positional[Path]
    #: Folders of the models.
    models: Positional[tuple[Path, ...]]
    reading: Flags[ReadingConfig] = dataclasses.field(default_factory=ReadingConfig)


@dataclasses.dataclass(frozen=True)
class BeamConfig:
    """Options of the beam search."""

    #: Beam width: number of hypotheses kept at each step; 1 is greedy search.
    beam_size: Positive = 5
    #: Length penalty: hypotheses are ranked by log-probability / length ** penalty.
    length_penalty: LengthPenalty = 1.0


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """Options of the beam search, and the batch size."""

    #: Beam width: number of hypotheses kept at each step; 1 is greedy search. By
    #: default 5, or that of a LiteRT file.
    beam_size: Positive | None = None
    #: Length penalty: hypotheses are ranked by log-probability / length ** penalty. By
    #: default 1.0, or that of a LiteRT file.
    length_penalty: LengthPenalty | None = None
    #: Batch size.
    batch_size: Annotated[int, Range(1, 1_000_000)] = 64

    @property
    def beam(self):
        """Dict of the options of the beam search that were given."""
        given = dataclasses.asdict(self)
        given.pop("batch_size")
        return {name: value for name, value in given.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """The runtime of the model."""

    #: litert: the LiteRT file of the model, which starts in half a second. keras:
    #: Keras, which is faster for many inputs. auto: litert for few inputs, if the model
    #: has a file with these options.
    runtime: Literal["auto", "litert", "keras"] = "auto"
    #: Number of threads of LiteRT; by default one per processor.
    threads: Positive | None = None


@dataclasses.dataclass(frozen=True)
class ServerConfig:
    """Address and limits of the web interface."""

    #: Address to listen on. With an address other than 127.0.0.1, other computers in
    #: the network can use the page, without a password.
    host: str = "127.0.0.1"
    #: Port; 0 chooses a free one.
    port: Annotated[int, Range(0, 65535)] = 7860
    #: Maximum size of an upload in megabytes.
    max_megabytes: Annotated[int, Range(1, 1000)] = 20
    #: Maximum number of waiting requests; further ones are refused.
    max_queue: Positive = 64


Format = Literal["savedmodel", "litert"]
Quantize = Literal["float16", "int8", "none"]


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Output and format of an export."""

    #: Output folder of a SavedModel, or output file of LiteRT.
    output: Positional[Path]
    #: Format; by default litert for a name that ends in .tflite, savedmodel for others.
    format: Format | None = None
    #: Precision of the weights in a LiteRT file: float16; int8, with eight bits for the
    #: matrices of dense layers; or none, which leaves them unchanged.
    quantize: Quantize = "float16"
