"""Options as fields of dataclasses, and groups of those that both programs have.

The annotation of a field has the type of an option and its range, which are checked on
the command line and in the files of a model. `option` adds how the option appears on
the command line.
"""

import builtins
import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import MAX_BYTES, is_litert

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed range of an option, for its annotation."""

    minimum: float
    maximum: float = math.inf

    def __str__(self) -> str:
        if self.maximum == math.inf:
            return f"at least {self.minimum}"
        if self.minimum == -math.inf:
            return f"at most {self.maximum}"
        return f"between {self.minimum} and {self.maximum}"

    def check(self, number: float) -> None:
        """Raise a `UserError` if a number is out of the range."""
        if number != number or abs(number) == math.inf:
            raise UserError(f"must be a finite number. Received: {number}")
        if not self.minimum <= number <= self.maximum:
            raise UserError(f"must be {self}. Received: {number!s:.60}")


# Larger numbers are mistakes, and overflow in the libraries that receive them.
MAX_NUMBER = 1_000_000_000
Positive = Annotated[int, Range(1, MAX_NUMBER)]
Natural = Annotated[int, Range(0, MAX_NUMBER)]
# Each one is a thread of the system.
Threads = Annotated[int, Range(1, 1024)]
# A file of a terabyte.
Bytes = Annotated[int, Range(1, 10**12)]
# Depth of a layer, number of layers and of tokens: more than any machine can train.
MAX_UNITS, MAX_LENGTH = 65_536, 10_000
Units = Annotated[int, Range(1, MAX_UNITS)]
MAX_LAYERS = 100
Layers = Annotated[int, Range(1, MAX_LAYERS)]

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


def check_ranges(config: Any) -> None:
    """Raise a `UserError` if an option of a dataclass is out of its range."""
    allowed = _ranges_of(config.__class__)
    for name, value in vars(config).items():
        if dataclasses.is_dataclass(value):
            check_ranges(value)
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if name not in allowed or number is None:
                continue
            try:
                allowed[name].check(number)
            except UserError as error:
                raise UserError(f"{name} {error}") from None


@functools.cache
def _ranges_of(kind):
    """Return the `Range`s of the options of a dataclass, by name."""
    values = {field.name: values_of(field.type) for field in dataclasses.fields(kind)}
    return {name: x.range for name, x in values.items() if x and x.range}


@dataclasses.dataclass(frozen=True)
class Values:
    """The values of an option: their type, and how many there are.

    Attributes:
        type: `str`, `int`, `float`, `bool` or `Path`.
        choices: The values of a `Literal`.
        range: The `Range` of a number.
        are_many: Whether the option has any number of values.
    """

    type: type
    choices: tuple[str, ...] = ()
    range: Range | None = None
    are_many: bool = False


def _values_of(hint):
    """Return the `Values` of an annotation, or `None` for another type, as in JSON."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return Values(str, choices=parts)
        case typing.Annotated:
            ranges = [part for part in parts[1:] if isinstance(part, Range)]
            return Values(parts[0], range=ranges[0] if ranges else None)
        case typing.Union | types.UnionType:
            others = [part for part in parts if part is not type(None)]
            return _values_of(others[0]) if len(others) == 1 else None
        case builtins.tuple | builtins.list:
            each = _values_of(parts[0])
            return each and dataclasses.replace(each, are_many=True)
    return Values(hint) if hint in (str, int, float, bool, Path) else None


values_of: Callable[[Any], Values | None] = functools.cache(_values_of)


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
    config = kind(**options)
    check_ranges(config)
    return config


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a value from JSON is of the annotated type."""
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            return type(value) is str and value in parts
        case typing.Union | types.UnionType:
            return any(map(functools.partial(_fits, value=value), parts))
        case builtins.list:
            return type(value) is list and all(
                map(functools.partial(_fits, parts[0]), value)
            )
        case builtins.dict:
            return type(value) is dict and all(
                map(functools.partial(_fits, parts[1]), value.values())
            )
    if hint is float and type(value) is int:
        # Integers of JSON have no limit, and arithmetic with greater ones fails.
        return abs(value) <= sys.float_info.max
    return type(value) is hint


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


def replaced(
    model: Config, changes: dict[str, Any], runtime_options: Iterable[str]
) -> Config:
    """Return the configuration of a model with some options replaced."""
    replaced = {}
    for name, value in changes.items():
        if not hasattr(model, name):
            raise UserError(
                f"expected options of a model, such as {', '.join(runtime_options)}. "
                f"Received: {name!r}"
            )
        if value is None:
            continue
        # A scalar of NumPy, which is not imported here: commands start faster without.
        replaced[name] = value = value.item() if hasattr(value, "item") else value
        if name not in runtime_options and value != getattr(model, name):
            raise UserError(
                f"the weights fix {name}={getattr(model, name)!r}. "
                f"Received: {name}={value!r}"
            )
    return from_json(type(model), {**dataclasses.asdict(model), **replaced})


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


# The default of an option that must be given.
REQUIRED: Any = dataclasses.MISSING
# Key of the metadata of a field: its `Option` or `Group`.
METADATA = "option"


@dataclasses.dataclass(frozen=True)
class Option:
    """How a field appears on the command line; see `option`."""

    text: str
    flags: tuple[str, ...]
    aliases: tuple[str, ...]
    rare: bool
    positional: bool
    repeated: bool
    default_text: str | None
    if_omitted: Any


def option(
    default: Any,
    text: str,
    *,
    flags: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    rare: bool = False,
    positional: bool = False,
    repeated: bool = False,
    default_text: str | None = None,
    if_omitted: Any = None,
) -> Any:
    """Declare an option as a field of a dataclass.

    Args:
        default: Its default, or `REQUIRED`.
        text: Its description in the help.
        flags: Its names; by default that of the field, with hyphens.
        aliases: Further names.
        rare: Whether `--help` leaves it out; `--help-all` shows it.
        positional: Whether it has no name on the command line.
        repeated: Whether each of several values has the name before it.
        default_text: Default in the help; by default that of the option, unless it is
            `None`.
        if_omitted: Value that takes the place of a default of `None`, which only says
            that the option was not given; see `SearchOptions`.
    """
    text = " ".join(text.split())
    declaration = Option(
        text, flags, aliases, rare, positional, repeated, default_text, if_omitted
    )
    return dataclasses.field(default=default, metadata={METADATA: declaration})


def redeclared(kind: type["DataclassInstance"], name: str, **changes: Any) -> Any:
    """Declare an option of a base class again, with another `if_omitted` or `text`."""
    field = kind.__dataclass_fields__[name]
    declaration = dataclasses.replace(field.metadata[METADATA], **changes)
    return dataclasses.field(default=field.default, metadata={METADATA: declaration})


@dataclasses.dataclass(frozen=True)
class Group:
    """How the options of a field that is a dataclass appear; see `group`."""

    prefix: str


def group(default: Any, *, prefix: str = "") -> Any:
    """Declare the options of another dataclass; the prefix begins their names."""
    return dataclasses.field(default=default, metadata={METADATA: Group(prefix)})


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Options of the beam search. A LiteRT file has its own, which are fixed.

    `None` says that an option was not given: the search then has the value of the file,
    or that of `if_omitted`. The defaults of beam width and length penalty are those of
    the program: its `config.py` redeclares both. Of each pair of names in `ordered`,
    the first option must be at most the second one.
    """

    ordered: ClassVar[tuple[tuple[str, str], ...]] = ()

    beam_size: BeamSize | None = option(
        None,
        """Beam size (beam width): number of hypotheses kept at each step; 1 is greedy
        search.""",
    )
    length_penalty: LengthPenalty | None = option(
        None,
        """Length penalty: hypotheses are ranked by log-probability / length **
        penalty.""",
    )
    beam_groups: Positive | None = option(
        None,
        """Diverse beam search: number of groups, a divisor of the beam width. Each
        group avoids the tokens of the groups before it, so the hypotheses differ
        more. 1 is standard beam search.""",
        rare=True,
        if_omitted=1,
    )
    diversity_penalty: NonNegative | None = option(
        None,
        "Diversity penalty of diverse beam search.",
        rare=True,
        if_omitted=0.5,
    )

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return a dict of the values of options that are omitted."""
        fields = dataclasses.fields(cls)
        return {x.name: x.metadata[METADATA].if_omitted for x in fields}

    @property
    def given(self) -> dict[str, Any]:
        """Dict of the options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def complete(self) -> dict[str, Any]:
        """Dict of all options: those that were given, and the defaults of the rest."""
        for lower, upper in self.ordered:
            smallest, largest = getattr(self, lower), getattr(self, upper)
            if smallest is not None and largest is not None and smallest > largest:
                raise UserError(
                    f"{lower} must be at most {upper}, {largest}. Received: {smallest}"
                )
        search = {**self.defaults(), **self.given}
        beam_size, groups = search["beam_size"], search["beam_groups"]
        if groups < 1 or beam_size % groups:
            raise UserError(
                f"beam_groups must divide beam_size, {beam_size}. Received: {groups}"
            )
        return search


Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The model of a command, and the options that change it."""

    changes: ClassVar[tuple[str, ...]] = ("precision",)

    name: str
    precision: Precision = option(
        "float32",
        """Precision of the computation. Half precision is faster on hardware that
        supports it.""",
        rare=True,
    )

    @property
    def options(self) -> dict[str, Any]:
        """Options of the model, as arguments of `Task.from_preset`."""
        values = {name: getattr(self, name) for name in self.changes}
        return {name: value for name, value in values.items() if value is not None}


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
    for name, (expected, is_satisfied) in needs.items():
        # The default of a field is an attribute of the class.
        value, default = getattr(config, name), getattr(type(config), name)
        is_default = value in (default, dict(defaults).get(name))
        if not is_default and not is_satisfied(config):
            flag = f"--{prefix}{name.replace('_', '-')}"
            raise UserError(f"{flag} needs {expected}. Received: {value!r}")


def check_effects(config):
    """Raise a `UserError` for a shared option that has no effect."""
    if hasattr(config, "bulk"):
        check_needs(config.bulk, _BULK_NEEDS)
    has_search_options = (
        hasattr(config, "search") and config.search != type(config.search)()
    )
    runtime = getattr(config, "runtime", RuntimeConfig()).runtime
    # A LiteRT file may have groups.
    if has_search_options and not is_litert(config.model.name) and runtime != "litert":
        check_needs(config.search, _SEARCH_NEEDS)
    # With Ray, an actor on Keras reserves as many processors as there are threads.
    is_local = not hasattr(config, "bulk") or config.bulk.engine == "local"
    if hasattr(config, "runtime") and is_local:
        check_needs(config.runtime, _RUNTIME_NEEDS)


@dataclasses.dataclass(frozen=True)
class ReadingConfig:
    """Reading of files."""

    max_bytes: Bytes = option(
        MAX_BYTES,
        """Size limit in bytes of each file, each line of a file, and each model that
        is read.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class DevicesConfig:
    """Devices and hosts of a training."""

    distribute: bool = option(
        False,
        """Data-parallel training on all devices: the GPUs if there are any. Every
        device draws the samples of self-critical training for the whole batch.""",
    )
    hosts: str | None = option(
        None,
        """Data-parallel training on several hosts, on JAX: the addresses host:port of
        all processes, separated by commas, the coordinator first; or auto in a
        cluster that JAX detects, such as Slurm. The same command is started on every
        host, and all of them share the output folder.""",
        rare=True,
    )
    host_index: Natural | None = option(
        None,
        "Index of this process in --hosts, from 0.",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """Options of a training that are the same in both programs."""

    resumes = True

    data_weights: tuple[Weight, ...] = option(
        (),
        """Sampling weights of the data sets, one number for each --data: how often an
        epoch goes through the data set. 2 is twice, 0.5 another random half in every
        epoch. 1 each by default.""",
        rare=True,
    )
    ema_momentum: Momentum | None = option(
        None,
        """Momentum of the EMA of the weights, which is validated and saved (0
        disables it). By default it averages over two epochs, but at most 500 steps in
        captioner and 1,000 in nmt. In the self-critical training of nmt it is at most
        0.98.""",
        rare=True,
    )
    self_critical_temperature: Annotated[float, Range(0.1, 10)] = option(
        0.5,
        """Softmax temperature for sampling in self-critical training. Below 1,
        samples are closer to the beam-search result.""",
        rare=True,
    )
    weight_decay: NonNegative = option(0.01, "Weight decay of AdamW.", rare=True)
    label_smoothing: Annotated[float, Range(0, 0.99)] = option(
        0.1,
        "Label smoothing.",
        rare=True,
    )
    clip_norm: NonNegative = option(
        5.0,
        "Gradient clipping: maximum global norm (0 disables it).",
        rare=True,
    )
    precision: Precision = option(
        "float32",
        """Precision of the computation; the weights are always float32. Half
        precision is faster on hardware that supports it.""",
    )
    seed: Seed = option(0, "Random seed.")
    tensorboard: bool = option(
        False,
        """Write the metrics of every step and epoch for TensorBoard, too, into
        OUTPUT/tensorboard.""",
    )
    open_report: bool = option(
        False,
        """Open the report in a browser: it shows the curves while the training
        runs.""",
        flags=("--open",),
    )
    devices: DevicesConfig = group(DevicesConfig())
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class AverageConfig:
    """Average the weights of several models.

    They were trained from the same model. Each is a folder, such as OUTPUT/model of a
    training. Options on which the weights do not depend, such as dropout rates, may
    differ; the average has those of the first model.
    """

    output: Path = option(REQUIRED, "Output folder.", positional=True)
    models: tuple[Path, ...] = option(
        REQUIRED,
        "Folders of the models, at least one.",
        positional=True,
    )
    reading: ReadingConfig = group(ReadingConfig())


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """The runtime of the model."""

    runtime: Literal["auto", "litert", "keras"] = option(
        "auto",
        """litert: the LiteRT file of the model, which starts in half a second. keras:
        Keras, which computes in batches and uses GPUs. auto: litert if the model has
        a LiteRT file and the command changes neither its options nor those of the
        search; otherwise keras, as for nmt evaluate. On Ray, auto is keras on GPUs.""",
    )
    threads: Threads | None = option(
        None,
        """Number of threads of LiteRT. By default one per processor; on Ray, one per
        actor.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class BulkConfig:
    """Bulk inference with Ray; see docs/scale.md.

    All other options of this group need --engine ray.
    """

    engine: Literal["local", "ray"] = option(
        "local",
        """local: this process. ray: Ray Data, which distributes the inputs to actors
        with one model each, on this machine or on a cluster. It also reads URIs, such
        as s3://bucket/folder, nested folders, and Parquet. --output is then a folder
        of parts, whose name ends in .parquet or .jsonl. The same command resumes an
        interrupted job, and retries inputs with an error.""",
    )
    address: str | None = option(
        None,
        """Address of the Ray cluster, or auto; by default one is started on this
        machine.""",
        rare=True,
    )
    actors: Positive | None = option(
        None,
        """Number of actors, which start at once; by default as many as the processors
        or GPUs of the cluster allow. Set it for a cluster with autoscaling.""",
        rare=True,
    )
    part_size: Positive = option(
        1024,
        "Number of rows in a part of the output.",
        rare=True,
    )
    column: str | None = option(
        None,
        """Column of the images or sentences in a Parquet input. By default the column
        bytes for captioner, and text for nmt.""",
        rare=True,
    )
    id_column: str = option(
        "id",
        "Column of a Parquet input with a unique id of each row.",
        rare=True,
    )
    maps: bool = option(False, "Add the attention maps to the output.", rare=True)


@dataclasses.dataclass(frozen=True)
class LimitsConfig:
    """Port and limits of a server."""

    port: Annotated[int, Range(0, 65535)] = option(7860, "Port; 0 chooses a free one.")
    max_megabytes: Annotated[int, Range(1, 1000)] = option(
        20,
        "Maximum size of an upload in megabytes.",
        rare=True,
    )
    max_queue: Positive = option(
        64,
        "Maximum number of waiting requests; further ones are refused.",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class ServerConfig(LimitsConfig):
    """Address and limits of the web interface."""

    host: str = option(
        "127.0.0.1",
        """Address to listen on. With an address other than 127.0.0.1, other computers
        in the network can use the page: there is no login without --password-file.""",
    )
    password_file: Path | None = option(
        None,
        """File whose first line is the password of the page, of 16 to 1000 bytes. The
        browser asks for it, with any user name.""",
    )


@dataclasses.dataclass(frozen=True)
class RestConfig(LimitsConfig):
    """Address and limits of a REST server."""

    host: str = option(
        "127.0.0.1",
        """Address to listen on. With an address other than 127.0.0.1, other computers
        in the network can use the server: every client can without --api-keys.""",
    )
    api_keys: Path | None = option(
        None,
        """File with an API key of 16 to 1000 bytes in every line; empty lines and
        those that begin with # are skipped. Requests need one of the keys.""",
    )
    requests_per_minute: Positive | None = option(
        None,
        """Maximum number of requests of a client in a minute; a client is an API key
        or, without keys, an address. By default there is no maximum.""",
    )
    allow_origin: tuple[str, ...] = option(
        (),
        """Web pages of these addresses may use the server, such as
        https://example.org; * stands for all. By default requests of web pages are
        refused.""",
        rare=True,
    )


@dataclasses.dataclass(frozen=True)
class CalibrationOptions:
    """Options of a calibration that are the same in both programs."""

    model: str = option(
        REQUIRED,
        "Preset, folder of a trained model, or LiteRT file, which is changed.",
        positional=True,
    )
    data: tuple[Path, ...] = option(
        (),
        """Folder of validation data with references, which the model is for. Several,
        best of different domains, are given as --data first --data second.""",
        repeated=True,
    )
    out_of_domain: Path | None = option(
        None,
        "Folder of data that the model is not for, and of which it shall be unsure.",
    )
    purpose: str | None = option(
        None,
        "Purpose of the model in one line, which --help and the web interface show.",
    )
    batch_size: BatchSize = option(64, "Batch size.")
    runtime: RuntimeConfig = group(RuntimeConfig())
    reading: ReadingConfig = group(ReadingConfig())


Quantize = Literal["float16", "int8", "none"]


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Output and format of an export."""

    output: Path = option(
        REQUIRED,
        """Output file of LiteRT, whose name ends in .tflite, or output folder of a
        SavedModel.""",
        positional=True,
    )
    quantize: Quantize | None = option(
        None,
        """Precision of the weights in a LiteRT file. int8: the default; eight bits
        for dense layers and the embeddings that share their matrices, and float16 for
        convolutions. float16: larger and slower. none: unchanged.""",
    )
