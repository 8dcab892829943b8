"""Errors that the user can correct, and values as text of one line."""

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """An error that the user can correct; its message is one line."""


def reason(error: BaseException) -> str:
    """Return the message of an exception as one line, or else its type.

    White space within a line is unchanged, because file names may contain it.
    """
    message = re.sub(r"^\[(Errno|WinError) -?\d+\] ", "", str(error))
    message = re.sub(r"\s*\n\s*", " ", message.strip())
    if isinstance(error, KeyError):
        return f"there is no {message}"
    return message or type(error).__name__


# Maximum number of names that an error lists.
MAX_NAMES = 5


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return a question after a wrong name, or an empty text if none is similar.

    >>> did_you_mean("ResNet5", ["MobileNetV2", "ResNet50"])
    ". Did you mean 'ResNet50'?"
    """
    close = difflib.get_close_matches(str(name), names, 1)
    return f". Did you mean {close[0]!r}?" if close else ""


def listed(name: object, names: Iterable[str]) -> str:
    """Return names, separated by commas; of many, those nearest to a wrong name."""
    names = sorted(names)
    if len(names) <= MAX_NAMES:
        return ", ".join(names) or "none"
    nearest = difflib.get_close_matches(str(name), names, MAX_NAMES, cutoff=0)
    return f"{', '.join(nearest)} and {len(names) - MAX_NAMES} others"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun in singular or plural.

    >>> counted(1, "word"), counted(2, "word")
    ('1 word', '2 words')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Characters that a terminal does not show as such: controls, which could change its
# state, and those that reorder the text around them.
CONTROLS = (*range(32), *range(127, 160))
BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# JSON escapes the controls below U+0020 itself; between values, they are line feeds.
ESCAPED_IN_JSON = {
    code: f"\\u{code:04x}" for code in (*CONTROLS, *BIDIRECTIONAL) if code > 0x20
}
# Surrogates that stand for no byte cannot be encoded.
_ESCAPED = {code: f"\\x{code:02x}" for code in CONTROLS}
_ESCAPED |= {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}
_ESCAPED |= {
    code: f"\\u{code:04x}"
    for code in (*BIDIRECTIONAL, *range(0xD800, 0xDC80), *range(0xDD00, 0xE000))
}


def printable(value: object) -> str:
    """Return a value as text for one line; what cannot be printed is escaped.

    >>> print(printable("a\\x1b[31m\\tb.jpg"))
    a\\x1b[31m\\tb.jpg
    """
    return str(value).translate(_ESCAPED)
