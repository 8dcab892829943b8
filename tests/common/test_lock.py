import os

import pytest
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.lock import locked
from keras_attention_apps.common.lock import locked_file


def test_a_second_training_is_refused(tmp_path):
    folder = tmp_path / "new" / "training"
    with locked(folder):
        (folder / "file").touch()
        message = r"no other process .*training'"
        with pytest.raises(UserError, match=message), locked(folder):
            pytest.fail("the folder is locked")
    with locked(folder):
        pass
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_training_that_writes_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError), locked(tmp_path / "training"):
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("keras_attention_apps.common.lock._lock_now", fail)
    with locked(tmp_path):
        pass


def test_a_file_is_locked_by_any_of_its_names_even_if_it_is_replaced(tmp_path):
    output, link = tmp_path / "captions.jsonl", tmp_path / "link"
    link.symlink_to(output)
    for _ in range(2):
        with locked_file(output):
            (tmp_path / "new").touch()
            os.replace(tmp_path / "new", output)
            message = r"output file .* no other process .*link'"
            with pytest.raises(UserError, match=message), locked_file(link):
                pytest.fail("the file is locked")
    assert {path.name for path in tmp_path.iterdir()} == {"captions.jsonl", "link"}
