"""File systems of paths and URIs, from pyarrow."""

import importlib
import os
import re

from keras_attention_apps.common.cli import UserError, reason

# A URI; `pathlib` merges its slashes into one. A drive letter is no scheme.
_URI = re.compile("([a-z][a-z0-9+.-]+):/+", re.IGNORECASE)


def located(path):
    """Return the `pyarrow.fs.FileSystem` of a path or URI, and the path inside it.

    Args:
        path: String or `pathlib.Path`, such as `photos` or `s3://bucket/photos`.

    Raises:
        UserError: If pyarrow is not installed, or has no such file system.
    """
    fs = require("pyarrow.fs")
    uri = as_text(path)
    if not _URI.match(uri):
        return fs.LocalFileSystem(), os.path.abspath(uri)
    try:
        return fs.FileSystem.from_uri(uri)
    # Errors of Arrow are subclasses of these.
    except (OSError, ValueError) as error:
        raise UserError(f"cannot open {uri!r}: {reason(error)}") from error


def as_text(path):
    """Return a path or URI as a string, with the slashes that `pathlib` removed."""
    text = str(path)
    found = _URI.match(text)
    if not found:
        return text
    scheme, rest = found[1].lower(), text[found.end() :]
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{rest}"


def located_all(paths):
    """Return the file system of several paths, and the paths inside it.

    Raises:
        UserError: If they are on different file systems.
    """
    places = [located(path) for path in paths]
    if any(filesystem != places[0][0] for filesystem, _ in places):
        raise UserError(
            "expected inputs on one file system. Received: "
            f"{', '.join(map(str, paths))}"
        )
    return places[0][0], [path for _, path in places]


def is_local(path):
    """Return whether a path or URI is on the local file system."""
    return not _URI.match(str(path)) or str(path).lower().startswith("file:")


def require(name):
    """Import a module of Ray or pyarrow, which are optional.

    Raises:
        UserError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f'--engine ray needs Ray and pyarrow: pip install ".[ray]" ({error})'
        ) from error
