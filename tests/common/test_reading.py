"""Files that are read: regular ones up to a limit, and no pipes or devices."""

import io
import os
import sys

import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    at_most,
    check_bytes,
    check_input,
    read_all,
    read_file,
    utf8_lines,
)


def test_a_regular_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    assert read_file(tmp_path / "file") == b"content"
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_devices_and_folders_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = "expected a regular file, or - for the standard input. Received a"
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(UserError, match=message):
            read_file(path)


def test_the_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"typed")))
    assert read_file("-") == b"typed"
    for path in ("-", "/dev/stdin", "/dev/fd/3"):
        check_input(path)


def test_a_closed_standard_input_is_refused(monkeypatch):
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


def test_what_exceeds_the_limit_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with (
        at_most(6),
        pytest.raises(UserError, match="more than 6 bytes; --max"),
    ):
        read_file(tmp_path / "file")
    with at_most(7):
        assert read_file(tmp_path / "file") == b"content"
    check_bytes(256_000_000, "it")
    with pytest.raises(UserError, match="more than 256,000,000 bytes"):
        check_bytes(256_000_001, "it")


class Endless(io.RawIOBase):
    """A file like `/dev/zero`."""

    def readable(self):
        return True

    def readinto(self, buffer):
        buffer[:] = bytes(len(buffer))
        return len(buffer)


def test_an_endless_file_ends_at_the_limit():
    with at_most(1000), pytest.raises(UserError, match="zero has more than 1,000"):
        read_all(io.BufferedReader(Endless()), "zero")
    with at_most(1000), pytest.raises(UserError, match="zero has more than 1,000"):
        next(utf8_lines(io.BufferedReader(Endless()), "zero"))


def test_lines_may_be_more_than_the_limit_together():
    with at_most(4):
        found = list(utf8_lines(io.BytesIO(b"one\ntwo\n"), "text"))
        assert found == [b"one\n", b"two\n"]
        with pytest.raises(UserError, match="text has more than 4 bytes"):
            list(utf8_lines(io.BytesIO(b"one\nthree\n"), "text"))
