"""Reading files: regular ones, or the standard input, up to a limit in bytes."""

import contextlib
import io
import os
import re
import stat
import sys

from keras_attention_apps.common.cli import UserError

# Default maximum size of a file, a line, or an expanded member of an archive, in bytes.
MAX_BYTES = 256_000_000
# Names of the standard input, and of the other open files of a process.
STANDARD_INPUT = "-"
OPEN_FILES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")

# Bytes that are read at once.
CHUNK = 2**24

_limit = MAX_BYTES


# Beginnings of addresses; a path has only one of the slashes.
_ADDRESS = re.compile(r"(https?|ftp|s3|gs|hf|file):/+", re.IGNORECASE)


class SizeLimitError(UserError):
    """A file, or a part of it, that exceeds the limit in bytes."""


@contextlib.contextmanager
def at_most(count):
    """Set the limit of the whole process, with all its threads, in the context."""
    global _limit
    before, _limit = _limit, count
    try:
        yield
    finally:
        _limit = before


def byte_limit():
    """Return the limit of the process in bytes."""
    return _limit


def check_bytes(count, name):
    """Raise a `SizeLimitError` if something has more bytes than the limit.

    Args:
        count: Its size, before it is read.
        name: Its name.
    """
    if count > _limit:
        raise SizeLimitError(
            f"{name} has more than {_limit:,} bytes; --max-bytes sets the limit"
        )


def check_local(path):
    """Raise a `UserError` if a path is the address of something on the network."""
    address = _ADDRESS.sub(r"\1://", str(path))
    if _ADDRESS.match(address) and not os.path.exists(path):
        raise UserError(
            "expected a path on this computer, since nothing is downloaded. Received "
            f"an address: {address!r}"
        )


def check_input(path):
    """Raise a `UserError` if a path is neither a regular file nor an open one.

    Reading a named pipe could block, and a device may never end.

    Raises:
        UserError: If it is neither, or the standard input is closed.
        OSError: If the path does not exist.
    """
    if str(path) == STANDARD_INPUT:
        check_standard_input("a regular file, or lines on the standard input")
        return
    if str(path).startswith(OPEN_FILES):
        return
    check_local(path)
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise UserError(
            "expected a regular file, or - for the standard input. Received "
            f"{'a folder' if stat.S_ISDIR(mode) else 'a pipe or a device'}: "
            f"{str(path)!r}"
        )


def check_standard_input(expected):
    """Raise a `UserError` if the standard input is closed.

    Args:
        expected: Description of the expected input.
    """
    # Python sets it to `None`.
    if sys.stdin is None:
        raise UserError(f"expected {expected}. Received: a closed standard input")


def check_read_once(*paths):
    """Raise a `UserError` if several inputs are the standard input."""
    if [str(path) for path in paths].count(STANDARD_INPUT) > 1:
        raise UserError(
            "expected - for one input at most, since the standard input is read only "
            "once. Received: several"
        )


@contextlib.contextmanager
def opened(path):
    """Open a regular file, or the standard input as `-`, for reading of bytes.

    Raises:
        UserError: As of `check_input`.
        OSError: If the file cannot be opened.
    """
    check_input(path)
    if str(path) == STANDARD_INPUT:
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


def read_file(path):
    """Return the bytes of a regular file, or of the standard input.

    Raises:
        UserError: If it is not one, or exceeds the limit; see `at_most`.
        OSError: If it cannot be read.
    """
    with opened(path) as file:
        return read_all(file, path)


def read_all(file, name):
    """Return the bytes of a binary file from here on, up to the limit.

    Args:
        file: The file.
        name: Its name, for an error.
    """
    content = io.BytesIO()
    while chunk := file.read(CHUNK):
        content.write(chunk)
        check_bytes(content.tell(), name)
    return content.getvalue()


def read_line(file, name):
    """Return the next line of a binary file, up to the limit."""
    line = file.readline(_limit + 1)
    check_bytes(len(line), name)
    return line
