"""Where the objects of a photograph are.

A box is `(left, top, right, bottom)` in shares of the width and of the height. The
boxes of a photograph are a dict from a word to those of what it names.
"""

import numpy as np
from keras_attention_apps.captioner.data.text import tokenize

# Of a view, as below: the whole photograph.
WHOLE = (0.0, 0.0, 1.0, 1.0), False


def check_boxes(boxes):
    """The boxes of a photograph as they are in a data set, as a dict of tuples.

    Args:
        boxes: Dict from a word to a list of boxes, or to one.

    Returns:
        Dict from a word to a tuple of boxes, without the words that have none. Words
        are spelt as `tokenize` spells those of captions; one that is several there has
        blanks between them, and no word of a caption is like it.

    Raises:
        ValueError: If it is anything else.
    """
    checked = {}
    for word, found in boxes.items():
        if not len(found):
            continue
        several = np.atleast_2d(np.array(found, "float64"))
        if several.shape[1:] != (4,) or not np.isfinite(several).all():
            raise ValueError(f"{word!r} must have boxes of four numbers")
        left, top, right, bottom = several.T
        if (
            not ((left < right) & (top < bottom)).all()
            or not ((several >= 0) & (several <= 1)).all()
        ):
            raise ValueError(
                f"{word!r} must have boxes left, top, right, bottom, from 0 to 1"
            )
        spelt = " ".join(tokenize(word))
        checked[spelt] = (*checked.get(spelt, ()), *map(tuple, several.tolist()))
    return checked


def viewed(boxes, view):
    """The parts of boxes that are in a view, as boxes of the view.

    Args:
        boxes: Iterable of boxes.
        view: Pair of the box of the photograph that is shown, and whether it is
            mirrored.
    """
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
    """How much of every region the boxes cover, `(rows * columns,)`, from 0 to 1."""
    covered = np.zeros((rows, columns))
    for left, top, right, bottom in boxes:
        down, across = (
            np.clip(
                np.minimum(end * count, np.arange(1, count + 1))
                - np.maximum(begin * count, np.arange(count)),
                0,
                1,
            )
            for begin, end, count in ((top, bottom, rows), (left, right, columns))
        )
        covered = np.maximum(covered, down[:, None] * across)
    return covered.reshape(-1)


def pointing(captions, boxes):
    """Of the words that name an object, how many have their largest weight on it.

    A region is on the object if it is covered at least half as much as the region that
    is covered most.

    Args:
        captions: Iterable of `Caption`s.
        boxes: The boxes of their photographs.

    Returns:
        Numbers of hits, and of words that name an object.
    """
    hits = count = 0
    for caption, named in zip(captions, boxes, strict=True):
        for word, weights in zip(caption.words, caption.weights, strict=True):
            if word in named:
                covered = coverage(named[word], *weights.shape)
                hits += bool(covered[weights.argmax()] >= covered.max() / 2)
                count += 1
    return hits, count
