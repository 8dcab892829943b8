"""Atomic writing of files and folders, and JSON."""

import contextlib
import errno
import io
import json
import os
import shutil
import stat
from pathlib import Path

from keras_attention_apps.common.cli import BIDIRECTIONAL, CONTROLS, UserError
from keras_attention_apps.common.reading import STANDARD_INPUT, read_file

# Files that a folder of a model contains, and a SavedModel.
MODEL_FILES = ("config.json", "model.weights.npz")
SAVED_MODEL_FILES = ("saved_model.pb", "variables")

# A temporary name contains at most this many characters of the final name, because
# systems limit the length of names.
KEPT_CHARACTERS = 50

# Error numbers of failed writes; Windows lacks some.
_WRITE_ERRORS = {
    getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS")
}


@contextlib.contextmanager
def atomic_path(path):
    """Yield a temporary path for a file, which is renamed to `path` on success.

    After an error the temporary file is removed, and an older file at `path` is
    unchanged. The temporary file has the permissions of an older file at `path` from
    the start. Its name keeps the suffixes, since libraries choose a format by them.
    Links are followed; pipes and devices are written to directly.

    Raises:
        UserError: If no file can be written there; see `check_file`.
    """
    check_file(path)
    if is_pipe_or_device(path):
        yield Path(path)
        return
    path, temporary = _with_temporary(path)
    try:
        with errors_naming(path):
            if path.exists():
                temporary.touch(mode=0o600)
                _copy_mode(path, temporary)
            yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path, own_names=None):
    """Yield a new temporary folder, which is renamed to `path` on success.

    An older output is replaced as a whole. Other files in its folder are kept, unless
    the new output has a file of the same name. If one of them cannot be moved, it stays
    in a hidden folder beside `path`, from where `recover_folder` moves it. Otherwise as
    `atomic_path`.

    Args:
        path: Name of the folder.
        own_names: See `check_folder`.

    Raises:
        UserError: If `path` is a file, or a folder with other contents; see
            `check_folder`.
        OSError: If a file that is kept cannot be moved.
    """
    older = check_folder(path, own_names)
    path, temporary = _with_temporary(path)
    aside = temporary.with_name(temporary.name.replace(".part", ".old", 1))
    # A killed process with the same id, as in another container, may have left one.
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(mode=0o700 if path.exists() else 0o777)
        if path.exists():
            _copy_mode(path, temporary, also=stat.S_IRWXU)
        with errors_naming(path):
            yield temporary
        kept = _names(path) - older - _names(temporary)
        if path.exists():
            path.rename(aside)
        try:
            temporary.rename(path)
        except OSError:
            if aside.exists():
                aside.rename(path)
            raise
        _move(kept, aside, path)
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def errors_naming(path):
    """Name a file or folder in the errors of writing it, such as those of a full disk.

    The system names no file in some of them, and a temporary one in others.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_file(path):
    """Raise a `UserError` if no file can be written there."""
    if str(path) == STANDARD_INPUT:
        raise UserError(
            f"expected the name of a file to write. Received: {str(path)!r}"
        )
    if resolved(path).is_dir():
        raise UserError(
            f"expected the name of a file to write. Received a folder: {str(path)!r}"
        )
    is_link_to_file = Path(path).is_symlink() and Path(path).is_file()
    if is_link_to_file and os.path.abspath(path).startswith(("/dev/", "/proc/")):
        # Replacing the file would break other processes that write to it.
        raise UserError(
            "expected the name of a file, or of a pipe or a device. Received "
            f"{str(path)!r}, which is a link to a file: use the name of that file"
        )
    if is_pipe_or_device(path):
        return
    if Path(path).exists() and not os.access(path, os.W_OK):
        raise UserError(
            "expected the name of a file to write. Received one that is read-only: "
            f"{str(path)!r}"
        )
    _check_parents(path)


def check_folder(path, own_names=None):
    """Raise a `UserError` if a path must not be replaced by a new folder.

    An empty folder may be replaced, and one with an older output.

    Args:
        path: Name of the folder.
        own_names: Function that returns the set of the names in a folder that belong to
            an older output; it is empty if there is none.

    Returns:
        The set of the names in the folder that belong to an older output.
    """
    path = resolved(path)
    if path.exists() and not path.is_dir():
        raise UserError(
            f"expected the name of a folder to write. Received a file: {str(path)!r}"
        )
    _check_parents(path)
    older = own_names(path) if own_names else set()
    if path in (Path.cwd(), *Path.cwd().parents) or (_names(path) and not older):
        also = ", or of one that was written by the same command" if own_names else ""
        raise UserError(
            f"expected the name of a new folder{also}. Received a folder with other "
            f"contents: {str(path)!r}"
        )
    return older


def expanded(path):
    """Return a path with a leading `~` expanded.

    Raises:
        UserError: If it names an unknown user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            "expected a path whose ~ is the home folder of a user. "
            f"Received: {str(path)!r}"
        ) from error


def resolved(path):
    """Return an absolute path without links.

    Raises:
        OSError: If links form a loop. `Path.resolve` raises a `RuntimeError`.
    """
    try:
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        return Path(os.path.realpath(path))


def is_pipe_or_device(path):
    """Return whether a path is a pipe or a device, which is written to directly."""
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_parents(path):
    """Raise a `UserError` if the folder of a path cannot be created or written to."""
    nearest = resolved(path).parent
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
            f"not writable: {str(nearest)!r}"
        )


def holds(folder, names):
    """Return whether a folder contains all these names."""
    return all((folder / name).exists() for name in names)


def remove_folder(path):
    """Remove a folder atomically: it is renamed first."""
    aside = path.with_name(f".old-{os.getpid()}-{path.name}")
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder, pattern):
    """Remove the incomplete folders of killed processes.

    Args:
        folder: The folder that contains them.
        pattern: Glob pattern of their final names.
    """
    for state in ("part", "old"):
        for path in folder.glob(f".{state}-[0-9]*-{pattern}"):
            shutil.rmtree(path, ignore_errors=True)


def recover_folder(path, own_names):
    """Restore a folder that a killed process was replacing, and the files kept in it.

    Incomplete folders of killed processes beside it are removed.

    Args:
        path: Name of the folder.
        own_names: See `check_folder`.

    Raises:
        OSError: If a file that is kept cannot be moved to the folder.
    """
    aside = sorted(path.parent.glob(f".old-[0-9]*-{path.name}"), key=os.path.getmtime)
    if aside and not path.exists():
        aside.pop().rename(path)
    for folder in reversed(aside):
        # An output that was partly removed is known by the names of the new one.
        older = own_names(folder) | own_names(path)
        _move(_names(folder) - older - _names(path), folder, path)
    remove_leftovers(path.parent, path.name)


class WeightsInMemory(io.BytesIO):
    """A `.weights.h5` file in memory, which Keras writes and reads."""

    def __str__(self):
        # Keras chooses a format by the suffix.
        return ".weights.h5"


def _names(folder):
    """Return the set of the names in a folder, which need not exist."""
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _move(names, source, target):
    """Move files from one folder to another; those that cannot be moved stay.

    Raises:
        OSError: That of the first file that stays, after the others were moved.
    """
    errors = []
    for name in sorted(names):
        try:
            (source / name).rename(target / name)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _copy_mode(path, temporary, also=0):
    """Give a temporary file or folder the permissions of another one, and `also`."""
    # Some file systems have no permissions.
    with contextlib.suppress(OSError):
        temporary.chmod(stat.S_IMODE(path.stat().st_mode) | also)


def _with_temporary(path):
    """Return the resolved path and a temporary path beside it; create the folder."""
    path = resolved(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, path.with_name(f".part-{os.getpid()}-{path.name[-KEPT_CHARACTERS:]}")


# JSON escapes the controls below U+0020 itself; between values, they are line feeds.
_ESCAPED = {
    code: f"\\u{code:04x}" for code in (*CONTROLS, *BIDIRECTIONAL) if code > 0x20
}


def to_json(value, **layout):
    """Return a value as JSON.

    Characters that UTF-8 cannot encode, and those that a terminal does not show, are
    escaped.

    Args:
        value: The value. File names may contain bytes that are not UTF-8.
        **layout: Options of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    text = text.translate(_ESCAPED)
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
    """Read a file of JSON; see `parse_json`."""
    return parse_json(read_file(path).decode("utf-8"))


def parse_json(text, **options):
    """Return the value of a text in JSON, a string or bytes.

    Args:
        text: The text.
        **options: Those of `json.loads`.

    Raises:
        ValueError: If it is not JSON, or nested more deeply than Python can read.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
