"""Symbols of the vocabulary that stand for what must survive a translation.

`spans` finds numbers, times, codes, addresses and the like. Before the model, each of
them becomes a symbol, one subword of the vocabulary; after the model, the symbol
becomes what it stands for, in the form of the target language. The search produces
every symbol of a source exactly once. Each kind of spans has symbols of its own.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_attention_apps.nmt.locales import in_language
from keras_attention_apps.nmt.spans import (
    NUMBER,
    TIME,
    WORD,
    Span,
    each_span,
    find_spans,
)

Languages = tuple[str | None, str | None]

# Code points of the symbols of each kind, of Unicode's area for private use.
SYMBOLS = {
    NUMBER: range(0xE000, 0xE006),
    TIME: range(0xE010, 0xE014),
    WORD: range(0xE020, 0xE026),
}
# First code point of the characters that hold the place of words and codes in a text of
# several sentences, of another area for private use.
HOLDERS = 0xF0000
_MAX_HOLDERS = 0xFFFD
_HOLDER = re.compile(f"[{chr(HOLDERS)}-{chr(HOLDERS + _MAX_HOLDERS)}]")
_SYMBOL = re.compile("[\ue000-\ue02f]")
_BEFORE = re.compile("(?<=\\S)([\ue000-\ue02f])")
# The "s" of a genitive stays where it is.
_AFTER = re.compile("([\ue020-\ue02f])(?=[^\\W\\d_])(?!s\\b)")
# Marks before a word, which may be others in the target language.
_OPENING = "([{\"'\u201c\u201e\u201d\u201a\u2018\u2019\u00bb\u00ab\u203a\u2039"


@dataclasses.dataclass(frozen=True)
class Original:
    """Text that a symbol stands for.

    Attributes:
        source: The text in the source.
        target: The text in the translation.
        before: The character before it without a space between them, if there is one.
        is_before: Whether a word follows without a space.
    """

    source: str
    target: str
    before: str = ""
    is_before: bool = False


@dataclasses.dataclass(frozen=True)
class AlignedWords:
    """The words of a sentence and of its translation, and their alignment.

    Attributes:
        source_words, words: The words of both.
        weights: Attention `(len(words), len(source_words))`.
        end_weights: Attention to the end of the sentence, `(len(words),)`.
        log_probabilities: Log-probability of each word, `(len(words),)`.
    """

    source_words: list[str]
    words: list[str]
    weights: np.ndarray
    end_weights: np.ndarray
    log_probabilities: np.ndarray


def place_symbols(text: str) -> str:
    """Return a text with a space before each symbol, and between one and a word.

    The subword of a symbol includes the space before it.
    """
    return _AFTER.sub(r"\1 ", _BEFORE.sub(r" \1", text))


def hold(text: str, language: str | None = None) -> tuple[str, list[str]]:
    """Replace words and codes of a text by one character each; return these as well.

    The characters are in a text until it is divided into sentences, so that no sentence
    ends within an address, and nothing within code is normalised.
    """
    parts: list[str] = []
    held, position = "", 0
    for span in find_spans(text, language):
        if span.kind != WORD or len(parts) == _MAX_HOLDERS:
            continue
        held += text[position : span.begin] + chr(HOLDERS + len(parts))
        parts.append(text[span.begin : span.end])
        position = span.end
    return held + text[position:], parts


def release(text: str, parts: Sequence[str]) -> str:
    """Return a text with the parts of `hold` in their places again."""
    if not parts:
        return text
    return _HOLDER.sub(lambda match: parts[ord(match[0]) - HOLDERS], text)


def all_spans(
    text: str, language: str | None, names: Iterable[tuple[int, int]] = ()
) -> list[Span]:
    """Return the spans of a text that may have characters of `hold`.

    `names` are the begin and the end of each word that the model should copy.
    """
    spans = find_spans(text, language)
    words = [
        Span(begin, end, WORD)
        for begin, end in names
        if not any(x.begin < end and begin < x.end for x in spans)
    ]
    # Everything else comes before names where symbols are short.
    free = len(SYMBOLS[WORD]) - sum(span.kind == WORD for span in spans)
    return sorted([*spans, *words[: max(free, 0)]], key=lambda x: x.begin)


def divided(sentence: str, language: str | None) -> Iterator[str]:
    """Yield parts of a sentence for whose spans there are symbols."""
    while True:
        excess = _first_excess(each_span(sentence, language))
        if excess is None:
            yield sentence
            return
        space = sentence.rfind(" ", 0, excess.begin)
        cut = space if space > 0 else excess.begin
        yield sentence[:cut].strip(" ")
        sentence = sentence[cut:].strip(" ")


def _first_excess(spans):
    """Return the first span for which its kind has no symbol left, or `None`."""
    counts = dict.fromkeys(SYMBOLS, 0)
    for span in spans:
        counts[span.kind] += 1
        if counts[span.kind] > len(SYMBOLS[span.kind]):
            return span
    return None


def substitute(
    text: str,
    spans: Sequence[Span],
    parts: Sequence[str],
    languages: Languages,
) -> tuple[str, dict[str, Original]]:
    """Return a text with symbols in place of its spans, and what they stand for.

    A span for which no symbol is left stays in the text. The `parts` are those of
    `hold`.
    """
    free = {kind: list(map(chr, points)) for kind, points in SYMBOLS.items()}
    originals: dict[str, Original] = {}
    substituted, position = "", 0
    for span in spans:
        if not free[span.kind]:
            continue
        symbol = free[span.kind].pop(0)
        begin, end = span.begin, span.end
        source = release(text[begin:end], parts)
        target = in_language(source, span.kind, *languages)
        # A model may lose one of two brackets.
        if begin > position and text[begin - 1] == "(" and text[end : end + 1] == ")":
            begin, end = begin - 1, end + 1
            source, target = f"({source})", f"({target})"
        substituted += text[position:begin]
        originals[symbol] = Original(
            source,
            target,
            substituted[-1:].strip(),
            span.kind == WORD and text[end : end + 1].isalpha(),
        )
        substituted += symbol
        position = end
    return place_symbols(substituted + text[position:]), originals


def restore(
    words: Sequence[str], originals: dict[str, Original], *, is_source: bool = False
) -> tuple[list[str], np.ndarray]:
    """Return words in which each symbol is what it stands for.

    What a symbol stands for may have several words, and may be a part of the word
    before it. The second result, `(restored words, words)`, has the share of each word
    in each restored word; its columns sum to one.
    """
    if not originals:
        return list(words), np.eye(len(words))
    restored: list[str] = []
    members: list[list[int]] = []
    joins = False
    for i, word in enumerate(words):
        original = originals.get(word[:1])
        parts, is_joined = [word], joins
        if original is not None:
            rest = word[1:]
            text = original.source if is_source else original.target
            # A point ends an abbreviation and the sentence.
            if text.endswith(".") and rest.startswith("."):
                rest = rest[1:]
            parts = f"{text}{rest}".split(" ")
            is_joined = joins or _joins(original, words[i - 1] if i else "")
            joins = original.is_before and not rest
        else:
            joins = False
        first = len(restored)
        if is_joined and restored:
            first -= 1
            restored[-1] += parts[0]
            parts = parts[1:]
        restored += parts
        members.append(list(range(first, len(restored))))
    shares = np.zeros((len(restored), len(words)))
    for i, indices in enumerate(members):
        shares[indices, i] = 1 / len(indices)
    return restored, shares


def _joins(original, before):
    """Return whether what a symbol stands for follows a word without a space."""
    if not original.before:
        return False
    last = before[-1:]
    if original.before in _OPENING:
        return last != "" and last in _OPENING
    return last == original.before


def each_once(
    aligned: AlignedWords, originals: dict[str, Original]
) -> tuple[AlignedWords, list[str]]:
    """Return the words of a translation with each symbol of the source once.

    A symbol that is missing is placed after the word that attends to it, and one that
    is repeated is removed. Also return what these symbols stand for, whose place in the
    translation is not certain.
    """
    lost: list[str] = []
    source_words, words, weights = aligned.source_words, aligned.words, aligned.weights
    columns = [aligned.end_weights, aligned.log_probabilities]
    text = " ".join(words)
    for symbol in [symbol for symbol in originals if symbol not in text]:
        lost.append(originals[symbol].source)
        column = next(
            (i for i, word in enumerate(source_words) if symbol in word), None
        )
        position = len(words)
        if column is not None and weights.size and weights[:, column].any():
            position = int(weights[:, column].argmax()) + 1
        words = [*words[:position], symbol, *words[position:]]
        row = np.zeros((1, weights.shape[1]))
        if column is not None:
            row[0, column] = 1.0
        weights = np.concatenate([weights[:position], row, weights[position:]])
        columns = [np.insert(x, position, 0.0) for x in columns]
    text = "\0".join(words)
    once = _without_repeats(text)
    if once != text:
        rest = once.split("\0")
        repeated = [i for i, word in enumerate(rest) if word != words[i]]
        for i in repeated:
            original = originals.get(words[i][:1])
            lost.append(original.source if original else words[i])
        rows = [i for i, word in enumerate(rest) if word]
        words, weights = [rest[i] for i in rows], weights[rows]
        columns = [x[rows] for x in columns]
    return AlignedWords(source_words, words, weights, *columns), lost


def _without_repeats(text):
    """Return a text in which every symbol after its first occurrence is removed."""
    seen: set[str] = set()

    def first(match):
        if match[0] in seen:
            return ""
        seen.add(match[0])
        return match[0]

    return _SYMBOL.sub(first, text)
