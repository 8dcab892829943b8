"""Checks of the options that both programs share."""

import dataclasses
import importlib
import inspect
import math
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import tyro
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import (
    Fraction,
    Natural,
    NonNegative,
    Positive,
    check_ranges,
    from_json,
    parsed,
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
        (Options(Layer(units=0)), "units must be at least 1. Received: 0"),
        (Options(Layer(dropout=-0.1)), "dropout must be between 0 and 1. Received"),
        (Options(Layer(dropout=1.1)), "dropout must be between 0 and 1. Received"),
        (Options(seed=-1), "seed must be at least 0. Received: -1"),
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
    found = from_json(
        Stored, {"units": 3, "ratio": 2, "lengths": [5], "figures": [{"loss": 7.5}]}
    )
    assert found == Stored(3, ratio=2, lengths=[5], figures=[{"loss": 7.5}])


@pytest.mark.parametrize(
    "options, message",
    [
        ([], r"expected an object with options. Received: \[\]"),
        ({}, "units is missing"),
        ({"units": 3, "depth": 1}, "there is no option 'depth'"),
        ({"units": "3"}, "units must be an integer. Received: '3'"),
        ({"units": 3.0}, "units must be an integer. Received: 3.0"),
        ({"units": True}, "units must be an integer. Received: True"),
        ({"units": 0}, "units must be at least 1. Received: 0"),
        ({"units": -(10**400)}, "units must be at least 1. Received: -1000"),
        ({"units": 3, "kind": {}}, "kind must be one of soft, hard. Received: {}"),
        ({"units": 3, "kind": "none"}, "kind must be one of soft, hard. Received: 'n"),
        ({"units": 3, "bias": 1}, "bias must be true or false. Received: 1"),
        ({"units": 3, "ratio": "1"}, "ratio must be a number or null. Received: '1'"),
        ({"units": 3, "ratio": math.nan}, "ratio must be a finite number. Received: n"),
        ({"units": 3, "ratio": math.inf}, "ratio must be a finite number. Received: i"),
        ({"units": 3, "lengths": 5}, "lengths must be a list of an integer. Received"),
        ({"units": 3, "lengths": [5, 0]}, "lengths must be at least 1. Received: 0"),
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
class Folders:
    output: Path
    others: tyro.conf.Positional[tuple[Path, ...]] = ()
    optional: Path | None = None


@dataclasses.dataclass(frozen=True)
class Command:
    folders: tyro.conf.OmitArgPrefixes[Folders]


def test_paths_may_begin_at_home(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")

    found = parsed(lambda: Command, ["--output=~/model", "~/a", "b~"], None)

    expected = Folders(Path("/home/me/model"), (Path("/home/me/a"), Path("b~")))
    assert found == Command(expected)


@pytest.mark.parametrize("program", ["captioner", "nmt"])
def test_help_has_no_line_breaks_of_the_source(program, monkeypatch, capsys):
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    config = importlib.import_module(f"keras_attention_apps.{program}.config")
    shown = []
    # The help of all options is in one column up to a width of 129.
    for flag, width in (("--help", "1000"), ("--help-all", "129")):
        monkeypatch.setenv("COLUMNS", width)
        with pytest.raises(SystemExit):
            main(["train", flag])
        shown.append(capsys.readouterr().out)
    usual, everything = shown
    # A line of the help may end inside of a number such as 1,000.
    everything = "".join(everything.replace("│", " ").split())
    classes = [*config.TrainConfig.__mro__[:-1], config.ModelConfig]
    source = "".join(map(inspect.getsource, classes))
    texts = re.findall(r"(?:^    #: .*\n)+", source, re.MULTILINE)
    assert len(texts) > 25
    texts = [" ".join(text.replace("#:", " ").split()) for text in texts]
    assert [x for x in texts if x.replace(" ", "") not in everything] == []
    assert sum(text in usual for text in texts) > 10


@pytest.mark.parametrize("program", ["captioner", "nmt"])
def test_rare_options_are_in_the_help_of_all_options_alone(program, capsys):
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    shown = []
    # The second call for the short help finds the options as the first did.
    for flag in ("--help", "--help-all", "--help"):
        with pytest.raises(SystemExit):
            main(["train", flag])
        shown.append(capsys.readouterr().out)
    short, everything, again = shown

    assert "--weight-decay" not in short and "--weight-decay" in everything
    assert "--output" in short and "default: None" not in everything
    assert short == again


def test_the_help_of_a_program_has_one_paragraph_for_each_command(capsys):
    main = importlib.import_module("keras_attention_apps.nmt.main").main
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out

    assert "Translate sentences" in shown and "For example" not in shown
