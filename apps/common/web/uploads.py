"""Files that clients upload: their folder, which of them may be read, and their age."""

import contextlib
import os
import stat
import tempfile
import threading
import time
from pathlib import Path

from keras_attention_apps.common.cli import UserError

# Uploads are removed when they are older than this, in seconds. A request must not wait
# longer.
UPLOAD_AGE = 180
# Seconds between two searches for old uploads.
UPLOAD_INTERVAL = 15

REMOVED = "the upload was removed meanwhile: choose it again"

# Opening a pipe must not wait for a writer, and a link must not be followed. Windows
# lacks both flags.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
)


@contextlib.contextmanager
def upload_folder(program):
    """Yield a temporary folder for uploads, from which a thread removes old ones."""
    with tempfile.TemporaryDirectory(prefix=f"{program}-web-") as folder:
        folder = os.path.realpath(folder)
        ended = threading.Event()

        def remove():
            while not ended.wait(UPLOAD_INTERVAL):
                remove_old(folder)

        remover = threading.Thread(target=remove, daemon=True)
        remover.start()
        try:
            yield Path(folder)
        finally:
            ended.set()
            remover.join()


def remove_old(folder):
    """Remove files and empty folders that are older than `UPLOAD_AGE`."""
    oldest = time.time() - UPLOAD_AGE
    for root, folders, names in os.walk(folder, topdown=False):
        for name in (*names, *folders):
            path = Path(root, name)
            # A file may be removed meanwhile, and a folder may have new files.
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < oldest:
                    remove = path.rmdir if name in folders else path.unlink
                    remove()


def upload_path(path, folder):
    """Return the path of an upload, as a client named it, without links.

    Args:
        path: What the client sent, a string.
        folder: Folder of the uploads, without links.

    Raises:
        UserError: If it is no regular file in `folder`.
    """
    folder = os.path.join(folder, "")
    # A path elsewhere is not looked at, so that nobody learns whether it exists.
    if not os.path.abspath(path).startswith(folder):
        raise UserError("expected an uploaded file. Received: another path, or a URL")
    try:
        resolved = os.path.realpath(path)
        is_file = stat.S_ISREG(os.lstat(resolved).st_mode)
    # A name with a null character or a surrogate is a `ValueError`.
    except (OSError, ValueError):
        raise UserError(REMOVED) from None
    if not (is_file and resolved.startswith(folder)):
        raise UserError("expected an uploaded file. Received: a link or a folder")
    return resolved


def read_upload(path, most):
    """Return the bytes of an uploaded file.

    Args:
        path: As `upload_path` returned it.
        most: Maximum number of bytes.

    Raises:
        UserError: If it is no regular file, is larger, or was removed meanwhile.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        raise UserError(REMOVED) from None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError("expected a regular file. Received: a pipe or a device")
        if found.st_size > most:
            raise UserError(
                f"expected a file of at most {most:,} bytes. Received: "
                f"{found.st_size:,}"
            )
        return file.read(most)
