import dataclasses
import json
import re
from pathlib import Path

import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.models import (
    check_file_digest,
    find_litert,
    find_preset,
    loading,
    member_folders,
    model_names,
    read_config,
    read_sealed,
    write_sealed,
)
from keras_attention_apps.common.network.weights import check_weights

ROOT = Path(__file__).parents[3]
PRESETS = sorted((ROOT / "apps/keras_attention_apps").glob("*/presets/*/"))


def test_the_litert_file_of_a_folder_is_inside_of_it(tmp_path):
    write_sealed(tmp_path / "config.json", {"model": {}})
    (tmp_path / "model.tflite").write_bytes(b"")
    assert find_litert(tmp_path, tmp_path) == tmp_path / "model.tflite"


def test_a_size_limit_is_no_damage(tmp_path):
    write_sealed(tmp_path / "config.json", {"model": {}})
    (tmp_path / "model.weights.npz").write_bytes(bytes(99))
    limit = "has more than 10 bytes; --max-bytes sets the limit$"
    for name, read in (("config", read_sealed), ("model.weights", check_weights)):
        (path,) = tmp_path.glob(f"{name}.*")
        expected = pytest.raises(UserError, match=f"^{re.escape(str(path))} {limit}")
        with at_most(10), expected, loading(tmp_path, "parser"):
            read(path)


def test_a_preset_is_found_by_its_name_and_a_folder_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    presets = tmp_path / "presets"
    for name in ("presets/one", "one", "mine"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")

    assert find_preset("one", presets) == presets / "one"
    assert find_preset("./one", presets).resolve() == tmp_path / "one"
    for path in (tmp_path / "mine", "~/mine"):
        assert find_preset(path, presets) == tmp_path / "mine"
    with pytest.raises(UserError, match=r"Presets: one\. Received: 'ome'. Did you"):
        find_preset("ome", presets)

    (tmp_path / "run" / "model").mkdir(parents=True)
    with pytest.raises(UserError, match=r"Received: '.*run'$"):
        find_preset(tmp_path / "run", presets)
    for name in ("config.json", "model.weights.npz"):
        (tmp_path / "run" / "model" / name).touch()
    with pytest.raises(UserError, match=r"run'\. Its model is '.*run.model'$"):
        find_preset(tmp_path / "run", presets)


def test_another_kind_of_model_is_not_called_broken(tmp_path):
    @dataclasses.dataclass
    class Config:
        units: int = 1

    (tmp_path / "config.json").write_text('{"model": {"units": 2}}')
    options = {"kind": Config, "noun": "parser"}
    assert read_config(tmp_path, **options) == Config(2)
    (tmp_path / "config.json").write_text('{"model": {"units": 2, "heads": 3}}')
    with pytest.raises(UserError, match="complete parser: there is no option 'heads'"):
        read_config(tmp_path, **options)


@pytest.mark.parametrize("content", ["[]", '{"model": {}, "sha256": 5}', "{}", "[["])
def test_a_configuration_of_another_form_is_one_line(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match="is not a complete parser: "):
        read_config(tmp_path, kind=dict, noun="parser")


def test_errors_of_files_are_one_line_and_those_of_the_program_are_not():
    for error in (OSError, ValueError, RuntimeError, MemoryError):
        expected = pytest.raises(UserError, match=r"^x is not a .* parser: two lines$")
        with expected, loading("x", "parser"):
            raise error("two\nlines")
    for error in (AttributeError, TypeError, KeyError, IndexError):
        with pytest.raises(error), loading("x", "parser"):
            raise error


def test_models_of_an_ensemble(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {
        "a": {"model": {}},
        "b+c": {"model": {}},
        "both": {"ensemble": ["a", "b+c"]},
        "nested": {"ensemble": ["a", "both"]},
        "number": {"ensemble": 2},
        "absent": {"ensemble": ["a", "d"]},
        "inside": {"ensemble": ["a", "lstm/model"]},
        "inside/lstm/model": {"model": {}},
        "many": {"ensemble": ["a"] * 17},
        "parent": {"ensemble": ["../a", "a"]},
        "root": {"ensemble": ["a", str(tmp_path / "presets" / "a")]},
        "here": {"ensemble": ["a", "in-the-working-directory"]},
        "../in-the-working-directory": {"model": {}},
    }
    tmp_path = tmp_path / "presets"
    for name, content in contents.items():
        (tmp_path / name).mkdir(parents=True)
        write_sealed(tmp_path / name / "config.json", content)

    def members(name):
        paths = member_folders(name, presets=tmp_path, noun="parser")
        return [folder.relative_to(tmp_path).as_posix() for folder in paths]

    assert members("a") == ["a"] and members("both") == ["a", "b+c"]
    assert members("both+a") == ["a", "b+c", "a"]
    assert members(str(tmp_path / "b+c")) == ["b+c"]
    assert members("inside") == ["a", "inside/lstm/model"]
    with pytest.raises(UserError, match=r"'a\+both' has no LiteRT file"):
        find_litert("a+both", tmp_path)
    for name, message in {
        "nested": "nested is not a complete parser: 'both' is an ensemble itself",
        "number": '"ensemble" of config.json is not a list of names',
        "absent": "must be presets or folders inside '.*absent'. Received: 'd'",
        "many": "an ensemble has at most 16 models. Received: 17",
        "both+" * 8 + "a": "an ensemble has at most 16 models. Received: 17",
        "parent": "folders inside '.*parent'. Received: '../a'",
        "root": "folders inside '.*root'. Received: '.*/presets/a'",
        "here": "folders inside '.*here'. Received: 'in-the-working-directory'",
    }.items():
        with pytest.raises(UserError, match=message):
            members(name)


@pytest.mark.parametrize("folder", PRESETS, ids=lambda folder: folder.name)
def test_a_preset_is_small_and_has_a_model_card_and_digests(folder):
    assert max(file.stat().st_size for file in folder.iterdir()) < 25e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    for heading in ("Scores", "Recipe", "Data and terms", "Limits"):
        assert f"\n## {heading}\n" in card
    content = read_sealed(folder / "config.json")
    assert "digest" in content
    assert "ensemble" in content or "model.weights.npz" in content["sha256"]
    for name in content["sha256"]:
        check_file_digest(content, folder / name)


@pytest.mark.parametrize("names", [[], ["vocabulary.json"]])
def test_the_files_of_a_model_may_be_replaced(tmp_path, names):
    content = {"sha256": dict.fromkeys(names, "")} if names else {}
    (tmp_path / "config.json").write_text(json.dumps({"model": {}, **content}))
    assert model_names(tmp_path) == set()
    (tmp_path / "model.weights.npz").touch()
    always = {"config.json", "model.weights.npz", "model.tflite"}
    assert model_names(tmp_path) == always.union(names)
    (tmp_path / "config.json").unlink()
    assert model_names(tmp_path) == set()


NO_NAMES = ("null", "3", "[[1]]", "[{}]", '["a"]')
OTHERS = ('{"class_name": "Backbone"}', '["model"]', "{", '{"model": "Backbone"}')


@pytest.mark.parametrize(
    "content", [*OTHERS, *(f'{{"model": {{}}, "sha256": {x}}}' for x in NO_NAMES)]
)
def test_the_model_of_another_library_must_not_be_replaced(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "model.weights.npz").touch()
    assert model_names(tmp_path) == set()


def test_the_presets_are_small():
    files = [file for folder in PRESETS for file in folder.iterdir()]
    assert len(PRESETS) == 8
    assert sum(file.stat().st_size for file in files) < 100e6
