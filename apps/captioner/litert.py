"""Captions without Keras: a LiteRT file that holds CNN, decoder and beam search."""

import functools
from collections.abc import Sequence

from keras_attention_apps.captioner.captions import BaseCaptioner
from keras_attention_apps.captioner.images.reading import ImageError
from keras_attention_apps.common.hypotheses import check_batch_size, check_n_best
from keras_attention_apps.common.litert.task import LiteTask


class LiteCaptioner(LiteTask, BaseCaptioner):
    """Captions images with a LiteRT file, without Keras or TensorFlow.

    It starts in a fraction of a second. The options of the search are those with which
    the file was exported. `caption` and `caption_each` are those of `Captioner`.
    Several images are captioned in parallel, each in a thread.
    See `LiteTask` for the arguments.
    """

    def read_metadata(self, metadata):
        self.search = metadata["search"]
        self.image_size = metadata["image_size"]
        self.max_length = metadata["max_length"]
        self.grid = tuple(metadata["grid"])
        self.maps = metadata["maps"]

    def caption_each(
        self, images, *, n_best=1, batch_size=64, maps="weights", **search
    ):
        search = self.search_options(**search)
        check_n_best(n_best, search)
        check_batch_size(batch_size)
        # Soft attention has one signature, as its weights are the probabilities.
        signature = maps if maps in self.maps else "weights"
        # A generator may produce its next image from the captions of those before.
        if isinstance(images, Sequence) and len(images) > 1:
            run = functools.partial(self.runtime.in_parallel, signature)
            yield from self.in_parallel(
                lambda image: self._caption_one(image, run, n_best), images
            )
        else:
            run = functools.partial(self.runtime, signature)
            for image in images:
                yield image, self._caption_one(image, run, n_best)

    def _caption_one(self, image, run, n_best):
        """Return the captions of an image, or the `ImageError`."""
        array = self._read(image)
        if isinstance(array, ImageError):
            return array
        (captions,) = self.captions_of(run(images=array[None]), n_best)
        return captions
