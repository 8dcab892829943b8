"""Sentence pairs in parallel files: line n of one translates line n of the other."""

import dataclasses
import os
from pathlib import Path

from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.encodings import as_utf8
from keras_attention_apps.common.reading import STANDARD_INPUT, check_local, read_file
from keras_attention_apps.nmt.data.links import parse_links
from keras_attention_apps.nmt.data.text import clean

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
    """Return the pairs of several corpora as one.

    Args:
        corpora: List of `Pairs`.
        weights: For each of them how often an epoch has its pairs.
    """
    if len(corpora) == 1 and weights[0] == 1:
        return corpora[0]
    pairs = list(zip(corpora, weights, strict=True))
    return Pairs(
        source=[x for corpus in corpora for x in corpus.source],
        target=[x for corpus in corpora for x in corpus.target],
        empty_count=sum(corpus.empty_count for corpus in corpora),
        links=corpora[0].links if len(corpora) == 1 else None,
        weights=[weight for corpus, weight in pairs for _ in corpus.source],
        back_translated=[
            x
            for corpus in corpora
            for x in corpus.back_translated or [False] * len(corpus)
        ],
    )


def read_lines(path):
    """Return the clean lines of a text file; see `read_raw_lines`."""
    return [clean(line) for line in read_raw_lines(path)]


def read_raw_lines(path):
    """Return the lines of a text file; only line feeds end lines.

    The text is UTF-8, or UTF-16 or UTF-32 with a byte order mark.

    Raises:
        UserError: If the file is empty, too large, or in another encoding.
        OSError: If it is missing.
    """
    content = as_utf8(read_file(path), path)
    if not content.strip():
        raise UserError(f"{path} is empty")
    lines = content.removesuffix(b"\n").split(b"\n")
    return [decode_line(line, path, n) for n, line in enumerate(lines, start=1)]


def decode_line(line, path, number):
    """Decode a line of bytes.

    Raises:
        UserError: If it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}, is not UTF-8: byte "
            f"0x{line[error.start]:02x} at position {error.start}"
        ) from error


def read_parallel(source, target):
    """Return the clean lines of two parallel files; some may be empty.

    Raises:
        UserError: If a file cannot be read, or has more lines than the other.
    """
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
    sources, targets = map(_read_column, (source, target))
    if len(sources) != len(targets):
        raise UserError(
            f"both files must have the same number of lines. Received: {source} with "
            f"{len(sources)}, {target} with {len(targets)}"
        )
    return sources, targets


def _read_column(path):
    """Return the clean lines of a file of one column.

    Raises:
        UserError: If most of its lines have several columns.
    """
    lines = read_raw_lines(path)
    if sum("\t" in line for line in lines) > len(lines) / 2:
        raise UserError(
            "expected the sentences of one language. Received: a table with tabs, "
            f"{path}. Write its columns to two files, such as with cut -f1 and cut -f2"
        )
    return [clean(line) for line in lines]


def read_links(path, sources, targets, *, possible=False):
    """Return the word alignments in a file: line n has those of sentence pair n.

    Args:
        path: The file.
        sources, targets: The clean sentences.
        possible: Whether possible links are allowed.

    Returns:
        List of arrays; see `parse_links`.

    Raises:
        UserError: If the file does not have one line for each pair, or a line is
            not a list of links between the words of its pair.
    """
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
    """Return the pairs of two parallel files; those with an empty side are left out.

    Args:
        source, target: The files.
        guide: File with the word alignments of the pairs, see `read_links`, or `None`.

    Raises:
        UserError: If the files are not parallel, or no pair is left.
    """
    sources, targets = read_parallel(source, target)
    links = read_links(guide, sources, targets) if guide else None
    texts = enumerate(zip(sources, targets, strict=True))
    kept = [i for i, pair in texts if all(pair)]
    if not kept:
        raise UserError(f"{source} and {target} have no line with text on both sides")
    empty_count = len(sources) - len(kept)
    return Pairs(sources, targets, empty_count, links).chosen(kept)


def check_files(files, data, **of_data):
    """Raise a `UserError` unless a text is given either as files or as a data set.

    Args:
        files: The files, `None` if not given.
        data: Folder of a data set, or `None`.
        **of_data: Options that need `data`, `None` if not given.
    """
    if data is not None and any(files):
        raise UserError("expected either files or --data with --pair, not both")
    given = [f"{name}={x}" for name, x in of_data.items() if x is not None]
    if data is None and given:
        raise UserError(
            f"expected --data with --{given[0].split('=')[0]}. "
            f"Received: {', '.join(given)} without --data"
        )


def find_files(data, pair, names):
    """Return the source and target files of one split of a data set.

    Args:
        data: Folder with files such as `train.en` and `train.de`.
        pair: The two suffixes, source first: `"en-de"`.
        names: Possible names of the split; the first one with files is used.

    Raises:
        UserError: If `pair` is not two suffixes, or there are no such files.
    """
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
        files = [_find_file(Path(data) / f"{name}.{x}") for x in languages]
        if all(files):
            return tuple(files)
    expected = (" and ".join(f"{x}.{y}" for y in languages) for x in names)
    raise UserError(f"expected the files {' or '.join(expected)} in {str(data)!r}")


def _find_file(path):
    """Return the path of a file, or of one that is compressed by gzip, or `None`."""
    paths = path, path.with_name(f"{path.name}.gz")
    return next((found for found in paths if found.is_file()), None)
