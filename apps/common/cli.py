"""Errors, exit codes and output streams of every program."""

import contextlib
import io
import logging
import os
import sys


class UserError(ValueError):
    """Something the user can put right; its message is one clear line."""


def run(program, main):
    """Run a program's main function and exit with its code.

    A `UserError`, and what the operating system refuses, becomes one line on the
    standard error and exit code 2, Ctrl-C the exit code 130. Where nobody reads what it
    writes any more, it ends with 141, as other programs do. It writes UTF-8 whatever
    the locale says, and names of files as they are.

    Args:
        program: Name of the program, which begins the error line.
        main: Function without arguments that returns an exit code or `None`.

    Returns:
        The exit code.
    """
    # Where the terminal has closed one, what is written there goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        return main() or 0
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has seen enough.
        sys.stdout = io.StringIO()
        return 141
    except (UserError, OSError) as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return 2


def quiet_tensorflow():
    """Keep the chatter of TensorFlow's C++ code off the terminal.

    Part of it is written before any log level is read, straight to the file descriptor
    of the standard error. So that descriptor is sent nowhere, and Python's own
    `sys.stderr` goes on to the terminal. Set `TF_CPP_MIN_LOG_LEVEL` to see it all.
    Call this before TensorFlow is imported.
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
