"""Checks of the options that both programs share."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest
import tyro
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.config import (
    Natural,
    Positive,
    Share,
    Weight,
    check_ranges,
    parsed,
)


@dataclasses.dataclass(frozen=True)
class Layer:
    units: Positive | None = None
    dropout: Share = 0.0


@dataclasses.dataclass(frozen=True)
class Options:
    layer: Layer = dataclasses.field(default_factory=Layer)
    seed: Natural = 0
    penalty: Weight = 1.0
    anything: float = -1.0


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(Layer(units=1, dropout=1.0), seed=3, penalty=0.0),
        Options(anything=float("inf")),
    ],
)
def test_numbers_that_options_may_have_pass(options):
    check_ranges(options)


@pytest.mark.parametrize(
    "options, said",
    [
        (Options(Layer(units=0)), "units must be at least 1. Received: 0"),
        (Options(Layer(dropout=-0.1)), "dropout must be between 0 and 1. Received"),
        (Options(Layer(dropout=1.1)), "dropout must be between 0 and 1. Received"),
        (Options(seed=-1), "seed must be at least 0. Received: -1"),
        (Options(penalty=float("nan")), "penalty must be a finite number. Received: n"),
        (Options(penalty=float("inf")), "penalty must be a finite number. Received: i"),
    ],
)
def test_others_get_one_clear_line(options, said):
    with pytest.raises(UserError, match=said):
        check_ranges(options)


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
def test_help_is_not_broken_where_the_source_is(program, monkeypatch, capsys):
    main = importlib.import_module(f"keras_attention_apps.{program}.main").main
    config = importlib.import_module(f"keras_attention_apps.{program}.config")
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        main(["train", "--help"])

    told = capsys.readouterr().out
    source = inspect.getsource(config.TrainConfig)
    texts = re.findall(r"(?:^    #: .*\n)+", source, re.MULTILINE)
    assert len(texts) > 25
    for text in texts:
        assert " ".join(text.replace("#:", " ").split()) in told
