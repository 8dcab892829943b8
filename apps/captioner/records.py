"""A file that grows by a line for every photograph, and a display of how fast."""

import contextlib
import json
import time

import keras
from keras_attention_apps.common.cli import UserError

# Of every line.
BEGINNING = b'{"photo": "'


class Records:
    """A file of JSON lines that goes on where an interruption left it.

    A context manager. A line of ours that was cut off in the middle is removed.

    Args:
        path: The file; made if it is not there.

    Attributes:
        photos: The photographs that have a line.

    Raises:
        UserError: If the file has something else in it.
    """

    def __init__(self, path):
        self.path = path
        self.photos = set()

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")
        try:
            self._file.seek(0)
            whole = 0
            for number, line in enumerate(self._file, 1):
                ours = BEGINNING.startswith(line[: len(BEGINNING)])
                if ours and not line.endswith(b"\n"):
                    break
                self.photos.add(self._photo(line, number))
                whole += len(line)
            self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise
        return self

    def _photo(self, line, number):
        photo = None
        with contextlib.suppress(ValueError, TypeError, KeyError):
            photo = json.loads(line)["photo"]
        if not isinstance(photo, str) or not line.endswith(b"\n"):
            raise UserError(
                f"{self.path}, line {number}: expected a JSON object with the key "
                f"'photo', as an earlier start has written it. Received: {line[:60]!r}"
            )
        return photo

    def add(self, described):
        """Write one more line; of the dict, `"photo"` comes first."""
        line = json.dumps(described, ensure_ascii=False) + "\n"
        # Names of files need not be UTF-8.
        self._file.write(line.encode("utf-8", "surrogatepass"))
        self._file.flush()

    def __exit__(self, *error):
        self._file.close()


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
