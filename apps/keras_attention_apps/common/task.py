"""A trained network with its tokenizer: loading, saving, averaging, cached searches."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
import numpy as np

from keras_attention_apps.common import files, models
from keras_attention_apps.common.confidence import Described
from keras_attention_apps.common.errors import UserError, counted
from keras_attention_apps.common.files import StrPath
from keras_attention_apps.common.models import CONFIG, WEIGHTS, read_sealed
from keras_attention_apps.common.network.decoder_network import (
    DecoderNetwork,
    Ensemble,
    SearchModel,
    computing_in,
)
from keras_attention_apps.common.network.weights import (
    check_weights,
    load_model,
    save_model,
    saves_equal,
)
from keras_attention_apps.common.options import (
    AverageConfig,
    Config,
    SearchOptions,
    replaced,
)
from keras_attention_apps.common.tokenizer import StoredTokenizer

# Maximum number of cached searches; a long-running process may need many.
MAX_SEARCHES = 32


class Task(Described):
    """A trained network with its tokenizer: loading, saving and cached searches.

    Subclasses implement the static method `build_network(config, vocabulary_size)`.
    They set `noun` (the model in messages), `presets` (folder of the shipped presets),
    `tokenizer_type`, and `runtime_options` (names of the options that do not change the
    weights). `config_type` and `search_type` are dataclasses of the configuration and
    of the options of the search. XLA compiles the search if `jit_compile`, and always
    on JAX.
    """

    ensemble_type = Ensemble
    build_network: ClassVar[Callable[..., keras.Model]]
    noun: str
    presets: Path
    config_type: type[Any]
    search_type: type[SearchOptions]
    tokenizer_type: type[StoredTokenizer]
    tokenizer: StoredTokenizer
    runtime_options: tuple[str, ...] = ()

    def __init__(
        self,
        config: Any,
        tokenizer: StoredTokenizer,
        network: DecoderNetwork | Ensemble,
        *,
        jit_compile: bool = False,
    ):
        self.config = config
        self.tokenizer = tokenizer
        self.network = network
        backend = keras.backend.backend()
        if jit_compile and backend == "torch":
            raise UserError("jit_compile needs TensorFlow or JAX. Received: PyTorch")
        self.jit_compile = jit_compile or backend == "jax"
        self.max_length = config.max_length
        self._search_models: dict[tuple, SearchModel] = {}

    @classmethod
    def read_config(cls, name_or_path: StrPath) -> Any:
        """Return the configuration of a preset, or of the model in a folder."""
        first, *_ = cls._folders(name_or_path)
        return models.read_config(first, kind=cls.config_type, noun=cls.noun)

    @classmethod
    def _folders(cls, name_or_path: StrPath) -> list[Path]:
        return models.member_folders(name_or_path, presets=cls.presets, noun=cls.noun)

    @classmethod
    def from_preset(
        cls,
        name_or_path: str | os.PathLike,
        *,
        jit_compile: bool = False,
        precision: str | None = None,
        **changes: Any,
    ) -> Self:
        """Load a shipped preset by its name, or a trained model by its folder.

        Args:
            name_or_path: Name or folder; several of them with `+` between them, such as
                `"a+b"`, for an `ensemble`.
            jit_compile: Whether XLA compiles the search.
            precision: Name of the Keras dtype policy to compute with, such as
                `"mixed_bfloat16"`; the current one if omitted.
            **changes: New values for options of the model that do not change its
                weights, such as `image_size` or `max_length` of a captioner, or
                `length_ratio` of a translator.

        Raises:
            ValueError: If there is no such preset or folder, it is incomplete, or an
                option cannot be changed.
        """
        options = precision, changes, jit_compile
        first, *others = cls._folders(name_or_path)
        model = cls._from_folder(first, *options)
        if others:
            members = [cls._from_folder(folder, *options, model) for folder in others]
            model = cls.ensemble([model, *members], jit_compile=jit_compile)
        if len(models.split_names(name_or_path)) == 1:
            folder = models.find_preset(name_or_path, cls.presets)
            with models.loading(folder, cls.noun):
                content = read_sealed(folder / CONFIG)
                model.read_description(
                    content, functools.partial(models.read_listed, folder, content)
                )
        return model

    @classmethod
    def _from_folder(cls, folder, precision, changes, jit_compile, first=None):
        """Load a single model; the arguments are those of `from_preset`.

        If it will be in an ensemble, `first` is the first model of that.
        """
        config = models.read_config(folder, kind=cls.config_type, noun=cls.noun)
        config = replaced(config, changes, cls.runtime_options)
        named = ", ".join(f"{name}={value}" for name, value in changes.items())
        model = f"{folder} with {named}" if named else folder
        with computing_in(precision), models.loading(model, cls.noun):
            content = read_sealed(folder / CONFIG)
            for name in (cls.tokenizer_type.file_name, WEIGHTS):
                models.check_file_digest(content, folder / name)
            tokenizer = cls.tokenizer_type.load(folder)
            check_weights(folder / WEIGHTS, config.fewest_weights(len(tokenizer)))
            shared = first.parts_to_share(config) if first else {}
            network = cls.build_network(config, len(tokenizer), **shared)
            backbone = cls._backbone_elsewhere(content, network)
            same = load_model(network, folder / WEIGHTS, shared.values(), backbone)
        if not same:
            raise UserError(
                f"the {cls.noun}s of an ensemble must have the same "
                f"{' and '.join(shared)}. Received: other weights in {folder}"
            )
        return cls(config, tokenizer, network, jit_compile=jit_compile)

    @classmethod
    def _backbone_elsewhere(cls, content, network):
        """Return the CNN of a model that is stored in a preset, and its file there.

        Return `None` if the model's own file has all of its weights.
        """
        folder = models.backbone_folder(content, cls.presets)
        if folder is None:
            return None
        models.check_file_digest(read_sealed(folder / CONFIG), folder / WEIGHTS)
        check_weights(folder / WEIGHTS)
        return cls.backbone_of(network), folder / WEIGHTS

    @classmethod
    def backbone_of(cls, network: DecoderNetwork) -> keras.layers.Layer:
        """Return the CNN of a network, which several presets can share."""
        raise UserError(f"a {cls.noun} has no CNN that presets could share")

    @classmethod
    def load_for_fine_tuning(
        cls, name_or_path: StrPath, model: Config, **options: Any
    ) -> tuple[Self, Config]:
        """Return a single model to fine-tune, and the configuration of the training.

        `model` is the configuration that is wanted; `**options` are those of
        `from_preset`.
        """
        start = cls.from_preset(name_or_path, **options)
        start.check_single("training")
        changes = dataclasses.asdict(model)
        return start, replaced(start.config, changes, cls.runtime_options)

    @classmethod
    def average(cls, config: AverageConfig) -> None:
        """Write the average of several models, as an `AverageConfig` describes it."""
        files.check_distinct(config.models, config.output, whole=False)
        # A user who forgets the output must not lose the first model.
        files.check_folder(config.output)
        averaged = average_models(config.models, cls.from_preset)
        averaged.save(config.output, average_of=[path.name for path in config.models])
        count = counted(len(config.models), "model")
        print(f"Wrote {config.output}, the average of {count}")

    @classmethod
    def ensemble(cls, models: Sequence[Self], *, jit_compile: bool = False) -> Self:
        """Return a model whose search follows the mean probability of several models.

        They differ in their networks alone; the ensemble has the options of the first
        one. It can be exported, but not saved, trained or averaged.
        """
        if not models or any(model.is_ensemble for model in models):
            raise UserError(
                f"an ensemble needs at least one {cls.noun}, and each must be single. "
                f"Received: {'an ensemble' if models else 'none'}"
            )
        first, *others = models
        networks = [first.network, *(first.member_network(other) for other in others)]
        network = cls.ensemble_type(networks)
        return cls(first.config, first.tokenizer, network, jit_compile=jit_compile)

    def parts_to_share(self, config: Any) -> dict[str, keras.layers.Layer]:
        """Return the layers that the next model of an ensemble shares with this one.

        They are keyword arguments of `build_network`; `config` is the configuration of
        the next model.
        """
        return {}

    def member_network(self, other: Self) -> DecoderNetwork:
        """Return the network of another model for an ensemble with this one."""
        if self.tokenizer.content != other.tokenizer.content:
            raise UserError(
                f"the {self.noun}s of an ensemble must have the same vocabulary"
            )
        return other.network

    @property
    def is_ensemble(self) -> bool:
        return isinstance(self.network, Ensemble)

    def check_single(self, purpose: str) -> None:
        """Raise a `UserError` if this is an ensemble, which a purpose excludes."""
        if self.is_ensemble:
            raise UserError(f"{purpose} needs a single {self.noun}, not an ensemble")

    def search_options(self, **options: Any) -> dict[str, Any]:
        """Return all options of the beam search: those given, and the defaults."""
        return self.search_type(**options).complete

    @property
    def identity(self) -> dict[str, Any]:
        """Dict of the options and parts that averaged models must share."""
        options = dataclasses.asdict(self.config)
        for name in self.runtime_options:
            del options[name]
        return {**options, "vocabulary": models.short_digest(self.tokenizer.content)}

    def save(
        self,
        folder: Path,
        *,
        backbone_of: str | None = None,
        half: bool = True,
        **metadata: Any,
    ) -> None:
        """Write the model as a folder that `from_preset` loads.

        Files of an older model there are replaced. `backbone_of` is the name of a
        preset that has the same CNN, which is then stored there alone. `half` is
        whether weights are rounded to float16. `metadata` are more entries of
        `config.json`, such as how it was trained.
        """
        self.check_single("saving")
        layer = None
        if backbone_of is not None:
            metadata[models.BACKBONE_OF] = backbone_of
            layer = self._equal_backbone(backbone_of)
        with files.atomic_folder(folder, models.model_names) as temporary:
            self.tokenizer.save(temporary)
            for name, content in self.description_files.items():
                (temporary / name).write_bytes(content)
            save_model(self.network, temporary / WEIGHTS, layer, half=half)
            models.write_sealed(
                temporary / CONFIG,
                {"model": dataclasses.asdict(self.config)}
                | self.description
                | metadata,
                names=(self.tokenizer.file_name, WEIGHTS, *self.description_files),
            )

    def _equal_backbone(self, preset):
        """Return the CNN; check that it has the same weights as that of a preset."""
        other = self.from_preset(preset)
        ours, theirs = (self.backbone_of(x.network) for x in (self, other))
        if not saves_equal(ours, theirs):
            raise UserError(
                f"expected the CNN of the preset {preset!r}. Received: other weights"
            )
        return ours

    def _cached_search_model(self, key, search, max_length, network=None, **options):
        """Return the `SearchModel` of a key, which is built on its first use."""
        if key not in self._search_models:
            while len(self._search_models) >= MAX_SEARCHES:
                self._search_models.pop(next(iter(self._search_models)))
            self._search_models[key] = SearchModel(
                network or self.network,
                search,
                max_length,
                jit_compile=self.jit_compile,
                **{"banned": self.tokenizer.banned, **options},
            )
        return self._search_models[key]


def average_models(folders, load):
    """Return the first model with the mean weights of several models.

    Options on which the weights do not depend may differ.
    """
    if not folders:
        raise UserError("expected at least one folder of a model. Received: none")
    first = load(folders[0])
    sums: list = [0.0] * len(first.network.weights)
    for folder in folders:
        model = first if folder is folders[0] else load(folder)
        model.check_single("an average")
        for name, value in model.identity.items():
            expected = first.identity[name]
            if value != expected:
                raise UserError(
                    f"{folder} and {folders[0]} differ in {name}: {value!r} and "
                    f"{expected!r}"
                )
        weights = [np.asarray(x, "float64") for x in model.network.get_weights()]
        sums = list(map(np.add, sums, weights))
    means = [total / len(folders) for total in sums]
    # They are those of the weights of the first model.
    first.calibration = first.confidence = None
    first.network.set_weights([mean.astype("float32") for mean in means])
    return first
