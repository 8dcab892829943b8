import codecs
import gzip
import io

import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import as_utf8, at_most, utf8_lines

TEXT = "Ein größerer Hund.\r\nZwei\u2028Hunde 🐕\n\nDrei"
LINES = [line.encode() for line in TEXT.split("\n")]


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
        codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
        codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
        codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
    ],
    ids=["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"],
)
def test_encodings_with_a_mark_are_read(data):
    assert as_utf8(data, "x.txt") == TEXT.encode()
    lines = [line.removesuffix(b"\n") for line in utf8_lines(io.BytesIO(data), "x.txt")]
    assert lines == LINES


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_texts_that_are_compressed_by_gzip_are_read(encoding):
    data = gzip.compress(TEXT.encode(encoding))
    assert as_utf8(data, "x.txt") == TEXT.encode()
    lines = utf8_lines(io.BufferedReader(io.BytesIO(data)), "x.txt")
    assert [line.removesuffix(b"\n") for line in lines] == LINES


def test_a_compressed_text_has_the_limit_of_others():
    data = gzip.compress(bytes(range(200)) * 1000)
    with at_most(1000), pytest.raises(UserError, match="x has more than 1,000 bytes"):
        as_utf8(data, "x")


@pytest.mark.parametrize("end", [slice(40), slice(None, -9)])
def test_a_damaged_file_of_gzip_is_named(end):
    data = gzip.compress(TEXT.encode())[end] + b"?"
    with pytest.raises(UserError, match=r"^x\.gz is damaged: "):
        as_utf8(data, "x.gz")
    with pytest.raises(UserError, match=r"^x\.gz is damaged: "):
        list(utf8_lines(io.BufferedReader(io.BytesIO(data)), "x.gz"))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_encodings_without_a_mark_are_refused(encoding):
    data = TEXT.encode(encoding)
    with pytest.raises(UserError, match=r"x\.txt is not UTF-8: .*NUL.*UTF-16"):
        as_utf8(data, "x.txt")
    with pytest.raises(UserError, match=r"x\.txt is not UTF-8: .*NUL.*UTF-16"):
        list(utf8_lines(io.BytesIO(data), "x.txt"))


def test_half_a_character_is_reported():
    with pytest.raises(UserError, match="mark of UTF-16, but is not UTF-16"):
        as_utf8(codecs.BOM_UTF16_LE + b"a\x00b", "x.txt")


def test_other_bytes_stay():
    latin = "größer\n".encode("latin-1")
    assert as_utf8(latin, "x.txt") == latin
    assert as_utf8(b"a\x00 long line\n", "x.txt") == b"a\x00 long line\n"
    assert as_utf8(b"", "x.txt") == b"" and list(utf8_lines(io.BytesIO(), "x")) == []


def test_lines_are_read_lazily():
    stream = io.BytesIO(b"one\ntwo\nthree\n")
    lines = utf8_lines(stream, "x.txt")
    assert next(lines) == b"one\n" and stream.tell() == 4
