"""A file of JSON lines with the outputs of a command, which a later run resumes."""

import contextlib
import os

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.inference import Writer, json_entry
from keras_attention_apps.common.output import JSON_LINES, note, progress_bar

# What errors call an empty list of options.
DEFAULT = "the default options"


def check_records_file(output):
    """Raise a `UserError` if an output cannot be a file of JSON lines.

    Tables (.csv, .tsv) have a check of their own, `check_table`.
    """
    files.check_file(output)
    if files.is_pipe_or_device(output):
        raise UserError(
            "--output must be a file, so that an interrupted run can continue it. "
            f"Received a pipe or a device: {str(output)!r}"
        )
    if output.suffix.lower() != JSON_LINES:
        raise UserError(
            "--output must end in .jsonl (JSON lines), .csv or .tsv. "
            f"Received: {str(output)!r}"
        )


class RecordWriter(Writer):
    """Writes the outputs of a command to `Records`, and shows a progress bar.

    Args:
        config: Options of the command: `json`, `n_best`.
        inputs: The `Inputs`, which name their files in `paths`, and leave out those
            that need no output with `leave_out`.
        records: The `Records`.
    """

    def __init__(self, config, inputs, records):
        self._config, self._inputs, self._records = config, inputs, records
        self._unreadable = self._earlier = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._records)
            self._earlier = self._inputs.leave_out(self._records)
            options = {"total": len(self._inputs.paths), "unit": self._records.key}
            self._progress = stack.enter_context(progress_bar(**options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def write(self, number, outputs, probable):
        self._unreadable += isinstance(outputs, UserError)
        path = self._inputs.paths[number - 1]
        if path not in self._records:
            as_list, details = self._config.n_best > 1, self._config.json
            entry = json_entry(outputs, probable, as_list=as_list, details=details)
            self._records.add(path, entry)
        self._progress.update()

    def finish(self):
        records, unreadable = self._records, self._unreadable
        count = counted(len(self._inputs.paths) - unreadable, records.key)
        wrote = [
            f"{self._inputs.program}: wrote {records.noun}s of {count} to "
            f"{printable(records.path)}"
        ]
        if self._earlier:
            wrote.append(f"those of {self._earlier:,} were there before")
        if unreadable:
            wrote.append(f"{counted(unreadable, records.key)} could not be read")
        note("; ".join(wrote))


class Records:
    """A file of JSON lines that a later run resumes, as a context manager.

    Every line has an input, the model, and the options on which the outputs depend. A
    run removes an incomplete last line and the lines with an error, and computes these
    outputs again. `key` is that of the input in JSON, and `noun` the name of an output.
    """

    def __init__(self, path, model, options="", *, key, noun):
        self.path, self.key, self.noun = path, key, noun
        # Shell completion appends a slash to the name of a folder.
        self.model = model.rstrip("/" + os.sep)
        self.options = options
        self._written = set()

    def __contains__(self, path):
        """Return whether an input has a line that stays.

        An open file, such as the standard input, may have another content in every run.
        """
        return not files.is_open(path) and os.path.abspath(path) in self._written

    def __enter__(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            stack.enter_context(files.locked_file(self.path))
            if self.path.exists():
                self._resume()
            self._file = stack.enter_context(open(self.path, "ab"))
            self._stack = stack.pop_all()
        return self

    def _resume(self):
        """Replace the file of an earlier run by one with the lines that stay."""
        beginning = f'{{"{self.key}": "'.encode()
        with (
            files.atomic_path(self.path) as temporary,
            open(self.path, "rb") as file,
            open(temporary, "wb") as new,
        ):
            for number, line in enumerate(file, 1):
                ours = beginning.startswith(line[: len(beginning)])
                if ours and not line.endswith(b"\n"):
                    break
                entry = self._parse(line, f"{self.path}, line {number}: expected")
                if "error" not in entry:
                    self._mark_written(entry[self.key])
                    new.write(line)

    def _parse(self, line, where):
        """Return the dict of a line, or raise a `UserError` if it is of another run."""
        try:
            entry = files.parse_json(line)
            name, model, options = (entry[x] for x in (self.key, "model", "options"))
            if not isinstance(name, str) or not line.endswith(b"\n"):
                raise TypeError("expected a whole line, and a name")
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{where} a JSON object with the key {self.key!r}, as written by an "
                f"earlier run. Received: {line[:60]!r}"
            ) from error
        if model != self.model:
            raise UserError(
                f"{where} {self.noun}s of {self.model!r}. Received: those of "
                f"{model!r}. Choose another output"
            )
        if options != self.options:
            raise UserError(
                f"{where} {self.noun}s with {self.options or DEFAULT}. Received: those "
                f"with {options or DEFAULT}. Choose another output"
            )
        return entry

    def add(self, path, described):
        """Write the line of an input."""
        if "error" not in described:
            self._mark_written(path)
        identity = {self.key: str(path), "model": self.model, "options": self.options}
        with files.errors_naming(self.path):
            self._file.write(f"{files.to_json({**identity, **described})}\n".encode())
            self._file.flush()

    def _mark_written(self, path):
        if not files.is_open(path):
            self._written.add(os.path.abspath(path))

    def __exit__(self, *error):
        with files.errors_naming(self.path):
            self._stack.close()
