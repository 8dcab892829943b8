"""Hugging Face's layout: a table or JSON lines beside the images."""

from keras_attention_apps.captioner.data.boxes import check_boxes
from keras_attention_apps.captioner.data.layouts.files import (
    find_file,
    get,
    list_some,
    read_json_lines,
    read_table,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.listing import SPLITS, Listing

FILE_NAMES = ("file_name", "filename", "file", "image")
CAPTION_NAMES = ("caption", "captions", "text")


def read_metadata(root):
    # There is one file for all splits, or one in the folder of each split.
    folders = {root: None} | {root / name: split for name, split in SPLITS.items()}
    paths = {x: find_file(x, "metadata.jsonl", "metadata.csv") for x in folders}
    paths = {x: path for x, path in paths.items() if path and path.parent == x}
    if not paths:
        return None
    listing = Listing([*paths.values()][-1])
    for folder, path in paths.items():
        rows = read_json_lines if path.suffix == ".jsonl" else read_table
        for where, entry in rows(path):
            keys = (key for key in FILE_NAMES if key in entry)
            file_name = get(entry, next(keys, FILE_NAMES[0]), str, where)
            name = folder.relative_to(root) / file_name
            split = _split_of(entry, folders[folder], where)
            listing.add(
                name,
                captions_of(entry, where, listing, split),
                split,
                where=where,
                boxes=boxes_of(entry, where),
            )
    return listing


def _split_of(entry, folder_split, where):
    """Return the split that an entry names, or else that of its folder."""
    named = entry.get("split")
    if not named:
        return folder_split
    if named not in [*SPLITS]:
        raise unexpected(where, f"split one of {list_some(SPLITS)}", f"{named!r:.60}")
    if folder_split not in (None, SPLITS[named]):
        expected = f"the split of the folder, {folder_split}"
        raise unexpected(where, expected, named)
    return SPLITS[named]


def captions_of(entry, where, listing, split):
    """Return the captions of a JSON object or a row: a string or a list of strings.

    A missing one, `null`, is an empty one.

    If there are several keys, the first of `CAPTION_NAMES` is used. Different values of
    the others are recorded as dropped.
    """
    names = [name for name in CAPTION_NAMES if name in entry]
    if not names:
        expected = f"one of the keys {list_some(CAPTION_NAMES)}"
        raise unexpected(where, expected, f"only {list_some(entry)}")
    found = entry[names[0]]
    captions = found if isinstance(found, list) else [found]
    captions = ["" if text is None else text for text in captions]
    if not all(isinstance(text, str) for text in captions):
        expected = f"a string or a list of strings as {names[0]!r}"
        raise unexpected(where, expected, f"{found!r:.60}")
    for name in names[1:]:
        if entry[name] and entry[name] not in (found, captions):
            listing.drop(f"values of {name!r} beside {names[0]!r}", entry[name], split)
    return captions


def boxes_of(entry, where):
    """Return the boxes of a JSON object; a row of a CSV file has none."""
    boxes = entry.get("boxes") or {}
    if isinstance(boxes, str):
        return {}
    try:
        return check_boxes(boxes)
    except (AttributeError, TypeError, ValueError) as error:
        raise unexpected(where, "boxes by words", f"{boxes!r:.60} ({error})") from None
