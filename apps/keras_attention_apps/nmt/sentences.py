"""From a text to the sentences that a model reads, and from translations to a text.

`split_sentences` finds the boundaries of sentences. A `Layout` divides a text into
cells, bullets and sentences, and puts their translations where the sentences were. A
`Prepared` sentence is what the model reads; it gives the translation the form of the
source.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_attention_apps.nmt import symbols
from keras_attention_apps.nmt.lexicon import LONGEST_ABBREVIATION
from keras_attention_apps.nmt.locales import in_language
from keras_attention_apps.nmt.spans import MONTHS, TIME, WORD, each_span, find_spans
from keras_attention_apps.nmt.subwords import clean
from keras_attention_apps.nmt.symbols import AlignedWords, Languages, Original

# What stands before the text of an item of a list, or of a heading.
_BULLET = re.compile(
    "\\s*(?:(?:[-*+\u2022\u25aa\u25e6\u2023\u00b7>\u2013\u2014]|#{1,6}|[0-9]{1,3}[.)]|"
    "[a-zA-Z]\\)|\\([0-9a-zA-Z]{1,3}\\)|\\[[ xX]\\])\\s+)+(?=\\S)"
)
_MARKS = ".!?\u2026"
_FINAL_MARK = re.compile(f"[{_MARKS}]+(?=[\"'\u201c\u201d\u2019\u00bb)]*$)")
_LETTER = re.compile("[^\\W\\d_]")
# Not "may", which is a verb, too.
_ENGLISH_MONTHS = "|".join(x.lower() for x in MONTHS["en"] if x != "May")
_GERMAN_MONTHS = "|".join(MONTHS["de"]).lower()
# Words that are written with a capital letter in a text in capital letters, too.
_CAPITALISED = {
    "en": re.compile(
        f"\\b(?:i(?=\\b(?!\\.))|(?:{_ENGLISH_MONTHS}|may(?= [0-9])|(?<=[0-9] )may)|"
        "(?:mon|tues|wednes|thurs|fri|satur|sun)day)\\b"
    ),
    "de": re.compile(
        f"\\b(?:{_GERMAN_MONTHS}|montag|dienstag|mittwoch|donnerstag|freitag|samstag|"
        "sonntag|uhr)\\b"
    ),
}
_DIGITS = re.compile("[0-9]+")
# Minimum number of capitalised words of a title, and maximum number of letters of its
# words in lower case.
_TITLE_WORDS, _SMALL_WORD = 3, 4
_TITLE_WORD = re.compile("[^\\W\\d_]+(?:['\u2019][^\\W\\d_]+)*")
_IS_I = re.compile("I['\u2019]")
# Numbers up to this one are usually written in words.
_SMALL_NUMBER = 12

# Pairs of marks around a whole text, and the quotation marks of languages.
_ENCLOSING = {
    "()",
    '""',
    "\u201c\u201d",
    "\u201e\u201c",
    "\u00ab\u00bb",
    "\u00bb\u00ab",
}
_QUOTES = {"de": "\u201e\u201c", "en": '""'}

_CLOSING = "\"'\u201d\u2019\u201c\u2018\u00bb\u00ab\u203a\u2039)\\]}"

_CANDIDATE = re.compile(
    # French has a space before a closing mark of quotation.
    rf"(?<![.!?\u2026])(?P<marks>[.!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362]++)"
    rf"(?:[{_CLOSING}]| \u00bb(?= |$))*+ "
    # Chinese and Japanese have no space between sentences.
    "|(?P<unspaced>[\u3002\uff01\uff1f\uff61]++)[\u300d\u300f\uff09\u201d\u2019]*+ ?"
)

_OPENING = re.compile(
    "(?:[\"'\u201c\u201e\u201a\u2018\u00bb\u2039\u203a(\\[{\u00bf\u00a1\u300c\u300e\uff08]"
    "|[-\u2013\u2014\u2022\u00ab] ?)++"
)

_WORD = re.compile(r"[^\W\d_]++")
_ALPHANUMERIC = re.compile(r"[^\W_]")
# Ordinals, Roman numbers, initials, and abbreviations such as U.S.
_SHORT = re.compile(r"\d{1,2}|[IVXLC]{2,}|[^\W\d_](?:\.[^\W\d_]++)*+")
_AFTER_LETTER = re.compile(r"(?:^| )[^\W\d_]\. $")
_BRACKETS = re.compile("[()\u300c\u300d\u300e\u300f\uff08\uff09]")
_OPEN_BRACKETS = "(\u300c\u300e\uff08"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations that another word follows.
TITLES = _words(
    "dr dra drs prof mr mrs ms messrs mx st rev hon gen col lt capt sgt maj cmdr adm "
    "gov sen rep mt hr hrn fr frl dipl ing mag med phil jur mme mlle mm mgr sra srta "
    "e.g i.e eg ie cf vs viz approx nr nrn z.b d.h s.o s.u u.\u00e4 o.\u00e4 ca vgl "
    "bzw ggf evtl inkl exkl zzgl sog bspw geb tel p.ex av"
)
# Abbreviations before numbers.
BEFORE_NUMBERS = _words(
    "no nos art fig figs vol vols p pp sec ch chap eq abb tab kap bd abs ziff anm s "
    "jan feb apr aug sept sep oct okt nov dec dez"
)
# Abbreviations that may end a sentence.
_AMBIGUOUS = _words(
    "etc usw usf ff al inc ltd co corp bros jr sr dept univ ave blvd rd ft oz lb lbs "
    "min std mio mrd jan feb aug sept sep oct okt nov dec dez"
)
# Words that often begin a sentence, and are no names.
_BEGINNINGS = _words(
    "the this that these those there here he she it they we you i my his her its our "
    "their your and but or so then if when while what who where why how please do does "
    "did is are was can could would will let in on at for from with after before "
    "der die das ein eine er sie es wir ihr ich du mein dein sein unser und aber oder "
    "dann wenn als wie wer was wo warum bitte dies diese dieser dieses dort hier auch "
    "danke im am bei nach vor mit f\u00fcr ist sind war hat haben "
    "le la les un une il elle on nous vous ils elles je tu ce cette ces et mais ou "
    "el los las una ella nosotros ellos yo esto esta y pero"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, at least one.

    A text without a boundary is returned as it is; otherwise, `clean` is applied first.
    Sentences in brackets are not split.

    >>> split_sentences("Mr. Smith paid $3.50, e.g. for tea. Was it No. 5? Yes.")
    ['Mr. Smith paid $3.50, e.g. for tea.', 'Was it No. 5?', 'Yes.']
    """
    cleaned = clean(text)
    begins = [0]
    depth = counted = 0
    for match in _CANDIDATE.finditer(cleaned):
        # In Japanese, a sentence continues after another one in brackets.
        end = match.end("unspaced") if match["unspaced"] else match.end()
        for bracket in _BRACKETS.findall(cleaned, counted, end):
            depth = max(depth + (1 if bracket in _OPEN_BRACKETS else -1), 0)
        counted = end
        if not depth and _is_boundary(cleaned, begins[-1], match):
            begins.append(match.end())
    if len(begins) == 1:
        return [text]
    ends = [*begins[1:], len(cleaned)]
    return [cleaned[i:j].strip(" ") for i, j in zip(begins, ends, strict=True)]


def join_sentences(texts: Iterable[str]) -> str:
    """Return one text of the texts of sentences, with spaces where words have them."""
    joined = ""
    for text in filter(None, texts):
        unspaced = joined.rstrip("\u300d\u300f\uff09\u201d\u2019")
        spaced = joined and not unspaced.endswith(("\u3002", "\uff01", "\uff1f"))
        joined += f" {text}" if spaced else text
    return joined


def _after_opening(text: str, position: int) -> int:
    """Return the position after the opening marks at a position."""
    match = _OPENING.match(text, position)
    return match.end() if match else position


def _is_boundary(text: str, begin: int, match: re.Match) -> bool:
    """Return whether a sentence that begins at `begin` ends with a `_CANDIDATE`."""
    position = _after_opening(text, match.end())
    following = text[position : position + 1]
    if not following.isalnum() or following.islower():
        return False
    if match["unspaced"]:
        return True
    # A sentence has a word.
    if not _ALPHANUMERIC.search(text, begin, match.start()):
        return False
    word_match = _WORD.match(text, position)
    following_word = word_match[0] if word_match else ""
    word_begin = max(text.rfind(" ", begin, match.start()) + 1, begin)
    word = text[_after_opening(text, word_begin) : match.start()]
    marks = match["marks"]
    if marks == "\u2026" or marks.startswith(".."):
        # After a space, an ellipsis stands for words.
        return bool(word) and following_word != "I"
    if marks != ".":
        return True
    lowered = word.rstrip(_CLOSING).lower()
    if lowered in TITLES or (following.isdigit() and lowered.endswith("str")):
        return False
    if following.isdigit() and (lowered.isdigit() or lowered in BEFORE_NUMBERS):
        return False
    if lowered not in _AMBIGUOUS and not _SHORT.fullmatch(word):
        return True
    # "1. The dog" is one sentence, and so is "z. B. die Katze".
    before = text[max(begin, word_begin - 4) : word_begin]
    if not before or (word.isalpha() and _AFTER_LETTER.search(before)):
        return False
    return following_word.lower() in _BEGINNINGS


@dataclasses.dataclass(frozen=True)
class Part:
    """A sentence, with the parts of the text that `symbols.hold` replaced in it."""

    text: str
    held: Sequence[str] = ()

    @property
    def original(self) -> str:
        """The sentence as it is in the source."""
        return symbols.release(self.text, self.held)


class Layout:
    """A text as sentences, and what stands between them.

    Tabs separate cells; a bullet, a number or the mark of a heading before a cell is
    not translated, nor are brackets or quotation marks around it. A sentence with more
    spans than there are symbols is divided.

    Attributes:
        parts: List of `Part`.
    """

    def __init__(
        self,
        text: str,
        language: str | None,
        *,
        target: str | None = None,
        split: bool,
        has_symbols: bool,
    ):
        held: list[str] = []
        if has_symbols:
            text, held = symbols.hold(text, language)
        # Alternately what stands between parts, and lists of parts.
        self._pieces: list[str | list[Part]] = []
        is_table = split and text.strip()
        for i, cell in enumerate(text.split("\t") if is_table else [text]):
            if i:
                self._pieces.append("\t")
            bullet = self._bullet(cell, language) if split else ""
            if bullet:
                cell = cell[len(bullet) :]
                self._pieces.append(symbols.release(bullet.lstrip(), held))
            opening, cell, closing = (
                _enclosed(cell, target) if split else ("", cell, "")
            )
            if opening:
                self._pieces.append(opening)
            sentences = split_sentences(cell) if split else [cell]
            if has_symbols:
                sentences = [
                    part
                    for sentence in sentences
                    for part in symbols.divided(sentence, language)
                ]
            self._pieces.append([Part(sentence, held) for sentence in sentences])
            if closing:
                self._pieces.append(closing)
        self.parts = [
            x for piece in self._pieces if isinstance(piece, list) for x in piece
        ]

    @staticmethod
    def _bullet(cell, language):
        match = _BULLET.match(cell)
        if not match:
            return ""
        # "3. Mai" is a date.
        for span in each_span(cell, language):
            if span.begin >= match.end():
                break
            if span.kind == TIME:
                return ""
        return match[0]

    @property
    def is_plain(self) -> bool:
        """Whether the text is only sentences."""
        return len(self._pieces) == 1

    def joined(self, texts: Sequence[str]) -> str:
        """Return the text of the translations of the parts."""
        waiting = iter(texts)
        joined = ""
        for piece in self._pieces:
            if isinstance(piece, str):
                joined += piece
            else:
                joined += join_sentences(next(waiting, "") for _ in piece)
        return joined


def _enclosed(cell, target):
    """Return the marks around a whole text in the form of a language, and its text.

    They are the opening mark, the text without them, and the closing mark.
    """
    text = cell.strip()
    marks, inner = text[:1] + text[-1:], text[1:-1]
    if marks not in _ENCLOSING or set(marks) & set(inner) or not _LETTER.search(inner):
        return "", cell, ""
    opening, closing = marks if marks == "()" else _QUOTES.get(target, marks)
    return opening, inner, closing


class Prepared:
    """A sentence as the model reads it.

    Attributes:
        text: The sentence for the model: in sentence case, with symbols.
        originals: Dict from the symbols in it to what they stand for.
    """

    def __init__(
        self,
        part: Part,
        languages: Languages,
        *,
        has_symbols: bool = False,
        is_word: Callable[[str], bool] = bool,
        is_ordinary: Callable[[str], bool] = bool,
        is_common: Callable[[str], bool] = lambda word: False,
        names: Sequence[tuple[int, int]] = (),
        reserved: Sequence[tuple[int, int]] = (),
    ):
        self._part = part
        self._has_symbols = has_symbols
        self._is_word = is_word
        self._languages = languages
        text = part.text
        self._is_upper = _is_upper(text, is_ordinary)
        if self._is_upper:
            text = _sentence_case(text, languages[0])
        elif languages[0] == "en" and _is_title(text, is_common):
            text = _title_as_sentence(text, is_common)
        self._has_other_case = text != part.text
        self.originals: dict[str, Original] = {}
        self._unprotected: list[tuple[str, int]] = []
        if has_symbols:
            spans = symbols.all_spans(
                text, languages[0], () if self._is_upper else names
            )
            spans = [
                x
                for x in spans
                if not any(x.begin < end and begin < x.end for begin, end in reserved)
            ]
            text, self.originals = self._substituted(text, part, spans)
        else:
            self._unprotected = [
                (text[x.begin : x.end], x.kind) for x in find_spans(text, languages[0])
            ]
        self.text = text

    def _substituted(self, text, part, spans):
        """Return the text with symbols, and what they stand for, in its own case."""
        substituted, originals = symbols.substitute(
            text, spans, part.held, self._languages
        )
        if not self._has_other_case:
            return substituted, originals
        _, original_case = symbols.substitute(
            part.text, spans, part.held, self._languages
        )
        return substituted, original_case

    def lost_in(self, translation: str) -> list[str]:
        """Return what a model without symbols has lost in a translation.

        Small numbers may be written in words.
        """
        numbers = set(_DIGITS.findall(translation))

        def is_kept(text, kind):
            if re.search(f"(?<![0-9]){re.escape(text)}(?![0-9])", translation):
                return True
            digits = _DIGITS.findall(text)
            is_small = all(x in numbers or int(x) <= _SMALL_NUMBER for x in digits)
            return kind != WORD and bool(digits) and is_small

        return [
            text
            for text, kind in self._unprotected
            if not is_kept(text, kind)
            and not is_kept(in_language(text, kind, *self._languages), kind)
        ]

    @property
    def has_only_symbols(self) -> bool:
        """Whether nothing but symbols and marks is left to translate."""
        return self._has_symbols and not _LETTER.search(self.text)

    def postprocess(self, aligned: AlignedWords) -> tuple[AlignedWords, list[str]]:
        """Return the words of a translation as they are read, and what is lost.

        The words have symbols before, and what these stand for afterwards.
        """
        aligned = dataclasses.replace(aligned, words=self.match_form(aligned.words))
        aligned, lost = symbols.each_once(aligned, self.originals)
        words, shares = self.fill_symbols(aligned.words)
        source_words, source_shares = self.fill_symbols(
            aligned.source_words, is_source=True
        )
        # The weights of a word are the mean of those of its parts, and the weight of a
        # word of the source is the sum of theirs.
        shares = shares / shares.sum(axis=1, keepdims=True)
        return (
            AlignedWords(
                source_words,
                words,
                shares @ aligned.weights @ source_shares.T,
                shares @ aligned.end_weights,
                shares @ aligned.log_probabilities,
            ),
            lost,
        )

    def match_form(self, words: Sequence[str]) -> list[str]:
        """Return the words of a translation in the case of the source, with its mark.

        The words have symbols; they stay as many as they are.
        """
        words = list(words)
        if not words:
            return words
        source = clean(self.text)
        words[-1] = _with_mark(source, words[-1])
        first = _first_letter(source)
        if first is not None and words[0][:1].isalpha():
            initial, rest = words[0][:1], words[0][1:]
            if first.isupper() and initial.islower():
                # The capital of a letter may be two.
                words[0] = (
                    initial.upper() if len(initial.upper()) == 1 else initial
                ) + rest
            elif (
                first.islower()
                and initial.isupper()
                and self._languages[1] == "en"
                and words[0] != "I"
                and self._is_word(words[0].lower())
            ):
                words[0] = initial.lower() + rest
        if self._is_upper:
            words = [word.upper() for word in words]
        return words

    def fill_symbols(
        self, words: Sequence[str], *, is_source: bool = False
    ) -> tuple[list[str], np.ndarray]:
        """Return words with what the symbols stand for; see `symbols.restore`.

        The words of a source have the case of the source.
        """
        restored, shares = symbols.restore(words, self.originals, is_source=is_source)
        if is_source and self._has_other_case:
            original = clean(self._part.original).split(" ")
            if len(original) == len(restored):
                restored = original
        return restored, shares


def _is_upper(text, is_ordinary):
    """Return whether a text is in capital letters, and is no abbreviation.

    A short word alone is an abbreviation unless `is_ordinary` returns true for it.
    """
    letters = _LETTER.findall(text)
    if len(letters) < 2 or any(x.islower() for x in letters):
        return False
    if not any(x.isupper() for x in letters) or len(text.lower()) != len(text):
        return False
    words = re.findall("[^\\W\\d_]+", text)
    if len(words) > 1:
        return max(map(len, words)) > 2
    return len(words[0]) > LONGEST_ABBREVIATION or is_ordinary(words[0])


def _sentence_case(text, language):
    """Return a text in capital letters as a sentence."""
    text = text.lower()
    capitalised = _CAPITALISED.get(language)
    if capitalised:
        text = capitalised.sub(lambda match: match[0].capitalize(), text)
    match = _LETTER.search(text)
    if not match:
        return text
    position = match.start()
    return f"{text[:position]}{text[position].upper()}{text[position + 1 :]}"


def _is_title(text, is_common):
    """Return whether a text is an English title, such as "The Best Way to Learn".

    Most words are capitalised, and all of more than four letters. Most of the
    capitalised words after the first are common: usually in lower case.
    """
    words = [x for x in _TITLE_WORD.findall(text) if not x.isupper()]
    capitalised = [x for x in words if x[0].isupper()]
    if len(capitalised) < max(_TITLE_WORDS, (len(words) + 1) / 2):
        return False
    if any(x[0].islower() and len(x) > _SMALL_WORD for x in words):
        return False
    return sum(map(is_common, capitalised[1:])) > (len(capitalised) - 1) / 2


def _title_as_sentence(text, is_common):
    """Return a title with its common words in lower case, but for the first."""
    first = _TITLE_WORD.search(text)
    begin = first.start() if first else 0

    def lowered(match):
        word = match[0]
        if match.start() == begin or word.isupper() or _IS_I.match(word):
            return word
        lower = word.lower()
        return lower if is_common(word) and len(lower) == len(word) else word

    return _TITLE_WORD.sub(lowered, text)


def _first_letter(text):
    """Return the first character if it is a letter, after opening marks, or `None`."""
    match = re.match("[\"'\u201c\u201e\u00bb\u00ab(\u00bf\u00a1]*([^\\W\\d_])", text)
    return match[1] if match else None


def _with_mark(source, word):
    """Return the last word of a translation with the final mark of the source."""
    source_mark, mark = _FINAL_MARK.search(source), _FINAL_MARK.search(word)
    if source_mark and not mark:
        # After a quotation mark, its place is not certain.
        return word + source_mark[0] if word[-1:].isalnum() else word
    if mark and not source_mark:
        without = word[: mark.start()] + word[mark.end() :]
        is_short = len(without) < 2 or "." in without
        return word if is_short or source.endswith((":", ";", ",")) else without
    if source_mark and mark and {source_mark[0], mark[0]} == {"?", "."}:
        return word[: mark.start()] + source_mark[0] + word[mark.end() :]
    return word
