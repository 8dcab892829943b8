"""Where the pictures of the attention go, and writing them."""

import collections
import os

from keras_attention_apps.captioner.images.reading import read_image
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import check_file
from keras_attention_apps.common.pictures import PICTURES, plots, write_figure

# Panels are small: more pixels would only make the file larger.
LARGEST_SIDE = 480


def find_overlays(overlay, given, paths):
    """Where the overlay of each photograph is written; no two at the same place.

    Args:
        overlay: Name of a picture for a single photograph, else of a folder.
        given: The photographs and folders that were asked for.
        paths: All photographs.

    Returns:
        Dict from each photograph to a path.

    Raises:
        UserError: If `overlay` is not as above, or if a photograph would be
            overwritten, or its overlay be found beside it as another photograph.
    """
    folders = [path for path in given if os.path.isdir(path)]
    is_picture = overlay.suffix.lower() in PICTURES and not overlay.is_dir()
    if len(paths) == 1 and not folders and not overlay.is_dir():
        if not is_picture:
            raise UserError(
                "--overlay must be a .png, .jpg, .pdf or .svg file for one photograph, "
                f"or a folder that is there. Received: {str(overlay)!r}"
            )
        found = {paths[0]: overlay}
    else:
        if is_picture or overlay.is_file():
            raise UserError(
                "--overlay must be a folder where several photographs, or a folder of "
                f"them, are captioned. Received: {str(overlay)!r}"
            )
        found = {path: overlay / f"{name}.png" for path, name in _names(paths).items()}
    photographs = set(map(os.path.realpath, paths))
    for target in found.values():
        check_file(target)
        inside = os.path.realpath(target.parent) in map(os.path.realpath, folders)
        if inside or os.path.realpath(target) in photographs:
            raise UserError(
                "--overlay must not lie among the photographs. Received: "
                f"{str(overlay)!r}"
            )
    return found


def _names(paths):
    """Dict from photographs to names of which no two are the same.

    Where names of files are alike, those of their folders go before them, as many as it
    takes.
    """
    folders = {path: path.absolute().parent.parts for path in paths}
    beside = collections.Counter((path.parent, path.stem) for path in folders)
    own = {
        path: path.stem if beside[path.parent, path.stem] == 1 else path.name
        for path in folders
    }
    names = dict(own)
    for depth in range(1, 1 + max(map(len, folders.values()), default=0)):
        counts = collections.Counter(names.values())
        alike = [path for path, name in names.items() if counts[name] > 1]
        names |= {
            path: "-".join((*folders[path][-depth:], own[path])) for path in alike
        }
    return names


def write_overlay(path, caption, target):
    """Draw where a `Caption` looked in a photograph for each of its words."""
    image = read_image(path)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    write_figure(
        target,
        lambda: plots().attention_overlay(
            image, caption.words, caption.weights, title=caption.text
        ),
        dpi=120,
    )
