"""Encodings of files: bytes to a text and back, without a loss."""

import codecs
import contextlib
import re

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import as_utf8

# Byte order marks of encodings that keep the mark as the first character.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# The encoding that a file declares, in its first bytes.
_DECLARED = re.compile(
    rb"(?:charset|<\?xml[^>]*?\sencoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE
)
_SEARCHED = 4096
# Names of Python's codecs that files may declare.
_CODECS = re.compile(
    r"ascii|big5.*|cp(?:125\d|437|85\d|866|874|932|949)|euc.*|gb.*|iso2022_.*"
    r"|iso8859.*|koi8.*|mac.*|shift_jis.*|utf-8"
)
_GUESS = "windows-1252"
# HTML reads these as the superset that Windows has.
_LATIN = ("ascii", "iso8859-1")
_ESCAPED = re.compile("[\udc80-\udcff]")
_REFERENCES = "keras_attention_references"


def decoded(data: bytes, name: object) -> tuple[str, str]:
    """Return the text of a file and its encoding.

    The encoding is that of a byte order mark, UTF-8, the one that the file declares, or
    Windows-1252. Bytes that are invalid in it become unpaired surrogates, and line ends
    and a byte order mark stay, so that `encoded` returns the same bytes. A file of gzip
    is expanded.
    """
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            with contextlib.suppress(UnicodeError):
                text = data.decode(encoding, "surrogatepass")
                if text.encode(encoding, "surrogatepass") == data:
                    return text, encoding
            raise UserError(
                f"{name} begins with the byte order mark of {encoding.upper()[:6]}, "
                "but is not in this encoding"
            )
    has_mark = data.startswith(codecs.BOM_UTF8)
    data = as_utf8(data, name)
    if has_mark:
        data = codecs.BOM_UTF8 + data
    with contextlib.suppress(UnicodeError):
        return data.decode("utf-8"), "utf-8"
    encoding = _declared(data[:_SEARCHED])
    if encoding:
        with contextlib.suppress(UnicodeError):
            text = data.decode(encoding)
            if text.encode(encoding) == data:
                return text, encoding
    text = data.decode("utf-8", "surrogateescape")
    invalid = len(_ESCAPED.findall(text))
    if has_mark or 2 * invalid < sum(x > "\x7f" for x in text):
        return text, "utf-8"
    return data.decode(_GUESS, "surrogateescape"), _GUESS


def _declared(data):
    """Return the name of the encoding that the beginning of a file declares."""
    match = _DECLARED.search(data)
    if not match:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
    except (LookupError, UnicodeError):
        return None
    if name in _LATIN:
        return _GUESS
    return name if _CODECS.fullmatch(name) else None


def encoded(text: str, encoding: str, *, references: bool = False) -> bytes:
    """Return a text in its encoding.

    Characters that it does not have are written as references of HTML, if it knows
    them; otherwise, the whole text becomes UTF-8.
    """
    if encoding.startswith(("utf-16", "utf-32")):
        return text.encode(encoding, "surrogatepass")
    try:
        return text.encode(encoding, _REFERENCES if references else "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _bytes_or_references(error):
    """Handle an error of encoding: write bytes as they were, others as references."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if _ESCAPED.match(character):
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return f"&#{ord(character)};".encode("ascii"), error.start + 1


codecs.register_error(_REFERENCES, _bytes_or_references)
