"""Karpathy's layout: one JSON file with captions and splits."""

from pathlib import Path

from keras_attention_apps.captioner.data.layouts.files import (
    NO_CAPTIONS,
    find_file,
    get,
    list_some,
    read_json,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.listing import SPLITS, Listing

KARPATHY_SPLITS = SPLITS | {"restval": "train"}


def read_karpathy(root):
    path = find_file(root, "dataset*.json", without=NO_CAPTIONS)
    if path is None:
        return None
    listing = Listing(path, draws_dev=False)
    for index, image in enumerate(get(read_json(path), "images", list, path)):
        where = f"{path}: images[{index}]"
        name = Path(get(image, "filename", str, where))
        split = get(image, "split", str, where)
        sentences = get(image, "sentences", list, where)
        if split not in KARPATHY_SPLITS:
            raise unexpected(
                where, f"split one of {list_some(KARPATHY_SPLITS)}", repr(split)
            )
        keys = [key for key in ("cocoid", "imgid") if key in image]
        listing.add(
            get({"filepath": "", **image}, "filepath", str, where) / name,
            [get(sentence, "raw", str | None, where) or "" for sentence in sentences],
            KARPATHY_SPLITS[split],
            where=where,
            image_id=get(image, keys[0], int | str, where) if keys else None,
        )
    return listing
