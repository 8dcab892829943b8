"""An output file that a run can resume."""

import contextlib
import json
import math
import os

from keras_attention_apps.captioner.images import is_open
from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError

# The beginning of every line.
BEGINNING = b'{"image": "'
# What errors call an empty list of options.
DEFAULT = "the default options"
SCORE = "mean_log_probability"
# The keys of every line, and those that do not depend on the options.
COMMON_KEYS = ("image", "model", "options")
OTHER_KEYS = (*COMMON_KEYS, SCORE, "unsure")


class Records:
    """A file of JSON lines that resumes after an interruption, as a context manager.

    An incomplete last line is removed, and so are lines with an error, and those
    without a caption if the image may have one now: these images are tried again. A
    caption with a score below the minimum is removed from its line. Every line contains
    the model, and the options on which the captions depend.
    """

    def __init__(self, path, model, options="", min_score=None):
        self.path = path
        # Shell completion appends a slash to the name of a folder.
        self.model = model.rstrip("/" + os.sep)
        self.options = options
        self.min_score = -math.inf if min_score is None else min_score
        self._captioned = set()
        # The keys of a line, which depend on the options.
        self._names = None

    def __contains__(self, path):
        """Return whether an image has a line that stays.

        An open file, such as the standard input, may be another image in every run.
        """
        return not is_open(path) and os.path.abspath(path) in self._captioned

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(files.locked_file(self.path))
            self._resume()
            self._file = stack.enter_context(open(self.path, "ab"))
            self._stack = stack.pop_all()
        return self

    def _resume(self):
        """Read the lines of an earlier run, and update those that do not stay."""
        size, outdated = 0, False
        with open(self.path, "a+b") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                ours = BEGINNING.startswith(line[: len(BEGINNING)])
                if ours and not line.endswith(b"\n"):
                    break
                outdated |= not self._read(line, number)
                size += len(line)
            file.truncate(size)
        if outdated:
            self._update()

    def _read(self, line, number):
        """Read a line of an earlier run, and return whether it stays as it is."""
        where = f"{self.path}, line {number}: expected"
        try:
            entry = files.parse_json(line)
            image, kept = entry["image"], self._kept(entry)
            if not isinstance(image, str):
                raise TypeError("the image has no name")
            if not line.endswith(b"\n"):
                raise ValueError("the line is incomplete")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{where} a JSON object with the key 'image', as written by an "
                f"earlier run. Received: {line[:60]!r}"
            ) from error
        if entry.get("model") != self.model:
            raise UserError(
                f"{where} captions of {self.model!r}. Received: those of "
                f"{entry.get('model')!r}. Choose another output"
            )
        found = entry.get("options")
        if found != self.options:
            raise UserError(
                f"{where} captions with {self.options or DEFAULT}. Received: those "
                f"with {found or DEFAULT}. Choose another output"
            )
        if kept:
            self._mark_captioned(image)
            self._names = _names(kept) or self._names
        return kept is entry

    def _kept(self, entry):
        """Return a line without captions below the minimum score; `None` to remove it.

        It is removed if a new run may give it a caption.
        """
        if "error" in entry:
            return None
        captions = _captions(entry)
        if not captions:
            return entry if entry.get(SCORE, math.inf) < self.min_score else None
        below = [one for one in captions if one.get(SCORE, math.inf) < self.min_score]
        if not below:
            return entry
        if len(below) < len(captions):
            return {**entry, "captions": [one for one in captions if one not in below]}
        own = {name: x for name, x in entry.items() if name in COMMON_KEYS}
        empty = {"captions": []} if "captions" in entry else {"caption": None}
        return {**own, **empty, SCORE: max(one[SCORE] for one in below)}

    def _update(self):
        """Replace the file by one with the lines that stay, as they stay."""
        with (
            files.atomic_path(self.path) as temporary,
            open(self.path, "rb") as file,
            open(temporary, "wb") as new,
        ):
            for line in file:
                entry = json.loads(line)
                kept = self._kept(entry)
                if kept:
                    new.write(line if kept is entry else _line(kept))

    def add(self, path, described):
        """Write the line of an image."""
        if "error" not in described:
            names = _names(described) or self._names
            if names != (self._names or names):
                raise UserError(
                    f"{self.path} was written with other options: expected the keys "
                    f"{', '.join(sorted(self._names))}. Received: "
                    f"{', '.join(sorted(names))}. Choose another output"
                )
            self._names = names
            self._mark_captioned(path)
        own = {"image": str(path), "model": self.model, "options": self.options}
        with files.errors_naming(self.path):
            self._file.write(_line({**own, **described}))
            self._file.flush()

    def _mark_captioned(self, path):
        if not is_open(path):
            self._captioned.add(os.path.abspath(path))

    def __exit__(self, *error):
        with files.errors_naming(self.path):
            self._stack.close()


def _line(entry):
    return f"{files.to_json(entry)}\n".encode()


def _captions(entry):
    """Return the captions of a line, as dicts; an empty list if it has none."""
    captions = entry.get("captions", [entry])
    return [one for one in captions if one.get("caption") is not None]


def _names(entry):
    """Return the keys that depend on the options; `None` if there is no caption."""
    first = next(iter(_captions(entry)), None)
    return None if first is None else {*entry, *first} - {*OTHER_KEYS}
