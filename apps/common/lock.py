"""Locks that keep two processes from writing to one folder or one file."""

import contextlib
import errno
import hashlib
import os

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import KEPT_CHARACTERS, resolved

LOCK = ".lock"
_IS_WINDOWS = os.name == "nt"


@contextlib.contextmanager
def locked(folder):
    """Lock a folder against other processes, and create it if needed.

    The operating system releases the lock when the process ends, however it ends. On a
    file system without locks, nothing is locked. At the end the lock is removed, and so
    is an empty folder. A killed process leaves an empty file, the lock, which the next
    one takes and removes.

    Raises:
        UserError: If another process has the lock.
        OSError: If the lock cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _held(folder / LOCK, "folder", folder):
            yield
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def locked_file(path):
    """Lock a file against other processes, by a hidden file beside it; see `locked`.

    The file itself may be replaced, and need not exist. Links are followed.

    Raises:
        UserError: If another process has the lock.
        OSError: If the lock cannot be created.
    """
    target = resolved(path)
    name = target.name
    if len(name) > KEPT_CHARACTERS:
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:8]
        name = f"{digest}-{name[-KEPT_CHARACTERS:]}"
    with _held(target.with_name(f".{name}{LOCK}"), "file", path):
        yield


@contextlib.contextmanager
def _held(lock, kind, name):
    """Hold the lock of an output; `kind` and `name` describe it in errors."""
    is_ours = False
    try:
        with _opened(lock, name) as file:
            is_ours = _lock(file) and _is_there(file, lock)
            if not is_ours:
                raise UserError(
                    f"expected an output {kind} to which no other process writes. "
                    f"Received: {str(name)!r}"
                )
            try:
                yield
            finally:
                # Once it is closed, it may be the lock of another process.
                if not _IS_WINDOWS:
                    _remove(lock)
    finally:
        # Windows removes no open file, and so none of another process.
        if is_ours and _IS_WINDOWS:
            _remove(lock)


def _opened(lock, name):
    """Open the lock of an output, whose name is that in errors."""
    try:
        return open(lock, "ab")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(name)) from error


def _remove(lock):
    with contextlib.suppress(OSError):
        lock.unlink()


def _is_there(file, path):
    """Return whether no other process has removed or replaced an open file."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


def _lock(file):
    """Lock an open file, and return whether no other process has it."""
    try:
        _lock_now(file)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
    return True


def _lock_now(file):
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
