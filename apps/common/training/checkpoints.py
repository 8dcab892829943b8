"""Checkpoints from which a training resumes, even after `kill -9`."""

import dataclasses
import json

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import WeightsInMemory, read_json, write_json

PROGRESS = "progress.json"

# Options that are paths: a training can be moved and resumed.
PLACES = (
    "data",
    "source",
    "target",
    "valid_source",
    "valid_target",
    "output",
    "cache",
    "tensorboard",
)


@dataclasses.dataclass
class Progress:
    """Progress of a training, beside its weights.

    Attributes:
        phase: Index of the phase that runs.
        epoch: Finished epochs of that phase.
        weights: File name of the checkpoint, `None` before a phase starts.
        seeds: States of the random generators, which Keras does not save.
        history: One dict of figures for every finished epoch of all phases, and for
            the average of some.
    """

    phase: int = 0
    epoch: int = 0
    weights: str | None = None
    seeds: list = dataclasses.field(default_factory=list)
    history: list = dataclasses.field(default_factory=list)


class Checkpoints:
    """The checkpoint folder of one training run.

    The weights, with the state of the optimiser, are written first, under a new name;
    then `progress.json`, which names that file, is replaced. So the folder holds one
    consistent state whenever the process dies.

    Args:
        directory: Folder of the checkpoints.
        config: Nested dict of everything the training depends on. A folder with
            another configuration is rejected. `PLACES`, and options that the saved
            configuration does not have, may differ.

    Attributes:
        resumed: Whether the folder holds an earlier run of the training.
    """

    def __init__(self, directory, config):
        self.directory = directory
        self._progress_file = directory / PROGRESS
        config = json.loads(json.dumps(config, default=str))
        self.progress = Progress()
        self.resumed = self._progress_file.exists()
        if self.resumed:
            self.progress, saved = _read(self._progress_file)
            _check_config(directory, saved, config)
        self._config = config

    def restore(self, model):
        """Load the last state of the current phase, or record its first.

        Args:
            model: A compiled model.
        """
        progress = self.progress
        model.optimizer.build(model.trainable_variables)
        if progress.seeds:
            states = _seed_states(model)
            for state, value in zip(states, progress.seeds, strict=True):
                state.assign(value)
        if progress.weights:
            model.load_weights(self.directory / progress.weights)
        else:
            self._record(model)

    def save(self, model, figures):
        """Record a finished epoch."""
        self.progress.epoch += 1
        self.progress.history.append(figures)
        self._record(model)

    def next_phase(self):
        """Record that a phase is finished."""
        self.progress.phase += 1
        self.progress.epoch = 0
        self.progress.weights = None
        self._write()

    def _record(self, model):
        progress = self.progress
        name = f"phase-{progress.phase}-epoch-{progress.epoch}.weights.h5"
        weights = WeightsInMemory()
        model.save_weights(weights)
        weights.save(self.directory / name)
        progress.weights = name
        states = map(keras.ops.convert_to_numpy, _seed_states(model))
        progress.seeds = [state.tolist() for state in states]
        self._write()

    def _write(self):
        write_json(
            self._progress_file,
            {**dataclasses.asdict(self.progress), "config": self._config},
        )
        for file in self.directory.glob("*.weights.h5"):
            if file.name != self.progress.weights:
                file.unlink()


def _seed_states(model):
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]


def _read(file):
    """Return the `Progress` of a training and its configuration."""
    try:
        saved = read_json(file)
        config = saved.pop("config")
        return Progress(**saved), config
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"expected the progress of a training. Received: {str(file)!r}, which is "
            "damaged. Choose another output folder, or remove that one"
        ) from error


def _check_config(directory, saved, config):
    for name, before, now in _changes(saved, config):
        if name not in PLACES:
            raise UserError(
                f"{directory} holds a training with another {name}: {before!r}, and "
                f"not {now!r}. Choose another output folder, or remove that one"
            )


def _changes(saved, config, within=""):
    """Yield the name of every option that differs, and both values."""
    for name, now in config.items():
        before = saved.get(name, now)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _changes(before, now, f"{within}{name}.")
        elif before != now:
            yield within + name, before, now
