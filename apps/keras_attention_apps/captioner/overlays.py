"""A word with its map: sheets as image files, and figures in HTML.

They look alike: a photograph becomes grey and darker, the more the less a word attended
to a place, and dark places become blue. The map of each word is scaled to its own
smallest and largest weight.
"""

import collections
import contextlib
import functools
import html
import io
import math
import os
import re
import types
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFont, ImageOps

from keras_attention_apps.captioner.images import ImageError, is_folder_of, read_image
from keras_attention_apps.captioner.vocabulary import sentence
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import atomic_path, check_file
from keras_attention_apps.common.output import plots
from keras_attention_apps.common.web import markup

# Formats of sheets. At level 1, PNG takes a sixth of the time, and a fifth more bytes.
FORMATS = {
    ".png": {"format": "PNG", "compress_level": 1},
    ".jpg": {"format": "JPEG", "quality": 90},
    ".pdf": {"format": "PDF", "quality": 90},
}
# Brightness where a word attended least, and the colour of what is too dark to become
# darker; the style sheets of the report and the pages have the same numbers.
DIMMED = 0.55
SHADOW = (20, 22, 72)
# Maximum exponent of the dimming of a concentrated map; 1 is linear.
MAX_EXPONENT = 4
# Sizes in a sheet, in pixels.
CELL, LABEL, GAP, MARGIN, RADIUS = 300, 34, 18, 28, 8
TITLE_SIZE, WORD_SIZE, NOTE_SIZE = 26, 19, 14
# Width of a sheet relative to its height, about.
RATIO = 1.7
INK, PALE = (31, 35, 40), (132, 138, 146)
FONT = Path(__file__).parent / "fonts" / "DejaVuSans.ttf"
# Characters of the font, which is a part of DejaVu Sans.
_LATIN_GREEK_CYRILLIC = re.compile(
    "[ -~\u00a0-\u024f\u0300-\u052f\u1e00-\u1eff\u2010-\u2027\u2030-\u203a\u20ac]"
)

# Words that name nothing in a photograph.
_FUNCTION_WORDS = (
    "a an the and or but of to in on at by for from with without into onto over under "
    "up down out off through as than that which who while is are was were be being "
    "been has have had do does it its his her their there this these those 's"
)
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
# Pixels of a map in HTML on each region; the browser enlarges it smoothly.
MAP_PIXELS = 8
# Longest side of a photograph in a notebook, in pixels.
NOTEBOOK_SIDE = 640
# Quality of the JPEGs of previews.
QUALITY = 85
# The first choice, before the words of the caption, which shows no map.
WHOLE = "Whole photograph"


def dimming(weights, width, height):
    """Return how much each pixel of an image is dimmed, from 0 to 255.

    It is 0 where the map `(rows, columns)` has its largest weight, and 255 where it has
    the smallest. It grows the more slowly between them the more concentrated the map
    is, so that what surrounds a small peak stays visible.
    """
    smooth = plots().enlarge(weights, height, width)
    low, high = smooth.min(), smooth.max()
    # Of a map with equal weights, the differences are rounding errors.
    share = (high - smooth) / max(high - low, 1e-6)
    # In the brightest fifth of the image, at most half of the dimming, if possible.
    middle = min(max(np.quantile(share, 0.2), 0.5), 0.5 ** (1 / MAX_EXPONENT))
    return np.rint(255 * share ** (math.log(0.5) / math.log(middle))).astype("uint8")


def draw_sheet(image, caption):
    """Draw a photograph, its caption, and where the model looked for every word."""
    image = ImageOps.contain(image, (CELL, CELL))
    tiles = _tiles(caption)
    file = _font_file(caption.text)
    word_font, note_font = _font(file, WORD_SIZE), _font(file, NOTE_SIZE)
    labels = [("photograph", "")] + [(word, note) for word, note, _ in tiles]
    widest = max(word_font.getlength(x) + note_font.getlength(y) for x, y in labels)
    width, height = max(image.width, math.ceil(widest) + 8), image.height + LABEL
    columns = _columns(len(labels), (width + GAP) / (height + GAP))
    rows = -(-len(labels) // columns)
    across = columns * (width + GAP) - GAP
    title_font = _font(file, TITLE_SIZE)
    title = _wrapped(caption.text, title_font, across)
    top = MARGIN + round(1.4 * TITLE_SIZE) * len(title) + GAP
    size = (across + 2 * MARGIN, top + rows * (height + GAP) - GAP + MARGIN)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for number, line in enumerate(title):
        corner = (MARGIN, MARGIN + round(1.4 * TITLE_SIZE) * number)
        draw.text(corner, line, INK, title_font)
    grey = ImageOps.grayscale(image).convert("RGB")
    dim = ImageEnhance.Brightness(grey).enhance(DIMMED)
    dim = ImageChops.lighter(dim, Image.new("RGB", dim.size, SHADOW))
    corners = _rounded(image.size)
    pictures = [image] + [
        Image.composite(dim, image, Image.fromarray(dimming(weights, *image.size)))
        for *_, weights in tiles
    ]
    cells = zip(pictures, labels, strict=True)
    for number, (picture, (word, note)) in enumerate(cells):
        row, column = divmod(number, columns)
        left, upper = MARGIN + column * (width + GAP), top + row * (height + GAP)
        sheet.paste(picture, (left, upper), corners)
        base = upper + image.height + LABEL - 9
        ink = INK if number else PALE
        draw.text((left + 1, base), word, ink, word_font, anchor="ls")
        after = left + 9 + word_font.getlength(word)
        draw.text((after, base), note, PALE, note_font, anchor="ls")
    return sheet


def _columns(count, ratio):
    """Return the number of columns of cells, whose width is `ratio` times the height.

    The sheet has about the `RATIO`, and few empty cells.
    """

    def cost(columns):
        rows = -(-count // columns)
        shape = abs(math.log(ratio * columns / rows / RATIO))
        return shape + 2 * (rows * columns - count) / count

    return min(range(1, count + 1), key=cost)


def _wrapped(text, font, width):
    """Return the lines of a text that is at most `width` pixels wide."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


@functools.lru_cache(maxsize=8)
def _rounded(size):
    """Return a mask of a rectangle with round corners, whose edges are smooth."""
    width, height = size
    mask = Image.new("L", (4 * width, 4 * height))
    box = (0, 0, 4 * width - 1, 4 * height - 1)
    ImageDraw.Draw(mask).rounded_rectangle(box, 4 * RADIUS, 255)
    return mask.resize(size, Image.Resampling.BOX)


@functools.cache
def _font(file, size):
    return ImageFont.truetype(file, size)


def _font_file(text):
    """Return the font for a text; for other scripts, an installed one if there is."""
    missing = frozenset(x for x in text if not _LATIN_GREEK_CYRILLIC.match(x))
    return _installed_font(missing) if missing else str(FONT)


@functools.lru_cache(maxsize=64)
def _installed_font(characters):
    with contextlib.suppress(ImportError):
        from matplotlib import font_manager

        for entry in font_manager.fontManager.ttflist:
            with contextlib.suppress(OSError, RuntimeError):
                font = font_manager.get_font(entry.fname)
                # The glyphs of Last Resort only name the script of a character.
                is_text = font.scalable and not entry.name.startswith("Last Resort")
                if is_text and all(font.get_char_index(ord(x)) for x in characters):
                    return entry.fname
    return str(FONT)


def write_overlay(path, caption, target):
    """Write the sheet of a `Caption`; see `draw_sheet`."""
    sheet = draw_sheet(read_image(path), caption)
    with atomic_path(target) as temporary:
        sheet.save(temporary, **FORMATS[target.suffix.lower()])


def find_overlays(overlay, arguments, images):
    """Return the overlay file of each image as a dict; no two have the same."""
    is_file = overlay.suffix.lower() in FORMATS and not overlay.is_dir()
    has_folders = any(map(os.path.isdir, arguments))
    if len(images) == 1 and not has_folders and not overlay.is_dir():
        if not is_file:
            raise UserError(
                "--overlay must be a .png, .jpg or .pdf file for one image, "
                f"or an existing folder. Received: {str(overlay)!r}"
            )
        paths = {images[0]: overlay}
    else:
        if is_file or overlay.is_file():
            raise UserError(
                "--overlay must be a folder where several images, or a folder of "
                f"them, are captioned. Received: {str(overlay)!r}"
            )
        if is_folder_of(overlay, arguments):
            raise UserError(
                "--overlay must be a folder other than that of the images. Received: "
                f"{str(overlay)!r}"
            )
        paths = {path: overlay / f"{name}.png" for path, name in _names(images).items()}
    for target in paths.values():
        check_file(target)
    return paths


def _names(paths):
    """Return a dict from images to names; different images have different ones.

    The name is the stem, or else the name with suffix, or else the whole path. Two
    spellings of one absolute path are one image.
    """
    images = {path: Path(os.path.abspath(path)) for path in paths}
    left = set(images.values())
    names: dict[Path, str] = {}
    for name in (lambda x: x.stem, lambda x: x.name, lambda x: "-".join(x.parts[1:])):
        counts = collections.Counter([*map(name, left), *names.values()])
        names |= {x: name(x) for x in left if counts[name(x)] == 1}
        left -= names.keys()
    for number, image in enumerate(sorted(left), 1):
        names[image] = f"{number}-{image.name}"
    return {path: names[image] for path, image in images.items()}


def preview(image, side):
    """Reduce an image to at most `side` pixels; return it as a JPEG, and its size."""
    image.thumbnail((side, side))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue(), *image.size


def photo_style(jpeg, width, height):
    """Return the CSS properties of an element that shows a `preview`."""
    photo = markup.data_uri(jpeg, "image/jpeg")
    return f"--ratio:{width / height:.4f};--photo:url({photo})"


def caption_figure(photo, caption, title, number):
    """Return a caption, its photograph, and its words, which show their maps.

    The photograph is shown without a map first; the caption is its alternative text.
    """
    text = sentence(caption.text)
    layers = [
        f'<i class="ka-layer" style="--map:url({map_uri(weights)})"></i>'
        for weights in caption.weights
    ]
    choices = markup.words(
        [WHOLE, *caption.words],
        ["", *layers],
        group=f"figure-{number}",
        label=f"Words of the caption by {title}: choose one to see where it looked",
        notes=["", *(note for _, note, _ in _tiles(caption))],
        shares=[0.0, *caption.probabilities],
        kinds=[
            "ka-whole",
            *(
                " ".join(
                    ["ka-minor"] * (word in FUNCTION_WORDS)
                    + ["ka-doubtful"] * (i in caption.doubtful)
                )
                for i, word in enumerate(caption.words)
            ),
        ],
    )
    style = photo_style(photo.preview, photo.width, photo.height)
    return (
        f'<figure class="ka-figure ka-photo" style="{style}">'
        f"{markup.headline(text, kind='Caption')}{markup.unsure_note(caption)}"
        '<div class="ka-maps"><div class="ka-picture" role="img" '
        f'aria-label="{html.escape(text)}"></div>{choices}</div>'
        "<figcaption>Choose a word to see where the model looked. "
        f"<b>{html.escape(title)}</b>: "
        "probability of each word, given those before it</figcaption></figure>"
    )


def notebook_figure(caption, number):
    """Return the figure of a caption for a notebook.

    Without its image, the maps are shown over white.
    """
    try:
        image = read_image(caption.image, draft=True)
    except ImageError:
        rows, columns = caption.weights.shape[1:]
        image = Image.new("RGB", (columns * MAP_PIXELS, rows * MAP_PIXELS), "white")
    photo = types.SimpleNamespace()
    photo.preview, photo.width, photo.height = preview(image, NOTEBOOK_SIDE)
    return caption_figure(photo, caption, "the model", number)


def _tiles(caption):
    """Return a triple for each word: the word, its note (probability), and its map."""
    notes = [f"{x:.0%}" for x in caption.probabilities]
    return list(zip(caption.words, notes, caption.weights, strict=True))


def map_uri(weights):
    """Return a map as the data URI of a PNG whose alpha is the `dimming`."""
    rows, columns = weights.shape
    alpha = dimming(weights, columns * MAP_PIXELS, rows * MAP_PIXELS)
    file = io.BytesIO()
    Image.fromarray(np.stack([np.zeros_like(alpha), alpha], axis=-1)).save(file, "PNG")
    return markup.data_uri(file.getvalue(), "image/png")


def word_tiles(caption):
    """Return the words of a caption as a list of tiles, each with its map."""
    tiles = "".join(
        f'<li><div class="photo"><div class="photo-layer" '
        f'style="--map:url({map_uri(weights)})"></div></div>'
        f'<span dir="auto">{html.escape(word)}</span>'
        f"<small>{note}</small></li>"
        for word, note, weights in _tiles(caption)
    )
    return f'<ol class="words">{tiles}</ol>'
