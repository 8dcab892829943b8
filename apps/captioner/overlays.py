"""A word with its map: sheets as image files, and figures in HTML."""

import collections
import csv
import html
import io
import itertools
import os
from pathlib import Path

import numpy as np
from keras_attention_apps.captioner.images import is_open, read_image
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.figures import FIGURE_SUFFIXES, plots, write_figure
from keras_attention_apps.common.files import check_file
from keras_attention_apps.common.web.markup import (
    data_uri,
    download,
    table,
    unsure_note,
    words,
)
from PIL import Image

# Panels are small: more pixels would only make the file larger.
MAX_SIDE = 480


def find_overlays(overlay, given, images):
    """Return the file of each image's overlay; different images have different ones.

    Args:
        overlay: For a single image the name of a file, otherwise that of a folder.
        given: Images and folders as the user named them.
        images: The paths of all images: those named, and those in the folders.

    Returns:
        Dict from the path of each image to that of its overlay.

    Raises:
        UserError: If `overlay` is not as above, or is a folder of images: the same
            command, with the folder or a pattern such as `*.png`, would caption the
            overlays, too.
    """
    folders = [path for path in given if os.path.isdir(path)]
    is_file = overlay.suffix.lower() in FIGURE_SUFFIXES and not overlay.is_dir()
    if len(images) == 1 and not folders and not overlay.is_dir():
        if not is_file:
            raise UserError(
                "--overlay must be a .png, .jpg, .pdf or .svg file for one image, "
                f"or an existing folder. Received: {str(overlay)!r}"
            )
        found = {images[0]: overlay}
    else:
        if is_file or overlay.is_file():
            raise UserError(
                "--overlay must be a folder where several images, or a folder of "
                f"them, are captioned. Received: {str(overlay)!r}"
            )
        folders += [path.parent for path in images if not is_open(path)]
        if os.path.realpath(overlay) in map(os.path.realpath, folders):
            raise UserError(
                "--overlay must be a folder other than that of the images. Received: "
                f"{str(overlay)!r}"
            )
        found = {path: overlay / f"{name}.png" for path, name in _names(images).items()}
    for target in found.values():
        check_file(target)
    return found


def _names(paths):
    """Return a dict from images to names; different images have different ones.

    Files of the same name are distinguished by as many of their folders as needed, or
    else by a number. Two spellings of one absolute path are one image.
    """
    images = {path: Path(os.path.abspath(path)) for path in paths}
    own = _names_in_folders(dict.fromkeys(images.values()))
    # The root, which is left out, would make an absolute path of the name.
    folders = {image: image.parent.parts[1:] for image in own}
    names = dict(own)
    for depth in range(1, 1 + max(map(len, folders.values()), default=0)):
        counts = collections.Counter(names.values())
        alike = [image for image, name in names.items() if counts[name] > 1]
        names |= {
            image: "-".join((*folders[image][-depth:], own[image])) for image in alike
        }
    names = _numbered(names)
    return {path: names[image] for path, image in images.items()}


def _names_in_folders(images):
    """Return a dict from images to names, which are different within a folder.

    The suffix is kept only if the name without it would be ambiguous in the folder.
    """
    taken = collections.Counter(
        (image.parent, name) for image in images for name in {image.stem, image.name}
    )
    return {
        image: image.stem if taken[image.parent, image.stem] == 1 else image.name
        for image in images
    }


def _numbered(names):
    """Return names with a number after each that equals an earlier one."""
    numbered, taken = {}, set()
    for image, name in names.items():
        choices = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
        numbered[image] = next(choice for choice in choices if choice not in taken)
        taken.add(numbered[image])
    return numbered


def write_overlay(path, caption, target):
    """Draw where a `Caption` looked in an image for each of its words.

    With a sentinel, the label of a word has the share of the attention to the image.

    Args:
        path: The image, as for `read_image`.
        caption: The `Caption`.
        target: Name of the file, or binary file to write a PNG to.
    """
    image = read_image(path)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    labels = caption.words
    if caption.sentinel is not None:
        pairs = zip(caption.words, caption.sentinel, strict=True)
        labels = [f"{word} ({1 - share:.0%} image)" for word, share in pairs]
    write_figure(
        target,
        lambda: plots().attention_overlay(
            image,
            labels,
            caption.weights,
            boxes=caption.boxes,
            title=caption.text,
        ),
        dpi=120,
    )


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
