"""Checks of the options that both programs share."""

import dataclasses
import importlib
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from keras_attention_apps.common.cli import CommandParser
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import (
    METADATA,
    REQUIRED,
    Fraction,
    Natural,
    NonNegative,
    Option,
    Positive,
    check_ranges,
    from_json,
    group,
    option,
    replaced,
)


@dataclasses.dataclass(frozen=True)
class Layer:
    units: Positive | None = None
    dropout: Fraction = 0.0


@dataclasses.dataclass(frozen=True)
class Options:
    layer: Layer = dataclasses.field(default_factory=Layer)
    seed: Natural = 0
    penalty: NonNegative = 1.0
    anything: float = -1.0


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(Layer(units=1, dropout=1.0), seed=3, penalty=0.0),
        Options(anything=float("inf")),
    ],
)
def test_numbers_in_range_are_accepted(options):
    check_ranges(options)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            Options(Layer(units=0)),
            "units must be between 1 and 1000000000. R",
        ),
        (Options(Layer(dropout=-0.1)), "dropout must be between 0 and 1. Received"),
        (Options(Layer(dropout=1.1)), "dropout must be between 0 and 1. Received"),
        (Options(seed=-1), "seed must be between 0 and 1000000000. R"),
        (Options(penalty=float("nan")), "penalty must be a finite number. Received: n"),
        (Options(penalty=float("inf")), "penalty must be a finite number. Received: i"),
    ],
)
def test_numbers_out_of_range_are_one_line_errors(options, message):
    with pytest.raises(UserError, match=message):
        check_ranges(options)


@dataclasses.dataclass(frozen=True)
class Stored:
    units: Positive
    kind: Literal["soft", "hard"] = "soft"
    bias: bool = True
    ratio: NonNegative | None = None
    lengths: list[Positive] = dataclasses.field(default_factory=list)
    figures: list[dict[str, float]] = dataclasses.field(default_factory=list)


def test_options_of_a_file_become_a_dataclass():
    config = from_json(
        Stored, {"units": 3, "ratio": 2, "lengths": [5], "figures": [{"loss": 7.5}]}
    )
    assert config == Stored(3, ratio=2, lengths=[5], figures=[{"loss": 7.5}])


@pytest.mark.parametrize(
    "options, message",
    [
        ([], r"expected an object with options. Received: \[\]"),
        ({}, "units is missing"),
        ({"units": 3, "depth": 1}, "there is no option 'depth'"),
        ({"units": "3"}, "units must be an integer. Received: '3'"),
        ({"units": 3.0}, "units must be an integer. Received: 3.0"),
        ({"units": True}, "units must be an integer. Received: True"),
        ({"units": 0}, "units must be between 1 and 1000000000. R"),
        (
            {"units": -(10**400)},
            "units must be between 1 and 1000000000. R",
        ),
        ({"units": 3, "kind": {}}, "kind must be one of soft, hard. Received: {}"),
        ({"units": 3, "kind": "none"}, "kind must be one of soft, hard. Received: 'n"),
        ({"units": 3, "bias": 1}, "bias must be true or false. Received: 1"),
        ({"units": 3, "ratio": "1"}, "ratio must be a number or null. Received: '1'"),
        ({"units": 3, "ratio": math.nan}, "ratio must be a finite number. Received: n"),
        ({"units": 3, "ratio": math.inf}, "ratio must be a finite number. Received: i"),
        ({"units": 3, "lengths": 5}, "lengths must be a list of an integer. Received"),
        (
            {"units": 3, "lengths": [5, 0]},
            "lengths must be between 1 and 1000000000",
        ),
        ({"units": 3, "figures": [3]}, r"figures must be a list of .* Received: \[3\]"),
    ],
)
def test_every_option_of_a_file_is_checked(options, message):
    with pytest.raises(UserError, match=message):
        from_json(Stored, options)


def test_options_of_a_model_are_replaced():
    def change(**changes):
        return replaced(Stored(3, ratio=0.5), changes, ("ratio", "kind", "bias"))

    assert change(ratio=np.float32(0.25), units=np.int64(3)) == Stored(3, ratio=0.25)
    assert change(bias=np.bool_(False), kind=None, units=None) == Stored(
        3, bias=False, ratio=0.5
    )
    # The value in the error has the type of the configuration.
    with pytest.raises(UserError, match=r"fix units=3\. Received: units=4$"):
        change(units=np.int64(4))
    with pytest.raises(UserError, match=r"at least 0\. Received: -1\.0"):
        change(ratio=np.float64(-1))
    with pytest.raises(UserError, match=r"kind, bias\. Received: 'depth'"):
        change(depth=None)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the layers."""

    units: Positive = option(5, "Number of units.")
    dropout: Fraction | None = option(None, "Dropout rate: 5% or more.", rare=True)
    bias: bool = option(True, "Add a bias.")


@dataclasses.dataclass(frozen=True)
class Search:
    """Search.

    A second paragraph.
    """

    beam: Positive | None = option(None, "Beam width.", if_omitted=3)


@dataclasses.dataclass(frozen=True)
class Command:
    """Run."""

    output: Path = option(REQUIRED, "Output folder.")
    others: tuple[Path, ...] = option((), "Other folders.", positional=True)
    kind: Literal["soft", "hard"] = option("soft", "Kind.", aliases=("--kind-of",))
    weights: tuple[NonNegative, ...] = option((), "Weights.")
    data: tuple[Path, ...] = option((), "Data.", repeated=True)
    minimum: float = option(0.0, "Minimum.")
    names: tuple[str, ...] = option(("a", "b"), "Names.", flags=("--name", "-n"))
    model: Sizes = group(Sizes(), prefix="model.")
    search: Search = group(Search())


def parsed(*arguments, options=Command):
    return CommandParser(options=options, prog="program run").config(arguments)


def test_paths_may_begin_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")

    config = parsed("--output=~/model", "~/a", "b~")

    assert config == Command(Path("/home/me/model"), (Path("/home/me/a"), Path("b~")))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        ("a --kind hard b", {"others": (Path("a"), Path("b")), "kind": "hard"}),
        ("--kind-of=hard -", {"others": (Path("-"),), "kind": "hard"}),
        ("--weights 1 0.5 --data a --data b", {"weights": (1, 0.5), "data": "ab"}),
        ("-n x y --name z", {"names": ("z",)}),
        ("--model.units 7", {"model": Sizes(units=7)}),
        ("--model.no-bias", {"model": Sizes(bias=False)}),
        ("--model.no-bias --model.bias", {}),
        ("--model.dropout 0", {"model": Sizes(dropout=0.0)}),
        ("--beam 2", {"search": Search(2)}),
        # Underscores and hyphens are the same in names, but not in values.
        ("--kind_of hard a_b", {"kind": "hard", "others": (Path("a_b"),)}),
        ("-- --kind", {"others": (Path("--kind"),)}),
        ("-- --kind_of -1e-3", {"others": (Path("--kind_of"), Path("-1e-3"))}),
        ("--minimum -1e-3 a", {"minimum": -0.001, "others": (Path("a"),)}),
        ("--minimum -2.5", {"minimum": -2.5}),
    ],
)
def test_arguments_become_a_dataclass(arguments, expected):
    if "data" in expected:
        expected = {**expected, "data": tuple(map(Path, expected["data"]))}

    actual = parsed("--output", "out", *arguments.split())

    assert actual == Command(Path("out"), **expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: --output"),
        ("--output", "--output: expected one argument"),
        (
            "--output o --kind sof",
            "--kind-of/--kind must be one of soft, hard. Re.*f'",
        ),
        (
            "--output o --model.units x",
            "--model.units must be an integer. Received: 'x",
        ),
        (
            "--output o --model.units 0",
            "--model.units must be between 1 and 1000000000. R",
        ),
        (
            "--output o --model.dropout 2",
            "--model.dropout must be between 0 and 1. Re",
        ),
        (
            "--output o --model.dropout nan",
            "--model.dropout must be a finite number. ",
        ),
        ("--output o --weights 1 x", "--weights must be a number. Received: 'x'"),
        (
            "--output o --outptu 3",
            "no option --outptu. Did you mean '--output'",
        ),
        ("--output o --bem=3", "there is no option --bem. Did you mean '--beam'"),
        ("--output o --model.dropuot 3", "--model.dropuot. Did you mean '--model.dro"),
    ],
)
def test_wrong_arguments_are_named_with_what_was_expected(arguments, message):
    with pytest.raises(UserError, match=message):
        parsed(*arguments.split())


def test_arguments_that_no_option_takes_are_an_error():
    with pytest.raises(UserError, match="unexpected argument: 'a'"):
        parsed("--units", "3", "a", options=Sizes)
    with pytest.raises(UserError, match=r"no option -x\. Write -- before arguments"):
        parsed("--output", "o", "-x")


def test_an_instance_gives_other_defaults():
    options = Command(REQUIRED, model=Sizes(units=7))

    assert parsed("--output", "o", options=options).model.units == 7
    with pytest.raises(UserError, match="required: --output"):
        parsed(options=options)


def test_the_help_has_defaults_groups_and_paragraphs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    texts = {
        everything: CommandParser(
            options=Command, prog="program run", text="Run.", everything=everything
        ).format_help()
        for everything in (False, True)
    }

    short = texts[False]
    assert short.startswith(
        "usage: program run [OPTIONS] [OTHERS ...]\n\nRun.\n\n--help"
    )
    for line in (
        "  OTHERS                Other folders.",
        "  --output PATH         Output folder. (required)",
        "                        Kind. (default: soft)",
        "  --weights [FLOAT ...]",
        "  --data PATH           Data. (repeatable)",
        "                        Names. (default: a b)",
        "model options:\n  Sizes of the layers.",
        "  --model.units INT     Number of units. (default: 5)",
        "  --model.bias, --model.no-bias",
        "search options:\n  Search.\n  \n  A second paragraph.",
        "  --beam INT            Beam width. (default: 3)",
    ):
        assert line + "\n" in short, line
    assert "dropout" not in short
    assert "Dropout rate: 5% or more.\n" in texts[True]
    assert "default: )" not in texts[True] and "None" not in texts[True]


@pytest.mark.parametrize("program", ["captioner", "nmt"])
def test_help_has_no_line_breaks_of_the_source(program, monkeypatch, capsys):
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    config = importlib.import_module(f"keras_attention_apps.{program}.config")
    helps = []
    # The help of all options is in one column up to a width of 129.
    for flag, width in (("--help", "1000"), ("--help-all", "129")):
        monkeypatch.setenv("COLUMNS", width)
        with pytest.raises(SystemExit):
            main(["train", flag])
        helps.append(capsys.readouterr().out)
    usual, everything = helps
    # A line of the help may end inside of a number such as 1,000.
    everything = "".join(everything.split())
    options = [
        field.metadata.get(METADATA)
        for kind in (config.TrainConfig, config.ModelConfig)
        for field in dataclasses.fields(kind)
    ]
    texts = [x.text for x in options if isinstance(x, Option)]
    assert len(texts) > 25
    assert [x for x in texts if x.replace(" ", "") not in everything] == []
    assert sum(text in usual for text in texts) > 10


@pytest.mark.parametrize("program", ["captioner", "nmt"])
def test_rare_options_are_in_the_help_of_all_options_alone(program, capsys):
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    helps = []
    # The second call for the short help finds the options as the first did.
    for flag in ("--help", "--help-all", "--help"):
        with pytest.raises(SystemExit):
            main(["train", flag])
        helps.append(capsys.readouterr().out)
    short, everything, again = helps

    assert "--weight-decay" not in short and "--weight-decay" in everything
    assert "--output" in short and "default: None" not in everything
    assert short == again


def test_the_help_of_a_program_has_one_paragraph_for_each_command(capsys):
    main = importlib.import_module("keras_attention_apps.nmt.main").main
    assert main(["--help"]) == 0
    output = capsys.readouterr().out

    assert "Translate sentences" in output and "For example" not in output
