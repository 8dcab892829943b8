"""A program: its commands, each with its options and the function that runs it."""

import dataclasses
import functools
import inspect
import operator
import warnings
from importlib.resources import files
from typing import Annotated, Any

import tyro
from keras_attention_apps.common.cli import UserError, printable, quiet_tensorflow, run
from keras_attention_apps.common.config import (
    AverageConfig,
    ConvertConfig,
    ReadingConfig,
    parsed,
)
from keras_attention_apps.common.digests import read_sealed
from keras_attention_apps.common.imports import imported
from keras_attention_apps.common.presets import CONFIG
from keras_attention_apps.common.reading import at_most


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
