"""Sentence pairs in one file: tables, translation memories, messages, and archives."""

import csv
import io
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.parsers import expat

from keras_attention_apps.common.errors import UserError, listed, reason
from keras_attention_apps.common.files import (
    MARKS,
    as_utf8,
    check_bytes,
    read_all,
    read_file,
)
from keras_attention_apps.nmt.formats.gettext import parsed_messages

# Both sides of pairs; some may be empty.
Sides = tuple[list[str], list[str]]
# Rows of a table by which its columns of numbers are known.
SAMPLE = 100
# Elements of TMX whose content is markup of another format; that of `sub` is text.
MARKUP = frozenset({"bpt", "ept", "it", "ph", "ut"})
GZIP_SUFFIX = ".gz"


def suffix_of(path: Path) -> str:
    """Return the suffix of a file's format, without that of its compression."""
    return Path(path.name.lower().removesuffix(GZIP_SUFFIX)).suffix


def is_pair_file(path: Path) -> bool:
    """Return whether a path is a file in one of the `FORMATS`."""
    return path.is_file() and suffix_of(path) in FORMATS


def read_sides(
    path: Path, pair: str | None, columns: Sequence[str], names: Sequence[str]
) -> Sides:
    """Return the sides of the pairs of a file, as many sources as targets.

    Args:
        path: File in one of the `FORMATS`.
        pair: Language pair, such as `"en-de"`: languages of a translation memory, names
            of columns, and suffixes of the files in an archive.
        columns: Source and target column of a table, names or numbers from 1.
        names: Names of the split, such as `"train"`, by which files in an archive are
            chosen if there are several.
    """
    if columns and suffix_of(path) not in TABLES:
        raise UserError(
            f"--columns needs a table, {' or '.join(TABLES)}. Received: {path}"
        )
    if columns and len(columns) != 2:
        raise UserError(
            "--columns takes two columns, of the source and of the target. Received: "
            f"{len(columns)}"
        )
    languages = pair.split("-") if pair else []
    sides = FORMATS[suffix_of(path)](path, languages, columns, names)
    if not any(map(all, zip(*sides, strict=True))):
        raise UserError(f"{path} has no pair with text on both sides")
    return sides


def _text(path):
    content = as_utf8(read_file(path), path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {number}, is not UTF-8") from error


def read_tsv(path, languages, columns, names):
    """Return the columns of lines with tabs, which have no quotation marks.

    In an export of Tatoeba, each sentence follows its number.
    """
    lines = _text(path).removesuffix("\n").split("\n")
    rows = [line.removesuffix("\r").split("\t") for line in lines]
    return _columns(path, rows, languages, columns)


def read_csv(path, languages, columns, names):
    """Return the columns of a table with commas or semicolons."""
    text = _text(path)
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    # The limit is that of the process, so it is set back for other readers.
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise UserError(f"{path} is not a table: {error}") from error
    finally:
        csv.field_size_limit(limit)
    return _columns(path, [row for row in rows if row], languages, columns)


def _columns(path, rows, languages, columns):
    """Return two columns of rows, without the row of their names."""
    if not rows:
        raise UserError(f"{path} is empty")
    header = [name.strip() for name in rows[0]]
    chosen = list(columns)
    if not chosen:
        lowered = [name.lower() for name in header]
        for wanted in (languages, ["source", "target"]):
            if len(wanted) == 2 and set(wanted) <= set(lowered):
                chosen = [header[lowered.index(name)] for name in wanted]
                break
        else:
            chosen = _columns_of_text(rows)
    if all(name in header for name in chosen):
        indices, rows = [header.index(name) for name in chosen], rows[1:]
    elif all(name.isdecimal() and int(name) > 0 for name in chosen):
        indices = [int(name) - 1 for name in chosen]
    else:
        raise UserError(
            f"expected columns of {path}: {listed(chosen[0], header)}. "
            f"Received: {' and '.join(chosen)}"
        )
    sides: Sides = [], []
    for number, row in enumerate(rows, start=1):
        if max(indices) >= len(row):
            raise UserError(
                f"{path}, row {number}, has {len(row)} columns. Expected at least "
                f"{max(indices) + 1}"
            )
        for side, column in zip(sides, indices, strict=True):
            side.append(row[column])
    return sides


def _columns_of_text(rows):
    """Return the numbers of the first two columns that are not numbers alone."""
    width = min(len(row) for row in rows[:SAMPLE])
    texts = [
        str(i + 1)
        for i in range(width)
        if not all(row[i].strip().isdecimal() for row in rows[:SAMPLE])
    ]
    return texts[:2] if len(texts) > 1 else ["1", "2"]


class _MemoryReader:
    """Reads the units of a translation memory, of which expat tells the parts."""

    def __init__(self, languages):
        self.languages = languages
        self.sides: Sides = [], []
        self.known: dict[str, None] = {}
        self._texts: dict[str, str] = {}
        self._language = ""
        self._open: list[str] = []
        self._segment: list[str] | None = None

    def start(self, name, attributes):
        name = name.lower()
        self._open.append(name)
        if name == "tu":
            self._texts = {}
        elif name == "tuv":
            code = attributes.get("xml:lang", attributes.get("lang", ""))
            self._language = code.lower()
            self.known[code] = None
        elif name == "seg":
            self._segment = []

    def end(self, name):
        name = self._open.pop()
        if name == "seg" and self._segment is not None:
            self._texts.setdefault(self._language, "".join(self._segment))
            self._segment = None
        elif name == "tu":
            texts = [self._text(language.lower()) for language in self.languages]
            if all(text is not None for text in texts):
                for side, text in zip(self.sides, texts, strict=True):
                    side.append(text)

    def _text(self, language):
        """Return the text in a language, or in a variety of it such as en-GB."""
        for code, text in self._texts.items():
            if re.split("[-_]", code)[0] == language or code == language:
                return text
        return None

    def data(self, text):
        if self._segment is None:
            return
        # The innermost of these elements decides.
        inner = next((x for x in reversed(self._open) if x in MARKUP | {"sub"}), "sub")
        if inner == "sub":
            self._segment.append(text)

    def refuse(self, *declaration):
        raise UserError(
            "a translation memory must not declare entities: they can stand for texts "
            f"of any size, and for files. Received: {declaration[0]!r:.60}"
        )


def read_tmx(path, languages, columns, names):
    """Return the segments of two languages of a translation memory in TMX."""
    if len(languages) != 2:
        raise UserError(f"{path} needs --pair, its languages, such as en-de")
    raw = read_file(path)
    content = as_utf8(raw, path)
    # A text with a byte order mark is UTF-8 now, whatever it declares.
    is_converted = content != raw and not content.startswith(tuple(MARKS))
    declared = re.match(rb"<\?xml[^>]*encoding=.utf-?(?:16|32)", content, re.IGNORECASE)
    parser = expat.ParserCreate("UTF-8" if is_converted and declared else None)
    reader = _MemoryReader(languages)
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.data
    parser.EntityDeclHandler = reader.refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(f"{path} is not XML: {error}") from error
    if not reader.sides[0]:
        raise UserError(
            f"{path} has no unit in {' and '.join(languages)}. Its languages are "
            f"{', '.join(filter(None, reader.known)) or 'not given'}"
        )
    return reader.sides


def read_messages(path, languages, columns, names):
    """Return the messages of a file of gettext, and their translations.

    Messages without a translation, and doubtful ones ("fuzzy"), are left out.
    """
    sides: Sides = [], []
    for entry in parsed_messages(_text(path)):
        if entry.obsolete or entry.fuzzy:
            continue
        texts = [(entry.msgid, entry.msgstr)]
        if entry.msgid_plural:
            forms = entry.msgstr_plural
            texts = [(entry.msgid, forms.get(0, ""))]
            texts.append((entry.msgid_plural, forms.get(max(forms, default=0), "")))
        for source, target in texts:
            if source and target:
                sides[0].append(source)
                sides[1].append(target)
    return sides


def read_archive(path, languages, columns, names):
    """Return the lines of two files in an archive, as OPUS has them for Moses.

    Their names differ in their ends alone, the languages: `Books.de-en.de` and
    `Books.de-en.en`.
    """
    if len(languages) != 2:
        raise UserError(f"{path} needs --pair, the suffixes of its files, as in en-de")
    check_bytes(path.stat().st_size, path)
    try:
        with zipfile.ZipFile(path) as archive:
            known = {x.filename: x for x in archive.infolist()}
            ends = [f".{language}" for language in languages]
            stems = [
                name.removesuffix(ends[0])
                for name in known
                if name.endswith(ends[0])
                and name.removesuffix(ends[0]) + ends[1] in known
            ]
            if len(stems) > 1:
                named = [x for x in stems if Path(x).name in names]
                stems = named if len(named) == 1 else stems
            if len(stems) != 1:
                raise UserError(
                    f"expected two files in {path} that end in {' and '.join(ends)}, "
                    f"such as train{ends[0]}. Received: {listed('', known)}"
                )
            texts = []
            for end in ends:
                member = known[stems[0] + end]
                check_bytes(member.file_size, path)
                with archive.open(member) as file:
                    texts.append(as_utf8(read_all(file, path), path).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} has a file that is not UTF-8") from error
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as error:
        raise UserError(f"{path} is damaged or encrypted: {reason(error)}") from error
    lines = [text.removesuffix("\n").split("\n") for text in texts]
    if len(lines[0]) != len(lines[1]):
        raise UserError(
            f"both files in {path} must have the same number of lines. Received: "
            f"{len(lines[0])} and {len(lines[1])}"
        )
    return lines[0], lines[1]


TABLES = {".tsv": read_tsv, ".csv": read_csv}
FORMATS: dict[str, Callable[..., Sides]] = {
    **TABLES,
    ".tmx": read_tmx,
    ".po": read_messages,
    ".zip": read_archive,
}
