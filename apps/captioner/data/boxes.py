"""Bounding boxes of the objects in an image.

A box is `(left, top, right, bottom)` as fractions of width and height. The
boxes of an image are a dict from a word to the boxes of the objects that it names.
"""

import numpy as np
from keras_attention_apps.captioner.text import tokenize

# The view of the whole image; see `viewed`.
WHOLE = (0.0, 0.0, 1.0, 1.0), False


def check_boxes(boxes):
    """Validate a dict from words to a box or a list of boxes; return it with tuples.

    Words are normalised by `tokenize`, like captions. A phrase keeps its spaces, so it
    matches no single word of a caption. Words without boxes are left out.
    """
    checked = {}
    for word, found in boxes.items():
        if not len(found):
            continue
        try:
            several = np.atleast_2d(np.array(found, "float64"))
        except OverflowError as error:
            raise ValueError(f"{word!r} has a box with too large a number") from error
        if several.shape[1:] != (4,) or not np.isfinite(several).all():
            raise ValueError(f"{word!r} must have boxes of four numbers")
        left, top, right, bottom = several.T
        are_ordered = ((left < right) & (top < bottom)).all()
        if not are_ordered or not ((several >= 0) & (several <= 1)).all():
            raise ValueError(
                f"{word!r} must have boxes left, top, right, bottom, from 0 to 1"
            )
        spelt = " ".join(tokenize(word))
        checked[spelt] = (*checked.get(spelt, ()), *map(tuple, several.tolist()))
    return checked


def viewed(boxes, view):
    """Return the parts of boxes inside a view, in coordinates of the view."""
    (left, top, right, bottom), mirrored = view
    scale = np.array([right - left, bottom - top] * 2)
    found = []
    for box in boxes:
        box = np.clip((np.array(box) - [left, top, left, top]) / scale, 0, 1)
        if mirrored:
            box = np.array([1 - box[2], box[1], 1 - box[0], box[3]])
        if box[0] < box[2] and box[1] < box[3]:
            found.append(tuple(box.tolist()))
    return found


def coverage(boxes, rows, columns):
    """Return the share of every region that boxes cover, `(rows * columns,)`."""
    covered = np.zeros((rows, columns))
    for left, top, right, bottom in boxes:
        down = _overlaps(top, bottom, rows)
        across = _overlaps(left, right, columns)
        covered = np.maximum(covered, down[:, None] * across)
    return covered.reshape(-1)


def _overlaps(begin, end, count):
    """Return the share of each of `count` equal parts that an interval covers."""
    ends = np.minimum(end * count, np.arange(1, count + 1))
    return np.clip(ends - np.maximum(begin * count, np.arange(count)), 0, 1)


def pointing(captions, boxes):
    """Count the words whose largest weight is on their object, and all with an object.

    A region is on the object if the share of it that the object covers is at least half
    the largest share of any region.
    """
    hits = count = 0
    for caption, named in zip(captions, boxes, strict=True):
        for word, weights in zip(caption.words, caption.weights, strict=True):
            if word in named:
                covered = coverage(named[word], *weights.shape)
                hits += bool(covered[weights.argmax()] >= covered.max() / 2)
                count += 1
    return hits, count
