"""Glossaries: phrases whose translations are fixed."""

import re
import unicodedata

from keras_attention_apps.common.characters import begins_unspaced
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, UNKNOWN
from keras_attention_apps.nmt.data.dataset import read_lines
from keras_attention_apps.nmt.subwords import clean

# Zero-width non-joiner and joiner, which separate no words.
_JOINERS = "\u200c\u200d"


class Glossary:
    """A glossary: source phrases, and the target phrases that translate them.

    A source phrase matches whole words of a sentence. A phrase in lower case matches
    any case; one with capitals matches only the same spelling. Where several phrases
    match, the longest one applies, and a word belongs to one phrase at most.

    Args:
        phrases: Pairs of a source phrase and its target phrase, as a dict or a list.

    Raises:
        UserError: If a phrase is empty, or a source phrase has two translations.

    Example:

    >>> glossary = Glossary({"dog": "Hund", "hot dog": "Hotdog"})
    >>> glossary.find("A Dog eats a hot dog.")
    {'Hund': {1}, 'Hotdog': {4, 5}}
    """

    def __init__(self, phrases):
        # Dict from case-folded source words to a dict of their target phrases. Its keys
        # are the words as written, or `None` for an entry that matches any case.
        self._targets = {}
        self._longest = 0
        pairs = phrases.items() if isinstance(phrases, dict) else phrases
        for source, target in pairs:
            self._add(source, target)

    @classmethod
    def from_file(cls, path):
        """Read a glossary: a line per entry, source phrase, tab, target phrase.

        Empty lines are ignored. The text is UTF-8, or UTF-16 or UTF-32 with a byte
        order mark.
        """
        glossary = cls({})
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip():
                continue
            columns = line.split("\t")
            try:
                if len(columns) != 2:
                    raise UserError(
                        "expected a source phrase, a tab and a target phrase. "
                        f"Received: {line!r:.80}"
                    )
                glossary._add(*columns)
            except UserError as error:
                raise UserError(f"{path}, line {number}: {error}") from error
        return glossary

    def __len__(self):
        return sum(map(len, self._targets.values()))

    def _add(self, source, target):
        words, target = _words(source), clean(target)
        if not words or not target:
            raise UserError(
                f"expected two phrases. Received: {source!r:.60} and {target!r:.60}"
            )
        self._longest = max(self._longest, len(words))
        entries = self._targets.setdefault(tuple(map(str.casefold, words)), {})
        written = None if source == source.lower() else tuple(words)
        before = entries.setdefault(written, target)
        if before != target:
            raise UserError(
                f"{source!r:.60} has two translations. Received: {before!r:.60} and "
                f"{target!r:.60}"
            )

    def find(self, sentence):
        """Return a dict from the target phrases for a sentence, in order, to sets.

        A set has the indices of the words, between spaces, of the source.
        """
        words = _words(sentence)
        spaced = [i for i, x in enumerate(clean(sentence).split()) for _ in _words(x)]
        folded = [word.casefold() for word in words]
        phrases: dict[str, set[int]] = {}
        position = 0
        while position < len(words):
            for size in range(min(self._longest, len(words) - position), 0, -1):
                here = slice(position, position + size)
                entries = self._targets.get(tuple(folded[here]), {})
                target = entries.get(tuple(words[here]), entries.get(None))
                if target is not None:
                    phrases.setdefault(target, set()).update(spaced[here])
                    position += size
                    break
            else:
                position += 1
        return phrases

    def spans(self, sentence):
        """Return where the words of source phrases are: pairs of a begin and an end."""
        words = [match.span() for match in re.finditer(r"\S+", sentence)]
        indices = set().union(*self.find(sentence).values())
        return [span for i, span in enumerate(words) if i in indices]


def _words(text):
    """Return the words of a text: sequences of letters, marks and digits.

    A punctuation mark is a word, and so is a character of a script without spaces,
    each with the combining marks and joiners after it.
    """
    words: list[str] = []
    for part in clean(text).split():
        continues = False
        for position, character in enumerate(part):
            is_letter = _is_letter(character) and not begins_unspaced(character)
            if position and (_is_mark(character) or (continues and is_letter)):
                words[-1] += character
            else:
                words.append(character)
                continues = is_letter
    return words


def count_phrase(words, phrase):
    """Return how often the words of a phrase are among those of a text, in a row.

    Both are lists of words, or of tokens.

    >>> count_phrase(["a", "dog", "and", "a", "dog"], ["a", "dog"])
    2
    """
    size = len(phrase)
    return sum(words[i : i + size] == phrase for i in range(len(words) - size + 1))


def _is_letter(character):
    """Return whether a character is a letter, a digit or an underscore."""
    return unicodedata.category(character)[0] in "LN" or character == "_"


def _is_mark(character):
    """Return whether a character modifies the one before it."""
    return unicodedata.category(character)[0] == "M" or character in _JOINERS


def encode_phrase(tokenizer, phrase):
    """Return the token ids of a target phrase within a translation.

    There is a space before it, unless it begins with a script without spaces.
    """
    if begins_unspaced(phrase):
        token_ids = tokenizer.encode_within(phrase)
    else:
        token_ids = [x for x in tokenizer.encode(phrase) if x != END]
    if UNKNOWN in token_ids:
        raise UserError(f"the subwords of the model cannot spell {phrase!r:.60}")
    return token_ids


def word_continuations(tokenizer):
    """Return the subwords that would continue a word.

    In scripts without spaces, only marks continue one.
    """

    def continues(piece, byte):
        if byte is not None:
            # From 128 on, it is a part of a character, which may be a letter.
            return byte >= 128 or _is_letter(chr(byte))
        is_letter = _is_letter(piece[0]) and not begins_unspaced(piece)
        return is_letter or _is_mark(piece[0])

    pieces = enumerate(tokenizer.pieces)
    return [i for i, piece in pieces if continues(piece, tokenizer.bytes.get(i))]
