"""Tokenization of captions into words, and the vocabulary."""

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import Self

from keras_attention_apps.common.characters import UNSPACED, remove_invisible
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import parse_json, to_json
from keras_attention_apps.common.tokenizer import (
    END,
    PAD,
    START,
    UNKNOWN,
    StoredTokenizer,
)

SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
VOCABULARY = "vocabulary.json"
# Longer captions are cut, since tokenization takes many times the memory of a text.
MAX_CHARACTERS = 100_000
# Minimum share of the captions with a word that contain it twice, for words that a
# search may repeat. It is 3 % for "man" and "white", 1 % for "camera" and "table".
REPEATED_SHARE = 0.02
ARTICLES = ("a", "an", "the")
# Minimum share of the occurrences of a noun after an article that end a noun phrase. It
# is 38 % for "dog" and 73 % for "bed"; "baseball" (15 %) and "tennis" (0 %) are mostly
# parts of compounds.
NOUN_SHARE = 1 / 3
# Other words follow an article in less than this share of their occurrences. Those of
# them that are in the second share of the captions count as function words.
AFTER_ARTICLE_SHARE, FREQUENT_SHARE = 0.05, 0.05
# Minimum share of the words after "a", and of those after "an", whose first letter
# agrees with the article, for captions in English.
ARTICLE_SHARE = 0.9
VOWELS = tuple("aeiou")
# Stands for combining marks (accents, vowel signs) and joiners, which belong to the
# letter before them.
_MARK = "\ufe0f"
_POSSESSIVE = re.compile(r"(?<=\w)['’]s\b")
_SPACED = rf"(?:(?!{UNSPACED})\w{_MARK}*)+"
_WORD = re.compile(rf"'s\b|{_SPACED}(?:['’-]{_SPACED})*|(?={UNSPACED})\w{_MARK}*")
# Patterns and replacements that join words, in order; RE2 supports all of them. The
# second pattern is applied twice: the matches of one pass cannot overlap.
JOINTS = ((" 's", "'s"), *2 * [(f"({UNSPACED}) ({UNSPACED})", r"\1\2")])


def tokenize(caption: str) -> list[str]:
    """Split a caption into lower-case words without punctuation, in any script.

    In a script without spaces between words, every character is a word. Invisible
    characters are removed, and a caption is cut to `MAX_CHARACTERS`.

    >>> tokenize("A man's T-shirt, in the sun .")
    ['a', 'man', "'s", 't-shirt', 'in', 'the', 'sun']
    >>> tokenize("一只狗。")
    ['一', '只', '狗']
    """
    caption = remove_invisible(caption[:MAX_CHARACTERS])
    text = unicodedata.normalize("NFC", caption.lower())
    text = _POSSESSIVE.sub(" 's", text)
    # The same length as the text, so that the spans of its words are those of the text.
    masked = "".join(map(_masked, text))
    return [text[slice(*match.span())] for match in _WORD.finditer(masked)]


def _masked(character):
    """Return `_MARK` in place of a combining mark or a joiner."""
    is_mark = unicodedata.category(character)[0] == "M"
    return _MARK if is_mark or character in "\u200c\u200d" else character


def sentence(text: str) -> str:
    """Return a caption as a sentence: with a capital letter, and a full stop."""
    text = text[:1].upper() + text[1:]
    return f"{text}." if text[-1:].isalnum() else text


def detokenize(words: Iterable[str]) -> str:
    """Join words to a readable caption.

    >>> detokenize(["a", "man", "'s", "hat"])
    "a man's hat"
    """
    text = " ".join(words)
    for pattern, replacement in JOINTS:
        text = re.sub(pattern, replacement, text)
    return text


def repeatable_words(captions: Iterable[str], vocabulary: "Vocabulary") -> list[str]:
    """Return the words of a vocabulary that captions repeat, in order.

    These are the words that occur several times in at least `REPEATED_SHARE` of the
    captions that contain them, and are no nouns of English: "a bed and a bed" is wrong.
    """
    texts = [tokenize(caption) for caption in captions]
    once: collections.Counter[str] = collections.Counter()
    repeated: collections.Counter[str] = collections.Counter()
    for words in texts:
        counts = collections.Counter(words)
        once.update(counts.keys())
        repeated.update(word for word, count in counts.items() if count > 1)
    nouns = _nouns(texts)
    return sorted(
        word
        for word, count in repeated.items()
        if word in vocabulary
        and word not in nouns
        and count >= REPEATED_SHARE * once[word]
    )


def _nouns(texts: list[list[str]]) -> set[str]:
    """Return the words that often end a noun phrase which begins with an article.

    A phrase such as "the dog" ends before a function word, and with the caption.
    """
    occurrences = collections.Counter(itertools.chain.from_iterable(texts))
    captions = collections.Counter(word for words in texts for word in {*words})
    after_article: collections.Counter[str] = collections.Counter()
    for words in texts:
        for article, word in itertools.pairwise(words):
            after_article[word] += article in ARTICLES
    others = {
        word
        for word, count in occurrences.items()
        if after_article[word] < AFTER_ARTICLE_SHARE * count
    }
    function_words = {
        word for word in others if captions[word] >= FREQUENT_SHARE * len(texts)
    }
    endings: collections.Counter[str] = collections.Counter()
    for words in texts:
        # The second word of the last pair has no follower.
        followers = itertools.zip_longest(itertools.pairwise(words), words[2:])
        for (article, word), follower in followers:
            is_end = follower is None or follower in function_words
            endings[word] += article in ARTICLES and is_end
    return {
        word
        for word, count in endings.items()
        if word not in others and count and count >= NOUN_SHARE * after_article[word]
    }


def words_after_an(
    captions: Iterable[str], vocabulary: "Vocabulary"
) -> list[str] | None:
    """Return the words of a vocabulary before which "a" is "an", in order.

    These are the words that follow "an" more often than "a" in the captions. Words that
    follow neither are chosen by their first letter. `None` if "a" and "an" are not the
    articles of English, which nearly always agree with the first letter.
    """
    if not ("a" in vocabulary and "an" in vocabulary):
        return None
    counts: dict[str, collections.Counter[str]]
    counts = {article: collections.Counter() for article in ("a", "an")}
    for caption in captions:
        for word, following in itertools.pairwise(tokenize(caption)):
            if word in counts:
                counts[word][following] += 1
    for article, followers in counts.items():
        agreeing = sum(
            count
            for word, count in followers.items()
            if word.startswith(VOWELS) == (article == "an")
        )
        if agreeing < ARTICLE_SHARE * followers.total():
            return None
    after_a, after_an = counts["a"], counts["an"]
    return sorted(
        word
        for word in vocabulary.words[len(SPECIAL) :]
        if word not in ARTICLES
        and (after_an[word], word.startswith(VOWELS)) > (after_a[word], False)
    )


class Vocabulary(StoredTokenizer):
    """Words and their token ids; the first four are special."""

    banned = (PAD, START, UNKNOWN)
    file_name = VOCABULARY

    def __init__(self, words: Iterable[str]):
        self.words = (*SPECIAL, *words)
        self.content = f"{to_json(self.words[len(SPECIAL) :], indent=2)}\n".encode()
        self._ids = {word: number for number, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            raise ValueError(
                "words must differ from one another and from the special words "
                f"{SPECIAL}. Received {len(self.words) - len(self._ids)} duplicates"
            )

    @classmethod
    def from_captions(cls, captions: Iterable[str], min_count: int) -> Self:
        """Build a vocabulary of the words that occur at least `min_count` times."""
        words = itertools.chain.from_iterable(map(tokenize, captions))
        counts = collections.Counter(words)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls([word for word, count in ranked if count >= min_count])

    @classmethod
    def from_content(cls, content: bytes) -> Self:
        words = parse_json(content)
        if type(words) is not list or not all(type(x) is str for x in words):
            raise UserError(f"{VOCABULARY} must be a list of words")
        return cls(words)

    def extended(self, other: "Vocabulary") -> "Vocabulary":
        """Return this vocabulary, followed by the words that only `other` has."""
        words = self.words[len(SPECIAL) :]
        new = [word for word in other.words if word not in self._ids]
        return Vocabulary([*words, *new])

    def ids_of(self, words: Iterable[str]) -> list[int]:
        """Return the token ids of those words that are in the vocabulary."""
        return [self._ids[word] for word in words if word in self._ids]

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def encode(self, caption: str, max_length: int) -> list[int]:
        """Return the token ids of a caption from START to END.

        A caption of more than `max_length` words, END included, is cut and has no END.
        """
        words = tokenize(caption)
        token_ids = [START, *(self._ids.get(word, UNKNOWN) for word in words), END]
        return token_ids if len(words) < max_length else token_ids[:max_length]

    def decode(self, token_ids: Iterable[int]) -> list[str]:
        """Return the words of a caption up to END, which is left out."""
        before_end = itertools.takewhile(lambda token: token != END, token_ids)
        return [self.words[token] for token in before_end]
