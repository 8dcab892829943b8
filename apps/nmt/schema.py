"""Options in the files of a translator, which are read without the command line."""

import dataclasses
from typing import Annotated

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.schema import (
    BeamConfig,
    LengthRatio,
    Positive,
    Range,
    Seed,
)

# Preset that commands use unless another model is given.
DEFAULT_MODEL = "tatoeba-multi30k-en-de"

# Minimum length of a translation relative to its source.
MinLengthRatio = Annotated[float, Range(0, 1000)]
# Softmax temperature for sampling.
Temperature = Annotated[float, Range(0, 10)]


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """Options of sampling."""

    #: Sample translations at this softmax temperature instead of searching: at 1, from
    #: the distribution of the model; near 0, the most probable tokens. Needs the
    #: runtime keras.
    sampling_temperature: Temperature | None = None
    #: Sample from this number of the most probable tokens at each step.
    sampling_top_k: Positive | None = None
    #: Random seed of sampling.
    seed: Seed = 0

    def __bool__(self):
        return self.sampling_temperature is not None


@dataclasses.dataclass(frozen=True)
class TranslationBeamConfig(BeamConfig):
    """Options of the beam search."""

    #: Minimum length of a translation relative to its source, in subwords; never more
    #: than the maximum length of the model.
    min_length_ratio: MinLengthRatio = 0.0
    #: Maximum length of a translation relative to its source, in subwords. By default a
    #: translation has about r * (source length + 5) subwords at most; r is the length
    #: ratio of the model.
    max_length_ratio: LengthRatio | None = None

    def __post_init__(self):
        super().__post_init__()
        largest = self.max_length_ratio
        if largest is not None and self.min_length_ratio > largest:
            raise UserError(
                f"min_length_ratio must be at most max_length_ratio, {largest}. "
                f"Received: {self.min_length_ratio}"
            )
