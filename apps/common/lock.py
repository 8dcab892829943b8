"""Locks that keep two processes from writing to one folder or one file."""

import contextlib
import errno
import os

from keras_attention_apps.common.cli import UserError

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder):
    """Lock a folder against other processes, and create it if needed.

    The operating system releases the lock when the process ends, however it ends. On a
    file system without locks, nothing is locked. At the end the lock is removed, and so
    is an empty folder.

    Raises:
        UserError: If another process has the lock.
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
    """
    target = path.resolve()
    with _held(target.with_name(f".{target.name}{LOCK}"), "file", path):
        yield


@contextlib.contextmanager
def _held(lock, kind, name):
    """Hold the lock of an output; `kind` and `name` describe it in errors."""
    with open(lock, "ab") as file:
        if not _lock(file) or not _is_there(file, lock):
            raise UserError(
                f"expected an output {kind} to which no other process writes. "
                f"Received: {str(name)!r}"
            )
        try:
            yield
        finally:
            # Windows does not remove an open file.
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
