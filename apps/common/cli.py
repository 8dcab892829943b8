"""Errors, exit codes and output streams of every program."""

import contextlib
import io
import logging
import os
import re
import signal
import sys


class UserError(ValueError):
    """An error that the user can correct; its message is one line."""


def reason(error):
    """Return the message of an exception as one line, or else its type.

    The number of an error of the system is left out. Other white space is unchanged,
    because file names may contain it.
    """
    message = re.sub(r"^\[(Errno|WinError) -?\d+\] ", "", str(error))
    message = re.sub(r"\s*\n\s*", " ", message.strip())
    if isinstance(error, KeyError):
        return f"there is no {message}"
    return message or type(error).__name__


def counted(number, noun):
    """Return a number and a noun in singular or plural.

    >>> counted(1, "word"), counted(2, "word")
    ('1 word', '2 words')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Characters that a terminal does not show as such: controls, which could change its
# state, and those that reorder the text around them.
CONTROLS = (*range(32), *range(127, 160))
BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# Surrogates that stand for no byte cannot be encoded.
_ESCAPED = {code: f"\\x{code:02x}" for code in CONTROLS}
_ESCAPED |= {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}
_ESCAPED |= {
    code: f"\\u{code:04x}"
    for code in (*BIDIRECTIONAL, *range(0xD800, 0xDC80), *range(0xDD00, 0xE000))
}


def printable(value):
    """Return a value as text for one line; what cannot be printed is escaped.

    >>> print(printable("a\\x1b[31m\\tb.jpg"))
    a\\x1b[31m\\tb.jpg
    """
    return str(value).translate(_ESCAPED)


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


@contextlib.contextmanager
def _ending_by_exception():
    """Raise `Terminated` on SIGTERM, so that temporary files are removed."""

    def end(*_):
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:
        # Only the main thread can handle signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# Packages of this project: a missing module of theirs is a bug.
_OURS = ("keras_attention", "keras_attention_apps")


def run(program, main):
    """Run a program's main function and return the exit code.

    A `UserError`, an `OSError` or a package that is not installed becomes one line on
    the standard error and exit code 2, Ctrl-C becomes exit code 130, SIGTERM 143, and a
    closed pipe 141. The output is UTF-8 whatever the locale is, and file names are
    written byte for byte.

    Args:
        program: Name of the program, which begins the error line.
        main: Function without arguments that returns an exit code or `None`.

    Returns:
        The exit code.
    """
    # A closed stream is `None`; its output is discarded.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        with _ending_by_exception():
            return main() or 0
    except Terminated:
        print(f"{program}: terminated", file=sys.stderr)
        return 143
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python would write the rest of the buffer and fail again.
        sys.stdout = io.StringIO()
        return 141
    except (UserError, OSError) as error:
        message = reason(error) if isinstance(error, OSError) else error
        print(f"{program}: error: {printable(message)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", *_OURS):
            raise
        message = (
            f"the package {error.name} is not installed: "
            f'python -m pip install ".[{program}]"'
        )
        print(f"{program}: error: {message}", file=sys.stderr)
        return 2


def quiet_tensorflow():
    """Hide the log messages of TensorFlow's C++ code.

    Some are written to the file descriptor of the standard error before any log level
    is read. So that descriptor is redirected to the null device, and Python's
    `sys.stderr` to a copy of the terminal. With `TF_CPP_MIN_LOG_LEVEL` set, nothing is
    hidden. Call this before TensorFlow is imported.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        terminal = os.dup(sys.stderr.fileno())
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
        sys.stderr = open(  # noqa: SIM115  (it stays open as long as the program runs)
            terminal,
            "w",
            encoding="utf-8",
            errors="surrogateescape",
            buffering=1,
        )
