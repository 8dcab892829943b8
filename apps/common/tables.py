"""Tables of captions or translations: CSV, TSV, and lines of text."""

import csv

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TEXT, JSON_LINES = ".txt", ".jsonl"


class TableWriter:
    """Writes rows, which are dicts, to a text file in the format of a suffix.

    The file is opened with `newline=""`. CSV and TSV have a line with the `columns`;
    where a row has no value, it is empty, and booleans become `true` and `false`. A
    text file has the column `text` alone.
    """

    def __init__(self, file, suffix, columns, *, text):
        self._columns = columns
        self._text = text
        self._file = file
        self._writer = None
        if suffix in DELIMITERS:
            self._writer = csv.writer(
                file, delimiter=DELIMITERS[suffix], lineterminator="\n"
            )
            self._writer.writerow(columns)

    def write(self, row):
        """Write a row; a text that contains line breaks stays on one line of text."""
        if self._writer is None:
            print(" ".join((row.get(self._text) or "").split()), file=self._file)
        else:
            self._writer.writerow([_cell(row.get(name)) for name in self._columns])


def _cell(value):
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value
