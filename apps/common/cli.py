"""Errors, exit codes, output streams, and the commands of every program."""

import atexit
import contextlib
import dataclasses
import functools
import gc
import importlib.metadata
import inspect
import io
import logging
import operator
import os
import signal
import sys
import warnings
from typing import Annotated

import tyro
from keras_attention_apps.common.errors import (
    UserError,
    did_you_mean,
    printable,
    reason,
)
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.models import CONFIG, read_sealed
from keras_attention_apps.common.options import (
    AverageConfig,
    ReadingConfig,
    TrainingOptions,
    parsed,
)
from keras_attention_apps.common.output import quiet


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


DISTRIBUTION = "keras-attention-layers"
QUIET = "--quiet"
_GLOBAL_OPTIONS = (
    "\n\n--quiet, with any command, shows no progress. --version alone prints the "
    "version."
)


def run(program, main):
    """Run a program's main function and return the exit code.

    A `UserError`, an `OSError` or a package that is not installed becomes one line on
    the standard error and exit code 2, Ctrl-C becomes exit code 130, SIGTERM 143, and a
    closed pipe 141. The output is UTF-8 whatever the locale is, and file names are
    written byte for byte.
    """
    # A closed stream is `None`; its output is discarded.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A stream in memory has no encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        with _ending_by_exception():
            return main() or 0
    except KeyboardInterrupt as error:
        is_terminated = isinstance(error, Terminated)
        parts = "terminated" if is_terminated else "interrupted", str(error)
        print(f"{program}: {': '.join(filter(None, parts))}", file=sys.stderr)
        return 143 if is_terminated else 130
    except BrokenPipeError:
        # Python would write the rest of the buffer and fail again.
        sys.stdout = io.StringIO()
        return 141
    except (UserError, OSError) as error:
        message = reason(error) if isinstance(error, OSError) else error
    except ValueError as error:
        # Keras reads the name of its backend when it is imported.
        if not str(error).startswith("Unable to import backend"):
            raise
        message = (
            "expected a backend of Keras: set KERAS_BACKEND=tensorflow, jax or torch. "
            f"{error}"
        )
    except ModuleNotFoundError as error:
        if _is_ours(error):
            raise
        message = (
            f"the package {error.name} is not installed: "
            f'python -m pip install ".[{program}]"'
        )
    print(f"{program}: error: {printable(message)}", file=sys.stderr)
    return 2


def _is_ours(error):
    """Return whether a missing module is one of this project, which is a bug."""
    ours = ("", "keras_attention", "keras_attention_apps")
    return (error.name or "").partition(".")[0] in ours


@contextlib.contextmanager
def needing(extra):
    """Say how to install the packages of an extra if one of them is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if _is_ours(error):
            raise
        raise UserError(
            f'the command needs the extra {extra}: pip install ".[{extra}]" ({error})'
        ) from error


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
            terminal, "w", encoding="utf-8", errors="surrogateescape", buffering=1
        )


def _collect_rarely():
    """Let Python look for reference cycles less often, and not at its end.

    The import of Keras and the tracing of a model create millions of objects that stay.
    Looking through them takes a quarter of the time of a short command.
    """
    gc.set_threshold(100_000, 20)
    atexit.register(gc.freeze)


def main(name, description, commands, call, *, presets, load_task, argv, texts=()):
    """Parse a command line, run the command, and return the exit code.

    `commands` is a dict from their names to the dataclasses of their options, or to an
    instance with other defaults; every program also has `average`. `call` runs the
    command of such options; an integer that it returns is the exit code. It imports
    what the command needs, and `load_task` the program's subclass of `Task`, so that
    `--help` need not wait for Keras. Without `argv`, the arguments are those of the
    process, which runs nothing else. `texts` replace docstrings in `--help`.
    """
    if argv is None:
        _collect_rarely()
        argv = sys.argv[1:]
    argv = list(argv)
    commands = {**commands, "average": AverageConfig}
    is_quiet = QUIET in argv
    argv = [x for x in argv if x != QUIET]

    def subcommands(**changes):
        """Return all commands as a type; `changes` are new defaults of a training."""
        found = []
        for command, options in commands.items():
            text = dict(texts).get(command) or _paragraphs(options)
            if command not in argv[:1]:
                # The list of all commands has one line for each.
                text = text.partition("\n\n")[0]
            elif not {"-h", "--help", "--help-all"}.isdisjoint(argv):
                text += _purpose(options, presets)
                text += "\n\n--help-all also shows the options that are rarely needed."
            more = {"description": text.strip()}
            if not isinstance(options, type):
                more["default"] = dataclasses.replace(options, **changes)
                options = type(options)
            found.append(Annotated[options, tyro.conf.subcommand(command, **more)])
        return functools.reduce(operator.or_, found)

    def read_config(preset):
        quiet_tensorflow()
        return load_task().read_config(preset)

    def run_command():
        if argv == ["--version"]:
            print(name, version())
            return 0
        first = argv[0] if argv else "--help"
        if not first.startswith("-") and first not in commands:
            raise UserError(
                f"expected a command: {', '.join(commands)}. "
                f"Received: {first!r}{did_you_mean(first, commands)}"
            )
        program = {"prog": name, "description": f"{description}{_GLOBAL_OPTIONS}"}
        config = parsed(subcommands, argv, read_config, **program)
        quiet_tensorflow()
        shown = _silent(config) if is_quiet else contextlib.nullcontext()
        limit = getattr(config, "reading", ReadingConfig()).max_bytes
        with shown, _resuming(config), at_most(limit), warnings.catch_warnings():
            # Pillow warns about some files although it can read them.
            warnings.filterwarnings("ignore", module="PIL")
            if isinstance(config, AverageConfig):
                result = load_task().average(config)
            else:
                result = call(config)
        return result if isinstance(result, int) else 0

    return run(name, run_command)


@contextlib.contextmanager
def _silent(config):
    """Show no progress; what a training prints is progress."""
    with quiet(), open(os.devnull, "w") as nowhere:
        is_training = isinstance(config, TrainingOptions)
        with contextlib.redirect_stdout(nowhere if is_training else sys.stdout):
            yield


@contextlib.contextmanager
def _resuming(config):
    """Say, if the program is interrupted, that its command resumes, if it does."""
    try:
        yield
    except KeyboardInterrupt as error:
        if getattr(config, "resumes", False):
            raise type(error)("the same command resumes") from error
        raise


def version():
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(the package is not installed)"


def _purpose(options, presets):
    """Return a paragraph that says what the default model of a command is for."""
    model = getattr(getattr(options, "model", None), "name", None)
    try:
        purpose = model and read_sealed(presets / model / CONFIG).get("purpose")
    except (UserError, OSError):
        purpose = None
    return f"\n\nDefault model: {printable(purpose)} ({model})." if purpose else ""


def _paragraphs(options):
    """Return the docstring of a dataclass with each paragraph on one line."""
    paragraphs = inspect.cleandoc(options.__doc__).split("\n\n")
    return "\n\n".join(" ".join(text.split()) for text in paragraphs)
