"""Where the pictures of the attention go, and writing them."""

import os

from keras_attention_apps.captioner.images import read_image
from keras_attention_apps.common.cli import PICTURES, UserError
from keras_attention_apps.common.files import atomic_path, check_file

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
    folders = [path for path in given if path.is_dir()]
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
                "--overlay must be a folder when there are several photographs. "
                f"Received: {str(overlay)!r}"
            )
        found = {path: overlay / name for name, path in _names(paths).items()}
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
    """Dict from names of pictures, of which no two are the same, to photographs."""
    names = {}
    for path in paths:
        name, count = f"{path.stem}.png", 1
        while name in names:
            count += 1
            name = f"{path.stem}-{count}.png"
        names[name] = path
    return names


def write_overlay(path, caption, target):
    """Draw where a `Caption` looked in a photograph for each of its words."""
    from keras_attention import attention_overlay

    image = read_image(path)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    figure = attention_overlay(
        image, caption.words, caption.weights, title=caption.text
    )
    with atomic_path(target) as temporary:
        figure.savefig(temporary, dpi=120)
