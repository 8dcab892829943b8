"""COCO's layout: a JSON file of images and captions for each split."""

from operator import attrgetter
from pathlib import Path

from keras_attention_apps.captioner.data.layouts.files import (
    find_split_files,
    get,
    read_json,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.listing import Listing

COCO_SPLITS = {"train": "train", "dev": "val", "test": "test"}


def read_coco(root):
    files, lacking = find_split_files(root, "captions_*{}*.json", COCO_SPLITS)
    if not files:
        return None
    listing = Listing(root, lacking=lacking, drawn_by=attrgetter("name"))
    for split, path in files.items():
        _read_file(path, split, listing)
    return listing


def _read_file(path, split, listing):
    content, captions = read_json(path), {}
    for index, annotation in enumerate(get(content, "annotations", list, path)):
        where = f"{path}: annotations[{index}]"
        image_id = get(annotation, "image_id", int | str, where)
        caption = get(annotation, "caption", str | None, where) or ""
        captions.setdefault(image_id, []).append(caption)
    folder = path.stem.removeprefix("captions_")
    ids = set()
    for index, image in enumerate(get(content, "images", list, path)):
        where = f"{path}: images[{index}]"
        image_id = get(image, "id", int | str, where)
        name = Path(folder, get(image, "file_name", str, where))
        found = captions.pop(image_id, ())
        listing.add(name, found, split, where=where, image_id=image_id)
        ids.add(str(image_id))
    for image_id, found in captions.items():
        if str(image_id) in ids:
            expected = "image_id and id both texts, or both numbers"
            raise unexpected(path, expected, f"{image_id!r} as image_id only")
        for caption in found:
            listing.drop("captions of images that are not listed", caption, split)
