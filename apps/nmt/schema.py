"""Options in the files of a translator, which are read without the command line."""

import dataclasses
from typing import Annotated

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.schema import BeamConfig
from keras_attention_apps.common.schema import LengthRatio
from keras_attention_apps.common.schema import Range

# Preset that commands use unless another model is given.
DEFAULT_MODEL = "multi30k-en-de-self-attention"

# Minimum length of a translation relative to its source.
MinLengthRatio = Annotated[float, Range(0, 1000)]


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
