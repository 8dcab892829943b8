import os
import re
import subprocess
import sys

import pytest

from keras_attention_apps.common.files import locked, locked_file

from .conftest import refused


def test_a_second_training_is_refused(tmp_path):
    folder = tmp_path / "new" / "training"
    with locked(folder):
        (folder / "file").touch()
        refused(locked(folder), r"no other process .*training'")
    with locked(folder):
        pass
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_training_that_writes_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError), locked(tmp_path / "training"):
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def fail(lock, **_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("filelock.FileLock.acquire", fail)
    with locked(tmp_path):
        pass


def test_a_file_is_locked_by_any_of_its_names_even_if_it_is_replaced(tmp_path):
    output, link = tmp_path / "captions.jsonl", tmp_path / "link"
    link.symlink_to(output)
    for _ in range(2):
        with locked_file(output):
            (tmp_path / "new").touch()
            os.replace(tmp_path / "new", output)
            refused(locked_file(link), r"output file .* no other process .*link'")
    assert {path.name for path in tmp_path.iterdir()} == {"captions.jsonl", "link"}


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    first, second = (tmp_path / f"{letter}{'a' * 248}.jsonl" for letter in "xy")
    with locked_file(first):
        with locked_file(second):
            pass
        refused(locked_file(first), "no other process")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_lock_names_the_output(tmp_path):
    dangling, loop = tmp_path / "dangling", tmp_path / "loop"
    dangling.symlink_to(tmp_path / "missing" / "captions.jsonl")
    loop.symlink_to(loop)
    for path in (dangling, loop, tmp_path / "missing" / "new.jsonl"):
        refused(locked_file(path), re.escape(f": {str(path)!r}") + "$", OSError)


HOLD = """
import os, sys, pathlib
from keras_attention_apps.common.files import locked_file
with locked_file(pathlib.Path(sys.argv[1])):
    os._exit(9)
"""


def test_other_processes_are_refused_but_not_after_one_was_killed(tmp_path):
    output = tmp_path / "captions.jsonl"
    command = [sys.executable, "-c", HOLD, output]
    with locked_file(output):
        ended = subprocess.run(command, capture_output=True, text=True)
    assert "no other process" in ended.stderr

    assert subprocess.run(command).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    with locked_file(output):
        pass
    assert list(tmp_path.iterdir()) == []
