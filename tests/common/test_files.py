import pytest
from keras_attention_apps.common.files import atomic_path, read_json, write_json


def test_a_file_appears_complete_and_nothing_else_stays(tmp_path):
    with atomic_path(tmp_path / "new" / "a.txt") as temporary:
        temporary.write_text("half")
        assert not (tmp_path / "new" / "a.txt").exists()
        temporary.write_text("whole")

    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.txt"]
    assert (tmp_path / "new" / "a.txt").read_text() == "whole"


def test_after_an_error_the_old_file_stands(tmp_path):
    (tmp_path / "a.txt").write_text("old")

    with pytest.raises(RuntimeError), atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        raise RuntimeError

    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_folder_replaces_the_whole_old_one(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stale").write_text("old")

    with atomic_path(tmp_path / "model") as temporary:
        temporary.mkdir()
        (temporary / "fresh").write_text("new")

    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["fresh"]


def test_the_temporary_name_keeps_the_suffixes(tmp_path):
    with atomic_path(tmp_path / "model.weights.h5") as temporary:
        assert temporary.name.endswith(".weights.h5")
        temporary.touch()


def test_json_keeps_every_script(tmp_path):
    write_json(tmp_path / "a.json", {"wort": "Größe 犬"})

    assert read_json(tmp_path / "a.json") == {"wort": "Größe 犬"}
    assert "犬" in (tmp_path / "a.json").read_text("utf-8")
