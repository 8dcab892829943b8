"""Word alignments in Pharaoh format, and the target weights of their subwords."""

import re

import numpy as np
from keras_attention_apps.common.cli import UserError

# A sure link, and one that is only possible.
SURE, POSSIBLE = 2, 1
_KINDS = {"-": SURE, "?": POSSIBLE, "p": POSSIBLE}
# Nine digits suffice for the words of every sentence, and fit into int32.
_LINK = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


def parse_links(line, source, target, *, possible=False):
    """Return the links between the words of a sentence pair, from a line.

    A link `i-j` joins source word i and target word j, counted from 0; `i?j` or `ipj`
    is a possible link. Words are separated by spaces in the clean text.

    Args:
        line: The line, a string. It may be empty.
        source, target: The clean sentences.
        possible: Whether possible links are allowed.

    Returns:
        Integer array `(links, 3)`: source word, target word, and `SURE` or `POSSIBLE`.

    Raises:
        UserError: If a link is malformed, or one of its words does not exist.

    >>> parse_links("0-0 1p0", "a dog", "Hund", possible=True).tolist()
    [[0, 0, 2], [1, 0, 1]]
    """
    links = []
    for text in line.split():
        match = _LINK.fullmatch(text)
        kind = match and _KINDS[match[2]]
        if not match or (kind == POSSIBLE and not possible):
            expected = "i-j, or i?j for possible links" if possible else "i-j"
            raise UserError(
                f"expected links {expected}, such as 0-0 1-2. Received: {text!r:.40}"
            )
        link = int(match[1]), int(match[3])
        for side, word, sentence in zip(
            ("source", "target"), link, (source, target), strict=True
        ):
            count = len(sentence.split())
            if word >= count:
                raise UserError(
                    f"expected words below {count}, the number of words of the {side} "
                    f"sentence; words are counted from 0. Received: {text!r}"
                )
        links.append((*link, kind))
    return np.array(links, "int32").reshape(-1, 3)


def link_matrix(links, shape):
    """Return links as an array `(target words, source words)`.

    Its values are `SURE`, `POSSIBLE`, or 0 for no link, as `AlignmentErrorRate` takes
    them. A link that is both sure and possible is sure.

    >>> link_matrix(np.array([[0, 1, SURE]]), (2, 2)).tolist()
    [[0, 0], [2, 0]]
    """
    matrix = np.zeros(shape, "int32")
    np.maximum.at(matrix, (links[:, 1], links[:, 0]), links[:, 2])
    return matrix


def subword_weights(links, source_places, target_places):
    """Return target weights of subwords from links between words.

    All source words of a target word get the same weight, which their subwords share
    equally. All subwords of a target word have the same row. So, if each row is divided
    by its sum, `merge_weights` gives the weights of the links between words exactly.

    Args:
        links: Array `(links, 3)`; see `parse_links`.
        source_places, target_places: For each subword the index of its word.

    Returns:
        Array `(target subwords, source subwords)`. The row of a subword whose word has
        no link is zero.

    Word 0 of the source has two subwords, and word 1 has one. Word 0 of the target is
    linked to both words, and has two subwords itself:

    >>> links = np.array([[0, 0, SURE], [1, 0, SURE]])
    >>> subword_weights(links, [0, 0, 1], [0, 0, 1]).tolist()
    [[0.5, 0.5, 1.0], [0.5, 0.5, 1.0], [0.0, 0.0, 0.0]]
    """
    sizes = np.bincount(source_places)
    shape = 1 + max(target_places, default=-1), len(sizes)
    matrix = link_matrix(links, shape) / sizes / SURE
    return matrix[np.ix_(target_places, source_places)].astype("float32")
