"""Runs of language in Markdown.

A parser of CommonMark, with the extensions of GitHub, says where each element is in the
source. Code, formulas, addresses and the lines of metadata stay as they are; HTML is
read as in `html`.
"""

import bisect
import dataclasses
import itertools
import re
from typing import Any

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.formats import html
from keras_attention_apps.nmt.formats.runs import (
    CLOSE,
    OPEN,
    TEXT,
    UNIT,
    Document,
    Piece,
    Run,
    collapsed,
    has_letters,
    merged,
)

_INLINE = frozenset(
    ("Emphasis", "Strong", "Strikethrough", "Link", "Superscript", "Subscript")
)
_KEPT_BLOCKS = frozenset(("CodeBlock", "MetadataBlock"))
# What begins a block at the beginning of a text.
_MARKER = re.compile(r"(\s*\d{1,9})([.)])|(\s*)([-+*#>=~:|])")
_EXTENSIONS = (
    *("TABLES", "FOOTNOTES", "STRIKETHROUGH", "TASKLISTS", "HEADING_ATTRIBUTES"),
    *("MATH", "DEFINITION_LIST", "YAML_STYLE_METADATA_BLOCKS"),
    "PLUSES_DELIMITED_METADATA_BLOCKS",
)
_HTML_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)")
# The end of a line, and the marks of a quotation before the next one.
_LINE_END = re.compile(r"(?<! {2})(?<!\\)\r?\n[ \t>]*")
_SPECIAL = frozenset("\\`*_[]<>~$|")


def _parser():
    try:
        import pyromark
    except ImportError as error:
        raise UserError(
            "Markdown needs pyromark: "
            'python -m pip install "keras-attention-apps[train]"'
        ) from error
    options = pyromark.Options.ENABLE_GFM
    for name in _EXTENSIONS:
        options |= getattr(pyromark.Options, f"ENABLE_{name}")
    return pyromark.Markdown(options=options)


@dataclasses.dataclass(slots=True)
class _Event:
    """An event of the parser: its kind, name, content, and position in the source."""

    kind: str
    name: str
    content: Any
    start: int
    end: int


def _events(parser, text):
    """Yield the events of a text, with places in characters."""
    encoded = text.encode("utf-8", "surrogatepass")
    # The position of each character in bytes.
    sizes = (len(x.encode("utf-8", "surrogatepass")) for x in text)
    byte_offsets = (
        None if len(encoded) == len(text) else [0, *itertools.accumulate(sizes)]
    )

    def position(offset):
        return (
            offset if byte_offsets is None else bisect.bisect_left(byte_offsets, offset)
        )

    for event, span in parser.events_with_range(text):
        start, end = position(span["start"]), position(span["end"])
        if isinstance(event, str):
            yield _Event("leaf", event, "", start, end)
            continue
        ((kind, content),) = event.items()
        if kind in ("Start", "End"):
            name = content if isinstance(content, str) else next(iter(content))
            yield _Event(kind, name, content, start, end)
        else:
            yield _Event("leaf", kind, content, start, end)


class _Reader:
    """Finds the runs of a text, event by event."""

    def __init__(self, text):
        self.text, self.runs = text, []
        self._parser = _parser()
        self._pieces: list[Piece] = []
        # Tags that are open, each with the position where its text begins.
        self._opened: list[_Event] = []
        self._outer: list[tuple[list[Piece], list[_Event]]] = []
        self._kept = 0
        self._html: list[_Event] = []

    def read(self):
        # The parser takes no unpaired surrogates.
        safe = re.sub("[\ud800-\udfff]", "\ufffd", self.text)
        for event in _events(self._parser, safe):
            self._read(event)
        self._flush()
        return self.runs

    def _read(self, event):
        if event.name in _KEPT_BLOCKS:
            self._kept += {"Start": 1, "End": -1}[event.kind]
            self._flush()
        elif self._kept:
            return
        elif event.name == "Html":
            self._html.append(event)
        elif event.name == "HtmlBlock":
            self._flush()
            self._read_html()
        elif event.name == "Image":
            self._read_image(event)
        elif event.kind == "Start" and event.name in _INLINE:
            self._opened.append(event)
        elif event.kind == "End" and event.name in _INLINE:
            self._close(event)
        elif event.kind in ("Start", "End") or event.name in ("Rule", "TaskListMarker"):
            self._flush()
        else:
            self._add_leaf(event)

    def _begin(self, start):
        """Add the opening tags before a position, and what else is before it."""
        position = self._pieces[-1].end if self._pieces else None
        opened, self._opened = self._opened, []
        ends = [*(x.start for x in opened[1:]), start]
        for tag, end in zip(opened, ends, strict=False):
            position = self._fill(position, tag.start)
            self._pieces.append(Piece(OPEN, tag.start, end, name=tag.name))
            position = end
        return self._fill(position, start)

    def _fill(self, position, start):
        """Add what is between two pieces, such as the mark of a quotation."""
        if position is None or position >= start:
            return start
        last = self._pieces[-1]
        if last.kind in (TEXT, UNIT) and (last.text == " " or last.name == "br"):
            last.end = start
        else:
            # A backslash before the next character.
            self._pieces.append(Piece(UNIT, position, start, joins=True, name="escape"))
        return start

    def _add_leaf(self, event):
        start, end = event.start, event.end
        self._begin(start)
        if event.name == "Text":
            self._add_text(event)
        elif event.name == "SoftBreak":
            self._pieces.append(Piece(TEXT, start, end, " "))
        elif event.name == "HardBreak":
            self._pieces.append(Piece(UNIT, start, end, name="br"))
        elif event.name == "FootnoteReference":
            self._pieces.append(Piece(UNIT, start, end, joins=True))
        elif event.name == "InlineHtml":
            self._add_tag(event)
        else:
            self._pieces.append(Piece(UNIT, start, end, is_word=True))

    def _add_text(self, event):
        start, end = event.start, event.end
        source = self.text[start:end]
        before = self._pieces[-1] if self._pieces else None
        if before is not None and before.name == "escape":
            # The backslash and its character are one piece.
            self._pieces[-1] = Piece(TEXT, before.start, start + 1, source[:1])
            start, source = start + 1, source[1:]
            if not source:
                return
        same = len(source) == len(event.content) - (start - event.start)
        plain = source if same else event.content
        self._pieces.append(Piece(TEXT, start, end, plain))

    def _add_tag(self, event):
        source = self.text[event.start : event.end]
        match = _HTML_TAG.match(source)
        name = match[2].lower() if match else ""
        if not match or name in html.VOID or source.endswith("/>"):
            piece = Piece(UNIT, event.start, event.end, name=name, joins=not match)
        else:
            kind = CLOSE if match[1] else OPEN
            piece = Piece(kind, event.start, event.end, name=name, joins=True)
        self._pieces.append(piece)
        for run in html.read(source).runs:
            # Its attributes.
            self.runs.append(_shift(run, event.start))

    def _close(self, event):
        if self._opened and self._opened[-1].name == event.name:
            # There is nothing in it.
            tag = self._opened.pop()
            self._begin(tag.start)
            self._pieces.append(Piece(UNIT, tag.start, event.end))
            return
        start = self._pieces[-1].end if self._pieces else event.end
        self._pieces.append(Piece(CLOSE, start, event.end, name=event.name, joins=True))

    def _read_image(self, event):
        """Add an image; its description is a run of its own."""
        if event.kind == "Start":
            self._begin(event.start)
            self._outer.append((self._pieces, self._opened))
            self._pieces, self._opened = [], []
            return
        self._flush()
        self._pieces, self._opened = self._outer.pop()
        self._pieces.append(Piece(UNIT, event.start, event.end))

    def _read_html(self):
        """Read the lines of a block of HTML, unless they are in a quotation."""
        events, self._html = self._html, []
        if not events or any(
            event.end != following.start
            for event, following in itertools.pairwise(events)
        ):
            return
        start, end = events[0].start, events[-1].end
        for run in html.read(self.text[start:end]).runs:
            self.runs.append(_shift(run, start))

    def _flush(self):
        pieces, self._pieces, self._opened = self._pieces, [], []
        while pieces and (pieces[-1].name == "br" or not pieces[-1].text.strip()):
            if pieces[-1].kind not in (TEXT, UNIT):
                break
            pieces.pop()
        if not has_letters(pieces):
            return
        pieces = merged(collapsed(html.broken(pieces)))
        source = self.text[pieces[0].start : pieces[-1].end]
        text = "".join(x.text for x in pieces if x.kind == TEXT)
        plain = frozenset(x for x in _SPECIAL if x in text and f"\\{x}" not in source)
        finish = _Checked(self._parser, source)
        self.runs.append(Run(pieces, _Spelling(plain), finish))


def _shift(run, offset):
    """Move a run of a part of a text to its position in the text; return the run."""
    for piece in run.pieces:
        piece.start += offset
        piece.end += offset
    run.tag = None
    return run


class _Spelling:
    """Writes a character of a translation.

    Args:
        plain: Special characters that need no backslash in the source.
    """

    def __init__(self, plain):
        self._plain = plain

    def __call__(self, character):
        if character in _SPECIAL and character not in self._plain:
            return f"\\{character}"
        return character


class _Checked:
    """Returns the text of a translation if its elements are those of the source.

    The elements around words change where punctuation stands beside them. Then, the
    source stays as it is.
    """

    def __init__(self, parser, source):
        self._parser, self._source = parser, source

    def __call__(self, pieces):
        text = "".join(text for _, text in pieces)
        expected = self._elements(self._source)
        escaped = _MARKER.sub(_with_backslash, text, count=1)
        for candidate in (text, escaped):
            if self._elements(candidate) == expected:
                return candidate
        return None

    def _elements(self, text):
        """Return the elements of a text, in any order."""
        text = re.sub("[\ud800-\udfff]", "\ufffd", _LINE_END.sub(" ", text))
        return sorted(
            (x.kind, x.name)
            for x in _events(self._parser, text.strip())
            if x.name not in ("Text", "SoftBreak")
        )


def _with_backslash(match):
    if match.start():
        return match[0]
    if match[1]:
        return f"{match[1]}\\{match[2]}"
    return f"{match[3]}\\{match[4]}"


def read(text: str) -> Document:
    """Return a text in Markdown."""
    return Document(text, _Reader(text).read())
