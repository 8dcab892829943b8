import errno
import json
import os
import re
import tempfile
import threading
from pathlib import Path

import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    atomic_folder,
    atomic_path,
    check_file,
    check_folder,
    expanded,
    read_json,
    recover_folder,
    remove_folder,
    to_json,
    write_json,
)

from .conftest import refused

KIND = ("config.json", "weights")


def own_names(folder):
    """Return the names of a folder of `KIND`."""
    is_ours = all((folder / name).exists() for name in KIND)
    return {*KIND, "stale"} if is_ours else set()


def write_folder(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("text")


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_to_rename(patch, error):
    """Let the renaming of temporary files and folders fail."""
    rename = Path.rename

    def fail(self, target):
        if self.name.startswith(".part"):
            raise error
        return rename(self, target)

    patch.setattr(Path, "rename", fail)


@pytest.mark.parametrize("name", ["a.txt", "model.weights.npz", f"{'a' * 251}.txt"])
def test_a_file_appears_complete_and_nothing_else_stays(tmp_path, name):
    with atomic_path(tmp_path / "new" / name) as temporary:
        temporary.write_text("half")
        assert temporary.suffixes == Path(name).suffixes
        assert not (tmp_path / "new" / name).exists()
        temporary.write_text("whole")
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "new" / name) as temporary:
        temporary.write_text("half")
        raise RuntimeError

    assert names_in(tmp_path / "new") == [name]
    assert (tmp_path / "new" / name).read_text() == "whole"


def test_a_folder_replaces_the_whole_old_one_but_no_other_files(tmp_path):
    model = tmp_path / "model"
    write_folder(model, *KIND, "stale", "notes.txt")
    write_folder(model / "photographs", "dog.jpg")
    # A process of the same id was killed.
    write_folder(tmp_path / f".part-{os.getpid()}-model", "half")

    with atomic_folder(model, own_names) as temporary:
        write_folder(temporary, KIND[0])
        (temporary / "notes.txt").write_text("new")

    assert names_in(tmp_path) == ["model"]
    assert names_in(model) == [KIND[0], "notes.txt", "photographs"]
    assert (model / "photographs" / "dog.jpg").is_file()
    assert (model / "notes.txt").read_text() == "new"


def test_a_replaced_folder_is_restored_after_a_kill(tmp_path):
    write_folder(tmp_path / ".old-12-model", *KIND)
    write_folder(tmp_path / ".part-34-model", "half")
    write_folder(tmp_path / ".part-34-models", "of another")

    for _ in range(2):
        recover_folder(tmp_path / "model")

        assert names_in(tmp_path) == [".part-34-models", "model"]
        assert names_in(tmp_path / "model") == sorted(KIND)
        write_folder(tmp_path / ".old-12-model", "stale")


def test_files_that_are_kept_are_in_the_new_folder_before_it_takes_the_name(
    tmp_path, monkeypatch
):
    model = tmp_path / "model"
    write_folder(model, *KIND, "stale", "notes.txt", "photographs")
    with monkeypatch.context() as patch:
        fail_to_rename(patch, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt), atomic_folder(model, own_names) as new:
            write_folder(new, *KIND)
            (new / "photographs").write_text("new")
    assert not model.exists()

    recover_folder(model)
    assert names_in(model) == sorted([*KIND, "stale", "notes.txt", "photographs"])
    assert (model / "photographs").read_text() == "text"
    assert names_in(tmp_path) == ["model"]


@pytest.mark.parametrize("names", [["photo.jpg"], ["config.json"]])
def test_a_folder_of_another_kind_is_not_touched(tmp_path, names):
    write_folder(tmp_path / "mine", *names)
    for names_of in (own_names, None):
        refused(atomic_folder(tmp_path / "mine", names_of), "other contents: .*mine")
    assert names_in(tmp_path / "mine") == names


def test_an_empty_folder_is_replaced_but_not_the_one_we_are_in(tmp_path, monkeypatch):
    (tmp_path / "new").mkdir()
    with atomic_folder(tmp_path / "new") as temporary:
        assert not list(temporary.iterdir())
        write_folder(temporary, "fresh")
    assert (tmp_path / "new" / "fresh").is_file()

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in (".", "", "..", "/"):
        refused(atomic_folder(path), "a new folder")


def test_a_file_and_a_folder_do_not_replace_each_other(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()

    refused(atomic_folder(tmp_path / "file", own_names), "Received a file")
    for path in (tmp_path / "folder", tmp_path / "new" / ".." / "folder", ".", ""):
        refused(atomic_path(path), "Received a folder")
    assert (tmp_path / "file").read_text() == "old"


def test_unwritable_outputs_are_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    for check in (check_file, check_folder):
        check(tmp_path / "new" / "other" / "name")
        with pytest.raises(UserError, match=r"'name' to. Received a file: .*file'"):
            check(tmp_path / "file" / "new" / "name")

    monkeypatch.setattr("os.access", lambda *_: False)
    for check in (check_file, check_folder):
        with pytest.raises(UserError, match="not writable"):
            check(tmp_path / "new" / "name")
    check_file(os.devnull)
    assert names_in(tmp_path) == ["file"]


def test_a_file_that_is_read_only_is_not_replaced(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("old")
    # Root may write to every file.
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != file)
    refused(atomic_path(file), r"one that is read-only: .*a\.txt'")


@pytest.mark.skipif(os.name == "nt", reason="no permissions of groups here")
@pytest.mark.parametrize(
    ("atomic", "mode"),
    [
        *((atomic_path, mode) for mode in (0o600, 0o640)),
        *((atomic_folder, mode) for mode in (0o700, 0o750)),
    ],
)
def test_a_new_output_has_the_permissions_of_the_old_one(tmp_path, atomic, mode):
    path = tmp_path / "output"
    path.touch() if atomic is atomic_path else path.mkdir()
    path.chmod(mode)
    with atomic(path) as temporary:
        assert temporary.stat().st_mode & 0o777 == mode
        (temporary if temporary.is_file() else temporary / "new").write_text("new")
    assert path.stat().st_mode & 0o777 == mode


def test_a_hyphen_and_the_home_of_nobody_are_no_files_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"a file to write\. Received: '-'$"):
        check_file(Path("-"))
    assert expanded("~") == Path.home()
    with pytest.raises(UserError, match="Received: '~no-such-user/x'"):
        expanded("~no-such-user/x")


def test_a_loop_of_links_is_an_error_of_the_system(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for check in (check_file, check_folder):
        for path in (tmp_path / "loop", tmp_path / "loop" / "name"):
            with pytest.raises(OSError, match=r"symbolic links: .*loop"):
                check(path)


def test_a_folder_is_removed_from_its_name_first(tmp_path, monkeypatch):
    for name in ("one", "other"):
        write_folder(tmp_path / name, *KIND)
    remove_folder(tmp_path / "one")
    assert names_in(tmp_path) == ["other"]

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        remove_folder(tmp_path / "other")
    assert names_in(tmp_path) == [f".old-{os.getpid()}-other"]


def test_the_old_folder_returns_if_the_new_one_cannot_be_renamed(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    write_folder(folder, *KIND)
    fail_to_rename(monkeypatch, OSError("No space left on device"))
    replaced = atomic_folder(folder, own_names)
    with pytest.raises(OSError, match="No space left"), replaced:
        pass
    assert names_in(folder) == sorted(KIND)
    assert names_in(tmp_path) == ["folder"]


@pytest.mark.parametrize("atomic", [atomic_path, atomic_folder])
def test_an_error_of_writing_names_the_file(tmp_path, atomic):
    full = OSError(errno.ENOSPC, "No space left on device")
    expected = re.escape(f"No space left on device: {str(tmp_path / 'new')!r}") + "$"
    with pytest.raises(OSError, match=expected), atomic(tmp_path / "new"):
        raise full

    unread = OSError(errno.EIO, "Input/output error", "photograph.jpg")
    with pytest.raises(OSError, match=r"'photograph\.jpg'$"), atomic(tmp_path / "new"):
        raise unread
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "a.txt")

    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "a.txt").read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(
        target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True
    )
    reader.start()
    with atomic_path(tmp_path / "pipe") as target:
        target.write_text("through")
    reader.join(timeout=10)

    assert read == ["through"]
    assert (tmp_path / "pipe").is_fifo()


def test_json_keeps_every_script_and_escapes_what_a_terminal_does_not_show(tmp_path):
    # The last name is not UTF-8.
    value = {"wort": "Größe 犬", "name": os.fsdecode(b"caf\xe9")}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "Größe 犬" in (tmp_path / "a.json").read_text("utf-8")

    text = "é\x7f\x85\u202e\u2066\u200f"
    assert to_json([text], indent=1) == (
        '[\n "é\\u007f\\u0085\\u202e\\u2066\\u200f"\n]'
    )
    assert json.loads(to_json(text)) == text


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no files by number here")
def test_the_file_of_a_file_descriptor_is_not_replaced(tmp_path):
    with open(tmp_path / "a.txt", "w") as file:
        path = f"/dev/fd/{file.fileno()}"
        with pytest.raises(UserError, match="Received a link to a file"):
            check_file(path)
    check_file("/dev/null")


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no files in memory here")
def test_a_file_in_memory_may_be_replaced():
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        check_file(file.name)
