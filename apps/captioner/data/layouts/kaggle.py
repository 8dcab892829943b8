"""Kaggle's layout of Flickr8k: a CSV file of names and captions."""

from keras_attention_apps.captioner.data.layouts.files import find_file
from keras_attention_apps.captioner.data.layouts.files import read_rows
from keras_attention_apps.captioner.data.layouts.files import unexpected
from keras_attention_apps.captioner.data.layouts.flickr import listing_of


def read_kaggle(root):
    path = find_file(root, "captions.txt")
    if path is None:
        return None
    captions = {}
    for line, row in read_rows(path):
        where, found = f"{path}, line {line}", f"{','.join(row)!r:.60}"
        if line == 1 and [cell.strip().lower() for cell in row] != ["image", "caption"]:
            raise unexpected(where, "the header image,caption", found)
        # After an unclosed quote, the following lines belong to the same cell.
        if len(row) == 1 or any("\n" in cell for cell in row):
            raise unexpected(where, "image,caption on one line", found)
        if line > 1 and row:
            captions.setdefault(row[0].strip(), []).append(",".join(row[1:]))
    return listing_of(root, path, captions)
