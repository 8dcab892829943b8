"""Captions without Keras: a LiteRT file that holds CNN, decoder and beam search."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Literal

from keras_attention_apps.captioner.captions import BaseCaptioner
from keras_attention_apps.captioner.config import (
    CaptionBeamConfig,
    ImageSize,
    MaxLength,
)
from keras_attention_apps.captioner.images import ImageError
from keras_attention_apps.common.litert import LiteTask
from keras_attention_apps.common.models import loading
from keras_attention_apps.common.options import Range


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The metadata of a file; see the attributes of `BaseCaptioner`."""

    image_size: ImageSize
    max_length: MaxLength
    grid: list[Annotated[int, Range(1, 4096)]]
    maps: list[Literal["weights", "probabilities"]]
    has_sentinel: bool = False


class LiteCaptioner(LiteTask, BaseCaptioner):
    """Captions images with a LiteRT file, without Keras or TensorFlow.

    It starts in a fraction of a second. The options of the search are those with which
    the file was exported. `caption` and `caption_each` are those of `Captioner`.
    Several images are captioned in parallel, each in a thread.

    Args:
        path: Name of an exported file.
        threads: Number of threads; by default one per processor.
    """

    search_type = CaptionBeamConfig
    metadata_type = Metadata

    def _caption_each(self, images, n_best, batch_size, maps, search):
        # Soft attention has one signature, as its weights are the probabilities.
        signature = maps if maps in self.maps else "weights"
        # A generator may produce its next image from the captions of those before.
        if isinstance(images, Sequence) and len(images) > 1:
            run = self.runtime.in_parallel
            yield from self.in_parallel(
                lambda image: self._caption_one(image, run, signature, n_best), images
            )
        else:
            for image in images:
                yield image, self._caption_one(image, self.runtime, signature, n_best)

    def _caption_one(self, image, run, signature, n_best):
        """Return the captions of an image, or the `ImageError`."""
        array = self._read(image)
        if isinstance(array, ImageError):
            return array
        with loading(self.path, self.noun):
            found = self._run_search(run, signature, n_best, images=array[None])
            return list(map(self._caption, found))
