"""Kaggle's layouts of Flickr8k and Flickr30k: tables of names and captions."""

import re

from keras_attention_apps.captioner.data.layouts.files import (
    find_file,
    read_lines,
    read_rows,
    unexpected,
)
from keras_attention_apps.captioner.data.layouts.flickr import listing_of

# The headers of Flickr8k and of Flickr30k, which has either separator.
FLICKR8K = ["image", "caption"]
FLICKR30K = ["image_name", "comment_number", "comment"]
# A line of Flickr30k. One line of the data set lacks the second separator.
_LINE = re.compile(r"([^|]+)\|\s*\d+\s*\|?(.*)", re.DOTALL)


def read_kaggle(root):
    path = find_file(root, "captions.txt") or find_file(root, "results.csv")
    if path is None:
        return None
    header = next(iter(read_lines(path)), "")
    cells = [cell.strip(' "\n').lower() for cell in re.split("[,|]", header)]
    if cells not in (FLICKR8K, FLICKR30K):
        if path.name == "results.csv":
            return None
        expected = "the header image,caption or image_name|comment_number|comment"
        raise unexpected(f"{path}, line 1", expected, f"{header.rstrip()!r:.60}")
    captions = {}
    read = _lines_of_flickr30k if "|" in header else _rows
    for name, caption in read(path, cells):
        captions.setdefault(name.strip(), []).append(caption)
    return listing_of(root, path, captions)


def _rows(path, header):
    """Yield the names and captions of CSV; captions may have commas without quotes."""
    for line, row in read_rows(path):
        # After an unclosed quote, the following lines belong to the same cell.
        if 0 < len(row) < len(header) or any("\n" in cell for cell in row):
            expected = f"{','.join(header)} on one line"
            found = f"{','.join(row)!r:.60}"
            raise unexpected(f"{path}, line {line}", expected, found)
        if line > 1 and row:
            yield row[0], ",".join(row[len(header) - 1 :])


def _lines_of_flickr30k(path, _):
    """Yield the names and captions of lines with `|`, in which quotes mean nothing."""
    for number, line in enumerate(read_lines(path), 1):
        cells = _LINE.fullmatch(line)
        if cells and number > 1:
            yield cells[1], cells[2].strip()
        elif line.strip() and number > 1:
            where = f"{path}, line {number}"
            raise unexpected(where, "|".join(FLICKR30K), f"{line!r:.60}")
