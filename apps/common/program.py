"""A program: a table of verbs, each with its options and the function that runs it."""

import dataclasses
import functools
import operator
from typing import Annotated, Any

import tyro
from keras_attention_apps.common.cli import quiet_tensorflow, run
from keras_attention_apps.common.config import parsed
from keras_attention_apps.common.imports import imported


@dataclasses.dataclass(frozen=True)
class Verb:
    """A command of a program, such as `train`.

    Attributes:
        name: Name on the command line.
        config: Dataclass of its options.
        function: Name of the function that takes the options, `"module:function"`. It
            is imported when the verb runs, so that `--help` need not wait for Keras. An
            integer that it returns is the exit code; another result means success.
        training: Default options of a verb that trains, whose `model` may come from a
            preset.
        description: Text of `--help`; the docstring of `config` if omitted.
    """

    name: str
    config: type
    function: str
    training: Any = None
    description: str | None = None

    def subcommand(self, **training):
        """Return the verb as a type that tyro parses; `training` replaces defaults."""
        options = {"description": self.description} if self.description else {}
        if self.training is not None:
            options["default"] = dataclasses.replace(self.training, **training)
        return Annotated[self.config, tyro.conf.subcommand(self.name, **options)]


@dataclasses.dataclass(frozen=True)
class Program:
    """A program with several verbs.

    Attributes:
        name: Name of the program.
        description: Text of `--help`.
        task: Name of its `Task`, `"module:class"`.
        verbs: The `Verb`s. Two that share the options differ in their defaults alone.
    """

    name: str
    description: str
    task: str
    verbs: tuple

    def main(self, argv=None):
        """Run the program with these arguments, and return the exit code."""
        return run(self.name, lambda: self._dispatch(argv))

    def _dispatch(self, argv):
        config = parsed(
            self._commands,
            argv,
            self._read_config,
            prog=self.name,
            description=self.description,
        )
        quiet_tensorflow()
        functions = {verb.config: verb.function for verb in self.verbs}
        result = imported(functions[type(config)])(config)
        return result if isinstance(result, int) else 0

    def _commands(self, **training):
        verbs = [verb.subcommand(**training) for verb in self.verbs]
        return functools.reduce(operator.or_, verbs)

    def _read_config(self, preset):
        quiet_tensorflow()
        return imported(self.task).read_config(preset)
