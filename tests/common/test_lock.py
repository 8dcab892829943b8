import pytest
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.lock import locked


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
