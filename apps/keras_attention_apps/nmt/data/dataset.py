"""Sentence pairs in parallel files."""

import dataclasses
import itertools
import os
from pathlib import Path
from typing import Any

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import (
    STANDARD_INPUT,
    as_utf8,
    check_local,
    read_file,
)
from keras_attention_apps.nmt.data import pair_files
from keras_attention_apps.nmt.subwords import clean, decode_line

TRAINING_NAMES = ("train",)
VALIDATION_NAMES = ("val", "valid", "validation", "dev")


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, as many of one as of the other.

    Attributes:
        source, target: Lists of clean strings.
        empty_count: Number of pairs that were left out because one side was empty.
        weights: List of how often an epoch has each pair, or `None` for once: 2 is
            twice, 0.5 every second epoch on average.
        back_translated: List of whether the source of each pair is a back-translation,
            or `None` if none is.
    """

    source: list
    target: list
    empty_count: int = 0
    weights: list | None = None
    back_translated: list | None = None

    def __len__(self):
        return len(self.source)

    def chosen(self, indices):
        """Return the pairs of these indices."""
        columns: dict[str, Any] = {
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
    counts = (
        [weight * pair_weight for pair_weight in x.weights or [1] * len(x)]
        for x, weight in zip(corpora, weights, strict=True)
    )
    return Pairs(
        source=[x for corpus in corpora for x in corpus.source],
        target=[x for corpus in corpora for x in corpus.target],
        empty_count=sum(corpus.empty_count for corpus in corpora),
        weights=[*itertools.chain(*counts)],
        back_translated=[*itertools.chain(*tags)],
    )


def read_lines(path):
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
        lines = read_lines(path)
        if sum("\t" in line for line in lines) > len(lines) / 2:
            raise UserError(
                "expected the sentences of one language. Received: a table with tabs, "
                f"{path}. A table whose name ends in .tsv is given as --data"
            )
        sides.append([clean(line) for line in lines])
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"both files must have the same number of lines. Received: {source} with "
            f"{len(sides[0])}, {target} with {len(sides[1])}"
        )
    return sides


def read_pairs(source, target):
    """Return the pairs of two parallel files; those with an empty side are left out."""
    sides = read_parallel(source, target)
    return _complete(sides, f"{source} and {target} have")


def _complete(sides, subject):
    """Return the pairs with text on both sides; the `subject` begins an error."""
    sources, targets = sides
    texts = enumerate(zip(sources, targets, strict=True))
    complete = [i for i, pair in texts if all(pair)]
    if not complete:
        raise UserError(f"{subject} no line with text on both sides")
    empty_count = len(sources) - len(complete)
    return Pairs(sources, targets, empty_count).chosen(complete)


def read_sides(data, pair, names, columns=()):
    """Return the clean sides of one split of a data set; some may be empty.

    A data set is a folder, or a file of pairs; see `pair_files`.
    """
    if not pair_files.is_pair_file(Path(data)):
        if columns:
            raise UserError(
                f"--columns needs a table as --data, .tsv or .csv. Received: {data}"
            )
        return read_parallel(*find_files(data, pair, names))
    check_local(data)
    sides = pair_files.read_sides(Path(data), pair, columns, names)
    return [[clean(text) for text in side] for side in sides]


def read_split(data, pair, names, columns=()):
    """Return the pairs of one split of a data set, without those with an empty side."""
    return _complete(read_sides(data, pair, names, columns), f"{data} has")


def read_chosen(config):
    """Return the clean sides of the pairs that a `PairOptions` describes, and a name.

    Some may be empty.
    """
    files = config.source, config.target
    options = {"pair": config.pair, "split": config.split}
    check_files(files, config.data, **options, columns=config.columns or None)
    if config.data is None:
        return *read_parallel(*files), config.source
    names = (config.split,) if config.split else VALIDATION_NAMES
    if pair_files.is_pair_file(Path(config.data)) or config.columns:
        sides = read_sides(config.data, config.pair, names, config.columns)
        return *sides, config.data
    source, target = find_files(config.data, config.pair, names)
    return *read_parallel(source, target), source


def check_files(files, data, **of_data):
    """Raise a `UserError` unless a text is given either as files or as a data set."""
    if data is not None and any(files):
        raise UserError("expected either files or --data with --pair, not both")
    conflicting = [f"{name}={x}" for name, x in of_data.items() if x is not None]
    if data is None and conflicting:
        raise UserError(
            f"expected --data with --{conflicting[0].split('=')[0]}. "
            f"Received: {', '.join(conflicting)} without --data"
        )


def find_files(data, pair, names):
    """Return the source and target files of one split of a folder."""
    check_local(data)
    if Path(data).is_file():
        raise UserError(
            "expected a folder as --data, or a file that ends in "
            f"{', '.join(pair_files.FORMATS)}. Received: {str(data)!r}"
        )
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
