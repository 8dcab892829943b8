"""Pretrained word vectors in the text formats of GloVe, word2vec and fastText."""

import codecs
import dataclasses
import gzip
import os
from collections.abc import Container, Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Word vectors of a vocabulary; see `load_word_vectors`.

    Attributes:
        vectors: Float32 array `(words, dimension)`. Rows of words that are not in the
            file are zero.
        found: Boolean array `(words,)`, whether a word is in the file.
        repeated: Number of lines that repeat one of these words. The first line of a
            word counts, the others are ignored.
    """

    vectors: np.ndarray
    found: np.ndarray
    repeated: int = 0

    def filled(self, seed: int | None = None) -> np.ndarray:
        """Return the vectors, with random rows for the words that are not in the file.

        Their numbers are normally distributed, with the mean and the standard deviation
        of the vectors that were found, in each dimension.

        Args:
            seed: Integer seed of the random rows, or `None`.

        Raises:
            ValueError: If no word is in the file.
        """
        known = self.vectors[self.found]
        if not len(known):
            raise ValueError(
                "At least one word of the vocabulary must be in the file. "
                f"Received: none of {len(self.found)} words"
            )
        filled = self.vectors.copy()
        rows = len(filled) - len(known)
        drawn = np.random.default_rng(seed).standard_normal((rows, filled.shape[1]))
        filled[~self.found] = known.mean(axis=0) + known.std(axis=0) * drawn
        return filled


def load_word_vectors(
    file: str | os.PathLike[str] | Iterable[bytes],
    words: Sequence[str],
    *,
    dimension: int | None = None,
    lowercase: bool = True,
) -> WordVectors:
    """Load pretrained word vectors for a vocabulary.

    The file is text in UTF-8: one word per line, followed by the numbers of its vector,
    separated by spaces. A first line of two integers, the number of words and the
    dimension, is a header, as word2vec and fastText write it; GloVe writes none. The
    number of words is not checked, so the beginning of a file is a valid file. A
    word may contain spaces, as some do in the file of GloVe for 840 billion tokens.

    The file is read line by line, and only the vectors of the vocabulary are kept, so a
    file may be larger than the memory.

    Args:
        file: Path of the file, which may be compressed by gzip, or an iterable of its
            lines in bytes.
        words: The vocabulary. Row i of the result is the vector of word i.
        dimension: Expected dimension of the vectors; any if `None`.
        lowercase: Whether a word that is not in the file takes the vector of its
            lower-case form, since the files of GloVe and others are lower-cased.

    Returns:
        A `WordVectors`.

    Raises:
        ValueError: If the file is empty, is not of this format, has vectors of another
            dimension than `dimension` or than its first line, or if a vector of the
            vocabulary contains NaN or infinity. The message has the number
            of the line.
        OSError: If the file cannot be read.

    Example:

    >>> lines = [b"dog 0.5 -1", b"cat 0.25 2"]
    >>> words = ["<pad>", "Cat", "dog"]
    >>> loaded = load_word_vectors(lines, words)
    >>> loaded.vectors.tolist(), loaded.found.tolist()
    ([[0.0, 0.0], [0.25, 2.0], [0.5, -1.0]], [False, True, True])

    In a model, with random vectors for the other words:

    >>> vectors = loaded.filled(seed=1)
    >>> embedding = keras.layers.Embedding(*vectors.shape, weights=[vectors])
    >>> keras.ops.convert_to_numpy(embedding(np.array([2]))).tolist()
    [[0.5, -1.0]]

    Reference:
        [Pennington et al., 2014](https://aclanthology.org/D14-1162) (GloVe);
        [Mikolov et al., 2013](https://arxiv.org/abs/1301.3781) (word2vec);
        [Bojanowski et al., 2017](https://arxiv.org/abs/1607.04606) (fastText).
    """
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as stream:
            is_compressed = stream.peek(2).startswith(b"\x1f\x8b")
            lines = gzip.GzipFile(fileobj=stream) if is_compressed else stream
            return load_word_vectors(
                lines, words, dimension=dimension, lowercase=lowercase
            )
    # The exact word comes last, because the last spelling that is found counts.
    forms = (str.lower, str) if lowercase else (str,)
    spellings = [
        [form(word).encode("utf-8", "surrogatepass") for form in forms]
        for word in words
    ]
    wanted = {spelling for variants in spellings for spelling in variants}
    read, repeated, size = _read(file, wanted, dimension)
    vectors = np.zeros((len(words), size), "float32")
    has_vector = np.zeros(len(words), "bool")
    for row, variants in enumerate(spellings):
        for spelling in filter(read.__contains__, variants):
            vectors[row], has_vector[row] = read[spelling], True
    return WordVectors(vectors, has_vector, repeated)


def _excerpt(text: bytes) -> str:
    return repr(text[:60].decode(errors="replace"))


def _read(
    lines: Iterable[bytes], wanted: Container[bytes], dimension: int | None
) -> tuple[dict[bytes, np.ndarray], int, int]:
    """Return a dict from the wanted words in the lines to their vectors.

    Args:
        lines: Iterable of bytes.
        wanted: Set of words in bytes.
        dimension: Expected dimension, or `None`.

    Returns:
        The dict, the number of lines that repeat one of its words, and the dimension.
    """
    vectors: dict[bytes, np.ndarray] = {}
    repeated, size = 0, None
    for number, line in enumerate(lines, start=1):
        if isinstance(line, str):
            raise ValueError(
                "Lines must be bytes, as those of a file opened in binary mode. "
                f"Received: {line[:60]!r}"
            )
        line = line.strip(b"\r\n \t")
        if size is None:
            line = line.removeprefix(codecs.BOM_UTF8)
            is_header, size = _dimension(line)
            if size < 1 or dimension not in (None, size):
                expected = dimension or "any number of"
                raise ValueError(
                    f"Line {number} must be a word and {expected} numbers, the "
                    f"dimension of the vectors. Received: {size} numbers"
                )
            if is_header:
                continue
        if not line:
            continue
        # Ten times as fast as splitting the numbers of every line.
        word = line[: line.find(b" ")]
        if line.count(b" ") != size:
            word, *numbers = line.rsplit(None, size)
            if len(numbers) != size:
                raise ValueError(
                    f"Line {number} must be a word and {size} numbers, as text; a "
                    "binary file of word2vec must be converted first. Received: "
                    f"{len(numbers)} numbers after {_excerpt(word)}"
                )
        if word in vectors:
            repeated += 1
        elif word in wanted:
            vectors[word] = _vector(line, size, number)
    if size is None:
        raise ValueError("Expected lines of words and numbers. Received: an empty file")
    return vectors, repeated, size


def _dimension(line: bytes) -> tuple[bool, int]:
    """Return whether the first line is a header, and the dimension of the vectors."""
    fields = line.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        return True, int(fields[1])
    return False, len(fields) - 1


def _vector(line: bytes, size: int, number: int) -> np.ndarray:
    """Return the vector of a line."""
    word, *numbers = line.rsplit(None, size)
    try:
        vector = np.array([float(x) for x in numbers])
    except ValueError:
        vector = np.array([np.nan])
    # Larger numbers would be infinite in float32.
    if not np.all(np.abs(vector) <= np.finfo("float32").max):
        raise ValueError(
            f"Line {number} must be a word and {size} finite numbers. Received for "
            f"{_excerpt(word)}: {_excerpt(b' '.join(numbers))}"
        )
    return vector.astype("float32")
