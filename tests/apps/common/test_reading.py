"""Files that are read: regular ones up to a limit, and texts in any encoding."""

import codecs
import gzip
import io
import os
import sys

import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    as_utf8,
    at_most,
    check_bytes,
    check_input,
    read_all,
    read_file,
    utf8_lines,
)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_devices_and_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = "expected a regular file, or - for the standard input. Received a"
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(UserError, match=message):
            read_file(path)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere")


def test_the_standard_input_is_read_if_it_is_open(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    assert read_file("-") == b"typed"
    for path in ("-", "/dev/stdin", "/dev/fd/3"):
        check_input(path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="Received: a closed standard input"):
        read_file("-")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no files by number here")
def test_an_open_pipe_is_read():
    # A shell opens such a pipe for <(command).
    reading, writing = os.pipe()
    os.write(writing, b"through")
    os.close(writing)
    assert read_file(f"/dev/fd/{reading}") == b"through"
    os.close(reading)


class Endless(io.RawIOBase):
    """A file like `/dev/zero`."""

    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = bytes(len(buffer))
        return len(buffer)


def test_what_exceeds_the_limit_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with at_most(6), pytest.raises(UserError, match="more than 6 bytes; --max"):
        read_file(tmp_path / "file")
    with at_most(7):
        assert read_file(tmp_path / "file") == b"content"
    check_bytes(256_000_000, "it")
    with pytest.raises(UserError, match="more than 256,000,000 bytes"):
        check_bytes(256_000_001, "it")

    for read, content in (
        (read_all, io.BufferedReader(Endless())),
        (lambda *x: next(utf8_lines(*x)), io.BufferedReader(Endless())),
        (as_utf8, gzip.compress(bytes(range(200)) * 1000)),
    ):
        with at_most(1000), pytest.raises(UserError, match="x has more than 1,000"):
            read(content, "x")


def test_lines_are_read_lazily_and_may_exceed_the_limit_together():
    stream = io.BytesIO(b"one\ntwo\nthree\n")
    lines = utf8_lines(stream, "text")
    assert next(lines) == b"one\n" and stream.tell() == 4
    with at_most(4):
        assert next(lines) == b"two\n"
        with pytest.raises(UserError, match="text has more than 4 bytes"):
            next(lines)


TEXT = "Ein größerer Hund.\r\nZwei\u2028Hunde 🐕\n\nDrei"
WIDE = ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", *WIDE])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_encodings_with_a_mark_are_read(encoding, times):
    mark = "\ufeff" if encoding in WIDE else ""
    data = (mark + TEXT).encode(encoding)
    for _ in range(times):
        data = gzip.compress(data)
    assert as_utf8(data, "x.txt") == TEXT.encode()
    lines = [*utf8_lines(io.BufferedReader(io.BytesIO(data)), "x.txt")]
    assert b"".join(lines) == TEXT.encode() and len(lines) == TEXT.count("\n") + 1


COMPRESSED = gzip.compress(TEXT.encode(), mtime=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (COMPRESSED[:40] + b"?", "^x is damaged: "),
        (COMPRESSED[:-9] + b"?", "^x is damaged: "),
        (gzip.compress(COMPRESSED[:-9] + b"?", mtime=0), "^x is damaged: "),
        (
            gzip.compress(gzip.compress(COMPRESSED, mtime=0), mtime=0),
            "^x is compressed .* more than 2",
        ),
        *((TEXT.encode(x), "x is not UTF-8: .*NUL.*UTF-16") for x in WIDE),
        (codecs.BOM_UTF16_LE + b"a\x00b", "mark of UTF-16, but is not UTF-16"),
    ],
)
def test_other_encodings_and_damaged_files_are_named(data, message):
    with pytest.raises(UserError, match=message):
        as_utf8(data, "x")
    with pytest.raises(UserError, match=message):
        list(utf8_lines(io.BufferedReader(io.BytesIO(data)), "x"))


def test_other_bytes_stay():
    for data in ("größer\n".encode("latin-1"), b"a\x00 long line\n", b""):
        assert as_utf8(data, "x.txt") == data
    assert list(utf8_lines(io.BytesIO(), "x")) == []
