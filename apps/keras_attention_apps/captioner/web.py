"""`captioner web`: the page of the captioner, its components, events and models."""

import dataclasses
import functools
import os
from importlib.resources import files

import gradio as gr
import numpy as np

from keras_attention_apps.captioner import overlays
from keras_attention_apps.captioner.captions import check_inference, member_configs
from keras_attention_apps.captioner.images import ImageError, image_to_array, read_image
from keras_attention_apps.captioner.runtimes import RUNTIMES
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.models import name_of
from keras_attention_apps.common.web import markup
from keras_attention_apps.common.web.guard import MEGABYTE, read_upload
from keras_attention_apps.common.web.models import Models
from keras_attention_apps.common.web.page import (
    LAYOUT,
    RESULTS,
    ImageUpload,
    controls,
    endpoint,
    event,
    in_turn,
    page,
    revealed,
    search_options,
    serve,
    shown,
)

PENALTIES = (0.0, 0.7, 1.0)
HINT = "The caption appears here, and every word shows where the model looked."
REMOVED = "The photograph was removed from the server meanwhile: choose it again."
# Label of the upload.
PHOTOGRAPH = "Photograph"
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


class CaptionPage(Models):
    """The captioner, the one to compare it with, and the functions of the events.

    These take the values of components, and return updates of others.
    """

    def __init__(self, config):
        check_inference(config.model)
        super().__init__(RUNTIMES, config)
        self._sizes = {self.load({}).image_size}
        if is_litert(config.compare):
            self._sizes.add(self.load({}, config.compare).image_size)
        elif config.compare:
            # The class of the model would import Keras.
            self._sizes |= {x.image_size for x in member_configs(config.compare)}

    def read(self, content):
        """Return an image as a `Photo`."""
        image = read_image(content, max_pixels=self.config.max_megapixels * 1_000_000)
        arrays = {size: image_to_array(image, size) for size in self._sizes}
        return Photo(arrays, *overlays.preview(image, PREVIEW))

    def read_upload(self, path):
        """Return an uploaded image as a `Photo`."""
        content = read_upload(path, self.config.server.max_megabytes * MEGABYTE)
        try:
            return self.read(content)
        except ImageError as error:
            # The name of the file, in place of "the given bytes".
            reason = str(error).partition(": ")[2]
            raise UserError(f"Cannot read {os.path.basename(path)}: {reason}") from None

    def captions(self, photo, search, *, n_best=1, is_other=False):
        """Return the best captions of a `Photo`, best first."""
        return self.outputs(
            lambda model: np.asarray(photo.arrays[model.image_size]),
            search,
            n_best=n_best,
            other=self.config.compare if is_other else None,
        )

    def read_photo(self, path):
        if path is None:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        try:
            photo = self.read_upload(path)
        except UserError as error:
            upload = gr.update(value=None, label=PHOTOGRAPH)
            return upload, None, markup.alert(error), shown("")
        return _uploaded(photo, os.path.basename(path)), photo, gr.skip(), gr.skip()

    def read_sample(self):
        sample = files(__package__).joinpath("sample.jpg")
        photo = self.read(sample.read_bytes())
        return _uploaded(photo, sample.name), photo

    def show_captions(self, photo, best, n_best, *options):
        if photo is None:
            # The browser still has the list of its captions.
            return markup.alert(REMOVED) if best else gr.skip(), shown("")
        try:
            captions = self.captions(photo, search_options(*options), n_best=n_best)
        except UserError as error:
            return markup.alert(error), shown("")
        title = name_of(self.config.model.name)
        figure = overlays.caption_figure(photo, captions[0], title, 0)
        return figure, shown(markup.n_best_table("caption", captions))

    @revealed
    def show_other(self, photo, compare, *options):
        if photo is None or not compare:
            return ""
        (caption,) = self.captions(photo, search_options(*options), is_other=True)
        return overlays.caption_figure(photo, caption, name_of(self.config.compare), 1)

    def caption(self, image, n_best, beam_size, length_penalty):
        """Caption an image; the result is a list of captions, best first."""
        if image is None:
            raise UserError("expected an image. Received: none")
        search = search_options(beam_size, length_penalty)
        captions = self.captions(self.read_upload(image), search, n_best=n_best)
        return [entry.details() for entry in captions]


def _uploaded(photo, name):
    """Return an update of the upload, which shows a photograph and its name."""
    preview = markup.data_uri(photo.preview, "image/jpeg")
    return gr.update(value=preview, label=f"{PHOTOGRAPH}: {name}")


def serve_page(config):
    """Serve the page that a `WebConfig` describes."""
    serve("captioner", functools.partial(build, config), config.server)


def build(config):
    """Return the page as `gradio.Blocks`."""
    models = CaptionPage(config)
    description = (
        "Captions a photograph, and shows where the model looked for every word."
    )
    with page("captioner", description, models.purpose) as blocks:
        _fill(models)
    return blocks


def _fill(models):
    """Add the components, their events, and an endpoint with the same options."""
    photo = gr.State(None, time_to_live=3600)
    with gr.Row(elem_classes=LAYOUT):
        with gr.Column(min_width=280):
            upload = ImageUpload(
                label=PHOTOGRAPH,
                sources=["upload", "clipboard", "webcam"],
                height=230,
                buttons=["fullscreen"],
            )
            sample = gr.Button("Use the sample photograph", size="md")
        with gr.Column(min_width=280):
            with gr.Row(elem_classes=RESULTS):
                result = gr.HTML(markup.placeholder(HINT))
                other = gr.HTML(visible=False)
            best = gr.HTML(visible=False)
        chosen = controls(
            "Captions",
            models.defaults,
            PENALTIES,
            others=bool(models.config.compare),
            label=f"Show {name_of(models.config.compare)} beside it",
            info="Loading this model takes some seconds the first time.",
        )

    compare, n_best, options = chosen
    reading = event(models.read_photo, upload, [upload, photo, result, best])
    sampling = event(models.read_sample, None, [upload, photo])
    captioning = event(
        models.show_captions, [photo, best, n_best, *options], [result, best]
    )
    comparing = event(models.show_other, [photo, compare, *options], other)
    in_turn(upload.input, reading, captioning, comparing)
    in_turn(sample.click, sampling, captioning, comparing)
    chosen.connect(captioning, comparing)
    endpoint(models.caption, upload, models.defaults, name="caption")
