"""A lock that keeps two processes from writing to one folder."""

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
    path = folder / LOCK
    with open(path, "ab") as file:
        if not _lock(file) or not _is_there(file, path):
            raise UserError(
                "expected an output folder to which no other process writes. "
                f"Received: {str(folder)!r}"
            )
        try:
            yield
        finally:
            # Windows does not remove an open file.
            with contextlib.suppress(OSError):
                path.unlink()
                folder.rmdir()


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
