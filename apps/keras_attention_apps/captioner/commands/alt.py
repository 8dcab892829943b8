"""`captioner alt`: alternative texts for the pictures of pages."""

import collections
import csv
import dataclasses
import html
import io
import os
import re
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from keras_attention_apps.captioner.captions import check_inference
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common import files
from keras_attention_apps.common.encoding import decoded, encoded
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.html_tokens import (
    TEMPLATE,
    attributes_of,
    name_end,
    tokens_of,
)
from keras_attention_apps.common.output import JSON_LINES, note, progress_bar
from keras_attention_apps.common.schema import IMAGE

# Suffixes of the pages in a folder.
PAGE_SUFFIXES = (".htm", ".html", ".xhtml")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# Blanks that an address may have, which browsers ignore.
_BLANKS = re.compile(r"[\t\n\r]")


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture of a page that has no alternative text.

    Attributes:
        insert_at: Index in the source at which the text goes.
        line: Number of its line.
        source: Its address, as in the page.
        path: The file, or `None` if it is not a file of this computer.
        reason: Why it is not, or why it needs no text.
    """

    insert_at: int
    line: int
    source: str
    path: Path | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Text:
    """An alternative text; without one, or with a reason, none is written."""

    text: str | None
    reason: str = ""
    is_error: bool = False


def alt(config):
    """Complete pages as an `AltConfig` describes it.

    The exit code is 2 if a picture could not be read.
    """
    check_inference(config.model)
    paths = _find_pages(config.pages)
    _check(config, paths)
    pages = [Page(path, config.root) for path in paths]
    if config.captions:
        texts = read_texts(config.captions)
    else:
        pictures = [x.path for page in pages for x in page.pictures if x.path]
        texts = _caption(config, list({_key(x): x for x in pictures}.values()))
    failures = 0
    for page in pages:
        written = []
        for picture in page.pictures:
            text = _text_of(picture, texts)
            if text.reason:
                kind = "error" if text.is_error else "warning"
                failures += text.is_error
                page.report(kind, picture, text.reason)
            else:
                written.append((picture, text.text))
        content = page.with_texts(written)
        output = page.path if config.in_place else config.output
        if written or not config.in_place:
            files.write_or_print(output, content)
        if output:
            count = counted(len(written), "alternative text")
            without = len(page.pictures) - len(written)
            rest = f"; {counted(without, 'picture')} without one" if without else ""
            note(f"captioner: wrote {count} to {printable(output)}{rest}")
    return 2 if failures else 0


def _find_pages(arguments):
    """Return the paths of all pages; those of a folder are below it."""
    paths = []
    for path in arguments:
        if not os.path.isdir(path):
            paths.append(path)
            continue
        pages = [x for x in Path(path).rglob("*") if x.suffix.lower() in PAGE_SUFFIXES]
        paths += sorted(x for x in pages if x.is_file())
        if not pages:
            raise UserError(
                f"expected pages ({', '.join(PAGE_SUFFIXES)}) in {str(path)!r} or a "
                "folder inside it. Received: none"
            )
    return list(dict.fromkeys(paths))


def _check(config, paths):
    """Raise a `UserError` for options that do not fit, before a page is read."""
    if not paths:
        raise UserError("expected at least one page or folder. Received: none")
    files.check_read_once(*paths, config.captions)
    if config.in_place and config.output:
        raise UserError("expected either --output or --in-place, not both")
    if len(paths) > 1 and not config.in_place:
        raise UserError(f"expected --in-place for {len(paths)} pages")
    if config.root and not os.path.isdir(config.root):
        raise UserError(f"--root must be a folder. Received: {str(config.root)!r}")
    for path in paths:
        if not config.in_place:
            files.check_input(path)
        elif str(path) == files.STANDARD_INPUT or not os.path.isfile(path):
            raise UserError(
                f"--in-place needs pages that are files. Received: {str(path)!r}"
            )
        else:
            files.check_file(path)
    if config.output:
        files.check_file(config.output)
        inputs = [*paths, config.captions, *RUNTIMES.files(config.model.name)]
        files.check_distinct(inputs, config.output)


class Page:
    """A page, and its pictures without an alternative text.

    Attributes:
        path: The path of the page.
        pictures: The `Picture`s, in order.
    """

    def __init__(self, path: Path, root: Path | None):
        self.path = path
        name = printable(path)
        self._text, self._encoding = decoded(files.read_file(path), name)
        folder = Path() if files.is_open(path) else Path(path).parent
        self.pictures = list(find_pictures(self._text, folder, root))

    def report(self, kind: str, picture: Picture, reason: str) -> None:
        """Report a picture that gets no text, with its place in the page."""
        source = repr(picture.source) if picture.source else "a picture"
        message = f"{self.path}, line {picture.line}: {source}: {reason}"
        print(f"captioner: {kind}: {printable(message)}", file=sys.stderr)

    def with_texts(self, texts: list[tuple[Picture, str]]) -> bytes:
        """Return the page with alternative texts; all other bytes stay as they are."""
        parts: list[str] = []
        end = 0
        for picture, text in texts:
            parts += self._text[end : picture.insert_at], f' alt="{html.escape(text)}"'
            end = picture.insert_at
        whole = "".join([*parts, self._text[end:]])
        return encoded(whole, self._encoding, references=True)


def find_pictures(text: str, folder: Path, root: Path | None) -> Iterator[Picture]:
    """Yield the pictures of a page that have no `alt`.

    Args:
        text: The source of the page.
        folder: The folder of the page.
        root: The folder of addresses that begin with a slash, if it is known.
    """
    base = None
    line, end = 1, 0
    for token in tokens_of(text):
        if token.kind != "open" or token.name not in ("img", "base"):
            continue
        spans = attributes_of(text, token.start, token.end)
        values = {x.name: html.unescape(text[x.start : x.end]) for x in spans}
        if token.name == "base":
            # The first address counts.
            base = values.get("href") if base is None else base
            continue
        if "alt" in values:
            continue
        line += text.count("\n", end, token.start)
        end = token.start
        source = values.get("src", "").strip()
        insert_at = name_end(text, token.start)
        path, reason = _file_of(_BLANKS.sub("", source), base or "", folder, root)
        if is_hidden(values):
            path, reason = None, "is hidden from screen readers"
        elif values.get("aria-label", values.get("aria-labelledby", "")).strip():
            path, reason = None, "has a label of its own"
        yield Picture(insert_at, line, source, path, reason)


def is_hidden(values: dict[str, str]) -> bool:
    """Return whether attributes hide a picture from screen readers."""
    role = values.get("role", "").strip().lower()
    is_marked = values.get("aria-hidden", "").strip().lower() == "true"
    return is_marked or role in ("none", "presentation")


def _file_of(source, base, folder, root):
    """Return the file of an address, or `None` and the reason why there is none."""
    if not source:
        return None, "has no src"
    if TEMPLATE.search(source):
        return None, "has an address that a template fills in"
    if source[:5].lower() == "data:":
        return None, "is embedded in the page"
    try:
        address = urllib.parse.urljoin(base.strip(), source)
        is_remote = bool(_SCHEME.match(address)) or address.startswith("//")
        path = urllib.parse.unquote(urllib.parse.urlsplit(address).path)
    except ValueError:
        return None, "has an address that is not valid"
    if is_remote:
        return None, "is not on this computer"
    if not path or "\0" in path:
        return None, "has an address without a file"
    if path.startswith("/"):
        if root is None:
            return None, "has an address that begins with a slash; --root is missing"
        folder = root
    return folder / path.lstrip("/"), ""


def _caption(config, paths):
    """Return a dict from pictures to the `Text`s that a model writes."""
    missing = [path for path in paths if not os.path.exists(path)]
    texts = {_key(x): Text(None, "there is no such file", True) for x in missing}
    paths = [path for path in paths if os.path.exists(path)]
    if not paths:
        return texts
    captioner = RUNTIMES.load_for(config, n_best=1)
    options = {"batch_size": config.batch_size, **config.search.given}
    results = captioner.each(paths, n_best=1, **options)
    with progress_bar(total=len(paths), unit="picture") as bar:
        for path, captions in zip(paths, results, strict=True):
            texts[_key(path)] = _text_of_captions(captions)
            bar.update()
    return texts


def _text_of_captions(captions):
    if isinstance(captions, UserError):
        return Text(None, str(captions), True)
    caption = captions[0]
    if not caption.text:
        return Text(None, "has an empty caption")
    if caption.unsure:
        return _unsure(caption.text, caption.reason)
    return Text(as_sentence(caption.text))


def _unsure(text, reason):
    why = f": {reason}" if reason else ""
    return Text(None, f"the model is unsure of {as_sentence(text)!r}{why}")


def _text_of(picture, texts):
    """Return the `Text` of a picture."""
    if picture.path is None:
        return Text(None, picture.reason)
    return texts.get(_key(picture.path), Text(None, "is not in the captions"))


def _key(path):
    """Return the same name for all paths of a file."""
    return os.path.realpath(path)


def read_texts(path: Path) -> dict[str, Text]:
    """Read the texts of pictures from an output of `captioner caption`.

    The dict is from their resolved paths. A picture without a text only decorates, and
    gets an empty one.

    Raises:
        UserError: If the file is no table, and has no JSON lines, of pictures.
    """
    content, _ = decoded(files.read_file(path), printable(path))
    if path.suffix.lower() == JSON_LINES:
        rows = _json_rows(content, path)
    else:
        rows = _table_rows(content, path)
    texts: dict[str, Text] = {}
    for row in rows:
        texts.setdefault(_key(row[IMAGE]), _text_of_row(row))
    return texts


def _json_rows(content, path):
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = files.parse_json(line)
            if "captions" in row:
                row = {"caption": None, **row, **next(iter(row["captions"]), {})}
            if not isinstance(row[IMAGE], str) or not {"caption", "error"} & set(row):
                raise TypeError("expected the name of an image, and its caption")
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{printable(path)}, line {number}: expected a line of captioner "
                f"caption --output. Received: {line[:60]!r}"
            ) from error
        yield row


def _table_rows(content, path):
    content = content.removeprefix("\ufeff")
    header = content.partition("\n")[0]
    # Some spreadsheets write semicolons instead of commas.
    delimiter = max(",;\t", key=collections.Counter(header).__getitem__)
    rows = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter)
    if not {IMAGE, "caption"} <= set(rows.fieldnames or ()):
        raise UserError(
            f"{printable(path)}: expected the columns {IMAGE} and caption. "
            f"Received: {header[:60]!r}"
        )
    return rows


def _text_of_row(row):
    if row.get("error"):
        return Text(None, str(row["error"]), True)
    if row["caption"] is None:
        return Text(None, "has no caption")
    text = " ".join(str(row["caption"]).split())
    if str(row.get("unsure") or "").strip().lower() in ("yes", "true"):
        return _unsure(text, row.get("reason"))
    return Text(as_sentence(text))


def as_sentence(text: str) -> str:
    """Return a text as a sentence; one that ends with a mark is returned as it is.

    >>> as_sentence("a dog runs"), as_sentence("iPhone 5, from behind.")
    ('A dog runs.', 'iPhone 5, from behind.')
    """
    if not text or text[-1] in ".!?\u2026":
        return text
    return f"{text[0].upper()}{text[1:]}."
