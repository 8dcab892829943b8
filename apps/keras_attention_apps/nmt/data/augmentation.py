"""Data augmentation of sentence pairs: symbols for what must survive, and forms.

A model learns to copy symbols from pairs in which numbers, times, names and codes that
stand on both sides become symbols. It learns the forms of texts, such as labels, from
pairs in lower case, as titles, or without the mark at their end.
"""

import dataclasses
import functools
import re
from collections import Counter

import numpy as np

from keras_attention_apps.nmt.spans import NUMBER, TIME, WORD, find_spans
from keras_attention_apps.nmt.symbols import SYMBOLS, place_symbols

# Probabilities with which a symbol replaces what stands on both sides. Digits of a
# source are always replaced in a translation; words for numbers, names and days are
# not, so the model has to know both.
NUMBER_WORDS, NAMES, DAYS, UNITS = 0.4, 0.3, 0.3, 0.4
# Probabilities of further symbols: a second one beside another, marks around one, and
# marks before, within or after a sentence.
BESIDE, AROUND, ADDED = 0.1, 0.04, 0.06
# Weight of pairs with numbers and times, which are few.
NUMBER_WEIGHT = 2.0
# Probabilities of the forms of a pair.
NO_MARK, LOWER_FIRST, LOWER, TITLE, LABEL = 0.1, 0.04, 0.03, 0.01, 0.3

_TOKEN = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
_MARK = re.compile(r"[.!?]+$")
_ONES = {
    "en": [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ],
    "de": [
        "null",
        "eins",
        "zwei",
        "drei",
        "vier",
        "fünf",
        "sechs",
        "sieben",
        "acht",
        "neun",
        "zehn",
        "elf",
        "zwölf",
        "dreizehn",
        "vierzehn",
        "fünfzehn",
        "sechzehn",
        "siebzehn",
        "achtzehn",
        "neunzehn",
    ],
}
_TENS = {
    "en": [
        "twenty",
        "thirty",
        "forty",
        "fifty",
        "sixty",
        "seventy",
        "eighty",
        "ninety",
    ],
    "de": [
        "zwanzig",
        "dreißig",
        "vierzig",
        "fünfzig",
        "sechzig",
        "siebzig",
        "achtzig",
        "neunzig",
    ],
}
_DAYS = {
    "en": [
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
    ],
    "de": [
        "Montag",
        "Dienstag",
        "Mittwoch",
        "Donnerstag",
        "Freitag",
        "Samstag",
        "Sonntag",
    ],
}
# Words after a number that may belong to it, in the same order.
_UNITS = {
    "en": [
        "dollars",
        "euros",
        "percent",
        "kilometers",
        "kilometres",
        "miles",
        "meters",
        "metres",
        "pounds",
        "kilograms",
        "degrees",
    ],
    "de": [
        "Dollar",
        "Euro",
        "Prozent",
        "Kilometer",
        "Kilometer",
        "Meilen",
        "Meter",
        "Meter",
        "Pfund",
        "Kilogramm",
        "Grad",
    ],
}
_OCLOCK = {"en": re.compile(r" o['\u2019]clock"), "de": re.compile(r" Uhr")}
_BETWEEN = {
    "en": {TIME: (" at ", " on "), NUMBER: (" or ", " to ", " x "), WORD: (" ", " - ")},
    "de": {
        TIME: (" um ", " am "),
        NUMBER: (" oder ", " bis ", " x "),
        WORD: (" ", " - "),
    },
}


@functools.cache
def number_words(language: str) -> dict[str, int]:
    """Return a dict from words for numbers, 2 to 99, to the numbers."""
    if language not in _ONES:
        return {}
    ones, tens = _ONES[language], _TENS[language]
    words = {word: n for n, word in enumerate(ones) if n > 1}
    for i, ten in enumerate(tens, start=2):
        words[ten] = 10 * i
        for n, unit in enumerate(ones[1:10], start=1):
            joined = f"{ten}-{unit}"
            if language == "de":
                joined = f"{'ein' if n == 1 else unit}und{ten}"
            words[joined] = 10 * i + n
    return words


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Parts of both sides of a pair, `(begin, end)` each, that a symbol may replace.

    The `with_units` are both parts with the words for a unit after them, if there are
    such words.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    kind: int
    probability: float
    with_units: tuple[tuple[int, int], tuple[int, int]] | None


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of one side, with a key that is equal on both sides."""

    begin: int
    end: int
    kind: int
    key: object
    probability: float
    unit: str | None = None
    unit_end: int = 0


class Augmentation:
    """Varies sentence pairs; each epoch, differently.

    Args:
        languages: Codes of both languages, such as `("en", "de")`, or `None` each.
        symbols: Whether symbols replace what must survive.
        forms: Whether the forms of pairs vary.
    """

    def __init__(self, sources, targets, languages, *, symbols=True, forms=True):
        self.sources, self.targets = sources, targets
        self.languages = languages
        self.forms = forms
        self._names: frozenset[str] = frozenset()
        self._candidates: list = [()] * len(sources)
        if symbols:
            self._names = _names(sources, targets, languages)
            self._candidates = [
                tuple(self._find(*pair)) for pair in zip(sources, targets, strict=True)
            ]
        self.symbols = symbols
        self._lowered = _usually_lower(targets) if forms else frozenset()
        self._lowered_sources = _usually_lower(sources) if forms else frozenset()

    def _find(self, source, target):
        """Yield the candidates of a pair that do not overlap."""
        sides = [
            self._parts(text, language)
            for text, language in zip((source, target), self.languages, strict=True)
        ]
        counts = [Counter(part.key for part in side) for side in sides]
        others = {part.key: part for part in sides[1]}
        taken: list[list[tuple[int, int]]] = [[], []]
        for part in sorted(sides[0], key=lambda x: x.begin - x.end):
            other = others.get(part.key)
            if other is None or any(count[part.key] != 1 for count in counts):
                continue
            spans = (part.begin, part.end), (other.begin, other.end)
            if any(
                begin < span[1] and span[0] < end
                for spans_of_side, span in zip(taken, spans, strict=True)
                for begin, end in spans_of_side
            ):
                continue
            for spans_of_side, span in zip(taken, spans, strict=True):
                spans_of_side.append(span)
            with_units = None
            if part.unit and part.unit == other.unit:
                with_units = (
                    (part.begin, part.unit_end),
                    (other.begin, other.unit_end),
                )
            # Digits of the source are always replaced.
            yield Candidate(*spans, part.kind, part.probability, with_units)

    def _parts(self, text, language):
        """Return the parts of a text that may be on both sides."""
        parts = []
        spans = find_spans(text, language)
        for span in spans:
            key = _key(text[span.begin : span.end], span.kind, language)
            parts.append(_Part(span.begin, span.end, span.kind, key, 1.0))
        numbers = number_words(language)
        days = dict(zip(_DAYS.get(language, ()), range(7), strict=False))
        units = _UNITS.get(language, ())
        for match in _TOKEN.finditer(text):
            word, (begin, end) = match[0], match.span()
            if any(begin < span.end and span.begin < end for span in spans):
                continue
            name = re.sub("['\u2019]?s$", "", word) if language == "de" else word
            if word.lower() in numbers and numbers[word.lower()] is not None:
                number = numbers[word.lower()]
                kind, key = NUMBER, (NUMBER, (number,))
                o_clock = language in _OCLOCK and _OCLOCK[language].match(text, end)
                if o_clock:
                    kind, key, end = TIME, (TIME, (number % 12,)), o_clock.end()
                parts.append(_Part(begin, end, kind, key, NUMBER_WORDS))
            elif word in days:
                parts.append(_Part(begin, end, TIME, (TIME, word and days[word]), DAYS))
            elif word in self._names:
                parts.append(_Part(begin, end, WORD, (WORD, word), NAMES))
            elif name in self._names:
                end = begin + len(name)
                parts.append(_Part(begin, end, WORD, (WORD, name), NAMES))
        return [self._with_unit(part, text, units) for part in parts]

    def _with_unit(self, part, text, units):
        """Return the part with the word for a unit after it, if it is a number."""
        match = _TOKEN.match(text, part.end + 1)
        is_number = part.kind == NUMBER and text[part.end : part.end + 1] == " "
        if not is_number or not match or match[0] not in units:
            return part
        unit = _UNITS["de"][units.index(match[0])]
        return dataclasses.replace(part, unit=unit, unit_end=match.end())

    @property
    def weights(self) -> np.ndarray:
        """How often an epoch has each pair: those with numbers and times more often."""
        has = [
            any(x.kind != WORD for x in candidates) for candidates in self._candidates
        ]
        return np.where(has, NUMBER_WEIGHT, 1.0)

    def __call__(self, index, random: np.random.Generator) -> tuple[str, str]:
        """Return the varied pair of an index."""
        texts = [self.sources[index], self.targets[index]]
        if self.forms:
            texts = self._form(texts, random)
        if not self.symbols:
            return texts[0], texts[1]
        free = {kind: list(random.permutation(SYMBOLS[kind])) for kind in SYMBOLS}

        def symbol(kind):
            return chr(free[kind].pop()) if free[kind] else None

        chosen = []
        for x in self._candidates[index]:
            if random.random() >= x.probability or not free[x.kind]:
                continue
            new = symbol(x.kind)
            pair = [new, new]
            if random.random() < BESIDE and free[x.kind]:
                beside = symbol(x.kind)
                between = [
                    _BETWEEN.get(language, _BETWEEN["en"])[x.kind]
                    for language in self.languages
                ]
                i = random.integers(len(between[0]))
                pair = [f"{new}{words[i]}{beside}" for words in between]
            elif random.random() < AROUND and len(free[WORD]) > 1:
                before, after = symbol(WORD), symbol(WORD)
                pair = [f"{before}{text}{after}" for text in pair]
            spans = x.source, x.target
            if x.with_units and random.random() < UNITS:
                spans = x.with_units
            chosen.append((*spans, pair))
        for side in (0, 1):
            for x in sorted(chosen, key=lambda x: -x[side][0]):
                (begin, end), text = x[side], texts[side]
                texts[side] = text[:begin] + x[2][side] + text[end:]
        if random.random() < ADDED:
            texts = _added(texts, symbol, random)
        return place_symbols(texts[0]), place_symbols(texts[1])

    def _form(self, texts, random):
        """Return a pair in another form, of the same lengths but for its last mark."""
        source, target = texts
        marks = [_MARK.search(text) for text in texts]
        if all(marks) and random.random() < NO_MARK:
            source, target = map(_without_mark, texts)
        elif not any(marks) and random.random() < LABEL and source[:1].islower():
            return [source[:1].upper() + source[1:], target]
        if random.random() < LOWER_FIRST:
            source = _lower_first(source, self._lowered_sources)
            target = _lower_first(target, self._lowered)
        elif random.random() < LOWER:
            # The places of candidates must stay.
            lowered = source.lower()
            source = lowered if len(lowered) == len(source) else source
        elif random.random() < TITLE:
            source = re.sub(
                r"(?<![\w'\u2019])[^\W\d_]", lambda match: match[0].upper(), source
            )
        return [source, target]


def _added(texts, symbol, random):
    """Return a pair with another symbol before, within or after both sides."""
    source, target = texts
    form = random.integers(7)
    new = symbol(WORD if form == 2 else random.choice([WORD, WORD, WORD, NUMBER, TIME]))
    if new is None:
        return texts
    if form == 0:
        return [f"{new} {text}" for text in texts]
    if form == 1:
        return [f"{new}: {text}" for text in texts]
    if form == 2:
        other = symbol(WORD)
        if other is None:
            return texts
        return [f"{new}{text}{other}" for text in texts]
    added = f" {new}" if form < 5 else f" ({new})"
    if form == 4:
        added = f": {new}"
    if form == 3 or not all(map(_MARK.search, texts)):
        return [source + added, target + added]
    return [_MARK.sub(lambda match: added + match[0], text) for text in texts]


def _without_mark(text):
    return _MARK.sub("", text)


def _key(text, kind, language):
    """Return a key that is equal for the same number, time or word in two languages."""
    if kind == WORD:
        return WORD, text
    lowered = text.lower()
    if kind == NUMBER:
        digits = re.sub(r"(?<=\d)[.,'\u2019\u00a0\u202f](?=\d)", "", text)
        return NUMBER, tuple(int(x) for x in re.findall(r"\d+", digits)[:4])
    for month, names in enumerate(_MONTHS, start=1):
        lowered = re.sub(rf"\b(?:{names})\w*\.?", f" {month} ", lowered)
    numbers = [int(x) for x in re.findall(r"\d+", lowered)][:6]
    if ":" in text or re.search("uhr|clock|[ap]\\.?m", lowered):
        numbers = [numbers[0] % 12, *[x for x in numbers[1:] if x]]
        return TIME, tuple(numbers)
    return TIME, tuple(sorted(numbers))


_MONTHS = (
    "jan",
    "feb",
    "mar|m\u00e4r",
    "apr",
    "may|mai",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct|okt",
    "nov",
    "dec|dez",
)


def _names(sources, targets, languages):
    """Return the capitalised words that stand on both sides of some pair.

    German capitalises all nouns, so the words of the other language decide: in it, they
    are capitalised within a sentence, and never in lower case.
    """
    side = 1 if languages[0] == "de" else 0
    texts = (sources, targets)[side]
    within: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for text in texts:
        for match in _TOKEN.finditer(text):
            word = match[0]
            if word[0].isupper():
                before = text[max(match.start() - 2, 0) : match.start()]
                if before[:1].isalpha() or before[:1] == ",":
                    within[word] += 1
            else:
                lower[word] += 1
    names = {
        word
        for word, count in within.items()
        if len(word) > 2 and lower[word.lower()] <= count / 4 and not word.isupper()
    }
    others = {
        match[0]
        for text in (sources, targets)[1 - side]
        for match in _TOKEN.finditer(text)
    }
    days = {day for days in _DAYS.values() for day in days}
    return frozenset((names & others) - days)


def _usually_lower(texts):
    """Return the words that are mostly in lower case within a sentence."""
    counts: Counter[str] = Counter()
    for text in texts:
        for match in _TOKEN.finditer(text):
            if match.start():
                word = match[0]
                counts[word.lower()] += 1 if word[0].islower() else -1
    return frozenset(word for word, count in counts.items() if count > 0)


def _lower_first(text, lowered):
    """Return a text whose first word is in lower case, unless it is a noun or name."""
    match = _TOKEN.match(text)
    if match and match[0].lower() in lowered and match[0] != "I":
        return text[:1].lower() + text[1:]
    return text
