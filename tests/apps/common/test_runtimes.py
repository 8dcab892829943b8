"""Which runtime a program chooses; the models are stand-ins."""

import os
import re
import subprocess
import sys

import pytest

from keras_attention_apps.captioner.config import CaptionSearchOptions
from keras_attention_apps.common import models
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.models import Runtimes, find_litert
from keras_attention_apps.common.options import RuntimeConfig


class Keras:
    """A stand-in for a `Task`."""

    @classmethod
    def from_preset(cls, model, **options):
        return "keras", model, options


class Lite:
    """A stand-in for a `LiteTask` with the default options of the search."""

    presets, noun, options = None, "captioner", None
    search_type = CaptionSearchOptions
    search = CaptionSearchOptions().complete

    def __init__(self, path, *, threads=None):
        self.loaded = path, threads

    @classmethod
    def from_preset(cls, model, *, threads=None):
        return cls(find_litert(model, cls.presets), threads=threads)

    def search_options(self, **options):
        if not options.items() <= self.search.items():
            raise UserError("beam_size is fixed")


RUNTIMES = Runtimes(lambda: Keras, Lite)


@pytest.fixture(autouse=True)
def presets(tmp_path, monkeypatch):
    """Presets of which `both` has a LiteRT file, and `weights` has none."""
    monkeypatch.setattr(models, "_has_litert", lambda: True)
    monkeypatch.setattr(Lite, "presets", tmp_path)
    monkeypatch.setattr(Lite, "options", {"image_size": 224, "inference": "argmax"})
    for name in ("both", "weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model": {"image_size": 224}}')
    (tmp_path / "both" / "model.tflite").touch()


def chosen(model, runtime="auto", threads=None, search=(), **options):
    config = RuntimeConfig(runtime, threads)
    loaded = RUNTIMES.load(model, config, search=dict(search), **options)
    return "litert" if isinstance(loaded, Lite) else loaded[0]


def test_an_unknown_backend_is_one_line():
    command = [sys.executable, "-m", "keras_attention_apps.nmt.main", "train"]
    options = {"env": {**os.environ, "KERAS_BACKEND": "abacus"}, "text": True}
    command += ["--output", "nowhere"]
    ended = subprocess.run(command, capture_output=True, **options)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "set KERAS_BACKEND=" in line and line.endswith("abacus")


def test_a_litert_file_runs_if_it_has_the_options(monkeypatch):
    assert chosen("both") == "litert"
    assert chosen("both", auto="keras") == chosen("weights") == "keras"
    assert chosen("both", precision="float32", jit_compile=False) == "litert"
    assert chosen("both", precision="mixed_bfloat16") == "keras"
    assert chosen("both", image_size=224) == "keras"
    assert chosen("both", search={"beam_size": 5}) == "litert"
    assert chosen("both", search={"beam_size": 4}) == "keras"
    monkeypatch.setattr(models, "_has_litert", lambda: False)
    assert chosen("both") == "keras"


def test_a_litert_file_has_its_own_defaults(monkeypatch):
    search = CaptionSearchOptions(beam_size=10, length_penalty=0.5).complete
    monkeypatch.setattr(Lite, "search", search)

    assert chosen("both") == chosen("both", search={"beam_size": 10}) == "litert"
    assert chosen("both", search={"beam_size": 5}) == "keras"
    assert chosen("both", n_best=8) == chosen("both", "litert", n_best=8) == "litert"
    with pytest.raises(UserError, match=r"between 1 and beam_size, 5\. Received: 8"):
        chosen("both", "keras", n_best=8)


def test_a_litert_file_of_other_options_is_not_that_of_its_folder(monkeypatch, capsys):
    monkeypatch.setattr(Lite, "options", {"image_size": 96, "inference": "argmax"})

    assert chosen("both") == "keras"
    warning = "model.tflite has image_size=96, and its folder 224. Keras runs the model"
    assert re.fullmatch(rf"Warning: .*{warning}\n", capsys.readouterr().err)
    assert chosen("both", "litert") == "litert"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "content", ['{"ensemble": ["weights", "elsewhere"]}', "{", '{"model": 5}']
)
def test_a_folder_whose_options_cannot_be_read_runs_on_its_litert_file(
    tmp_path, capsys, content
):
    (tmp_path / "both" / "config.json").write_text(content)
    assert chosen("both") == "litert"
    assert capsys.readouterr().err == ""


def test_contradictory_options_are_refused_before_a_model_is_loaded(monkeypatch):
    for kind in (Keras, Lite):
        monkeypatch.setattr(kind, "from_preset", lambda *_, **__: pytest.fail("loaded"))
    for model in ("both", "weights"):
        with pytest.raises(UserError, match="beam_groups must divide beam_size, 5"):
            chosen(model, search={"beam_groups": 3})
    for search, n_best in (({}, 6), ({"beam_size": 2}, 3)):
        with pytest.raises(UserError, match="n_best must be between 1 and"):
            chosen("weights", search=search, n_best=n_best)


def test_a_damaged_litert_file_is_named(monkeypatch, capsys):
    def fail(self, path, threads):
        raise UserError("model.tflite is damaged")

    monkeypatch.setattr(Lite, "__init__", fail)
    assert chosen("both") == "keras"
    message = "Warning: model.tflite is damaged. Keras runs the model\n"
    assert capsys.readouterr().err == message


def test_a_requested_runtime_and_a_file(tmp_path):
    assert chosen("both", "keras") == "keras"
    assert chosen("both", "litert") == "litert"
    with pytest.raises(UserError, match="'weights' has no LiteRT file"):
        chosen("weights", "litert")
    with pytest.raises(UserError, match="beam_size is fixed"):
        chosen("both", "litert", search={"beam_size": 4})
    file = str(tmp_path / "both" / "model.tflite")
    assert chosen(file) == "litert"
    with pytest.raises(UserError, match="a LiteRT file needs --runtime litert"):
        chosen(file, "keras")
    with pytest.raises(UserError, match=r"image_size is fixed in a LiteRT file.*224"):
        chosen(file, image_size=224)


def test_threads_and_options_are_passed_on():
    config = RuntimeConfig(threads=2)
    assert RUNTIMES.load("both", config, search={}).loaded[1] == 2
    loaded = RUNTIMES.load("weights", config, search={}, precision="float32")
    assert loaded == ("keras", "weights", {"precision": "float32"})


def test_names_are_valid_in_every_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    # A preset comes before a folder of its name.
    for name in ("mine/model", "both"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").touch()
    (folder / "my.tflite").touch()
    monkeypatch.chdir(folder)

    for name, expected in {
        "both": "both",
        "./both": str(folder / "both"),
        "mine/model+weights": f"{folder / 'mine' / 'model'}+weights",
        "my.tflite": str(folder / "my.tflite"),
        "missing": "missing",
    }.items():
        assert RUNTIMES.with_absolute_paths(name) == expected
