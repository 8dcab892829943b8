"""`captioner web`: the page of the captioner, its components, events and models."""

import dataclasses
import functools
import html
import os
from importlib.resources import files

import gradio as gr
import numpy as np
from keras_attention_apps.captioner import overlays
from keras_attention_apps.captioner.captions import (
    RUNTIMES,
    check_inference,
    member_configs,
)
from keras_attention_apps.captioner.images import ImageError, image_to_array, read_image
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert
from keras_attention_apps.common.models import Models, name_of
from keras_attention_apps.common.web.guard import MEGABYTE, read_upload
from keras_attention_apps.common.web.markup import (
    alert,
    data_uri,
    n_best_table,
    placeholder,
    unsure_mark,
)
from keras_attention_apps.common.web.page import (
    LAYOUT,
    RESULTS,
    FileUpload,
    ImageUpload,
    beam_options,
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
# Maximum number of images in the second tab.
MAX_FILES = 100
HINT = "The caption appears here, and every word shows where the model looked."
REMOVED = "The photograph was removed from the server meanwhile: choose it again."
# Label of the upload.
PHOTOGRAPH = "Photograph"
# Longer side of the image that the page shows, and of those in the table.
PREVIEW, THUMBNAIL = 800, 160


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


class CaptionService(Models):
    """The captioner of the page, and the one to compare it with.

    `compares_hard` is whether the other model has hard attention.
    """

    def __init__(self, config):
        check_inference(config.model)
        super().__init__(RUNTIMES, config)
        self._sizes = {self.main({}).image_size}
        self.compares_hard = False
        if config.compare:
            self._read_other(config.compare)

    def _read_other(self, name):
        """Read the options of the other model; a LiteRT file is loaded."""
        if is_litert(name):
            self._sizes.add(self.load(name, {}).image_size)
            return
        # The class of the model would import Keras.
        for other in member_configs(name):
            self._sizes.add(other.image_size)
            self.compares_hard |= other.attention == "hard"

    def read(self, source, side=PREVIEW):
        """Read an image as a `Photo` whose preview has a longer side of `side`."""
        image = read_image(source, max_pixels=self.config.max_megapixels * 1_000_000)
        arrays = {size: image_to_array(image, size) for size in self._sizes}
        return Photo(arrays, *overlays.preview(image, side))

    def captions(self, photo, search, *, n_best=1):
        """Return the best captions of a `Photo`, best first."""
        with self.turns:
            return _captions(self.main(search), photo, search, n_best)

    def other_caption(self, photo, search, *, inference=None):
        """Return the best caption of the other model."""
        options = {"inference": inference} if inference else {}
        with self.turns:
            model = self.load(self.config.compare, search, **options)
            return _captions(model, photo, search, 1)[0]


def _captions(model, photo, search, n_best):
    n_best = min(n_best, model.search_options(**search)["beam_size"])
    image = photo.arrays[model.image_size]
    ((_, captions),) = model.caption_each([np.asarray(image)], n_best=n_best, **search)
    return captions


def serve_page(config):
    """Serve the page that a `WebConfig` describes."""
    serve("captioner", functools.partial(build, config), config.server)


def build(config):
    """Return the page as `gradio.Blocks`."""
    service = CaptionService(config)
    most = config.server.max_megabytes * MEGABYTE

    def read(path, **options):
        content = read_upload(path, most)
        try:
            return service.read(content, **options)
        except ImageError as error:
            # The name of the file, in place of "the given bytes".
            reason = str(error).partition(": ")[2]
            raise UserError(f"Cannot read {os.path.basename(path)}: {reason}") from None

    blocks = page(
        "captioner",
        "Captions a photograph, and shows where the model looked for every word.",
        service.purpose,
    )
    with blocks:
        with gr.Tab("One image"):
            _one_image(config, service, read)
        with gr.Tab("Many images"):
            _many_images(service, read)
    return blocks


def _one_image(config, service, read):
    """Fill the tab for one image, and add an endpoint with the same options."""
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
                result = gr.HTML(placeholder(HINT))
                other = gr.HTML(visible=False)
            best = gr.HTML(visible=False)
            draw = gr.Button("Draw the sheet of all maps", size="sm", visible=False)
            sheet = gr.HTML(visible=False)
        with gr.Column(min_width=280):
            compare, inference = _comparison(config, service)
            with gr.Accordion("Options", open=False):
                n_best = gr.Slider(1, 5, value=3, step=1, label="Captions in the list")
                options = beam_options(service.defaults, PENALTIES)

    events = _ImageEvents(config, service, read)
    reading = event(events.read_photo, upload, [upload, photo, result, best])
    sampling = event(events.read_sample, None, [upload, photo])
    given, results = [photo, best, n_best, *options], [result, best, draw, sheet]
    captioning = event(events.show_captions, given, results)
    comparing = event(events.show_other, [photo, compare, inference, *options], other)
    in_turn(upload.input, reading, captioning, comparing)
    in_turn(sample.click, sampling, captioning, comparing)
    in_turn(n_best.change, captioning)
    for option in options:
        in_turn(option.input, captioning, comparing)
    for option in (compare, inference):
        in_turn(option.input, comparing)
    in_turn(draw.click, event(events.show_sheet, [photo, *options], sheet))
    endpoint(events.caption, upload, service.defaults, name="caption")


class _ImageEvents:
    """Functions of the events of the tab for one image, from values to updates."""

    def __init__(self, config, service, read):
        self.config = config
        self.service = service
        self.read = read

    def read_photo(self, path):
        if path is None:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        try:
            photo = self.read(path)
        except UserError as error:
            upload = gr.update(value=None, label=PHOTOGRAPH)
            return upload, None, alert(error), shown("")
        return _uploaded(photo, os.path.basename(path)), photo, gr.skip(), gr.skip()

    def read_sample(self):
        sample = files(__package__).joinpath("sample.jpg")
        photo = self.service.read(sample.read_bytes())
        return _uploaded(photo, sample.name), photo

    def show_captions(self, photo, best, n_best, beam_size, penalty):
        if photo is None:
            # The browser still has the list of its captions.
            result = alert(REMOVED) if best else gr.skip()
            return result, shown(""), gr.update(visible=False), shown("")
        search = search_options(beam_size, penalty)
        try:
            captions = self.service.captions(photo, search, n_best=n_best)
        except UserError as error:
            return alert(error), shown(""), gr.update(visible=False), shown("")
        title = name_of(self.config.model.name)
        figure = overlays.caption_figure(photo, captions[0], title, 0)
        table = n_best_table("caption", captions)
        return figure, shown(table), gr.update(visible=True), shown("")

    @revealed
    def show_other(self, photo, compare, inference, beam_size, penalty):
        if photo is None or not compare:
            return ""
        search = search_options(beam_size, penalty)
        caption = self.service.other_caption(photo, search, inference=inference)
        return overlays.caption_figure(photo, caption, name_of(self.config.compare), 1)

    @revealed
    def show_sheet(self, photo, beam_size, penalty):
        if photo is None:
            raise UserError(REMOVED)
        search = search_options(beam_size, penalty)
        (caption,) = self.service.captions(photo, search)
        return overlays.sheet(photo, caption)

    def caption(self, image, n_best, beam_size, length_penalty):
        """Caption an image; the result is a list of captions, best first."""
        if image is None:
            raise UserError("expected an image. Received: none")
        search = search_options(beam_size, length_penalty)
        found = self.service.captions(self.read(image), search, n_best=n_best)
        return [one.details() for one in found]


def _uploaded(photo, name):
    """Return an update of the upload, which shows a photograph and its name."""
    preview = data_uri(photo.preview, "image/jpeg")
    return gr.update(value=preview, label=f"{PHOTOGRAPH}: {name}")


def _comparison(config, service):
    """Return the controls of the other model: whether to show it, and its context."""
    compare = gr.Checkbox(
        label=f"Show {name_of(config.compare)} beside it",
        info="Loading this model takes some seconds the first time.",
        visible=bool(config.compare),
    )
    inference = gr.Radio(
        [("most probable region", "argmax"), ("weighted mean", "expectation")],
        value="argmax" if service.compares_hard else None,
        label="Context of hard attention",
        visible=False,
    )
    if service.compares_hard:
        # The choice matters only while that model is shown.
        choosing = event(lambda chosen: gr.update(visible=chosen), compare, inference)
        in_turn(compare.input, choosing)
    return compare, inference


def _many_images(service, read):
    """Fill the tab for many images."""
    upload = FileUpload(
        label=f"Photographs: drop or choose up to {MAX_FILES}",
        file_count="multiple",
        file_types=["image"],
        height=180,
    )
    table = gr.HTML(
        placeholder("A table of captions appears here, to correct and to download.")
    )

    def captioned(paths):
        if len(paths) > MAX_FILES:
            error = f"expected at most {MAX_FILES} images. Received: {len(paths)}"
            yield None, alert(error)
            return
        rows = []
        for path in paths:
            rows.append(_row(service, read, path))
            yield gr.skip(), rows_table(rows, total=len(paths))
        yield None, rows_table(rows, total=len(paths))

    in_turn(upload.upload, event(captioned, upload, [upload, table]))


@dataclasses.dataclass(frozen=True)
class Row:
    """An image in the table of many: its caption, or an error."""

    image: str
    thumbnail: str = ""
    caption: str = ""
    unsure: bool | None = None
    error: str = ""


def _row(service, read, path):
    """Return the `Row` of an image."""
    name = os.path.basename(path)
    try:
        photo = read(path, side=THUMBNAIL)
        (caption,) = service.captions(photo, {})
    except UserError as error:
        return Row(name, error=str(error))
    thumbnail = data_uri(photo.preview, "image/jpeg")
    return Row(name, thumbnail, caption.text, caption.unsure)


def rows_table(rows, *, total):
    """Return `Row`s as a table, whose captions can be corrected after the last one."""
    body = "".join(_row_cells(row, len(rows) == total) for row in rows)
    if len(rows) < total:
        return _table_of_images(body, f"{len(rows)} of {total} images")
    unsure = sum(bool(row.unsure) for row in rows)
    unreadable = sum(bool(row.error) for row in rows)
    images = "1 image" if total == 1 else f"{total} images"
    counts = [images, f"{unsure} unsure", f"{unreadable} unreadable"]
    label = ", ".join(x for x in counts if not x.startswith("0 "))
    buttons = "".join(
        f'<button type="button" class="ka-button" data-save="captions.{suffix}">'
        f"Download as {kind}</button>"
        for suffix, kind in (("csv", "CSV"), ("jsonl", "JSON lines"))
    )
    return (
        f'<div class="ka-corrected"><p class="ka-note" data-announce="{label}">{label}'
        ". Captions can be corrected here before they are downloaded.</p>"
        f'<p class="ka-buttons">{buttons}</p>{_table_of_images(body, "Captions")}</div>'
    )


def _table_of_images(body, label):
    titles = ("photograph", "caption", "note")
    heads = "".join(f'<th scope="col">{x}</th>' for x in titles)
    return (
        f'<table class="ka-table ka-images"><caption>{label}</caption><thead><tr>'
        f"{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def _row_cells(row, is_editable):
    """Return the row of a table; the script of the page downloads what has a name."""
    name, caption = html.escape(row.image), html.escape(row.caption)
    unsure = "" if row.unsure is None else str(row.unsure).lower()
    mark = unsure_mark(row)
    error, read_only = html.escape(row.error), "" if is_editable else " readonly"
    picture = f'<img src="{row.thumbnail}" alt="{caption}">' if row.thumbnail else ""
    text, between, columns = "", "", ' colspan="2"'
    if row.thumbnail:
        label = f'rows="1" aria-label="Caption of {name}"'
        text = f"<textarea {label}{read_only}>{caption}</textarea>"
        between, columns = "</td><td>", ""
    return (
        f'<tr><td data-name="image" data-value="{name}">{picture}'
        f"<small>{name}</small></td><td{columns}>"
        f'<div data-name="caption" data-value="">{text}</div>{between}'
        f'<span data-name="unsure" data-value="{unsure}">{mark}</span>'
        f'<span data-name="error" data-value="{error}">{error}</span></td></tr>'
    )
