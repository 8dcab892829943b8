"""Copying: ids beyond the vocabulary for rare words of the source.

Subwords can spell every word, so no word is unknown. Rare words, such as names and
numbers, consist of several subwords. With copying, the words of several subwords
are numbered in each sentence, and the word with number k has the extended id N + k,
where N is the vocabulary size. The translation copies such a word as a whole, as one
token; every other subword of the source can be copied, too, under its own id.

A word is a sequence of letters, digits and marks between spaces and punctuation, and
of characters that are outside of the vocabulary and consist of bytes. In writing
systems without spaces, no word is copied as a whole.
"""

import unicodedata

import numpy as np
from keras_attention_apps.common.text import has_unspaced
from keras_attention_apps.nmt.text import WORD_BEGIN

# Kinds of subwords: outside of a word, within a word, at the beginning of a word.
OUTSIDE, WITHIN, BEGINNING = range(3)
# Number of a subword that belongs to no word of several subwords.
NONE = -1


class Copying:
    """Extended ids of the words of a source, and the words of extended ids.

    Attributes:
        kinds: Integer array `(N,)`, the kind of every subword.
    """

    def __init__(self, subwords):
        self._pieces = subwords.pieces
        pieces = enumerate(subwords.pieces)
        kinds = [_kind(piece, subwords.bytes.get(i)) for i, piece in pieces]
        self.kinds = np.array(kinds, "int32")

    def numbers(self, token_ids):
        """Return the number of the word of each subword of a source, or `NONE`."""
        kinds = self.kinds[np.asarray(token_ids, "int32")]
        begins, continues = boundaries(kinds, np.append(OUTSIDE, kinds[:-1]))
        unknown = begins & np.append(continues[1:], False)
        return np.where(unknown | continues, np.cumsum(unknown) - 1, NONE)

    def extend(self, source, target):
        """Return a target in which words of the source are replaced by extended ids.

        If a word occurs several times, its first occurrence in the target is the first
        in the source, and so on.
        """
        in_source = self._words(source)
        if not in_source:
            return target
        replaced = {}
        for word, found in self._words(target).items():
            numbers = in_source.get(word, ())
            for number, copied in zip(
                found, [*numbers, *numbers[-1:] * len(found)], strict=False
            ):
                replaced[number] = len(self.kinds) + copied
        extended, before = [], NONE
        for token, number in zip(target, self.numbers(target).tolist(), strict=True):
            if number not in replaced:
                extended.append(token)
            elif number != before:
                extended.append(replaced[number])
            before = number
        return extended

    def expand(self, token_ids, source):
        """Replace extended ids by the subwords of the source.

        Returns the list of token ids, and the index of the token from which each comes.
        """
        numbers, size = self.numbers(source), len(self.kinds)
        expanded, places = [], []
        for place, token in enumerate(map(int, token_ids)):
            spelt = [token]
            if token >= size:
                spelt = np.asarray(source)[numbers == token - size].tolist()
            expanded += spelt
            places += [place] * len(spelt)
        return expanded, places

    def _words(self, token_ids):
        """Return a dict from words of several subwords to lists of their numbers."""
        texts, words = {}, {}
        numbers = self.numbers(token_ids).tolist()
        for token, number in zip(token_ids, numbers, strict=True):
            if number != NONE:
                texts[number] = texts.get(number, "") + self._pieces[token]
        for number, text in texts.items():
            words.setdefault(text, []).append(number)
        return words


def boundaries(kinds, before):
    """Return which subwords begin a word, and which continue one."""
    continues = (kinds == WITHIN) & (before != OUTSIDE)
    return (kinds != OUTSIDE) & ~continues, continues


def _kind(piece, byte):
    """Return the kind of a subword, which is a byte if `byte` is not `None`."""
    if byte is not None:
        # A byte from 128 on is a part of a character.
        return WITHIN if byte >= 128 or chr(byte).isalnum() else OUTSIDE
    word = piece.removeprefix(WORD_BEGIN)
    # Letters, marks and numbers; or a space in front of characters that are bytes.
    is_word = all(unicodedata.category(x)[0] in "LMN" for x in word)
    if not is_word or has_unspaced(word):
        return OUTSIDE
    return BEGINNING if piece.startswith(WORD_BEGIN) else WITHIN
