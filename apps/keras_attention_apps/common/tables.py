"""Tables for spreadsheets: the outputs of a command as CSV or TSV."""

import contextlib
import csv
from typing import Any

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, printable
from keras_attention_apps.common.inference import Inputs, Writer, json_entry
from keras_attention_apps.common.output import TABLES, note, progress_bar

# Dialect of the module `csv` for each suffix of an output.
DIALECTS = dict(zip(TABLES, ("excel", "excel-tab"), strict=True))


def check_table(config: Any) -> None:
    """Raise a `UserError` if the output of a command cannot be a table."""
    files.check_file(config.output)
    if config.json:
        raise UserError(
            "--json needs an --output that ends in .jsonl. "
            f"Received: {str(config.output)!r}"
        )


class TableWriter(Writer):
    """Writes a row for each output of a command; the file appears at the end.

    An input without an output has a row, too, whose column `error` says why. A byte
    order mark tells spreadsheets that the text is UTF-8.

    Args:
        config: Options of the command: `output`, `n_best`.
        inputs: The `Inputs`, whose `columns` are the first ones of the table.
        noun: Key of an output in JSON, which is the name of its column, too.
        total: Number of inputs, for the progress bar; `None` if it is not known.
        extra: Further columns, keys of an output in JSON.
    """

    def __init__(
        self,
        config: Any,
        inputs: Inputs,
        *,
        noun: str,
        total: int | None = None,
        extra: tuple[str, ...] = (),
    ):
        self._config, self._inputs, self._noun = config, inputs, noun
        self._total, self._extra = total, extra
        self._stack = contextlib.ExitStack()

    def _names(self):
        """Return the names of all columns."""
        is_ranked = self._config.n_best > 1
        names = [*self._inputs.columns, *["rank", "score"] * is_ranked, self._noun]
        names += ["mean_log_probability", "confidence", "unsure", "reason"]
        return [*names, *self._extra, "error"]

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            path = stack.enter_context(files.atomic_path(self._config.output))
            # A file name need not be UTF-8.
            file = stack.enter_context(
                open(
                    path,
                    "w",
                    encoding="utf-8-sig",
                    errors="backslashreplace",
                    newline="",
                )
            )
            self._table = csv.DictWriter(
                file,
                self._names(),
                dialect=DIALECTS[self._config.output.suffix.lower()],
                extrasaction="ignore",
            )
            self._table.writeheader()
            bar = progress_bar(total=self._total, unit=self._noun)
            self._progress = stack.enter_context(bar)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self._stack.__exit__(*error)

    def write(self, number, outputs, probable):
        entry = json_entry(outputs, probable, as_list=True, details=False)
        first = self._inputs.row(number)
        rows = entry.pop(f"{self._noun}s", [])
        for rank, (output, row) in enumerate(zip(probable, rows, strict=True), 1):
            row |= {"rank": rank, **output.details(self._extra)}
        if not rows and "error" not in entry:
            entry["error"] = "below --min-score"
        for row in rows or [entry]:
            cells = {name: _cell(value) for name, value in (first | row).items()}
            self._table.writerow(cells)
        self._progress.update()

    def finish(self):
        note(f"{self._inputs.program}: wrote {printable(self._config.output)}")


def _cell(value):
    """Return a value of JSON as the text of a cell."""
    if isinstance(value, bool):
        # Spreadsheets would translate true and false.
        return "yes" if value else "no"
    return " ".join(value) if isinstance(value, list) else value
