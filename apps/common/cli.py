"""Errors, exit codes, output streams, and the commands of every program."""

import contextlib
import dataclasses
import functools
import inspect
import io
import logging
import operator
import os
import signal
import sys
import warnings
from importlib.resources import files
from typing import Annotated, Any

import tyro
from keras_attention_apps.common.errors import UserError, printable, reason
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.imports import imported
from keras_attention_apps.common.models import CONFIG, read_sealed
from keras_attention_apps.common.options import (
    AverageConfig,
    ConvertConfig,
    ReadingConfig,
    parsed,
)


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


@dataclasses.dataclass(frozen=True)
class Program:
    """A program with several commands, each the dataclass of its options.

    The function of a command takes the options. It is imported when the command runs,
    so that `--help` need not wait for Keras. An integer that it returns is the exit
    code; another result means success.

    Attributes:
        name: Name of the program.
        description: Text of `--help`.
        package: Name of its package.
        task: Name of its `Task` in the package, `"module:class"`.
        commands: Dataclasses of options: `CaptionConfig` has the command `caption`, and
            the function `commands.caption:caption` of the package.
        training: Dict from commands that train to their default options, whose `model`
            may come from a preset. The function of all of them is
            `training.train:train`.
        descriptions: Dict from commands to texts of `--help`; the docstring of the
            options where omitted.
    """

    name: str
    description: str
    package: str
    task: str
    commands: tuple
    training: dict
    descriptions: dict = dataclasses.field(default_factory=dict)

    def main(self, argv=None):
        """Run the program with these arguments, and return the exit code."""
        return run(self.name, lambda: self._dispatch(argv))

    def _dispatch(self, argv):
        config = parsed(
            self._subcommands,
            argv,
            self._read_config,
            prog=self.name,
            description=self.description,
        )
        quiet_tensorflow()
        limit = getattr(config, "reading", ReadingConfig()).max_bytes
        with at_most(limit), warnings.catch_warnings():
            # Pillow warns about some files although it can read them.
            warnings.filterwarnings("ignore", module="PIL")
            result = self._imported(self._function(config))(config)
        return result if isinstance(result, int) else 0

    def _function(self, config):
        """Return the name of the function that takes these options."""
        if isinstance(config, AverageConfig | ConvertConfig):
            return f"{self.task}.{_command(type(config))}"
        if type(config) not in self.commands:
            return "training.train:train"
        command = _command(type(config))
        return f"commands.{command}:{command}"

    def _subcommands(self, **changes):
        """Return all commands as a type that tyro parses.

        Args:
            **changes: New defaults of the commands that train.
        """
        configs = {_command(config): config for config in self.commands}
        subcommands = [self._subcommand(*item) for item in configs.items()]
        for command, default in self.training.items():
            default = dataclasses.replace(default, **changes)
            subcommands.append(
                self._subcommand(command, type(default), default=default)
            )
        subcommands.append(self._subcommand("average", AverageConfig))
        subcommands.append(self._subcommand("convert", ConvertConfig))
        return functools.reduce(operator.or_, subcommands)

    def _subcommand(self, command, config, **options: Any):
        description = self.descriptions.get(command) or _paragraphs(config)
        purpose = self._purpose(config)
        options["description"] = "\n\n".join(filter(None, [description, purpose]))
        return Annotated[config, tyro.conf.subcommand(command, **options)]

    def _purpose(self, config):
        """Return a line that says what the default model of a command is for."""
        model = getattr(getattr(config, "model", None), "name", None)
        if model is None:
            return None
        path = files(self.package) / "presets" / model / CONFIG
        try:
            purpose = read_sealed(path).get("purpose")
        except (UserError, OSError):
            return None
        return purpose and f"Default model: {printable(purpose)} ({model})."

    def _read_config(self, preset):
        quiet_tensorflow()
        return self._imported(self.task).read_config(preset)

    def _imported(self, name):
        return imported(f"{self.package}.{name}")


def _paragraphs(config):
    """Return the docstring of a dataclass with each paragraph on one line."""
    paragraphs = inspect.getdoc(config).split("\n\n")
    return "\n\n".join(" ".join(text.split()) for text in paragraphs)


def _command(config):
    """Return the name of the command with these options."""
    return config.__name__.removesuffix("Config").lower()
