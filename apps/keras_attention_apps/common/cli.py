"""The command line: options, errors, exit codes and output streams of every program."""

import argparse
import atexit
import contextlib
import dataclasses
import errno
import functools
import gc
import importlib.metadata
import inspect
import io
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Literal

from keras_attention_apps.common.errors import (
    UserError,
    did_you_mean,
    printable,
    reason,
)
from keras_attention_apps.common.files import at_most, expanded
from keras_attention_apps.common.models import CONFIG, read_sealed
from keras_attention_apps.common.options import (
    METADATA,
    REQUIRED,
    AverageConfig,
    Group,
    ReadingConfig,
    TrainingOptions,
    Values,
    check_effects,
    described,
    values_of,
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


DISTRIBUTION = "keras-attention-apps"
QUIET = "--quiet"
COMPLETION = "--print-completion"
SHELLS = ("bash", "fish", "powershell", "tcsh", "zsh")
_GLOBAL_OPTIONS = (
    "--quiet, with any command, shows no progress. --version alone prints the version. "
    "COMMAND --help shows the options of a command."
)


def run(program, main):
    """Run a program's main function and return the exit code.

    A `UserError`, an `OSError` or a package that is not installed becomes one line on
    the standard error and exit code 2, Ctrl-C becomes exit code 130, SIGTERM 143, and a
    closed pipe 141. Output that cannot be written, as to a full disk or a closed
    standard output, is an error. The output is UTF-8 whatever the locale is, and file
    names are written byte for byte.
    """
    # A closed stream is `None`. Writing to the standard output then fails.
    sys.stdout = sys.stdout or _in_place_of(1, os.O_RDONLY)
    sys.stderr = sys.stderr or _in_place_of(2, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        # A stream in memory has no encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        with _ending_by_exception():
            code = main() or 0
            # Python would report an error of this at its end, with exit code 120.
            sys.stdout.flush()
            return code
    except KeyboardInterrupt as error:
        _flush_if_possible()
        is_terminated = isinstance(error, Terminated)
        parts = "terminated" if is_terminated else "interrupted", str(error)
        print(f"{program}: {': '.join(filter(None, parts))}", file=sys.stderr)
        return 143 if is_terminated else 130
    except BrokenPipeError:
        # Python would write the rest of the buffer and fail again.
        sys.stdout = io.StringIO()
        return 141
    except (UserError, OSError) as error:
        message: object = error
        if isinstance(error, OSError):
            is_closed = error.errno == errno.EBADF and error.filename is None
            message = "the standard output is closed" if is_closed else reason(error)
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
            'python -m pip install . "./apps[train]"'
        )
    _flush_if_possible()
    print(f"{program}: error: {printable(message)}", file=sys.stderr)
    return 2


def _in_place_of(number, flags):
    """Return a stream for a closed descriptor, which no other file then gets."""
    descriptor = os.open(os.devnull, flags)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(descriptor, number)
        os.close(descriptor)
        descriptor = number
    return open(descriptor, "w")


def _flush_if_possible():
    """Write what is printed so far, before a message about another error."""
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try it again at its end.
        sys.stdout = io.StringIO()


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
            f"the command needs the extra {extra}: "
            f'python -m pip install . "./apps[{extra}]" ({error})'
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

    def text_of(command):
        return dict(texts).get(command) or _paragraphs(commands[command].__doc__)

    def run_command():
        if argv == ["--version"]:
            print(name, version())
            return 0
        if argv[:1] == [COMPLETION]:
            return _print_completion(name, argv[1:])
        first, *arguments = argv or ["--help"]
        if first in HELP or "_ARGCOMPLETE" in os.environ:
            text = f"{description}\n\n{_GLOBAL_OPTIONS}"
            lines = {x: text_of(x).partition("\n\n")[0] for x in commands}
            parser = _program_parser(name, text, commands, lines)
            _complete(parser)
            parser.print_help()
            return 0 if argv else 2
        if first not in commands:
            raise UserError(
                f"expected a command: {', '.join(commands)}. "
                f"Received: {first!r}{did_you_mean(first, commands)}"
            )
        options, is_help = commands[first], not HELP.isdisjoint(arguments)
        settings = {
            "prog": f"{name} {first}",
            "text": text_of(first) + _purpose(options, presets) if is_help else "",
            "everything": "--help-all" in arguments,
        }
        config = CommandParser(options=options, **settings).config(arguments)
        preset = getattr(config, "from_preset", None)
        if preset:
            # The options of the preset's model are the defaults.
            quiet_tensorflow()
            options = dataclasses.replace(
                options, model=load_task().read_config(preset)
            )
            config = CommandParser(options=options, **settings).config(arguments)
        check_effects(config)
        quiet_tensorflow()
        output_context = _silent(config) if is_quiet else _log_to_nowhere(config)
        limit = getattr(config, "reading", ReadingConfig()).max_bytes
        with (
            output_context,
            _resuming(config),
            at_most(limit),
            warnings.catch_warnings(),
        ):
            # Pillow warns about some files although it can read them.
            warnings.filterwarnings("ignore", module="PIL")
            if isinstance(config, AverageConfig):
                result = load_task().average(config)
            else:
                result = call(config)
        return result if isinstance(result, int) else 0

    return run(name, run_command)


HELP = {"-h", "--help", "--help-all"}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are `UserError`s, and whose help wraps paragraphs.

    `texts` are pairs of a section of the help, or the parser, and its description.
    """

    def __init__(self, text="", **settings):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **settings,
        )
        self.texts = [(self, text)]

    def format_help(self):
        width = shutil.get_terminal_size().columns - 2
        for section, text in self.texts:
            paragraphs = _paragraphs(text).split("\n\n")
            lines = (textwrap.fill(x, width) for x in paragraphs)
            section.description = "\n\n".join(lines)
        return super().format_help()

    def error(self, message):
        # "argument --seed: must be an integer" without its first word and the colon.
        message = message.removeprefix("argument ").replace(": must be", " must be", 1)
        raise UserError(message)


def _program_parser(name, text, commands, lines):
    """Return the parser of a program: its help has one line for each command."""
    parser = _Parser(text, prog=name, usage=f"{name} COMMAND [OPTIONS]")
    parsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=CommandParser
    )
    for command, options in commands.items():
        line = lines[command].replace("%", "%%")
        # All options can be completed.
        parsers.add_parser(command, options=options, help=line, everything=True)
    return parser


class CommandParser(_Parser):
    """The parser of a command, from the fields of the dataclass of its options.

    `options` is the dataclass, or an instance with other defaults. Options that are
    rarely needed are in the help only if it shows `everything`.
    """

    def __init__(self, *, options, everything=False, text="", **settings):
        if not everything:
            text += "\n\n--help-all also shows the options that are rarely needed."
        # Without defaults, the result of parsing has the options that are given.
        super().__init__(text, argument_default=argparse.SUPPRESS, **settings)
        self.options, self.everything = options, everything
        self.names = ["--help-all"]
        # The destination and the `Values` of an argument without a name, of any number.
        self.repeated: tuple[str, Values] | None = None
        self.usage: str = f"{self.prog} [OPTIONS]"
        self.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
        self._add_options(self, options)

    def config(self, arguments):
        """Parse arguments, and return the dataclass."""
        namespace, others = self.parse_known_args(_normalized(arguments))
        parsed = vars(namespace)
        for argument in others:
            if argument.startswith("-") and argument != "-":
                name = argument.partition("=")[0]
                hint = did_you_mean(name, self.names)
                if self.repeated and not name.startswith("--"):
                    hint = ". Write -- before arguments that begin with a hyphen"
                raise UserError(f"there is no option {name}{hint}")
            if self.repeated is None:
                raise UserError(f"unexpected argument: {argument!r}")
            # It stands behind an option, and others before it.
            path, values = self.repeated
            parsed[path] += (_value(values, argument),)
        return _filled(self.options, parsed)

    def _add_options(self, section, options, prefix="", path=""):
        """Add the fields of a dataclass to a section of the help.

        The prefix begins the names of the options, and the path their destinations.
        """
        groups = []
        for field in dataclasses.fields(options):
            declared, name = field.metadata.get(METADATA), field.name
            # The default of a field is an attribute of the class.
            default = getattr(options, name, REQUIRED)
            if isinstance(declared, Group):
                groups.append((name, declared.prefix, default))
            elif declared:
                values = values_of(field.type)
                self._add_option(
                    section, declared, values, default, prefix, path + name
                )
        for name, inner_prefix, inner in groups:
            is_shown = self.everything or any(
                [
                    not getattr(x.metadata.get(METADATA), "rare", True)
                    for x in dataclasses.fields(inner)
                ]
            )
            section = self.add_argument_group(f"{name} options")
            if is_shown:
                self.texts.append((section, inner.__doc__))
            self._add_options(section, inner, inner_prefix, f"{path}{name}.")

    def _add_option(self, section, option, values, default, prefix, path):
        """Add an `Option` with its `Values` and its default."""
        text, name = option.text, path.rpartition(".")[2]
        settings: dict = {
            "type": functools.partial(_value, values),
            "metavar": METAVARS.get(values.type),
        }
        if values.choices:
            settings["metavar"] = f"{{{','.join(values.choices)}}}"
            # `_value` has checked them; a shell completes them.
            settings["choices"] = values.choices
        if option.repeated:
            text += " (repeatable)"
            settings["action"] = "append"
        elif values.are_many:
            settings["nargs"] = "*"
        if values.type is bool:
            settings = {"action": _Switch}
        if option.positional:
            settings |= {"metavar": name.upper(), "default": ()}
        elif default is REQUIRED:
            text += " (required)"
            settings["required"] = True
        default = default if option.if_omitted is None else option.if_omitted
        if option.default_text or default not in (None, (), REQUIRED):
            default = " ".join(default) if isinstance(default, tuple) else default
            text += f" (default: {option.default_text or default})"
        # argparse replaces percent signs.
        settings["help"] = text.replace("%", "%%")
        if option.rare and not self.everything:
            settings["help"] = argparse.SUPPRESS
        if option.positional:
            section.add_argument(path, **settings)
            self.usage += (
                f" [{name.upper()} ...]" if values.are_many else f" {name.upper()}"
            )
            if values.are_many:
                self.repeated = path, values
            return
        names = option.flags or (f"--{prefix}{name.replace('_', '-')}",)
        action = section.add_argument(*option.aliases, *names, dest=path, **settings)
        self.names += action.option_strings


METAVARS = {str: "STR", int: "INT", float: "FLOAT", Path: "PATH"}


class _Switch(argparse.Action):
    """An option `--name` that is on, and `--no-name` that is off."""

    def __init__(self, option_strings, dest, **settings):
        off = list(map(_negated, option_strings))
        super().__init__([*option_strings, *off], dest, nargs=0, **settings)
        self._off = off

    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, option_string not in self._off)


def _negated(name):
    """Return the name of a switch with "no" before its last part."""
    before, dot, last = name.removeprefix("--").rpartition(".")
    return f"--{before}{dot}no-{last}"


# A negative number that argparse takes for an option.
_NEGATIVE = re.compile(r"-[\d.]+e[-+]?\d+", re.IGNORECASE)


def _normalized(arguments):
    """Return arguments with hyphens for underscores in the names of options.

    A number such as -1e-3 is joined to the option before it.
    """
    normalized: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*normalized, *arguments[i:]]
        name, equals, value = argument.partition("=")
        if (
            _NEGATIVE.fullmatch(argument)
            and normalized
            and normalized[-1].startswith("--")
        ):
            normalized[-1] += f"={argument}"
        elif argument.startswith("--"):
            normalized.append(name.replace("_", "-") + equals + value)
        else:
            normalized.append(argument)
    return normalized


def _value(values, text):
    """Return the value of a text, or raise the error that argparse expects."""
    if values.type is Path:
        return expanded(text)
    try:
        if values.choices and text not in values.choices:
            raise UserError("")
        value = values.type(text)
    except ValueError:
        expected = described(Literal[values.choices] if values.choices else values.type)
        raise argparse.ArgumentTypeError(
            f"must be {expected}. Received: {text!r:.60}"
        ) from None
    try:
        if values.range:
            values.range.check(value)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return value


def _filled(options, parsed, path=""):
    """Return a dataclass with the options that are given, and defaults for the rest.

    `parsed` is a dict whose keys are the names of fields after those of their groups.
    """
    changes = {}
    for field in dataclasses.fields(options):
        key = path + field.name
        if isinstance(field.metadata.get(METADATA), Group):
            inner = getattr(options, field.name)
            changes[field.name] = _filled(inner, parsed, f"{key}.")
        elif key in parsed:
            value = parsed[key]
            changes[field.name] = tuple(value) if isinstance(value, list) else value
    if isinstance(options, type):
        return options(**changes)
    return dataclasses.replace(options, **changes) if changes else options


def _complete(parser):
    """Print what may follow on a command line, and exit, if a shell asks for it."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def _print_completion(name, arguments):
    """Print the code by which a shell completes the commands of a program."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UserError(
            f"expected {COMPLETION} and a shell: {', '.join(SHELLS)}. "
            f"Received: {' '.join(arguments) or 'none'}"
        )
    import argcomplete

    print(argcomplete.shellcode([name], shell=arguments[0]))


@contextlib.contextmanager
def _silent(config):
    """Show no progress; what a training prints is progress."""
    with quiet(), open(os.devnull, "w") as nowhere:
        is_training = isinstance(config, TrainingOptions)
        with contextlib.redirect_stdout(nowhere if is_training else sys.stdout):
            yield


@contextlib.contextmanager
def _log_to_nowhere(config):
    """Discard the log of a training or a server whose standard output is closed.

    What other commands print is their result, so that it would be lost.
    """
    is_log = isinstance(config, TrainingOptions) or hasattr(config, "server")
    if sys.__stdout__ is not None or not is_log:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
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


def _paragraphs(text):
    """Return a docstring with each paragraph on one line."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(text.split()) for text in paragraphs)
