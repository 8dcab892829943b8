"""Servers of the programs, in processes of their own, and their answers."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

sends_sigterm = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGTERM"
)


@contextlib.contextmanager
def started(code, *arguments, **environment):
    """Yield a process that runs Python code, and the address that it prints."""
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    try:
        line = process.stdout.readline()
        yield process, next(word for word in line.split() if word.startswith("http"))
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def served(program, *options, command="serve", **environment):
    """Yield the process and the address of the server, or the page, of a program."""
    code = (
        f"import sys; from keras_attention_apps.{program}.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    return started(code, command, "--port", "0", *options, **environment)


def error_of(answer, status):
    """Return the error of an answer, which is one line of JSON."""
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert error and "\n" not in error and "Traceback" not in error
    return error


def metric(text, name):
    """Return the sum of the values of a metric of Prometheus, over all labels."""
    lines = [x for x in text.splitlines() if x.partition("{")[0].split()[:1] == [name]]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def until(condition, seconds=60):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
