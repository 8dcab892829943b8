"""Captions for the page: loading models, reading images, searching."""

import dataclasses

import numpy as np
from keras_attention_apps.captioner.images import image_to_array, read_image
from keras_attention_apps.captioner.overlays import preview
from keras_attention_apps.captioner.runtimes import (
    RUNTIMES,
    check_inference,
    member_configs,
)
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.web.models import Models

# Longer side of the image that the page shows.
PREVIEW = 800


@dataclasses.dataclass(frozen=True)
class Photo:
    """An image, as the models read it and as the page shows it.

    It takes a few hundred kilobytes, however large the image is. `arrays` has an array
    for each image size of the models; the size is that of the `preview`, a JPEG.
    """

    arrays: dict
    preview: bytes
    width: int
    height: int


class CaptionService:
    """The captioner of the page, and the one to compare it with.

    Attributes:
        defaults: Options of the beam search of the model.
        purpose: What the model is for; `None` if unknown.
        compares_hard: Whether the other model has hard attention.
    """

    def __init__(self, config):
        check_inference(config.model)
        self._config = config
        self._models = Models(RUNTIMES, config.runtime)
        model = self._main({})
        self.defaults = model.search_options()
        self.purpose = model.purpose
        self._sizes = {model.image_size}
        self.compares_hard = False
        if config.compare:
            self._read_other(config.compare)

    def _read_other(self, name):
        """Read the options of the other model; a LiteRT file is loaded."""
        if is_litert(name):
            self._sizes.add(self._models(name, {}).image_size)
            return
        # The class of the model would import Keras.
        for other in member_configs(name):
            self._sizes.add(other.image_size)
            self.compares_hard |= other.attention == "hard"

    def read(self, source):
        """Read an image as a `Photo`."""
        image = read_image(source, max_pixels=self._config.max_megapixels * 1_000_000)
        arrays = {size: image_to_array(image, size) for size in self._sizes}
        return Photo(arrays, *preview(image, PREVIEW))

    def captions(self, photo, search, *, n_best=1):
        """Return the best captions of a `Photo`, best first."""
        with self._models.turns:
            return _captions(self._main(search), photo, search, n_best)

    def other_caption(self, photo, search, *, inference=None):
        """Return the best caption of the other model."""
        options = {"inference": inference} if inference else {}
        with self._models.turns:
            model = self._models(self._config.compare, search, **options)
            return _captions(model, photo, search, 1)[0]

    def _main(self, search):
        chosen = self._config.model
        return self._models(chosen.name, search, **chosen.options)


def _captions(model, photo, search, n_best):
    n_best = min(n_best, model.search_options(**search)["beam_size"])
    image = photo.arrays[model.image_size]
    ((_, captions),) = model.caption_each([np.asarray(image)], n_best=n_best, **search)
    return captions
