"""Choosing the runtime of a model: LiteRT, which starts quickly, or Keras."""

import contextlib
import dataclasses
import sys

from keras_attention_apps.common.cli import UserError, printable
from keras_attention_apps.common.digests import update_sealed
from keras_attention_apps.common.files import MODEL_FILES, check_file, expanded
from keras_attention_apps.common.hypotheses import check_n_best
from keras_attention_apps.common.imports import imported
from keras_attention_apps.common.litert.model_file import update_metadata
from keras_attention_apps.common.litert.runtime import available
from keras_attention_apps.common.presets import (
    CONFIG,
    LITERT,
    find_preset,
    is_litert,
    member_names,
    read_options,
    split_names,
)

# Values of options that leave a model as it is.
_DEFAULT_VALUES = (None, False, "float32")


def changes_in(options):
    """Return the options of a model, a dict, without those that leave it as it is."""
    return {name: x for name, x in options.items() if x not in _DEFAULT_VALUES}


@dataclasses.dataclass(frozen=True)
class Runtimes:
    """The two classes that run the models of a program.

    Attributes:
        keras: Name of the `Task`, `"module:class"`.
        litert: Name of the `LiteTask`, `"module:class"`.
        max_litert_inputs: Maximum number of inputs for which `"auto"` chooses LiteRT.
    """

    keras: str
    litert: str
    max_litert_inputs: int

    def load(
        self, model, config, *, count, search, n_best=1, needs_keras=None, **options
    ):
        """Load a model.

        Args:
            model: Name of a preset, folder, or LiteRT file.
            config: The `RuntimeConfig`. `"auto"` chooses LiteRT for few inputs, if the
                model has a LiteRT file of the same configuration, and with the same
                search options as Keras would use: those given, and defaults for the
                rest.
            count: Number of inputs. `None` for a service: the LiteRT file is used with
                its own defaults, unless an option that was given differs.
            search: Options of the beam search that were given.
            n_best: Number of hypotheses that are wanted, at most the beam width.
            needs_keras: An option that was given and that LiteRT does not have, or
                `None`.
            **options: Further arguments of `Task.from_preset`.

        Raises:
            UserError: If the options contradict one another, or the model cannot be
                loaded.
        """
        changes = changes_in(options)
        if is_litert(model) or config.runtime == "litert":
            # A LiteRT file loads quickly, and has its own beam width.
            return self._requested_litert(model, config, changes, search, needs_keras)
        # Checked before Keras loads the model, which takes seconds.
        check_n_best(n_best, self.search_options(search))
        keras_only = bool(changes) or needs_keras is not None
        is_small = count is None or count <= self.max_litert_inputs
        if config.runtime == "auto" and is_small and not keras_only:
            lite = self._available_litert(model, config.threads)
            if lite is not None and self._has_options(lite, search, count):
                return lite
        return imported(self.keras).from_preset(model, **options)

    def search_options(self, given):
        """Return all options of the search on Keras: those given, and the defaults.

        Args:
            given: Dict of the options that were given.

        Raises:
            UserError: If they contradict one another.
        """
        return dataclasses.asdict(imported(self.litert).search_type(**given))

    def files(self, model):
        """Return the files of a model; an empty list if there is no model."""
        if is_litert(model):
            return [model]
        lite = imported(self.litert)
        files = (*MODEL_FILES, LITERT, lite.tokenizer_type.file_name)
        try:
            members = member_names(model, presets=lite.presets, noun=lite.noun)
            names = dict.fromkeys([*split_names(model), *members])
            folders = [find_preset(name, lite.presets) for name in names]
        except UserError:
            return []
        return [folder / file for folder in folders for file in files]

    def described_files(self, model):
        """Return the files that `describe` changes.

        Raises:
            UserError: If there is no such model, or a file cannot be written.
        """
        files = [expanded(model)]
        if not is_litert(model):
            folder = find_preset(model, imported(self.litert).presets)
            files = [
                path for path in (folder / LITERT, folder / CONFIG) if path.exists()
            ]
        for path in files:
            check_file(path)
        return files

    def describe(self, model, entries):
        """Write entries into the configuration of a model, and into its LiteRT file.

        Args:
            model: Name of a preset, folder, or LiteRT file.
            entries: Dict that JSON can hold; see `Described`.
        """
        for path in self.described_files(model):
            if is_litert(path):
                update_metadata(path, imported(self.litert).noun, entries)
            else:
                update_sealed(path, entries)

    def with_absolute_paths(self, model):
        """Return a name of the same model that is valid in every working directory."""
        presets, names = imported(self.litert).presets, []
        for name in split_names(model):
            path = expanded(name)
            if not is_litert(name):
                with contextlib.suppress(UserError):
                    path = find_preset(name, presets)
            is_path = path.exists() and path.parent != presets
            names.append(str(path.absolute()) if is_path else name)
        return "+".join(names)

    def _has_options(self, lite, search, count):
        """Return whether a LiteRT file has the options of the search."""
        if count is not None:
            # With other defaults than Keras, the results of few inputs would differ
            # from those of many.
            return lite.search == self.search_options(search)
        return search.items() <= lite.search.items()

    def _requested_litert(self, model, config, changes, search, needs_keras):
        """Return the model on LiteRT; the arguments are those of `load`.

        `changes` are the options of the model that were given.
        """
        if config.runtime == "keras":
            raise UserError(
                f"a LiteRT file needs --runtime litert. Received: {model!r}"
            )
        if needs_keras is not None:
            raise UserError(
                f"{needs_keras} needs the runtime keras. Received: {model!r} on litert"
            )
        if changes:
            name, value = next(iter(changes.items()))
            is_compilation = name == "jit_compile"
            fault = "needs Keras" if is_compilation else "is fixed in a LiteRT file"
            raise UserError(f"{name} {fault}. Received: {value}")
        lite = imported(self.litert).from_preset(model, threads=config.threads)
        lite.search_options(**search)
        return lite

    def _available_litert(self, model, threads):
        """Return the model on LiteRT, or `None` if there is no intact file of it.

        A file that is damaged, or has other options than its folder, is a warning.
        """
        if len(split_names(model)) > 1:
            return None
        lite = imported(self.litert)
        folder = find_preset(model, lite.presets)
        if not ((folder / LITERT).is_file() and available()):
            return None
        try:
            found = lite.from_preset(model, threads=threads)
            _check_options(found, model, folder / LITERT)
            return found
        except UserError as error:
            print(f"Warning: {printable(error)}. Keras runs the model", file=sys.stderr)
            return None


def _check_options(lite, model, file):
    """Raise a `UserError` if a LiteRT file and its folder have different options.

    Those of an ensemble are the options of its first model. Options that only one of
    them has are not compared, since earlier versions had fewer. A folder whose options
    cannot be read, such as an ensemble without its models, has only the file to run.
    """
    try:
        first, *_ = member_names(model, presets=lite.presets, noun=lite.noun)
        options = read_options(find_preset(first, lite.presets))
    except (UserError, OSError):
        return
    for name, value in lite.options.items():
        if options.get(name, value) != value:
            raise UserError(
                f"{file} has {name}={value}, and its folder {options[name]}"
            )
