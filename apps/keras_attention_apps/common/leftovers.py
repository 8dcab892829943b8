"""Temporary files and folders of killed processes: what is found, kept and removed.

`.part-PID-NAME` is incomplete, and `.old-PID-NAME` is an older folder that the process
was replacing.
"""

import contextlib
import glob
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

# A temporary name contains at most this many characters of the final name, because
# systems limit the length of names.
KEPT_CHARACTERS = 50
TEMPORARY = re.compile(r"\.(part|old)-([0-9]+)-(.+)", re.DOTALL)
# Seconds after which a temporary file is removed although its process may be alive,
# where the system cannot say whether it is.
ABANDONED = 24 * 60 * 60
# Temporary paths of this process, and folders that it has looked through.
_own_temporaries: set[Path] = set()
_cleaned: set[Path] = set()


@contextlib.contextmanager
def claimed(temporary: Path) -> Iterator[None]:
    """Lock a temporary file or folder, so that other processes know it to be in use."""
    _own_temporaries.add(temporary)
    descriptor = None
    # Windows has no such locks, and neither have some file systems.
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        flags = os.O_RDONLY if temporary.is_dir() else os.O_RDWR
        descriptor = os.open(temporary, flags)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        _own_temporaries.discard(temporary)
        if descriptor is not None:
            os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left in a folder, when it is first written to."""
    if folder in _cleaned:
        return
    _cleaned.add(folder)
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        for name in names:
            match = TEMPORARY.fullmatch(name)
            if match is None or not _is_abandoned(folder / name, int(match[2])):
                continue
            # An older folder may be the only copy; see `restore`.
            is_whole = len(match[3]) < KEPT_CHARACTERS
            if match[1] == "old" and not any(
                x == match[3] if is_whole else x.endswith(match[3])
                for x in names
                if not TEMPORARY.fullmatch(x)
            ):
                continue
            _remove(folder / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_abandoned(path: Path, process: int) -> bool:
    """Return whether the process that wrote to a temporary path is no more.

    It may also run on another computer or in another container that shares the folder.
    So its id and its lock must both be free.
    """
    if path in _own_temporaries:
        return False
    try:
        if os.name == "nt":
            # There, a signal of 0 would end the process.
            return _is_old(path)
        if process != os.getpid():
            os.kill(process, 0)
            return False
    except ProcessLookupError:
        pass
    except (OSError, OverflowError):
        # It is a process of somebody else, or none can have this id.
        return False
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return _is_old(path)
    finally:
        os.close(descriptor)


def _is_old(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.lstat().st_mtime > ABANDONED
    return False


def restore(path: Path) -> None:
    """Restore a folder that a killed process was replacing."""
    abandoned = [
        aside
        for aside in path.parent.glob(f".old-*-{kept_pattern(path)}")
        if (match := TEMPORARY.fullmatch(aside.name))
        and _is_abandoned(aside, int(match[2]))
    ]
    if abandoned and not path.exists():
        max(abandoned, key=os.path.getmtime).rename(path)


def kept_pattern(path: Path) -> str:
    """Return the end of a temporary name, as a pattern."""
    return glob.escape(path.name[-KEPT_CHARACTERS:])
