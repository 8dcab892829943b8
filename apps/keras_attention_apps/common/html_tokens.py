"""Tokens of HTML and XHTML, with their places in the source.

A page is read by a tokenizer that follows HTML 5, or as XML if it is well-formed XHTML.
"""

import dataclasses
import html
import re
from collections.abc import Iterator
from xml.parsers import expat

from keras_attention_apps.common.errors import UserError

_XML = re.compile(
    # The atomic group keeps comments from being joined to longer ones, in many ways.
    r"\ufeff?\s*(?:<\?xml\b|(?>(?:<!--.*?-->\s*|<!DOCTYPE[^>\[]*>\s*)*)"
    r"<(?:html|svg)\b[^>]*\sxmlns\s*=)",
    re.IGNORECASE | re.DOTALL,
)
_XML_TOKEN = re.compile(
    r"(?P<comment><!--.*?-->)|<!\[CDATA\[(?P<cdata>.*?)\]\]>"
    r"|(?P<instruction><\?.*?\?>)"
    r"|(?P<doctype><!DOCTYPE(?:[^>\[\"']|\"[^\"]*\"|'[^']*'|\[.*?\]\s*(?=>))*>)"
    r"|<(?P<slash>/?)(?P<name>[^\s/>]+)(?:[^\"'>]|\"[^\"]*\"|'[^']*')*>"
    r"|(?P<reference>&[^;\s]+;)|(?P<text>[^<&]+)",
    re.DOTALL,
)
_FOREIGN_OR_CDATA = re.compile(
    r"<(?P<slash>/?)(?:svg|math)\b|(?P<cdata><!\[CDATA\[)", re.IGNORECASE
)
_CDATA_END = "]]>"
# Elements whose content is no markup where scripts run, and is read as markup.
_FALLBACKS = ("noframes", "noscript")
_NAME = re.compile(r"<([^\s/>]+)")
_ATTRIBUTE = re.compile(
    r"[\s/]*([^\s/>=][^\s/>=]*)(?:\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'>][^\s>]*)))?"
)
# Marks of templates: Jinja, Handlebars, Vue, ERB, PHP.
TEMPLATE = re.compile(
    r"\{\{[^{}]{0,200}\}\}|\{%[^%]{0,200}%\}|\{#[^#]{0,200}#\}|<%.{0,2000}?%>"
    r"|<\?(?:php|=).{0,2000}?\?>",
    re.DOTALL,
)


@dataclasses.dataclass(slots=True)
class Token:
    """A piece of a source: a tag, a text, or something else.

    Attributes:
        kind: `"text"`, `"open"`, `"close"`, `"cdata"`, or `"other"`, such as a comment.
        start, end: Its position in the source.
        text: The decoded text.
        name: The name of an element, in lower case.
        is_empty: Whether an opening tag ends with a slash.
    """

    kind: str
    start: int
    end: int
    text: str = ""
    name: str = ""
    is_empty: bool = False


def is_xml(text: str) -> bool:
    """Return whether a text is well-formed XHTML or SVG."""
    if not _XML.match(text):
        return False
    parser = expat.ParserCreate(encoding="utf-8")
    # HTML's named characters need no declaration, and no declared entity is expanded.
    parser.UseForeignDTD(True)
    parser.DefaultHandler = lambda data: None
    try:
        parser.Parse(text.removeprefix("\ufeff").encode("utf-8"), True)
    except (expat.ExpatError, UnicodeEncodeError):
        return False
    return True


def tokens_of(text: str) -> Iterator[Token]:
    """Return the tokens of a page: as XML if it is well-formed, otherwise as HTML."""
    return xml_tokens(text) if is_xml(text) else html_tokens(text)


def xml_tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of well-formed XML."""
    for match in _XML_TOKEN.finditer(text):
        kind, (start, end) = match.lastgroup, match.span()
        if match["name"]:
            name = match["name"].lower().rpartition(":")[2]
            is_empty = match[0].endswith("/>")
            yield Token(
                "close" if match["slash"] else "open", start, end, "", name, is_empty
            )
        elif kind == "text":
            yield Token("text", start, end, match[0])
        elif kind == "reference" and (decoded := html.unescape(match[0])) != match[0]:
            yield Token("text", start, end, decoded)
        elif kind == "cdata":
            yield Token("cdata", start, end, match["cdata"])
        else:
            yield Token("other", start, end)


def html_tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of HTML 5."""
    turbohtml = _turbohtml()
    # The tokenizer counts a line feed for both of these, and cannot know which section
    # of character data is inside of a foreign element.
    source = text.replace("\r\n", " \n").replace("\r", "\n")
    source = TEMPLATE.sub(lambda x: _masked(x[0], "", ""), source)
    # An end tag without a name has no token.
    source = _with_comments(source.replace("</>", "<!>"))
    lines = [0, *(x.end() for x in re.finditer("\n", source))]
    types = turbohtml.TokenType
    tokens = turbohtml.tokenize(
        source, resolve_references=False, capture_source=True, capture_attributes=False
    )
    is_fallback = False
    for token in tokens:
        start = lines[token.line - 1] + token.col
        if token.type == types.TEXT:
            end = start + len(token.data)
            if is_fallback:
                # The tokenizer is one of a browser with scripts, for which it is text.
                for inner in html_tokens(text[start:end]):
                    inner.start += start
                    inner.end += start
                    yield inner
            else:
                yield Token("text", start, end, token.data)
            continue
        end = start + len(token.source)
        if token.type == types.CHARACTER_REFERENCE:
            yield Token("text", start, end, token.data)
        elif token.type in (types.START_TAG, types.END_TAG):
            kind = "open" if token.type == types.START_TAG else "close"
            is_fallback = kind == "open" and token.tag in _FALLBACKS
            yield Token(kind, start, end, "", token.tag, token.self_closing)
        elif text.startswith("<![CDATA[", start) and token.source.startswith("<!--"):
            yield Token("cdata", start, end, text[start + 9 : end - 3])
        else:
            yield Token("other", start, end)


def _with_comments(source):
    """Return a source in which sections of character data in SVG are comments."""
    parts: list[str] = []
    position, depth = 0, 0
    for match in _FOREIGN_OR_CDATA.finditer(source):
        if match.start() < position:
            continue
        if not match["cdata"]:
            depth = max(depth + (-1 if match["slash"] else 1), 0)
            continue
        end = source.find(_CDATA_END, match.end()) + len(_CDATA_END)
        if end < match.end():
            break
        if depth:
            section = _masked(source[match.start() : end], "<!--", "-->")
            parts += source[position : match.start()], section
            position = end
    return "".join([*parts, source[position:]])


# A character that stands for those of a template.
_MASK = "\ue000"


def _masked(text, begin, end):
    """Return a text of the same length and lines without characters of markup."""
    inner = re.sub("[^\n]", _MASK, text[len(begin) : len(text) - len(end)])
    return f"{begin}{inner}{end}"


def _turbohtml():
    try:
        import turbohtml
    except ImportError as error:
        raise UserError(
            "HTML needs turbohtml: python -m pip install turbohtml"
        ) from error
    return turbohtml


def name_end(text: str, start: int) -> int:
    """Return the end of the name of the tag that begins at a position."""
    match = _NAME.match(text, start)
    return match.end() if match else start + 1


@dataclasses.dataclass(slots=True)
class Attribute:
    """The position of the value of an attribute, without its quotation marks."""

    name: str
    start: int
    end: int
    quote: str


def attributes_of(text: str, start: int, end: int) -> Iterator[Attribute]:
    """Yield the attributes of an opening tag; of equal names, the first one."""
    position = name_end(text, start)
    names: set[str] = set()
    while position < end - 1:
        match = _ATTRIBUTE.match(text, position, end - 1)
        if not match:
            position += 1
            continue
        position = match.end()
        name = match[1].lower()
        if name in names:
            continue
        names.add(name)
        group = match.lastindex or 1
        if group == 1:
            yield Attribute(name, match.end(), match.end(), "")
        else:
            quote = {2: '"', 3: "'", 4: ""}[group]
            yield Attribute(name, *match.span(group), quote)
