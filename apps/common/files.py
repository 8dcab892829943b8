"""Writing files so that nobody ever sees half of one, and nothing else is lost."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

from keras_attention_apps.common.cli import UserError

# By which a folder is known that may be written anew, as a whole.
MODEL = ("config.json", "model.weights.h5")
SAVED_MODEL = ("saved_model.pb", "variables")

# Characters of the name that a temporary name ends with: few enough for any system.
_NAME = 50


@contextlib.contextmanager
def atomic_path(path):
    """Give a temporary name for a file; on success it becomes `path`.

    After an error nothing is left, and what stood at `path` before stands there still.
    The temporary name keeps the suffixes, since libraries choose a format by them. A
    link is followed; a pipe or a device is written to as it is.

    Raises:
        UserError: If no file can be written there; see `check_file`.
    """
    check_file(path)
    if is_special(path):
        yield Path(path)
        return
    path, temporary = _places(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path, kind=()):
    """Give a new, temporary folder; on success it becomes `path`.

    As `atomic_path`. An old folder is replaced as a whole.

    Args:
        path: Name of the folder.
        kind: Names by which a folder of this kind is known.

    Raises:
        UserError: If something else stands at `path`; see `check_folder`.
    """
    check_folder(path, kind)
    path, temporary = _places(path)
    aside = temporary.with_name(temporary.name.replace(".part", ".old", 1))
    # A process of the same number, as in another container, may have been killed.
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rename(aside)
        try:
            temporary.rename(path)
        except OSError:
            if aside.exists():
                aside.rename(path)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_file(path):
    """Raise a `UserError` if no file can be written there."""
    if Path(path).resolve().is_dir():
        raise UserError(
            f"expected the name of a file to write. Received a folder: {str(path)!r}"
        )
    is_link_to_file = Path(path).is_symlink() and Path(path).is_file()
    if is_link_to_file and os.path.abspath(path).startswith(("/dev/", "/proc/")):
        # Replaced, it would lose what is written to it by others.
        raise UserError(
            "expected the name of a file, or of a pipe or a device. Received "
            f"{str(path)!r}, behind which there is a file: name that"
        )
    if not is_special(path):
        _check_parents(path)


def check_text(path):
    """Raise a `UserError` if no text can be read there; from a pipe it can."""
    if not Path(path).exists() or Path(path).is_dir():
        raise UserError(f"expected a text file. Received: {str(path)!r}")


def check_folder(path, kind=()):
    """Raise a `UserError` if there is something that a new folder must not replace.

    An empty folder may be replaced, and one that holds all the names of its kind.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise UserError(
            f"expected the name of a folder to write. Received a file: {str(path)!r}"
        )
    _check_parents(path)
    names = {file.name for file in path.iterdir()} if path.exists() else set()
    ours = bool(kind) and names.issuperset(kind)
    if path in (Path.cwd(), *Path.cwd().parents) or (names and not ours):
        ours = ", or of one that was written by the same command" if kind else ""
        raise UserError(
            f"expected the name of a new folder{ours}. Received one with something "
            f"else in it: {str(path)!r}"
        )


def is_special(path):
    """Whether a pipe or a device is there, which is written to as it is."""
    return Path(path).exists() and not Path(path).is_file()


def _check_parents(path):
    """Raise a `UserError` if the folder of a path cannot be written to, or made."""
    nearest = Path(path).resolve().parent
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise UserError(
            f"expected a folder to write {Path(path).name!r} to. Received a file: "
            f"{str(nearest)!r}"
        )
    if not os.access(nearest, os.W_OK):
        raise UserError(
            f"expected a folder to write {Path(path).name!r} to. Received one that is "
            f"not to be written to: {str(nearest)!r}"
        )


def holds(folder, names):
    """Whether all these names are in a folder."""
    return all((folder / name).exists() for name in names)


def remove_folder(path):
    """Remove a folder so that nobody ever sees half of it."""
    aside = path.with_name(f".old-{os.getpid()}-{path.name}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder, pattern):
    """Remove the folders that killed processes have left half written, or half removed.

    Args:
        folder: Where they are.
        pattern: Of the names that they had, or were to have.
    """
    for state in ("part", "old"):
        for path in folder.glob(f".{state}-[0-9]*-{pattern}"):
            shutil.rmtree(path, ignore_errors=True)


def recover_folder(path):
    """Put back a folder that a killed process had moved aside to replace it.

    What killed processes have left beside it, half written or half removed, goes.
    """
    aside = sorted(path.parent.glob(f".old-[0-9]*-{path.name}"), key=os.path.getmtime)
    if aside and not path.exists():
        aside[-1].rename(path)
    remove_leftovers(path.parent, path.name)


class WeightsInMemory(io.BytesIO):
    """A `.weights.h5` file that is written to the disk when it is complete.

    For `save_weights` and `h5py.File`. HDF5 itself must not meet a full disk: it cannot
    close the file any more, and takes the process with it.
    """

    def __str__(self):
        # Keras chooses a format by the end of the name.
        return ".weights.h5"

    def save(self, path):
        """Write the file, atomically."""
        with atomic_path(path) as temporary:
            temporary.write_bytes(self.getbuffer())


def _places(path):
    """Where to write in the end, and a temporary name beside it; its folder is made."""
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.with_name(f".part-{os.getpid()}-{path.name[-_NAME:]}")


def to_json(value, **layout):
    """A value as JSON in UTF-8: of names of files that are not, the rest is escaped.

    Args:
        value: The value.
        **layout: As of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_files(folder, files):
    """Write files, each atomically, from a dict of their names and contents."""
    for name, content in files.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(content)


def write_json(path, value):
    """Write a value as readable JSON, atomically."""
    text = to_json(value, indent=2, default=str)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))
