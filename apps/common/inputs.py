"""The files and folders that a command reads, which it must not replace."""

import os
from pathlib import Path

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import expanded, is_pipe_or_device
from keras_attention_apps.common.reading import STANDARD_INPUT


class Inputs:
    """The inputs of a command, to be compared with its outputs.

    Files are compared by identity, so that links, hard links, `..` and other spellings
    of a name make no difference.

    Args:
        *paths: Files and folders, which need not exist, or `-` for the standard input;
            `None` is left out.
    """

    def __init__(self, *paths):
        paths = [_named(path) for path in paths if path is not None]
        self._paths = set(map(os.path.realpath, paths))
        self._files = {found for path in paths if (found := _file_of(path))}
        self._folders = {path for path in self._paths if os.path.isdir(path)}

    def check(self, *outputs, whole=True):
        """Raise a `UserError` if an output is one of the inputs.

        An existing file in an input folder is an input, too. A terminal or another
        device may be input and output.

        Args:
            *outputs: Files and folders to write; `None` is left out.
            whole: Whether a folder is replaced as a whole, so that it must not contain
                an input.
        """
        for output in outputs:
            if output is not None and not is_pipe_or_device(output):
                self._check(Path(output), whole)

    def _check(self, output, whole):
        path = os.path.realpath(output)
        is_input = path in self._paths or _file_of(path) in self._files
        if os.path.isfile(path):
            is_input |= any(_is_in(folder, path) for folder in self._folders)
        elif whole:
            is_input |= any(_contains(path, inner) for inner in self._paths)
        if is_input:
            raise UserError(
                f"expected an output that is not an input. Received: {str(output)!r}"
            )


def _named(path):
    """Return the path of an input; the standard input may be a file."""
    return expanded("/dev/stdin" if str(path) == STANDARD_INPUT else path)


def _is_in(folder, path):
    """Return whether a file is in a folder, by its path or by a hard link."""
    if _contains(folder, path) or os.stat(path).st_nlink == 1:
        return _contains(folder, path)
    file = _file_of(path)
    return any(
        _file_of(os.path.join(inner, name)) == file
        for inner, _, names in os.walk(folder)
        for name in names
    )


def _contains(folder, path):
    return path.startswith(os.path.join(folder, ""))


def _file_of(path):
    """Return the identity of an existing file or folder, otherwise `None`."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
