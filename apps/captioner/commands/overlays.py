"""Overlays of the attention: the names of their files, and writing them."""

import collections
import itertools
import os
from pathlib import Path

from keras_attention_apps.captioner.images.open_files import is_open
from keras_attention_apps.captioner.images.reading import read_image
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.figures import FIGURE_SUFFIXES, plots, write_figure
from keras_attention_apps.common.files import check_file

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
