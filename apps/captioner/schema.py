"""Options in the files of a captioner, which are read without the command line."""

import dataclasses
from typing import Annotated

from keras_attention_apps.common.options import (
    BeamConfig,
    LengthPenalty,
    Natural,
    Range,
)

# Preset that commands use unless another model is given.
DEFAULT_MODEL = "flickr8k-coco-ensemble"

# Larger images need more memory than most machines have.
ImageSize = Annotated[int, Range(1, 4096)]


@dataclasses.dataclass(frozen=True)
class CaptionBeamConfig(BeamConfig):
    """Options of the beam search."""

    #: Length penalty: hypotheses are ranked by log-probability / length ** penalty.
    length_penalty: LengthPenalty = 0.7
    #: N-gram blocking: no caption repeats an n-gram of this length (0 disables it).
    no_repeat_ngrams: Natural = 3
