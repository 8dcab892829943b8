"""The words of a training text with their translations, learned by IBM model 1.

A translator is often sure of a wrong translation of a word that it has hardly seen. A
lexicon finds it: no word of the output is a translation of the word.
"""

import collections
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import numpy as np

from keras_attention_apps.common.characters import has_unspaced
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.subwords import Subwords

LEXICON = "lexicon.txt"
# Words are compared by their first letters, so that inflected forms are the same word.
STEM = 7
# Minimum probability of a translation, and of its expected number of occurrences.
MIN_PROBABILITY, MIN_COUNT = 0.03, 1.9
# Iterations of the expectation-maximisation algorithm.
ITERATIONS = 4
# Maximum number of pairs, and of words of a sentence, from which a lexicon is learned.
MAX_PAIRS, MAX_WORDS = 400_000, 40
# Words of this rarity or less count as untranslated without weight: they are function
# words, which often have no translation. The largest rarity that counts.
FUNCTION_WORD_RARITY, MAX_RARITY = 4.0, 12.0
# Least number of letters and of subwords of a name, and greatest number of letters per
# subword.
NAME_LENGTH, NAME_PIECES, NAME_PIECE_LENGTH = 4, 3, 2.5
# A word of up to this many capital letters may be an abbreviation.
LONGEST_ABBREVIATION = 5
# Words without the "'s" of a genitive.
_WORDS = re.compile("[^\\W\\d_]+(?:[-'\u2019](?!s\\b)[^\\W\\d_]+)*")
_TWO_LETTERS = re.compile("[^\\W\\d_]{2}")
# A first word before these is a verb.
_AFTER_VERB = re.compile(" (?:du|ihr|dich|dir|euch|mich|mir|uns|sich|er|sie|es|wir)\\b")
# Number of the bits of the index of a target word.
_BITS = 32
# Number of words whose stem is cached: few, as clients of a server send long ones, too.
_CACHED = 2_000


@functools.lru_cache(_CACHED)
def stem(word: str) -> str:
    """Return the first letters of a word in lower case, without other characters.

    >>> stem("Speicherkarte,"), stem("don't"), stem("19:30")
    ('speiche', 'dont', '')
    """
    return "".join(filter(str.isalpha, word.lower()))[:STEM]


def separated_words(tokenizer: Subwords, text: str) -> list[str]:
    """Return the words of a text: those between spaces, as `Subwords.words`."""
    if text.isascii() or not has_unspaced(text):
        return text.split()
    words, _ = tokenizer.words(tokenizer.encode(text))
    return words


@functools.lru_cache(_CACHED)
def _is_word(text):
    """Return whether a text is letters alone, with marks around them."""
    if any(x.isalnum() and not x.isalpha() for x in text):
        return False
    return sum(is_alpha for is_alpha, _ in itertools.groupby(text, str.isalpha)) == 1


def _piece_count(word, tokenizer):
    """Return the number of subwords of a word, without END."""
    return len(tokenizer.encode(word)) - 1


class Lexicon:
    """The words of a language with their frequency, and their translations.

    Args:
        entries: Dict from the stem of each word to the number of its occurrences, and
            the stems of its translations. See `stem`.
    """

    def __init__(self, entries: dict[str, tuple[int, list[str]]]):
        self.entries = entries
        self._total = sum(count for count, _ in entries.values())
        self._sources: dict[str, set[str]] = {}
        for source, (_, targets) in entries.items():
            for target in targets:
                self._sources.setdefault(target, set()).add(source)

    @classmethod
    def learn(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        words_of: Callable[[str], Iterable[str]] = str.split,
    ) -> Self:
        """Learn a lexicon from sentence pairs, of which there may be any number.

        Reference:
            [Brown et al., 1993](https://aclanthology.org/J93-2003/), section 4.
        """
        if len(sources) > MAX_PAIRS:
            chosen = np.linspace(0, len(sources) - 1, MAX_PAIRS).astype(int)
            sources, targets = ([x[i] for i in chosen] for x in (sources, targets))
        counts: collections.Counter[str] = collections.Counter()
        # Number 0 is the empty word, which translates to what no other word does.
        numbers: tuple[dict[str, int], dict[str, int]] = {"": 0}, {}
        pairs, rows, row = [], [], 0
        for sentences in zip(sources, targets, strict=True):
            stems = [list(filter(None, map(stem, words_of(x)))) for x in sentences]
            counts.update(stems[0])
            if not (all(stems) and max(map(len, stems)) <= MAX_WORDS):
                continue
            source, target = (
                np.array([of.setdefault(x, len(of)) for x in side], np.int64)
                for of, side in zip(numbers, stems, strict=True)
            )
            source = np.append(0, source)
            pairs.append(((source << _BITS) + target[:, None]).ravel())
            rows.append(np.repeat(np.arange(row, row + len(target)), len(source)))
            row += len(target)
        if not pairs:
            return cls({})
        keys, inverse = np.unique(np.concatenate(pairs), return_inverse=True)
        row_of_each = np.concatenate(rows)
        source = keys >> _BITS
        probabilities = np.ones(len(keys))
        for _ in range(ITERATIONS):
            expected = probabilities[inverse]
            expected /= np.bincount(row_of_each, expected)[row_of_each]
            totals = np.bincount(inverse, expected)
            probabilities = totals / np.bincount(source, totals)[source]
        is_reliable = (
            (probabilities >= MIN_PROBABILITY) & (totals >= MIN_COUNT) & (source > 0)
        )
        words, translations = map(list, numbers)
        entries = collections.defaultdict(list)
        for key in keys[is_reliable]:
            target = translations[key & (2**_BITS - 1)]
            entries[words[key >> _BITS]].append(target)
        ranked = sorted(entries, key=lambda x: (-counts[x], x))
        return cls({word: (counts[word], sorted(entries[word])) for word in ranked})

    @classmethod
    def from_content(cls, content: bytes) -> Self:
        """Return the lexicon of a file; see `content`."""
        entries = {}
        for line in content.decode("utf-8", "replace").removesuffix("\n").split("\n"):
            columns = line.split("\t")
            if len(columns) != 3 or not re.fullmatch("[0-9]{1,15}", columns[1]):
                raise UserError(
                    f"{LEXICON} must have lines of a word, a number and translations, "
                    f"with tabs between them. Received: {line[:60]!r}"
                )
            word, count, targets = columns
            entries[word] = int(count), targets.split(" ")
        return cls(entries)

    @property
    def content(self) -> bytes:
        """Lines of a word, its number of occurrences, and its translations."""
        lines = (
            f"{word}\t{count}\t{' '.join(targets)}\n"
            for word, (count, targets) in self.entries.items()
        )
        return "".join(lines).encode()

    def has(self, word: str) -> bool:
        """Return whether the training text has a word of the source language."""
        return stem(word) in self.entries

    def translates(self, source: str, word: str) -> bool:
        """Return whether a stem is a translation of a stem of the source language."""
        return word in self.entries.get(source, (0, ()))[1]

    def rarity(self, word: str) -> float:
        """Return how rare a stem is, from 0 for function words on.

        It is minus the logarithm of its frequency, without that of function words.
        """
        count, _ = self.entries.get(word, (0, ()))
        rarity = math.log(max(self._total, 1) / (1 + count))
        return max(min(rarity, MAX_RARITY) - FUNCTION_WORD_RARITY, 0.0)

    def mean_rarity(self, words: Sequence[str]) -> float:
        """Return the mean rarity of words; those without letters count as 0."""
        rarities = [self.rarity(word) if word else 0.0 for word in map(stem, words)]
        return sum(rarities) / max(len(rarities), 1)

    def untranslated(
        self, source_words: Sequence[str], words: Sequence[str]
    ) -> dict[int, float]:
        """Return the rarity of the source words that no word translates, by index.

        A word that is in the translation as it is counts as translated.
        """
        stems = set(map(stem, words))
        rarities = {}
        for i, source in enumerate(map(stem, source_words)):
            _, targets = self.entries.get(source, (0, ()))
            if source and source not in stems and stems.isdisjoint(targets):
                rarities[i] = self.rarity(source)
        return rarities

    def names_in(self, text: str, tokenizer: Subwords) -> list[tuple[int, int]]:
        """Return the begin and the end of each word that is probably a name to copy.

        It begins with a capital letter, the training text does not have it, and the
        vocabulary takes it apart into short pieces. An abbreviation in capital letters
        may be in the training text, if it is its own translation. In a text without
        longer words, single capital letters are names, but for "I".
        """
        matches = _WORDS.finditer(text)
        return [x.span() for x in matches if self._is_name(x, tokenizer)]

    def _is_name(self, match, tokenizer):
        word = match[0]
        if not word[0].isupper():
            return False
        if len(word) == 1:
            return word != "I" and not _TWO_LETTERS.search(match.string)
        # Most words are known, and need not be encoded.
        if word.isupper():
            is_copied = not self.has(word) or self.translates(stem(word), stem(word))
            is_short = is_copied and len(word) <= LONGEST_ABBREVIATION
            return is_short and _piece_count(word, tokenizer) > 1
        if len(word) < NAME_LENGTH or self.has(word):
            return False
        if not match.start() and _AFTER_VERB.match(match.string, match.end()):
            return False
        count = _piece_count(word, tokenizer)
        return count >= NAME_PIECES and len(word) <= NAME_PIECE_LENGTH * count

    def copied(
        self, source_words: Sequence[str], words: Sequence[str]
    ) -> dict[int, float]:
        """Return the rarity of the words that were copied, not translated, by index.

        In the training text, such a word of the source does not stay as it is, unlike
        names. Numbers, addresses and codes, which are not letters alone, may stay.
        """
        stems = {stem(word) for word in source_words if _is_word(word)}
        rarities = {}
        for i, word in enumerate(words):
            copy = stem(word)
            _, targets = self.entries.get(copy, (0, ()))
            if _is_word(word) and copy in stems and copy not in targets:
                rarities[i] = self.rarity(copy)
        return rarities

    def unexplained(
        self, source_words: Sequence[str], words: Sequence[str]
    ) -> list[int]:
        """Return the indices of the words that translate no word of the source."""
        stems = set(map(stem, source_words))
        return [
            i
            for i, word in enumerate(map(stem, words))
            if word
            and word not in stems
            and stems.isdisjoint(self._sources.get(word, ()))
        ]
