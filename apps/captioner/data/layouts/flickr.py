"""The official layout of Flickr8k and Flickr30k: text files."""

from pathlib import Path

from keras_attention_apps.captioner.data.layouts.files import (
    find_file,
    find_split_files,
    read_lines,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.listing import SPLITS, Listing


def read_flickr(root):
    # Flickr8k has a second file of the captions, as lemmas.
    path = find_file(root, "*.token.txt", "*.token", without=".lemma.token.txt")
    if path is None:
        return None
    captions = {}
    for number, line in enumerate(read_lines(path), 1):
        key, tab, caption = line.partition("\t")
        name, mark, _ = key.rpartition("#")
        if tab and mark:
            captions.setdefault(name, []).append(caption)
        elif line.strip():
            where = f"{path}, line {number}"
            raise unexpected(where, "name#number<TAB>caption", f"{line!r:.60}")
    return listing_of(root, path, captions)


def listing_of(root, path, captions):
    """Return the `Listing` of a data set.

    Split files decide the splits; without them, a hash of the file name does.

    Args:
        root: Folder of the data set.
        path: File of the captions, for errors.
        captions: Dict from names of images to their captions.
    """
    names = {split: split for split in SPLITS.values()}
    files, lacking = find_split_files(root, "*{}Images.txt", names)
    if not files:
        listing = Listing(path)
        for name, found in captions.items():
            listing.add(Path(name), found, where=path)
        return listing
    listing = Listing(root, lacking=lacking, draws_dev=False)
    unsplit = dict(captions)
    for split, path in files.items():
        lines = (line.strip() for line in read_lines(path))
        for name in dict.fromkeys(filter(None, lines)):
            unsplit.pop(name, None)
            listing.add(Path(name), captions.get(name, ()), split, where=path)
    for name in unsplit:
        listing.drop("images in no split", name)
    return listing
