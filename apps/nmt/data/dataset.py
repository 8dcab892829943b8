"""Sentence pairs in parallel files, and the word alignments between them."""

import dataclasses
import itertools
import os
import re
from pathlib import Path

import numpy as np
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    STANDARD_INPUT,
    as_utf8,
    check_local,
    read_file,
)
from keras_attention_apps.nmt.text import clean, decode_line

# A sure link, and one that is only possible.
SURE, POSSIBLE = 2, 1
_KINDS = {"-": SURE, "?": POSSIBLE, "p": POSSIBLE}
# Nine digits suffice for the words of every sentence, and fit into int32.
_LINK = re.compile(r"([0-9]{1,9})([-?p])([0-9]{1,9})")


def parse_links(line, source, target, *, possible=False):
    """Return the links between the words of a sentence pair, from a line.

    A link `i-j` joins source word i and target word j, counted from 0; `i?j` or `ipj`
    is a possible link. Words are separated by spaces in the clean text. The integer
    array is `(links, 3)`: source word, target word, and `SURE` or `POSSIBLE`.

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
        sides = ("source", link[0], source), ("target", link[1], target)
        for side, word, sentence in sides:
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
    The places are the index of the word of each subword. The array is `(target
    subwords, source subwords)`; rows of words without a link are zero.

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


TRAINING_NAMES = ("train",)
VALIDATION_NAMES = ("val", "valid", "validation", "dev")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, as many of one as of the other.

    Attributes:
        source, target: Lists of clean strings.
        empty_count: Number of pairs that were left out because one side was empty.
        links: List of the word alignment of each pair, see `read_links`, or `None`.
        weights: List of how often an epoch has each pair, or `None` for once: 2 is
            twice, 0.5 every second epoch on average.
        back_translated: List of whether the source of each pair is a back-translation,
            or `None` if none is.
    """

    source: list
    target: list
    empty_count: int = 0
    links: list | None = None
    weights: list | None = None
    back_translated: list | None = None

    def __len__(self):
        return len(self.source)

    def chosen(self, indices):
        """Return the pairs of these indices."""
        columns = {
            name: [column[i] for i in indices]
            for name, column in vars(self).items()
            if isinstance(column, list)
        }
        return dataclasses.replace(self, **columns)


def joined(corpora, weights):
    """Return the pairs of several corpora as one."""
    if len(corpora) == 1 and weights[0] == 1:
        return corpora[0]
    tags = (x.back_translated or [False] * len(x) for x in corpora)
    counts = ([weight] * len(x) for x, weight in zip(corpora, weights, strict=True))
    return Pairs(
        source=[x for corpus in corpora for x in corpus.source],
        target=[x for corpus in corpora for x in corpus.target],
        empty_count=sum(corpus.empty_count for corpus in corpora),
        links=corpora[0].links if len(corpora) == 1 else None,
        weights=[*itertools.chain(*counts)],
        back_translated=[*itertools.chain(*tags)],
    )


def read_lines(path):
    """Return the clean lines of a text file; see `read_raw_lines`."""
    return [clean(line) for line in read_raw_lines(path)]


def read_raw_lines(path):
    """Return the lines of a text file; only line feeds end lines.

    The text is UTF-8, or UTF-16 or UTF-32 with a byte order mark.
    """
    content = as_utf8(read_file(path), path)
    if not content.strip():
        raise UserError(f"{path} is empty")
    lines = content.removesuffix(b"\n").split(b"\n")
    return [decode_line(line, path, n) for n, line in enumerate(lines, start=1)]


def read_parallel(source, target):
    """Return the clean lines of two parallel files; some may be empty."""
    if source is None or target is None:
        raise UserError(
            "expected --source and --target, or --data and --pair. Received: "
            f"source={source}, target={target}"
        )
    is_open = STANDARD_INPUT in (str(source), str(target))
    if not is_open and os.path.exists(target) and os.path.samefile(source, target):
        raise UserError(
            f"expected two files. Received: {source} as source and as target"
        )
    sides = []
    for path in (source, target):
        lines = read_raw_lines(path)
        if sum("\t" in line for line in lines) > len(lines) / 2:
            raise UserError(
                "expected the sentences of one language. Received: a table with tabs, "
                f"{path}. Write its columns to two files, such as with cut -f1 and cut "
                "-f2"
            )
        sides.append([clean(line) for line in lines])
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"both files must have the same number of lines. Received: {source} with "
            f"{len(sides[0])}, {target} with {len(sides[1])}"
        )
    return sides


def read_links(path, sources, targets, *, possible=False):
    """Return the word alignments in a file: line n has those of sentence pair n."""
    lines = read_lines(path)
    if len(lines) != len(sources):
        raise UserError(
            f"{path} must have one line for each of the {len(sources)} sentence pairs. "
            f"Received: {len(lines)} lines"
        )
    found = []
    for number, pair in enumerate(zip(lines, sources, targets, strict=True), start=1):
        try:
            found.append(parse_links(*pair, possible=possible))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
    return found


def read_pairs(source, target, guide=None):
    """Return the pairs of two parallel files; those with an empty side are left out."""
    sources, targets = read_parallel(source, target)
    links = read_links(guide, sources, targets) if guide else None
    texts = enumerate(zip(sources, targets, strict=True))
    kept = [i for i, pair in texts if all(pair)]
    if not kept:
        raise UserError(f"{source} and {target} have no line with text on both sides")
    empty_count = len(sources) - len(kept)
    return Pairs(sources, targets, empty_count, links).chosen(kept)


def check_files(files, data, **of_data):
    """Raise a `UserError` unless a text is given either as files or as a data set."""
    if data is not None and any(files):
        raise UserError("expected either files or --data with --pair, not both")
    given = [f"{name}={x}" for name, x in of_data.items() if x is not None]
    if data is None and given:
        raise UserError(
            f"expected --data with --{given[0].split('=')[0]}. "
            f"Received: {', '.join(given)} without --data"
        )


def find_files(data, pair, names):
    """Return the source and target files of one split of a data set."""
    check_local(data)
    if pair is None:
        raise UserError("--data needs --pair, such as en-de. Received: none")
    languages = pair.split("-")
    if len(languages) != 2 or not all(languages):
        raise UserError(
            "--pair must be two suffixes with a hyphen, such as en-de. "
            f"Received: {pair!r}"
        )
    for name in names:
        paths = [Path(data) / f"{name}.{x}" for x in languages]
        # A file may be compressed by gzip.
        files = [
            next((y for y in (x, x.with_name(f"{x.name}.gz")) if y.is_file()), None)
            for x in paths
        ]
        if all(files):
            return tuple(files)
    expected = (" and ".join(f"{x}.{y}" for y in languages) for x in names)
    raise UserError(f"expected the files {' or '.join(expected)} in {str(data)!r}")
