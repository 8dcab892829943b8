"""Temporary files of killed processes are removed, and those of others stay."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from keras_attention_apps.common import leftovers
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import atomic_folder, atomic_path, check_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs signals and locks")

WRITER = """
import sys
from pathlib import Path
from keras_attention_apps.common import files
with getattr(files, sys.argv[1])(sys.argv[2]) as temporary:
    if sys.argv[1] == "atomic_folder":
        (temporary / "part").write_text("half")
    else:
        temporary.write_text("half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Every test looks through folders as a new process does."""
    monkeypatch.setattr(leftovers, "_cleaned", set())


def writing(kind, path):
    """Return a process that has begun to write, and its temporary path."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), kind, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def end(process, number=signal.SIGKILL):
    process.send_signal(number)
    process.communicate()


def write(path, text="whole"):
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def names_in(folder):
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("kind", ["atomic_path", "atomic_folder"])
def test_leftovers_of_a_killed_process_are_removed_by_the_next(tmp_path, kind):
    process, temporary = writing(kind, tmp_path / "out.txt")
    end(process)
    assert os.path.exists(temporary)

    write(tmp_path / "another.txt")

    assert names_in(tmp_path) == ["another.txt"]


@pytest.mark.parametrize("kind", ["atomic_path", "atomic_folder"])
def test_temporary_files_of_a_living_process_stay(tmp_path, kind, monkeypatch):
    process, temporary = writing(kind, tmp_path / "out.txt")
    try:
        write(tmp_path / "a.txt")
        assert os.path.exists(temporary)

        # In another container, its id would not be known.
        def unknown(number, sent):
            raise ProcessLookupError

        monkeypatch.setattr(leftovers, "_cleaned", set())
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", unknown)
            write(tmp_path / "b.txt")
        assert os.path.exists(temporary)
    finally:
        end(process)


def test_own_temporary_files_stay_while_they_are_written(tmp_path, monkeypatch):
    with atomic_path(tmp_path / "out.txt") as temporary:
        temporary.write_text("half")
        monkeypatch.setattr(leftovers, "_cleaned", set())
        write(tmp_path / "another.txt")
        assert temporary.exists()
    assert names_in(tmp_path) == ["another.txt", "out.txt"]


def test_names_that_only_look_temporary_stay(tmp_path):
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    foreign = [".part-", f".part-{dead}", f"part-{dead}-a", ".part-x-a", ".old-1-a"]
    foreign.append(f".old-{dead}-only-copy")
    for name in foreign:
        (tmp_path / name).write_text("mine")
    os.mkfifo(tmp_path / f".part-{dead}-pipe")

    write(tmp_path / "out.txt")

    assert set(foreign) <= set(names_in(tmp_path))
    assert f".part-{dead}-pipe" not in names_in(tmp_path)


def test_the_only_copy_of_a_replaced_folder_is_restored(tmp_path):
    process, temporary = writing("atomic_folder", tmp_path / "model")
    end(process)
    os.rename(temporary, temporary.replace(".part-", ".old-"))

    # Another command keeps it, and the same command restores it before it fails.
    write(tmp_path / "out.txt")
    assert len(names_in(tmp_path)) == 2
    model = atomic_folder(tmp_path / "model")
    with pytest.raises(UserError, match="other contents"), model:
        pass
    assert (tmp_path / "model" / "part").read_text() == "half"


def test_a_folder_with_leftovers_alone_is_empty(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".part-7-config.json").write_text("half")
    check_folder(tmp_path / "new")


@pytest.mark.parametrize("error", [UserError, ValueError, RuntimeError, OSError])
def test_errors_do_not_name_temporary_files(tmp_path, error):
    with (
        pytest.raises(error, match=r"^no such format: .*/out\.txt$"),
        atomic_path(tmp_path / "out.txt") as temporary,
    ):
        raise error(f"no such format: {temporary}")


def test_an_error_of_the_system_names_the_output(tmp_path):
    with (
        pytest.raises(PermissionError, match=r"'[^']*/model'$"),
        atomic_folder(tmp_path / "model") as temporary,
    ):
        raise PermissionError(13, "Permission denied", str(temporary / "a"))
    with (
        pytest.raises(IsADirectoryError, match=r"'[^']*/out\.txt'$"),
        atomic_path(tmp_path / "out.txt") as temporary,
    ):
        raise IsADirectoryError(21, "Is a directory", str(temporary))
