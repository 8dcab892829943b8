"""A file that grows by a line for every photograph, and a display of how fast."""

import contextlib
import json
import os
import time

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import atomic_path, to_json

# Of every line.
BEGINNING = b'{"photo": "'


class Records:
    """A file of JSON lines that goes on where an interruption left it.

    A context manager. A line of ours that was cut off in the middle is removed, and so
    are those with an error: their photographs may be tried again.

    Args:
        path: The file; made if it is not there.
        model: Name of the model, or its folder, which every line has.

    Raises:
        UserError: If the file has something else in it, or captions of another model.
    """

    def __init__(self, path, model):
        self.path = path
        # Who lets the shell complete the name of a folder has a slash behind it.
        self.model = model.rstrip("/" + os.sep)
        self._photos = set()
        # The names in a line, by which those of other options are known.
        self._names = None

    def __contains__(self, photo):
        """Whether a photograph has its captions already."""
        return os.path.abspath(photo) in self._photos

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole, failed = 0, False
        with open(self.path, "a+b") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                ours = BEGINNING.startswith(line[: len(BEGINNING)])
                if ours and not line.endswith(b"\n"):
                    break
                failed |= not self._read(line, number)
                whole += len(line)
            file.truncate(whole)
        if failed:
            self._remove_errors()
        self._file = open(self.path, "ab")
        return self

    def _read(self, line, number):
        """Take in a line of an earlier start; returns whether it has captions."""
        told = None
        with contextlib.suppress(ValueError):
            told = json.loads(line)
        photo = told.get("photo") if isinstance(told, dict) else None
        where = f"{self.path}, line {number}: expected"
        if not isinstance(photo, str) or not line.endswith(b"\n"):
            raise UserError(
                f"{where} a JSON object with the key 'photo', as an earlier start has "
                f"written it. Received: {line[:60]!r}"
            )
        if told.get("model") != self.model:
            raise UserError(
                f"{where} captions of {self.model!r}. Received: those of "
                f"{told.get('model')!r}"
            )
        if "error" in told:
            return False
        self._photos.add(os.path.abspath(photo))
        self._names = _names(told)
        return True

    def _remove_errors(self):
        with (
            atomic_path(self.path) as temporary,
            open(self.path, "rb") as file,
            open(temporary, "wb") as kept,
        ):
            kept.writelines(x for x in file if "error" not in json.loads(x))

    def add(self, photo, described):
        """Write one more line, of a photograph and what there is to say about it.

        Raises:
            UserError: If there is something else to say than about those before.
        """
        if "error" not in described:
            names = _names(described)
            if names != (self._names or names):
                raise UserError(
                    f"{self.path} has lines of other options, with "
                    f"{', '.join(sorted(self._names))}. Received: "
                    f"{', '.join(sorted(names))}. Choose another output"
                )
            self._names = names
            self._photos.add(os.path.abspath(photo))
        told = {"photo": str(photo), "model": self.model, **described}
        self._file.write(f"{to_json(told)}\n".encode())
        self._file.flush()

    def __exit__(self, *error):
        self._file.close()


def _names(told):
    """The names of what a line tells of a caption."""
    [first, *_] = told.get("captions", [told])
    return set(first) - {"photo", "model"}


class Throughput:
    """A progress bar that tells in the end how many there were in a second.

    A context manager.

    Args:
        count: How many there will be.
        name: Of one of them.
    """

    def __init__(self, count, name):
        self.name = name
        self._bar = keras.utils.Progbar(count, unit_name=name)

    def __enter__(self):
        self._done, self._start = 0, time.perf_counter()
        return self

    def add(self, count):
        self._done += count
        self._bar.add(count)

    def __exit__(self, *error):
        seconds = time.perf_counter() - self._start
        speed = self._done / seconds
        print(f"{self._done} {self.name}s in {seconds:.1f} s, {speed:.1f} a second")
