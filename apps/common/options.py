"""Options that both programs share: ranges, texts, defaults and their parsing.

The annotations of a dataclass validate the options of a command line, and those in the
files of a model.
"""

import builtins
import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import tyro
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import MAX_BYTES, expanded, is_litert
from tyro.conf import Positional

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True, repr=False)
class Range:
    """The allowed range of an option, for its annotation."""

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        if self.most == math.inf:
            return f"at least {self.least}"
        if self.least == -math.inf:
            return f"at most {self.most}"
        return f"between {self.least} and {self.most}"

    # In tyro's message for what is not a number.
    __repr__ = __str__


Positive = Annotated[int, Range(1)]
Natural = Annotated[int, Range(0)]
# Depth of a layer, number of layers and of tokens: more than any machine can train.
MAX_UNITS, MAX_LENGTH = 65_536, 10_000
Units = Annotated[int, Range(1, MAX_UNITS)]
Layers = Annotated[int, Range(1, 100)]

Length = Annotated[int, Range(1, MAX_LENGTH)]
Fraction = Annotated[float, Range(0, 1)]
NonNegative = Annotated[float, Range(0)]
# With a momentum of 1, an average never changes.
Momentum = Annotated[float, Range(0, 0.99999)]
# A rate of 1 would drop everything.
Dropout = Annotated[float, Range(0, 0.99)]
# Hypotheses kept at each step. A larger one is most likely a mistake.
BeamSize = Annotated[int, Range(1, 1000)]
BatchSize = Annotated[int, Range(1, 1_000_000)]
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


def check_ranges(config: object) -> None:
    """Raise a `UserError` if an option of a dataclass is out of its range."""
    hints = typing.get_type_hints(type(config), include_extras=True)
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            check_ranges(value)
        for allowed in _ranges(hints[name]):
            for number in value if isinstance(value, (list, tuple)) else (value,):
                if number is None:
                    continue
                if number != number or abs(number) == math.inf:
                    raise UserError(
                        f"{name} must be a finite number. Received: {number}"
                    )
                if not allowed.least <= number <= allowed.most:
                    raise UserError(
                        f"{name} must be {allowed}. Received: {number!s:.60}"
                    )


def from_json(kind: type[Config], options: Any) -> Config:
    """Return a dataclass from a dict that was read from JSON, and validate it."""
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


def _fits(hint: Any, value: Any) -> bool:
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


def described(hint: Any) -> str:
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


def _ranges(hint: Any) -> list[Range]:
    """Return the `Range`s in a type, or in the types of a union."""
    found = [part for part in getattr(hint, "__metadata__", ()) if type(part) is Range]
    for part in typing.get_args(hint):
        found += _ranges(part)
    return found


def replaced(
    model: Config, changes: dict[str, Any], runtime_options: Iterable[str]
) -> Config:
    """Return the configuration of a model with some options replaced."""
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
        given[name] = value = value.item() if hasattr(value, "item") else value
        if name not in runtime_options and value != getattr(model, name):
            raise UserError(
                f"the weights fix {name}={getattr(model, name)!r}. "
                f"Received: {name}={value!r}"
            )
    return from_json(type(model), {**dataclasses.asdict(model), **given})


def with_defaults(
    config: Config, defaults: dict[str, Any], few: str | None = None
) -> Config:
    """Return a dataclass in which defaults replace `None`.

    `few` describes the examples of a preset that learns gently from them; the defaults
    are then printed.
    """
    missing = {
        name: value
        for name, value in defaults.items()
        if vars(config).get(name, name) is None
    }
    if few:
        values = ", ".join(f"{name} {value}" for name, value in missing.items())
        print(f"{few} are few for a preset. {values}")
    return dataclasses.replace(config, **missing)


T = TypeVar("T")
# Marks an option that --help leaves out, and --help-all shows.
RARE = object()
Rare = Annotated[T, RARE]


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Options of the beam search. A LiteRT file has its own, which are fixed.

    `None` stands for the value in `defaults`.
    """

    defaults: ClassVar = {
        "beam_size": 5,
        "length_penalty": 1.0,
        "beam_groups": 1,
        "diversity_penalty": 0.5,
    }

    #: Beam width: number of hypotheses kept at each step; 1 is greedy search.
    beam_size: BeamSize | None = None
    #: Length penalty: hypotheses are ranked by log-probability / length ** penalty.
    length_penalty: LengthPenalty | None = None
    #: Diverse beam search: number of groups, a divisor of the beam width. Each group
    #: avoids the tokens of the groups before it, so the hypotheses differ more. 1 is
    #: standard beam search.
    beam_groups: Rare[Positive | None] = None
    #: Diversity penalty of diverse beam search.
    diversity_penalty: Rare[NonNegative | None] = None

    @property
    def given(self) -> dict[str, Any]:
        """Dict of the options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def complete(self) -> dict[str, Any]:
        """Dict of all options: those that were given, and the defaults of the rest."""
        search = {**vars(self), **self.defaults, **self.given}
        beam_size, groups = search["beam_size"], search["beam_groups"]
        if groups < 1 or beam_size % groups:
            raise UserError(
                f"beam_groups must divide beam_size, {beam_size}. Received: {groups}"
            )
        return search


Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
ModelName = Annotated[str, tyro.conf.arg(name="model", aliases=["--preset"])]
Flags = tyro.conf.OmitArgPrefixes[T]


def parsed(
    commands: Callable, argv: Sequence[str], read_config: Callable, **program: Any
) -> Any:
    """Parse a command line into one of the dataclasses of `commands`.

    A leading `~` of a path is expanded, also in `--output=~/model`, which the shell
    leaves as it is. With `--from-preset`, the options of the preset's model are the
    defaults.
    """
    arguments = ["--help" if x == "--help-all" else x for x in argv]

    def parse(commands):
        program["config"] = (tyro.conf.DisallowNone,)
        with contextlib.ExitStack() as stack:
            if not {"-h", "--help"}.isdisjoint(arguments):
                stack.enter_context(_shown_options(commands, "--help-all" in argv))
            config = _expanded(tyro.cli(commands, args=arguments, **program))
        check_ranges(config)
        _check_effects(config)
        return config

    config = parse(commands())
    preset = getattr(config, "from_preset", None)
    return parse(commands(model=read_config(preset))) if preset else config


@contextlib.contextmanager
def _shown_options(commands, everything):
    """Hide rare options from the help, unless it shows everything, and None.

    The annotations of the dataclasses, which describe the help, change in the context.
    """
    changed = []
    kinds = _dataclasses(commands)
    searches = [x for x in kinds if issubclass(x, SearchOptions)]
    # That of the program: it has all fields.
    search = max(searches, key=lambda x: len(dataclasses.fields(x)), default=None)
    defaults = search().complete if search else {}
    for kind in kinds:
        hints = vars(kind).get("__annotations__", {})
        for name, hint in hints.items():
            known = getattr(hint, "__metadata__", ())
            marks = [tyro.conf.Suppress] if RARE in known and not everything else []
            has_arg = any(type(x).__name__ == "_ArgConfig" for x in known)
            if getattr(kind, name, ...) is None and not has_arg:
                shown = defaults.get(name) if issubclass(kind, SearchOptions) else None
                default = "" if shown is None else f"(default: {shown})"
                marks.append(tyro.conf.arg(help_behavior_hint=default))
            if marks:
                changed.append((hints, name, hint))
                hints[name] = Annotated[(hint, *marks)]
    try:
        yield
    finally:
        for hints, name, hint in changed:
            hints[name] = hint


def _dataclasses(hint):
    """Return the set of the dataclasses in a type, their bases and their fields."""
    found = set()
    for part in typing.get_args(hint):
        found |= _dataclasses(part)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        for base in filter(dataclasses.is_dataclass, hint.__mro__):
            found.add(base)
            for inner in vars(base).get("__annotations__", {}).values():
                found |= _dataclasses(inner)
    return found


# Options that have an effect only together with others: what they need, and a function
# from the dataclass of the option to whether it is given.
_SEARCH_NEEDS = {
    "diversity_penalty": ("--beam-groups", lambda x: x.beam_groups not in (None, 1))
}
_RUNTIME_NEEDS = {"threads": ("the runtime litert", lambda x: x.runtime != "keras")}
_BULK_NEEDS = dict.fromkeys(
    ("address", "actors", "part_size", "column", "id_column", "maps"),
    ("--engine ray", lambda x: x.engine == "ray"),
)


def check_needs(config, needs, prefix="", defaults=()):
    """Raise a `UserError` for an option that has no effect with the other ones.

    An option with its default counts as not given.
    """
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        expected, is_satisfied = needs.get(name, (None, lambda config: True))
        is_default = value in (field.default, dict(defaults).get(name))
        if not is_default and not is_satisfied(config):
            flag = f"--{prefix}{name.replace('_', '-')}"
            raise UserError(f"{flag} needs {expected}. Received: {value!r}")


def _check_effects(config):
    """Raise a `UserError` for a shared option that has no effect."""
    if hasattr(config, "bulk"):
        check_needs(config.bulk, _BULK_NEEDS)
    given = hasattr(config, "search") and config.search != type(config.search)()
    runtime = getattr(config, "runtime", RuntimeConfig()).runtime
    # A LiteRT file may have groups.
    if given and not is_litert(config.model.name) and runtime != "litert":
        check_needs(config.search, _SEARCH_NEEDS)
    # With Ray, an actor on Keras reserves as many processors as there are threads.
    is_local = not hasattr(config, "bulk") or config.bulk.engine == "local"
    if hasattr(config, "runtime") and is_local:
        check_needs(config.runtime, _RUNTIME_NEEDS)


def _expanded(value):
    """Return a value with `~` expanded in all its paths."""
    if isinstance(value, Path):
        return expanded(value)
    if isinstance(value, tuple):
        return tuple(map(_expanded, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        paths = {name: _expanded(x) for name, x in vars(value).items()}
        return dataclasses.replace(value, **paths)
    return value


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """Reading of files."""

    #: Size limit in bytes of each file, each line of a file, and each model that is
    #: read.
    max_bytes: Rare[Positive] = MAX_BYTES


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """Devices and hosts of a training."""

    #: Data-parallel training on all devices: the GPUs if there are any. Every device
    #: draws the samples of self-critical training for the whole batch.
    distribute: bool = False
    #: Data-parallel training on several hosts, on JAX: the addresses host:port of all
    #: processes, separated by commas, the coordinator first; or auto in a cluster that
    #: JAX detects, such as Slurm. The same command is started on every host, and all of
    #: them share the output folder.
    hosts: Rare[str | None] = None
    #: Index of this process in --hosts, from 0.
    host_index: Rare[Natural | None] = None


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """Options of a training that both programs have."""

    resumes = True

    #: Weights of the data sets, one number for each --data: how often an epoch goes
    #: through the data set. 2 is twice, 0.5 another random half in every epoch. 1 each
    #: by default.
    data_weights: Rare[tuple[Weight, ...]] = ()
    #: Momentum of the EMA of the weights, which is validated and saved (0 disables it).
    #: By default it averages over two epochs, but at most 500 steps in captioner and
    #: 1,000 in nmt. In the self-critical training of nmt it is at most 0.98.
    ema_momentum: Rare[Momentum | None] = None
    #: Softmax temperature for sampling in self-critical training. Below 1, samples are
    #: closer to the beam-search result.
    self_critical_temperature: Rare[Annotated[float, Range(0.1, 10)]] = 0.5
    #: Weight decay of AdamW.
    weight_decay: Rare[NonNegative] = 0.01
    #: Label smoothing.
    label_smoothing: Rare[Annotated[float, Range(0, 0.99)]] = 0.1
    #: Gradient clipping: maximum global norm (0 disables it).
    clip_norm: Rare[NonNegative] = 5.0
    #: Precision of the computation; the weights are always float32. Half precision is
    #: faster on hardware that supports it.
    precision: Precision = "float32"
    #: Random seed.
    seed: Seed = 0
    devices: Flags[DevicesConfig] = DevicesConfig()
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """Average the weights of several models.

    They were trained from the same model. Each is a folder, such as OUTPUT/model of a
    training. Options on which the weights do not depend, such as dropout rates, may
    differ; the average has those of the first model.
    """

    #: Output folder.
    output: Positional[Path]
    #: Folders of the models, at least one.
    models: Positional[tuple[Path, ...]]
    reading: Flags[ReadingConfig] = ReadingConfig()


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """The runtime of the model."""

    #: litert: the LiteRT file of the model, which starts in half a second. keras:
    #: Keras, which computes in batches and uses GPUs. auto: litert if the model has a
    #: LiteRT file and the command changes neither its options nor those of the search;
    #: otherwise, and for evaluation, keras. On Ray, auto is keras on GPUs.
    runtime: Literal["auto", "litert", "keras"] = "auto"
    #: Number of threads of LiteRT. By default one per processor; on Ray, one per actor.
    threads: Rare[Positive | None] = None


@dataclasses.dataclass(frozen=True)
class BulkConfig:
    """Bulk inference with Ray; see docs/scale.md.

    All other options of this group need --engine ray.
    """

    #: local: this process. ray: Ray Data, which distributes the inputs to actors with
    #: one model each, on this machine or on a cluster. It also reads URIs, such as
    #: s3://bucket/folder, nested folders, and Parquet. --output is then a folder of
    #: parts, whose name ends in .parquet or .jsonl. The same command resumes an
    #: interrupted job, and retries inputs with an error.
    engine: Literal["local", "ray"] = "local"
    #: Address of the Ray cluster, or auto; by default one is started on this machine.
    address: Rare[str | None] = None
    #: Number of actors, which start at once; by default as many as the processors or
    #: GPUs of the cluster allow. Set it for a cluster with autoscaling.
    actors: Rare[Positive | None] = None
    #: Number of rows in a part of the output.
    part_size: Rare[Positive] = 1024
    #: Column of the images or sentences in a Parquet input. By default the column
    #: bytes for captioner, and text for nmt.
    column: Rare[str | None] = None
    #: Column of a Parquet input with a unique id of each row.
    id_column: Rare[str] = "id"
    #: Add the attention maps to the output.
    maps: Rare[bool] = False


@dataclasses.dataclass(frozen=True)
class LimitsConfig:
    """Port and limits of a server."""

    #: Port; 0 chooses a free one.
    port: Annotated[int, Range(0, 65535)] = 7860
    #: Maximum size of an upload in megabytes.
    max_megabytes: Rare[Annotated[int, Range(1, 1000)]] = 20
    #: Maximum number of waiting requests; further ones are refused.
    max_queue: Rare[Positive] = 64


@dataclasses.dataclass(frozen=True)
class ServerConfig(LimitsConfig):
    """Address and limits of the web interface."""

    #: Address to listen on. With an address other than 127.0.0.1, other computers in
    #: the network can use the page: there is no login without --password-file.
    host: str = "127.0.0.1"
    #: File whose first line is the password of the page. The browser asks for it, with
    #: any user name.
    password_file: Path | None = None


@dataclasses.dataclass(frozen=True)
class RestConfig(LimitsConfig):
    """Address and limits of a REST server."""

    #: Address to listen on. With an address other than 127.0.0.1, other computers in
    #: the network can use the server: every client can without --api-keys.
    host: str = "127.0.0.1"
    #: File with an API key of at least 16 characters in every line; empty lines and
    #: those that begin with # are skipped. Requests need one of the keys.
    api_keys: Path | None = None
    #: Maximum number of requests of a client in a minute; a client is an API key or,
    #: without keys, an address. By default there is no maximum.
    requests_per_minute: Positive | None = None
    #: Web pages of these addresses may use the server, such as https://example.org; *
    #: stands for all. By default requests of web pages are refused.
    allow_origin: Rare[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class CalibrationOptions:
    """Options of a calibration that both programs have."""

    #: Preset, folder of a trained model, or LiteRT file, which is changed.
    model: Positional[str]
    #: Folder of the validation data, which the model is for.
    data: Path | None = None
    #: Folder of data that the model is not for. The threshold below which the model is
    #: unsure is fitted to separate both. Without it, the threshold is the 2% quantile
    #: of the validation data.
    out_of_domain: Path | None = None
    #: Purpose of the model in one line, which --help and the web interface show.
    purpose: str | None = None
    #: Batch size.
    batch_size: BatchSize = 64
    runtime: Flags[RuntimeConfig] = RuntimeConfig()
    reading: Flags[ReadingConfig] = ReadingConfig()


Quantize = Literal["float16", "int8", "none"]


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Output and format of an export."""

    #: Output file of LiteRT, whose name ends in .tflite, or output folder of a
    #: SavedModel.
    output: Positional[Path]
    #: Precision of the weights in a LiteRT file. int8: the default; eight bits for
    #: dense layers and the embeddings that share their matrices, and float16 for
    #: convolutions. float16: larger and slower. none: unchanged.
    quantize: Quantize | None = None
