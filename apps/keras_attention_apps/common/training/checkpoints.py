"""Checkpoints from which a training resumes, even after `kill -9`."""

import copy
import dataclasses
import json
import re
import sys
from pathlib import Path

import keras

from keras_attention_apps.common import models
from keras_attention_apps.common.distribution import is_first_host, on_first_host
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import SizeLimitError, recover_folder, write_json
from keras_attention_apps.common.models import read_sealed, write_sealed
from keras_attention_apps.common.network.weights import load_checkpoint, save_checkpoint
from keras_attention_apps.common.options import Natural, from_json

# Folder of the checkpoints in the output of a training.
CHECKPOINTS = "checkpoints"
PROGRESS = "progress.json"
# The progress file of the checkpoint before the last one.
PREVIOUS = "previous.json"
# File names of checkpoints: a path to another folder must not be read.
WEIGHTS = re.compile(r"phase-\d+-epoch-\d+\.weights\.npz")

# Options that may change, such as paths: a training can be moved and resumed.
CHANGEABLE = (
    "data",
    "source",
    "target",
    "valid_source",
    "valid_target",
    "monolingual",
    "reverse_model",
    "output",
    "cache",
    "open_report",
    "tensorboard",
    "devices.hosts",
    "devices.host_index",
    "reading.max_bytes",
)
# Options whose files may be moved, but not renamed.
MOVABLE = ("from_preset", "backbone_weights")


@dataclasses.dataclass
class Progress:
    """Progress of a training, without its weights.

    Attributes:
        phase: Index of the current phase, from 0.
        epoch: Finished epochs of that phase.
        weights: File name of the checkpoint, `None` before a phase starts.
        steps: Number of finished steps of all phases.
        seeds: States of the random generators, which Keras does not save.
        history: One dict of metrics for the preset from which the training starts, if
            any, for every finished epoch of all phases, and for the average of epochs.
    """

    phase: Natural = 0
    epoch: Natural = 0
    weights: str | None = None
    steps: Natural = 0
    seeds: list[list[int]] = dataclasses.field(default_factory=list)
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


class Checkpoints:
    """The checkpoint folder of one training run.

    The weights, with the state of the optimiser, are written first, under a new name;
    then `progress.json`, which names that file, is replaced. So the folder holds one
    consistent state whenever the process dies. Both have digests, and the checkpoint
    before the last one is kept: if the last one is damaged, the training continues from
    the one before it, with a warning.

    `config` is a nested dict of everything the training depends on. A folder with
    another one is rejected, except for options in `CHANGEABLE`, for the folders of
    files in `MOVABLE`, and for options that the saved one does not have.
    """

    def __init__(self, directory, config):
        self.directory = directory
        config = json.loads(json.dumps(config, default=str))
        self.progress = Progress()
        # The content of the last progress file.
        self._written = None
        if (directory / PROGRESS).exists():
            self.progress, self._written = _read_last(directory)
            _check_config(directory, self._written["config"], config)
        self._config = config

    def restore(self, model):
        """Load the last state of the current phase, or record its first."""
        progress = self.progress
        model.optimizer.build(model.trainable_variables)
        try:
            if progress.seeds:
                states = _seed_states(model)
                for state, value in zip(states, progress.seeds, strict=True):
                    state.assign(value)
            if progress.weights:
                load_checkpoint(model, self.directory / progress.weights)
        # Readers of damaged files fail with nearly every type of exception.
        except Exception as error:
            raise _damaged(self.directory, reason(error)) from error
        if not progress.weights:
            self._write_checkpoint(model)

    def begin(self, metrics):
        """Record the metrics of the preset from which the training starts."""
        self.progress.history.append(metrics)
        self._write()

    def save(self, model, metrics):
        """Record a finished epoch."""
        self.progress.epoch += 1
        self.progress.history.append(metrics)
        self._write_checkpoint(model)

    def next_phase(self):
        """Record that a phase is finished."""
        self.progress.phase += 1
        self.progress.epoch = 0
        self.progress.weights = None
        self._write()

    def _write_checkpoint(self, model):
        progress = self.progress
        name = f"phase-{progress.phase}-epoch-{progress.epoch}.weights.npz"
        on_first_host(save_checkpoint, model, self.directory / name)
        progress.weights = name
        states = map(keras.ops.convert_to_numpy, _seed_states(model))
        progress.seeds = [state.tolist() for state in states]
        self._write()

    def _write(self):
        if not is_first_host():
            return
        previous, referenced = self.directory / PREVIOUS, [self.progress.weights]
        if self._written:
            write_json(previous, self._written)
            referenced.append(self._written["weights"])
        else:
            previous.unlink(missing_ok=True)
        self._written = write_sealed(
            self.directory / PROGRESS,
            {**dataclasses.asdict(self.progress), "config": self._config},
            names=filter(None, [self.progress.weights]),
        )
        for file in self.directory.iterdir():
            if WEIGHTS.fullmatch(file.name) and file.name not in referenced:
                file.unlink()


def is_begun(output):
    """Return whether a folder holds a training with a checkpoint, which is resumed."""
    return (output / CHECKPOINTS / PROGRESS).exists()


def open_checkpoints(config, start=None, files=None, **data):
    """Return the `Checkpoints` of a training with these options, files and data."""
    files = {name: Path(path) for name, path in (files or {}).items()}
    if start:
        folder = models.find_preset(config.from_preset, start.presets)
        for name in (start.tokenizer.file_name, models.WEIGHTS):
            files[f"from_preset's {name.partition('.')[0]}"] = folder / name
    digests = {
        name: f"digest {models.digest_of_file(path)[:12]}"
        for name, path in files.items()
        if path.is_file()
    }
    depends_on = {**digests, **dataclasses.asdict(config), **data}
    checkpoints = Checkpoints(config.output / CHECKPOINTS, depends_on)
    # A process may have died while it replaced a model.
    for name in (models.BEST, models.LAST):
        on_first_host(recover_folder, config.output / name)
    return checkpoints


def check_checkpoints(directory, files=()):
    """Raise a `UserError` if a folder has contents, but no checkpoints.

    A training that was killed before its first checkpoint was complete has left
    temporary files, weights and `files` at most.
    """
    names = sorted(path.name for path in directory.glob("*"))
    others = [
        name
        for name in names
        if not (name.startswith(".") or name in files or WEIGHTS.fullmatch(name))
    ]
    if others and PROGRESS not in names:
        raise UserError(
            "expected a new folder, or the checkpoints of a training. Received a "
            f"folder with other contents: {str(directory / others[0])!r}"
        )


def _seed_states(model):
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


def _read_last(directory):
    """Return the `Progress` of the last intact checkpoint, and the dict of its file."""
    problems = []
    for name in (PROGRESS, PREVIOUS):
        if (directory / name).exists():
            try:
                checkpoint = _read(directory / name)
            except SizeLimitError:
                raise
            # Damaged files fail with nearly every type of exception.
            except Exception as error:
                problems.append(reason(error))
                continue
            for problem in problems:
                print(
                    f"Warning: {directory}: {problem}. The training continues from the "
                    "checkpoint before it",
                    file=sys.stderr,
                )
            return checkpoint
    raise _damaged(directory, "; ".join(problems))


def _read(path):
    """Return the `Progress` in a file, and the whole dict."""
    content = read_sealed(path)
    if not isinstance(content.get("config"), dict):
        raise UserError(f"{path.name} has no configuration")
    options = {
        x: v
        for x, v in content.items()
        if x not in (models.FILE_DIGESTS_KEY, models.DIGEST_KEY, "config")
    }
    # A copy, because the training appends to the history of the progress.
    progress = from_json(Progress, copy.deepcopy(options))
    weights = progress.weights
    if weights and not WEIGHTS.fullmatch(weights):
        raise UserError(f"{path.name} names no checkpoint of this version: {weights!r}")
    if weights:
        models.check_file_digest(content, path.parent / weights)
    return progress, content


def _damaged(directory, problem):
    return UserError(
        f"no checkpoint in {directory} is intact: {problem}. Choose another output "
        "folder, or remove that one"
    )


def _check_config(directory, saved, config):
    for name, before, now in _changes(saved, config):
        if name in MOVABLE:
            before, now = (x and Path(x).name for x in (before, now))
        if name in CHANGEABLE or before == now:
            continue
        problem = (
            f"{directory} holds another training: {name} was {before!r}, and is now "
            f"{now!r}. Choose another output folder, or remove that one"
        )
        if name.endswith("epochs"):
            problem += (
                ". Its learning rate was planned for that number of epochs. To train "
                "the model further: --from-preset "
                f"{str(directory.parent / models.BEST)!r} and another --output"
            )
        raise UserError(problem)


def _changes(saved, config, within=""):
    """Yield the name of every option that differs, and both values."""
    for name, now in config.items():
        before = saved.get(name, now)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _changes(before, now, f"{within}{name}.")
        elif before != now:
            yield within + name, before, now
