"""Captions as HTML: a photograph with a map for every word, and lists."""

import csv
import html
import io
import os

import numpy as np
from keras_attention_apps.captioner.commands.overlays import write_overlay
from keras_attention_apps.common.figures import plots
from keras_attention_apps.common.web.markup import (
    data_uri,
    download,
    table,
    unsure_note,
    words,
)
from PIL import Image

# Pixels of a map on each region; the browser enlarges it smoothly.
MAP_PIXELS = 8
# Pixels of a map of detected regions on each side.
BOX_PIXELS = 64
# Quality of the JPEGs of previews.
QUALITY = 85
# The first word, before those of the caption, which shows the image without a map.
WHOLE = "photo"


def preview(image, side):
    """Reduce an image to at most `side` pixels; return it as a JPEG, and its size."""
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue(), *image.size


def photo_style(jpeg, width, height):
    """Return the CSS properties of an element that shows a `preview`."""
    return f"--ratio:{width / height:.4f};--photo:url({data_uri(jpeg, 'image/jpeg')})"


def caption_figure(photo, caption, title, number):
    """Return a photograph, and the words of a caption, which show their maps.

    The word with the most concentrated map is chosen first.

    Args:
        photo: The `Photo`.
        caption: The `Caption`.
        title: Name of the model.
        number: Number of the figure on the page.
    """
    peaks = caption.weights.max(axis=(1, 2), initial=0)
    chosen = 1 + int(np.argmax(peaks)) if caption.words else 0
    layers = [
        f'<i class="ka-layer" style="--map:url({map_uri(weights)})"></i>'
        for weights in caption.weights
    ]
    choices = words(
        [WHOLE, *caption.words],
        ["", *layers],
        group=f"figure-{number}",
        label=f"Words of the caption by {title}: choose one to see where it looked",
        notes=["whole", *word_notes(caption)],
        shares=[0.0, *caption.probabilities],
        chosen=chosen,
    )
    meaning = "probability of each word, given those before it"
    if caption.sentinel is not None:
        meaning += (
            "; share of the attention on the image; the rest is on the visual sentinel"
        )
    style = photo_style(photo.preview, photo.width, photo.height)
    return (
        f'<figure class="ka-figure ka-photo" style="{style}">'
        '<div class="ka-picture" role="img" aria-label="The photograph"></div>'
        f"{unsure_note(caption)}{choices}"
        f"<figcaption><b>{html.escape(title)}</b>: {meaning}</figcaption></figure>"
    )


def word_notes(caption):
    """Return the note of each word: its probability, and the share of the image."""
    notes = [f"{x:.0%}" for x in caption.probabilities]
    if caption.sentinel is None:
        return notes
    pairs = zip(notes, caption.sentinel, strict=True)
    return [f"{note}, image {1 - share:.0%}" for note, share in pairs]


def map_uri(weights, boxes=None):
    """Return a map as the data URI of a PNG.

    Its alpha is large where the word did not look.

    Args:
        weights: Map `(rows, columns)`, or `(R,)` of detected regions.
        boxes: The boxes of detected regions, `(R, 4)`.
    """
    if boxes is None:
        rows, columns = weights.shape
        bright = plots().enlarge(weights, rows * MAP_PIXELS, columns * MAP_PIXELS)
    else:
        bright = plots().box_map(weights, boxes, BOX_PIXELS, BOX_PIXELS)
    alpha = np.rint(255 * (1 - bright)).astype("uint8")
    file = io.BytesIO()
    Image.fromarray(np.stack([np.zeros_like(alpha), alpha], axis=-1)).save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")


def n_best_table(captions):
    """Return the captions of an image as a table."""
    rows = [
        [str(rank), one.text, one.score] for rank, one in enumerate(captions, start=1)
    ]
    return table(["", "caption", "score"], rows, label="Best captions")


def sheet(photo, caption):
    """Return the maps of all words as one picture, and a link to download it."""
    file = io.BytesIO()
    write_overlay(photo.preview, caption, file)
    content = file.getvalue()
    link = download(
        content, name="attention.png", text="Download the sheet", media_type="image/png"
    )
    picture = data_uri(content, "image/png")
    return f'{link}<img class="ka-sheet" src="{picture}" alt="Maps of all words">'


HEADERS = ("file", "caption", "mean log-probability", "note")


def rows_table(rows):
    """Return the captions of many images as a table."""
    return table(HEADERS, rows, label=f"{len(rows)} images")


def csv_link(rows):
    """Return a link to download the captions of many images."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([HEADERS, *rows])
    return download(
        text.getvalue().encode(),
        name="captions.csv",
        text="Download the captions (CSV)",
        media_type="text/csv",
    )


def file_name(path):
    return os.path.basename(path)
