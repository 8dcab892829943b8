"""Writing files so that nobody ever sees half of one."""

import contextlib
import json
import os
import shutil
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path):
    """Give a temporary name to write to; on success it becomes `path`.

    Works for files and folders. After an error nothing is left, and what stood at
    `path` before stands there still. The temporary name keeps the suffixes, since
    libraries choose a format by them.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        yield temporary
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def write_json(path, value):
    """Write a value as readable JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))
