"""Images from the standard input and other open files of the process."""

import os
import threading

from keras_attention_apps.common.reading import OPEN_FILES, STANDARD_INPUT, read_file


class OpenFile(os.PathLike):
    """An open file of the process, which may be a pipe: it is read only once.

    Args:
        path: Its path, such as `-` or `/dev/stdin`.
    """

    def __init__(self, path):
        self.path = path
        self._content = None
        # Several threads may read it at the same time.
        self._lock = threading.Lock()

    def __fspath__(self):
        return str(self.path)

    def __str__(self):
        return str(self.path)

    def read_bytes(self):
        with self._lock:
            if self._content is None:
                self._content = read_file(self.path)
            return self._content


def is_open(path):
    """Return whether a path is that of an open file, whose content differs by run."""
    return str(path) == STANDARD_INPUT or str(path).startswith(OPEN_FILES)


def with_open_files(paths):
    """Return paths, with one `OpenFile` in place of each path of an open file."""
    found = {path: OpenFile(path) for path in paths if is_open(path)}
    return [found.get(path, path) for path in paths]
