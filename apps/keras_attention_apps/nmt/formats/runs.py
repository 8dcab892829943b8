"""Runs of language in a source text, and their translations in the same places.

A `Run` is a stretch of a source without a block boundary, such as a paragraph: a list
of `Piece`s that follow each other in the source. A format finds the runs of a source
and says how a translated text is written in its syntax; `translate_runs` translates
them sentence by sentence, and `replaced` returns the source with their translations.
Every character outside of runs, and every run whose translation equals it, is copied.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from keras_attention_apps.nmt.formats.placement import (
    Mark,
    Placement,
    Sentence,
    UnplacedDivisionError,
)
from keras_attention_apps.nmt.lexicon import Lexicon
from keras_attention_apps.nmt.subwords import BLANKS, clean

# Kinds of pieces: text, tags around text, things that stay as they are, and such
# things between two sentences.
TEXT, OPEN, CLOSE, UNIT, BREAK = "text", "open", "close", "unit", "break"

# Punctuation that belongs to the word before it.
_CLOSING = tuple(".,;:!?)]}\u2026\u201d\u00bb")
_WORD = re.compile(BLANKS.replace("[", "[^", 1))
# Signs between the entries of a list.
_SEPARATOR = re.compile(
    r"\|+|(?<=\s)[\u00b7\u2022\u2027\u2219](?=\s|$)|^[\u00b7\u2022]"
)


@dataclasses.dataclass(slots=True)
class Piece:
    """A piece of a run.

    Attributes:
        kind: `TEXT`, `OPEN`, `CLOSE`, `UNIT` or `BREAK`.
        start, end: Its position in the source.
        text: What a reader sees of it. The translator sees the text of a unit, too, if
            the unit can be found again in the translation.
        name: Of a tag: an opening and a closing tag of the same name are a pair.
        is_word: Whether a unit stands for a word, such as code.
        joins: Whether a unit may be inside of a word, such as a comment.
        divides: Whether a unit needs words on both of its sides.
    """

    kind: str
    start: int
    end: int
    text: str = ""
    name: str = ""
    is_word: bool = False
    joins: bool = False
    divides: bool = False


@dataclasses.dataclass(slots=True)
class Run:
    """A stretch of a source that is translated.

    Attributes:
        pieces: The pieces, which follow each other without a gap.
        spell: Function that returns a character of a translation in the syntax of the
            source.
        finish: Function from the pieces of a translated run, pairs of a kind and a
            source text, to the source text of the run; `None` leaves it as it is.
        tag: End of the name of the tag that an attribute may be added to; `None` if
            there is none.
        alternative: Runs of the same places that are translated if this one cannot be.
        keeps_unsure: Whether the run stays as it is if its translation is unsure.
        sentences: What the translator sees of its sentences, once it is translated.
    """

    pieces: list[Piece]
    spell: Callable[[str], str] = str
    finish: Callable[[list[tuple[str, str]]], str | None] | None = None
    tag: int | None = None
    alternative: "list[Run] | None" = None
    keeps_unsure: bool = False
    sentences: list[str] = dataclasses.field(default_factory=list)

    @property
    def start(self) -> int:
        return self.pieces[0].start

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def text(self) -> str:
        """The text that a reader sees."""
        shown = (" " if x.kind == BREAK else x.text for x in self.pieces)
        return clean("".join(shown))


def has_letters(pieces: Iterable[Piece]) -> bool:
    """Return whether there is something to translate."""
    texts = (x.text for x in pieces if x.kind == TEXT)
    return any(x.isalpha() for text in texts for x in text)


# Texts of a link that are an address, a name on a network, or have no letters.
_ADDRESS = re.compile(
    r"(?:[a-z]+://|www\.|mailto:)\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|[@#][\w.-]+"
    r"|(?:[\w-]+\.)+[a-z]{2,}(?:/\S*)?|[^a-z]*",
    re.IGNORECASE,
)
_FOOTNOTE = re.compile(
    r"\[[^\]\s]{1,3}\]|[*\u2020\u2021\u00a7\u00b6\u00b9\u00b2\u00b3]+"
)
_SUPERSCRIPT = re.compile(r"\W*\w{1,3}\W*")
# Maximum number of pieces of a tag that can be a unit.
_SMALL = 8
# What may stand between two units that move together.
_BETWEEN = re.compile(r"\s*[-+/,&|\u2013\u2192>]?\s*")


def collapsed(pieces: list[Piece]) -> list[Piece]:
    """Return pieces in which a tag around an address, number or footnote is a unit."""
    result: list[Piece] = []
    opened: list[int] = []
    for piece in pieces:
        result.append(piece)
        if piece.kind == OPEN:
            opened.append(len(result) - 1)
        elif piece.kind == CLOSE and opened:
            begin = opened[-1]
            tag = result[begin]
            if tag.name != piece.name:
                continue
            opened.pop()
            inner = result[begin + 1 : -1]
            if len(inner) > _SMALL or any(x.kind == BREAK for x in inner):
                continue
            text = "".join(x.text for x in inner).strip()
            is_footnote = _FOOTNOTE.fullmatch(text) or (
                tag.name == "sup" and _SUPERSCRIPT.fullmatch(text)
            )
            if text and (is_footnote or _is_address(text)):
                unit = Piece(UNIT, tag.start, piece.end, name=tag.name)
                unit.text = "" if is_footnote else text
                unit.joins = bool(is_footnote)
                result[begin:] = [unit]
    return result


def _is_address(text):
    if _ADDRESS.fullmatch(text):
        return text.isascii() or not any(map(str.isalpha, text))
    return False


def merged(pieces: list[Piece]) -> list[Piece]:
    """Return pieces in which units with a sign or nothing between them are one unit."""
    result: list[Piece] = []
    for piece in pieces:
        result.append(piece)
        if not _is_movable(piece):
            continue
        is_text = len(result) > 2 and result[-2].kind == TEXT
        first = -3 if is_text else -2
        if len(result) < -first or not _is_movable(result[first]):
            continue
        before = result[first]
        if is_text and not _BETWEEN.fullmatch(result[-2].text):
            continue
        if before.text and piece.text:
            continue
        is_word = before.is_word or piece.is_word
        result[first:] = [Piece(UNIT, before.start, piece.end, is_word=is_word)]
    return result


def _is_movable(piece):
    return piece.kind == UNIT and not piece.joins and piece.name != "br"


@dataclasses.dataclass
class Document:
    """The text of a file in a format, and its runs.

    Attributes:
        source: The text that has the runs: that of the file, or its messages.
        runs: The runs.
        edits: Begins, ends and texts of further replacements in the source.
        place_of: Function from a position in the source to a name for it that people
            understand, by default its line.
        finish: Function from the translated source, and the runs that are unsure, to
            the text of the translated file.
    """

    source: str
    runs: list[Run]
    edits: list[tuple[int, int, str]] = dataclasses.field(default_factory=list)
    place_of: Callable[[int], str] | None = None
    finish: Callable[[str, list[Run]], str] | None = None

    def __post_init__(self):
        if self.place_of is None:
            ends = [x.end() for x in re.finditer("\r\n?|\n", self.source)]
            self.place_of = lambda x: f"line {bisect.bisect_right(ends, x) + 1}"


class Shown(NamedTuple):
    """A unit of which the translator sees a text."""

    piece: Piece
    text: str


class _Atoms:
    """The characters of a run, and what the translator sees of each.

    An atom is a character, a reference to one, or a unit whose text is seen. `shown` is
    what the translator sees, `spelled` what the source has: a string, or the piece of a
    unit. The root of `marks` has the tags and units, with places among the atoms.
    """

    def __init__(self, source, run, hidden, stand_ins=False):
        self.shown: list[str] = []
        self.spelled: list[Any] = []
        self.boundaries: set[int] = set()
        self.root = Mark(None)
        self.marks: list[Mark] = []
        open_marks = [self.root]
        counts: dict[str, int] = {}
        after_unit = False
        for piece in run.pieces:
            if piece.kind == TEXT:
                if after_unit and piece.text.startswith(_CLOSING):
                    self._hide_spaces()
                after_unit = after_unit and not piece.text.strip()
                self._add_text(piece, source)
            elif piece.kind == OPEN:
                mark = self._mark(piece, open_marks[-1])
                open_marks.append(mark)
                counts[piece.name] = counts.get(piece.name, 0) + 1
            elif piece.kind == CLOSE and counts.get(piece.name):
                while True:
                    mark = open_marks.pop()
                    mark.end = len(self.shown)
                    counts[mark.piece.name] -= 1
                    if mark.piece.name == piece.name:
                        mark.close = piece
                        break
            elif shown := self._shown_of(piece, hidden, stand_ins):
                self.shown.append(shown)
                self.spelled.append(Shown(piece, shown))
                after_unit = False
            else:
                if piece.kind == BREAK:
                    self.boundaries.add(len(self.shown))
                joins = piece.joins or piece.kind in (BREAK, CLOSE)
                mark = self._mark(piece, open_marks[-1])
                mark.is_unit = True
                if not joins:
                    self.shown.append(" ")
                    self.spelled.append("")
                    after_unit = True
        for mark in open_marks:
            mark.end = len(self.shown)

    def _shown_of(self, piece, hidden, stand_ins):
        """Return what the translator sees of a unit, or an empty string."""
        if piece.kind != UNIT or piece.start in hidden:
            return ""
        if piece.text or not (stand_ins and piece.is_word):
            return piece.text
        count = sum(isinstance(x, Shown) for x in self.spelled)
        return f"{{{count}}}"

    def _mark(self, piece, parent):
        mark = Mark(piece, len(self.shown), len(self.shown), parent)
        parent.children.append(mark)
        self.marks.append(mark)
        return mark

    def _add_text(self, piece, source):
        spelled = source[piece.start : piece.end]
        if spelled == piece.text:
            self.shown += spelled
            self.spelled += spelled
        else:
            self.shown.append(piece.text)
            self.spelled.append(spelled)

    def _hide_spaces(self):
        """Hide the spaces before a closing punctuation mark from the translator."""
        position = len(self.shown)
        while position and self.shown[position - 1].isspace():
            position -= 1
            self.shown[position] = ""

    def chunks(self):
        """Yield the ranges of atoms between boundaries of sentences."""
        separators = []
        text = "".join(self.shown)
        if _SEPARATOR.search(text):
            owners = [i for i, x in enumerate(self.shown) for _ in x]
            for match in _SEPARATOR.finditer(text):
                first, last = owners[match.start()], owners[match.end() - 1]
                if not isinstance(self.spelled[first], Shown):
                    separators += [first, last + 1]
        cuts = sorted({0, *self.boundaries, *separators, len(self.shown)})
        yield from itertools.pairwise(cuts)

    def sentences(self, split):
        """Return the `Sentence`s that have words to translate."""
        translatable = []
        for begin, end in self.chunks():
            text, firsts, lasts = self._cleaned(begin, end)
            position = 0
            for part in split(text) if text else ():
                start = text.find(part, position)
                if start < 0 or not part:
                    continue
                position = start + len(part)
                atoms = range(firsts[start], lasts[position - 1])
                letters = (
                    self.shown[i]
                    for i in atoms
                    if not isinstance(self.spelled[i], Shown)
                )
                if not any(x.isalpha() for shown in letters for x in shown):
                    continue
                spans = [
                    (firsts[i], lasts[i])
                    for i in range(start, position)
                    if text[i] != " "
                ]
                translatable.append(Sentence(part, atoms.start, atoms.stop, spans))
        return translatable

    def _cleaned(self, begin, end):
        """Return the clean text of atoms, and for each character its range of atoms."""
        text = "".join(self.shown[begin:end])
        owners = [i for i in range(begin, end) for _ in self.shown[i]]
        words: list[str] = []
        firsts: list[int] = []
        lasts: list[int] = []
        for match in _WORD.finditer(text):
            word, size = clean(match[0]), match.end() - match.start()
            if not word:
                continue
            if words:
                firsts.append(owners[match.start()])
                lasts.append(owners[match.start()])
            words.append(word)
            for i in range(len(word)):
                position = owners[match.start() + min(i, size - 1)]
                firsts.append(position)
                lasts.append(position + 1)
            lasts[-1] = owners[match.end() - 1] + 1
        return " ".join(words), firsts, lasts


class _State:
    """A run on its way to its translation."""

    def __init__(self, source, run, split, stand_ins, hidden=frozenset()):
        self.run, self._hidden = run, hidden
        self._atoms = _Atoms(source, run, hidden, stand_ins)
        self.sentences = self._atoms.sentences(split)

    def pieces(self, results, lexicon):
        """Return the pieces of the translation, `None` if it equals the source.

        Args:
            results: Dict from the texts of sentences to results.
            lexicon: `Lexicon` of the translator, or `None`.

        Raises:
            _HiddenUnits: If units have to be hidden from the translator.
            UnplacedDivisionError: If there are too few words.
        """
        translations = [results[sentence.text] for sentence in self.sentences]
        if self.run.keeps_unsure and any(
            getattr(x, "unsure", None) for x in translations
        ):
            return None
        placement = Placement(self._atoms, self.run.spell, lexicon)
        failures: set[int] = set()
        for sentence, result in zip(self.sentences, translations, strict=True):
            if result is not None and not placement.add(sentence, result):
                failures.update(
                    x.piece.start
                    for x in self._atoms.spelled[sentence.begin : sentence.end]
                    if isinstance(x, Shown)
                )
        if failures:
            raise _HiddenUnits(self._hidden | failures)
        return placement.pieces() if placement.is_changed else None


class _HiddenUnits(Exception):
    """Places of units whose text did not survive the translation."""

    def __init__(self, starts):
        super().__init__()
        self.starts = starts


def translate_runs(
    source: str,
    runs: Iterable[Run],
    translate: Callable[[list[str]], Sequence[Any]],
    split: Callable[[str], list[str]],
    *,
    stand_ins: bool = False,
    lexicon: Lexicon | None = None,
) -> list[tuple[Run, list | None]]:
    """Translate the runs of a source.

    Returns:
        Pairs of a run and the pieces of its translation, which `replaced` takes; they
        are `None` if it equals the source. A run that is translated by its
        `alternative` is not in it.

    Args:
        source: The source text.
        runs: Its runs, in any order. A run may be inside of a unit of another one.
        translate: Function from sentences, each of them once, to results with the
            attributes of a `Translation`; `None` in place of a result leaves a sentence
            as it is.
        split: Function from a text to its sentences, in order.
        stand_ins: Whether the translator sees a placeholder such as `{0}` for a unit
            that stands for a word, such as code.
        lexicon: Pairs of words that translate each other, as evidence of alignments.
    """
    waiting = [_State(source, run, split, stand_ins) for run in runs]
    results: dict[str, Any] = {}
    translated: list[tuple[Run, list | None]] = []
    while waiting:
        seen = dict.fromkeys(x.text for state in waiting for x in state.sentences)
        texts = [text for text in seen if text not in results]
        if texts:
            results.update(zip(texts, translate(texts), strict=True))
        again = []
        for state in waiting:
            run = state.run
            try:
                pieces = state.pieces(results, lexicon)
            except _HiddenUnits as failure:
                again.append(_State(source, run, split, stand_ins, failure.starts))
                continue
            except UnplacedDivisionError:
                again += [
                    _State(source, x, split, stand_ins) for x in run.alternative or ()
                ]
                continue
            run.sentences = [x.text for x in state.sentences]
            translated.append((run, pieces))
        waiting = again
    return translated


def replaced(
    source: str,
    translated: Iterable[tuple[Run, list | None]],
    edits: Iterable[tuple[int, int, str]] = (),
) -> str:
    """Return a source with the results of `translate_runs` in the places of the runs.

    `edits` are the begins, ends and texts of further replacements, within the pieces of
    runs or outside of them.
    """
    # Runs inside of others come first: the stack has the last ones of the source.
    stack: list[tuple[int, int, str]] = []
    items: list[tuple[int, int, Any]]
    items = [(run.start, run.end, (run, pieces)) for run, pieces in translated]
    items += edits
    for start, end, item in sorted(items, key=lambda x: (-x[0], x[1])):
        if isinstance(item, str):
            stack.append((start, end, item))
            continue
        run, pieces = item
        inner = []
        while stack and stack[-1][1] <= end:
            inner.append(stack.pop())

        def resolved(content, inner=inner):
            if isinstance(content, str):
                return content
            return _with(source, content.start, content.end, inner)

        text = None
        if pieces is not None:
            resolved_pieces = [(kind, resolved(content)) for kind, content in pieces]
            text = (run.finish or _joined)(resolved_pieces)
        if text is None:
            text = _with(source, start, end, inner)
        stack.append((start, end, text))
    return _with(source, 0, len(source), stack[::-1])


def _joined(pieces):
    return "".join(text for _, text in pieces)


def _with(source, begin, end, replacements):
    """Return a part of a source with the replacements in it, which are in order."""
    parts: list[str] = []
    first = bisect.bisect_left(replacements, begin, key=lambda x: x[0])
    for start, stop, text in itertools.islice(replacements, first, None):
        if stop > end:
            break
        parts += source[begin:start], text
        begin = stop
    return "".join([*parts, source[begin:end]])
