"""Runs of language in HTML and XHTML.

All elements but those of blocks are parts of a sentence.
"""

import bisect
import dataclasses
import html
import re

from keras_attention_apps.common.html_tokens import (
    TEMPLATE,
    attributes_of,
    html_tokens,
    is_xml,
    name_end,
    xml_tokens,
)
from keras_attention_apps.nmt.formats.runs import (
    BREAK,
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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Elements that end a sentence before and after them.
_BLOCKS = _names(
    "address article aside base blockquote body caption center col colgroup dd details "
    "dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 "
    "h3 h4 h5 h6 head header hgroup hr html legend li main menu nav noframes ol "
    "optgroup option p pre search section summary table tbody td tfoot th thead title "
    "tr ul"
)
# Elements of SVG that are parts of a sentence; the others are blocks.
_INLINE_IN_SVG = _names("a tspan textpath")
# Elements without an end tag.
VOID = _names(
    "area base br col embed frame hr img input keygen link meta param source track wbr"
)
# Elements whose content stays as it is.
_KEPT = _names(
    "code iframe kbd math noembed plaintext pre rp rt ruby samp script style textarea "
    "tt var xmp"
)
# Elements whose content is no markup.
_RAW = _names("iframe math noembed plaintext script style textarea xmp")
# Elements that nobody sees.
_HIDDEN = _names("link meta param script source style template track")
# Elements in a sentence whose content is translated on its own.
_NESTED = _names(
    "audio canvas datalist map meter noscript object picture progress select svg "
    "template video"
)
# Void elements that may be inside of a word.
_JOINING = _names("wbr link meta param source track")
# Elements that an opening tag closes, and those beyond which it closes none.
_CELLS, _ROWS = _names("td th"), _names("tbody tfoot thead")
_IMPLIED_ENDS = {
    "li": (_names("li"), _names("ul ol menu dir")),
    **dict.fromkeys(("dd", "dt"), (_names("dd dt"), _names("dl"))),
    "option": (_names("option"), _names("select datalist optgroup")),
    "optgroup": (_names("option optgroup"), _names("select")),
    **dict.fromkeys(_CELLS, (_CELLS, _names("tr table"))),
    "tr": (_CELLS | _names("tr"), _names("table")),
    **dict.fromkeys(_ROWS, (_CELLS | _ROWS | _names("tr"), _names("table"))),
}
_IN_PARAGRAPHS = _names("caption col colgroup option optgroup summary tbody td tfoot")

# Attributes that people read or hear.
_ATTRIBUTES = _names(
    "abbr alt aria-description aria-label aria-placeholder aria-roledescription "
    "aria-valuetext label placeholder summary title"
)
_DESCRIPTIONS = _names(
    "dc.description dcterms.description description og:description og:image:alt "
    "og:title twitter:description twitter:image:alt twitter:title"
)
_BUTTONS = _names("button reset submit")

_PAGE = re.compile(r"<(?:\w+:)?(?:html|svg)\b", re.IGNORECASE)
_TAG_IN_TITLE = re.compile(r"</?[A-Za-z]")
_REFERENCE = re.compile(r"&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")
_REFERENCE_OR_TEMPLATE = re.compile(
    f"{_REFERENCE.pattern}|{TEMPLATE.pattern}", re.DOTALL
)
# The end of a sentence or of an entry.
_ENDS = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]]*\s*$")
_BEGINS = re.compile(
    r"\s*[\"'\u201e\u201c\u00ab\u00bb(\[\u00bf\u00a1\u2022*\u2013-]*\s*(\w)"
)


@dataclasses.dataclass(slots=True)
class _Element:
    """An open element.

    `is_kept` says whether its content stays as it is; `context` is that of the run
    around it, if its own content is separate from it.
    """

    name: str
    start: int
    tag: int
    is_block: bool
    is_kept: bool
    context: "_Context | None" = None


@dataclasses.dataclass(slots=True)
class _Context:
    """The pieces of a run that an element interrupts; `None` if its text is kept."""

    pieces: list[Piece] | None
    is_unit: bool
    joins: bool


class _Reader:
    """Finds the runs of a source text, token by token."""

    def __init__(self, text, language):
        self.text, self.language = text, language
        self.runs: list[Run] = []
        self.edits: list[tuple[int, int, str]] = []
        self._stack: list[_Element] = []
        self._counts: dict[str, int] = {}
        self._pieces: list[Piece] | None = []
        self._foreign = 0
        self._source_language = None
        self.is_xml = is_xml(text)
        # In XML of other kinds, every element is a block.
        self._is_page = not self.is_xml or _PAGE.search(text) is not None

    def read(self):
        tokens = xml_tokens if self.is_xml else html_tokens
        for token in tokens(self.text):
            self._place = token.start
            if token.kind == "text":
                self._add_text(token)
            elif token.kind == "open":
                self._open(token)
            elif token.kind == "close":
                self._close(token.name, token)
            elif token.kind == "cdata":
                self._add_data(token)
            else:
                self._add(Piece(UNIT, token.start, token.end, joins=True))
        self._place = len(self.text)
        self._pop_to(0, None)
        self._flush()

    def _add(self, piece):
        if self._pieces is not None:
            self._pieces.append(piece)

    def _add_text(self, token):
        if self._pieces is None:
            return
        # Where the tokenizer changed the source, such as line ends, it is the same.
        source = self.text[token.start : token.end]
        if len(source) == len(token.text):
            position = token.start
            for match in TEMPLATE.finditer(self.text, token.start, token.end):
                self._add_plain(position, match.start())
                self._add(Piece(UNIT, match.start(), match.end(), is_word=True))
                position = match.end()
            self._add_plain(position, token.end)
        else:
            self._add(Piece(TEXT, token.start, token.end, token.text))

    def _add_plain(self, start, end):
        if start < end:
            self._add(Piece(TEXT, start, end, self.text[start:end]))

    def _add_data(self, token):
        """Add a section of character data, which is a run of its own."""
        if self._pieces is None or not (self.is_xml or self._foreign):
            self._add(Piece(UNIT, token.start, token.end, joins=True))
            return
        start, end = token.start + len("<![CDATA["), token.end - len("]]>")
        piece = Piece(TEXT, start, end, self.text[start:end])
        self._add_run([piece], str, finish=_character_data)
        self._add(Piece(UNIT, token.start, token.end))

    def _flush(self):
        """End the current run."""
        if self._pieces:
            pieces = broken(self._pieces)
            is_title = self._stack and self._stack[-1].name == "title"
            if is_title and any(_TAG_IN_TITLE.search(x.text) for x in pieces):
                # A title that nothing ends takes in the tags of the page.
                self._pieces = []
                return
            self._add_run(merged(collapsed(pieces)), escaped)
            self._pieces = []

    def _add_run(self, pieces, spell, finish=None):
        if has_letters(pieces):
            # The innermost element around the whole run.
            tags = (x.tag for x in reversed(self._stack) if x.is_block or x.context)
            self.runs.append(Run(pieces, spell, finish, next(tags, None)))

    def _open(self, token):
        name, text = token.name, self.text
        attributes = list(attributes_of(text, token.start, token.end))
        values = {x.name: text[x.start : x.end] for x in attributes}
        if not self.is_xml and not self._foreign:
            self._close_implied(name)
        is_kept = self._is_kept(name, values)
        was_kept = self._pieces is None
        if not (is_kept and (was_kept or not _is_code(name, values))):
            self._translate_attributes(name, attributes, values, token)
        if not was_kept or not is_kept:
            self._set_language(name, attributes, values, token)
        is_block = self._is_block(name)
        has_end = not (name in VOID and not self.is_xml and not self._foreign)
        if self.is_xml or self._foreign or name in ("svg", "math"):
            has_end = has_end and not token.is_empty
        if is_block and not was_kept:
            self._flush()
        if not has_end:
            if not is_block:
                kind = UNIT
                joins = name in _JOINING or name in _HIDDEN
                self._add(Piece(kind, token.start, token.end, name=name, joins=joins))
            return
        tag = name_end(text, token.start)
        element = _Element(name, token.start, tag, is_block, is_kept)
        if is_kept != was_kept or (name in _NESTED and not is_kept):
            joins = name in _HIDDEN
            element.context = _Context(self._pieces, not is_block, joins)
            self._pieces = None if is_kept else []
        elif not is_block:
            self._add(Piece(OPEN, token.start, token.end, name=name))
        self._stack.append(element)
        self._counts[name] = self._counts.get(name, 0) + 1
        self._foreign += name in ("svg", "math")

    def _is_kept(self, name, values):
        """Return whether the content of an element stays as it is."""
        translate = values.get("translate", "").strip().lower()
        if "notranslate" in values.get("class", "").split() or translate == "no":
            return True
        if "translate" in values and translate in ("", "yes") and name not in _RAW:
            return False
        return name in _KEPT or self._pieces is None

    def _is_block(self, name):
        if self._foreign:
            return name not in _INLINE_IN_SVG
        return name in _BLOCKS or not self._is_page

    def _close_implied(self, name):
        """Close the elements that an opening tag closes."""
        if name in _BLOCKS and name not in _IN_PARAGRAPHS and self._counts.get("p"):
            for i in range(len(self._stack) - 1, -1, -1):
                if self._stack[i].name == "p":
                    self._pop_to(i, None)
                    break
                if self._stack[i].name in ("button", "table", "object", "td", "th"):
                    break
        closed, barriers = _IMPLIED_ENDS.get(name, ((), ()))
        if not any(map(self._counts.get, closed)):
            return
        first = None
        for i in range(len(self._stack) - 1, -1, -1):
            if self._stack[i].name in barriers:
                break
            if self._stack[i].name in closed:
                first = i
        if first is not None:
            self._pop_to(first, None)

    def _close(self, name, token):
        piece = Piece(CLOSE, token.start, token.end, name=name, joins=True)
        is_block = self._is_block(name)
        if not self._counts.get(name):
            if is_block and self._pieces is not None:
                self._flush()
            elif not is_block:
                self._add(piece)
            return
        last = len(self._stack) - 1
        i = next(i for i in range(last, -1, -1) if self._stack[i].name == name)
        is_own = is_block or self.is_xml or self._stack[i].context is not None
        if is_own or not any(x.is_block or x.context for x in self._stack[i + 1 :]):
            self._pop_to(i, token)
            return
        # The end of an inline element does not end the blocks in it.
        self._add(piece)
        del self._stack[i]
        self._counts[name] -= 1

    def _pop_to(self, first, token):
        """Close the open elements from one on; the token is the end tag of this one.

        Without a token, another tag closes them, or the end of the source.
        """
        while len(self._stack) > first:
            element = self._stack[-1]
            if self._pieces is not None and (element.is_block or element.context):
                self._flush()
            self._stack.pop()
            self._counts[element.name] -= 1
            self._foreign -= element.name in ("svg", "math")
            own_end = token if len(self._stack) == first else None
            if element.context is not None:
                context = element.context
                self._pieces = context.pieces
                if context.is_unit:
                    end = own_end.end if own_end else self._place
                    piece = Piece(UNIT, element.start, end, joins=context.joins)
                    piece.name = element.name
                    piece.is_word = element.is_kept and not context.joins
                    self._add(piece)
                elif context.pieces is not None:
                    self._pieces = []
            elif own_end and not element.is_block:
                self._add(
                    Piece(CLOSE, token.start, token.end, name=element.name, joins=True)
                )

    def _translate_attributes(self, name, attributes, values, token):
        meta = values.get("name", values.get("property", "")).lower()
        for attribute in attributes:
            key = attribute.name
            is_read = (
                key in _ATTRIBUTES
                or (key == "content" and name == "meta" and meta in _DESCRIPTIONS)
                or (
                    key == "value"
                    and name == "input"
                    and values.get("type", "").lower() in _BUTTONS
                )
            )
            if not is_read or (key == "title" and name in ("link", "style")):
                continue
            if attribute.start == attribute.end:
                continue
            pieces = list(_references(self.text, attribute.start, attribute.end))
            finish = None if attribute.quote else _quoted
            spell = _in_quotes(escaped, attribute.quote or '"')
            if has_letters(pieces):
                tag = name_end(self.text, token.start)
                self.runs.append(Run(pieces, spell, finish, tag))

    def _set_language(self, name, attributes, values, token):
        """Edit the language of the page, and of elements with the same one."""
        if self.language is None:
            return
        language_attributes = [x for x in attributes if x.name in ("lang", "xml:lang")]
        if name == "html":
            codes = [values[x.name] for x in language_attributes if values[x.name]]
            self._source_language = _primary(codes[0]) if codes else None
            if not language_attributes:
                tag = name_end(self.text, token.start)
                self.edits.append((tag, tag, f' lang="{html.escape(self.language)}"'))
        for attribute in language_attributes:
            value = values[attribute.name]
            is_same = name == "html" or _primary(value) == self._source_language
            if is_same and (attribute.quote or value):
                language = html.escape(self.language)
                self.edits.append((attribute.start, attribute.end, language))


def _primary(language):
    return re.split("[-_]", language.strip().lower())[0]


def _is_code(name, values):
    """Return whether an element is kept for its name alone."""
    translate = values.get("translate", "").strip().lower()
    is_marked = "notranslate" in values.get("class", "").split()
    return name in _KEPT and translate != "no" and not is_marked


def _references(text, start, end):
    """Yield the pieces of a text with references to characters, and templates."""
    position = start
    for match in _REFERENCE_OR_TEMPLATE.finditer(text, start, end):
        is_reference = match[0].startswith("&")
        decoded = html.unescape(match[0])
        if is_reference and decoded == match[0]:
            continue
        if position < match.start():
            yield Piece(TEXT, position, match.start(), text[position : match.start()])
        if is_reference:
            yield Piece(TEXT, *match.span(), decoded)
        else:
            yield Piece(UNIT, *match.span(), is_word=True)
        position = match.end()
    if position < end:
        yield Piece(TEXT, position, end, text[position:end])


def _in_quotes(escape, quote):
    entity = {'"': "&quot;", "'": "&#39;"}[quote]
    return lambda character: entity if character == quote else escape(character)


def _quoted(pieces):
    return f'"{"".join(text for _, text in pieces)}"'


def _character_data(pieces):
    text = "".join(text for _, text in pieces)
    return text.replace("]]>", "]]]]><![CDATA[>")


def broken(pieces):
    """Return pieces in which the line breaks and gaps that end a sentence are breaks.

    A line break ends a sentence before a capital letter, beside another line break, and
    at either end of a text. So does a gap between two elements of the same kind, if no
    text is between them and a capital letter follows.
    """
    words = [i for i, x in enumerate(pieces) if x.kind == TEXT and x.text.strip()]
    result: list[Piece] = []
    for i, piece in enumerate(pieces):
        if piece.kind == UNIT and piece.name == "br":
            rank = bisect.bisect(words, i)
            before = pieces[words[rank - 1]] if rank else None
            after = pieces[words[rank]] if rank < len(words) else None
            is_double = any(
                x.kind == UNIT and x.name == "br"
                for x in (*_until_text(pieces, i, 1), *_until_text(pieces, i, -1))
            )
            begin = after and _BEGINS.match(after.text)
            if (
                is_double
                or before is None
                or begin is None
                or begin[1].isupper()
                or begin[1].isdigit()
                or _ENDS.search(before.text)
            ):
                piece = dataclasses.replace(piece, kind=BREAK)
        elif piece.kind == OPEN and _is_entry(pieces, i):
            rank = bisect.bisect(words, i)
            begin = rank < len(words) and _BEGINS.match(pieces[words[rank]].text)
            if rank and begin and begin[1].isupper():
                result.append(Piece(BREAK, piece.start, piece.start))
        result.append(piece)
    return result


def _until_text(pieces, i, step):
    """Yield the pieces around one, up to the next text that is not blank."""
    i += step
    while 0 <= i < len(pieces):
        piece = pieces[i]
        if piece.kind == TEXT and piece.text.strip():
            return
        yield piece
        i += step


# Elements of which several in a row are entries of a list, even with spaces between; a
# button after a label is another one.
_ENTRIES = _names("a button label")
_CONTROLS = _names("button label")


def _is_entry(pieces, i):
    """Return whether an opening tag follows the end of an element of the same kind."""
    before = i - 1
    while (
        before >= 0 and pieces[before].kind == TEXT and not pieces[before].text.strip()
    ):
        before -= 1
    if before < 0 or pieces[before].kind != CLOSE:
        return False
    names = {pieces[before].name, pieces[i].name}
    is_same = len(names) == 1 or names <= _CONTROLS
    return is_same and (before == i - 1 or pieces[i].name in _ENTRIES)


def read(text: str, language: str | None = None) -> Document:
    """Return a page, or a part of one, which then declares a language."""
    reader = _Reader(text, language)
    reader.read()
    return Document(text, reader.runs, reader.edits)


def escaped(character: str) -> str:
    """Return a character as it is written in the text of an element."""
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)
