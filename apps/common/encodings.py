"""Text in UTF-8, UTF-16 or UTF-32, which may be compressed by gzip, as UTF-8."""

import codecs
import contextlib
import gzip
import io
import zlib

from keras_attention_apps.common.cli import UserError, reason
from keras_attention_apps.common.reading import read_all, read_line

# The marks of UTF-32 begin like those of UTF-16.
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# The first bytes of a file of gzip.
GZIP = b"\x1f\x8b"
# Maximum share of NUL bytes in a text. In Latin text in UTF-16, half of the bytes are
# NUL.
MAX_NUL_SHARE = 0.2


def as_utf8(data, name):
    """Return the bytes of a text as UTF-8 without a byte order mark.

    A text that is compressed by gzip is expanded. UTF-16 and UTF-32 are known by their
    byte order mark. Other bytes are returned as they are, whether or not they are valid
    UTF-8.

    Args:
        data: The bytes.
        name: Name of the text, for an error.

    Raises:
        UserError: If the bytes are not of the encoding that the mark names, or look
            like UTF-16 or UTF-32 without a mark.
    """
    if data.startswith(GZIP):
        with _expanded(io.BytesIO(data), name) as file:
            data = read_all(file, name)
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            try:
                return data.decode(encoding).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{name} begins with the byte order mark of {encoding}, but is not "
                    f"{encoding}: {error.reason} at byte {error.start}"
                ) from error
    share = data.count(0) / max(len(data), 1)
    if share > MAX_NUL_SHARE:
        raise UserError(
            f"{name} is not UTF-8: {share:.0%} of its bytes are NUL, as in UTF-16 or "
            "UTF-32 without a byte order mark. Save it as UTF-8"
        )
    return data.removeprefix(codecs.BOM_UTF8)


def utf8_lines(stream, name):
    """Yield the lines of a binary stream, as UTF-8 with their line feeds.

    A buffered stream may be compressed by gzip. A stream in UTF-16 or UTF-32 is read as
    a whole, others line by line. Neither may exceed the limit of reading.

    Args:
        stream: Binary file.
        name: Its name, for an error.

    Raises:
        UserError: As of `as_utf8`.
    """
    if hasattr(stream, "peek") and stream.peek(len(GZIP)).startswith(GZIP):
        with _expanded(stream, name) as file:
            yield from utf8_lines(file, name)
        return
    first = read_line(stream, name)
    if first.startswith(tuple(MARKS)):
        # Unlike `splitlines`, this ends lines at line feeds alone.
        yield from io.BytesIO(as_utf8(first + read_all(stream, name), name))
    elif first:
        yield as_utf8(first, name)
        yield from iter(lambda: read_line(stream, name), b"")


@contextlib.contextmanager
def _expanded(stream, name):
    """Yield the file inside a stream that is compressed by gzip."""
    try:
        with gzip.GzipFile(fileobj=stream) as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{name} is damaged: {reason(error)}") from error
