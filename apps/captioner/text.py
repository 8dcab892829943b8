"""Captions as words, and words as numbers."""

import collections
import re

from keras_attention_apps.common.tokens import END, START, UNKNOWN

SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")

_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")
_WORD = re.compile(r"'s\b|\w+(?:['’-]\w+)*")


def tokenize(caption):
    """Split a caption into lower-case words without punctuation, in any script.

    >>> tokenize("A man's T-shirt, in the sun .")
    ['a', 'man', "'s", 't-shirt', 'in', 'the', 'sun']
    """
    return _WORD.findall(_POSSESSIVE.sub(" 's", caption.lower()))


def detokenize(words):
    """Join words to a readable caption.

    >>> detokenize(["a", "man", "'s", "hat"])
    "a man's hat"
    """
    return " ".join(words).replace(" 's", "'s")


class Vocabulary:
    """Words and their numbers; the first four are special.

    Args:
        words: The ordinary words, in the order of their numbers.
    """

    def __init__(self, words):
        self.words = (*SPECIAL, *words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise ValueError(
                "words must differ from one another and from the special words "
                f"{SPECIAL}. Received {len(self.words) - len(self._ids)} duplicates"
            )

    @classmethod
    def from_captions(cls, captions, min_count):
        """The words that occur at least `min_count` times, the most frequent first."""
        counts = collections.Counter()
        for caption in captions:
            counts.update(tokenize(caption))
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, count in ranked if count >= min_count])

    def extended(self, other):
        """This vocabulary, with what only another has behind it."""
        own = self.words[len(SPECIAL) :]
        new = [word for word in other.words if word not in self._ids]
        return Vocabulary([*own, *new])

    def __len__(self):
        return len(self.words)

    def encode(self, caption, max_length):
        """Token ids of a caption from START to END.

        A caption of more than `max_length` words is cut, and has no END: it does not
        end there.
        """
        words = tokenize(caption)
        token_ids = [START, *(self._ids.get(word, UNKNOWN) for word in words), END]
        return token_ids[: max_length + 1] if len(words) > max_length else token_ids

    def decode(self, token_ids):
        """The words of a caption up to, and without, END."""
        words = []
        for token in token_ids:
            if token == END:
                break
            words.append(self.words[token])
        return words
