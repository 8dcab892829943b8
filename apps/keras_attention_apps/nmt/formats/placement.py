"""Places of tags and units in a translation, from the alignment of its words.

Places of a source are counted in atoms, its characters, and those of a translation in
the characters of its text. Text that is not translated is copied atom by atom, so that
what is in it stays exactly where it was.
"""

import bisect
import dataclasses
import itertools
import re
import unicodedata
from typing import Any

import numpy as np

from keras_attention_apps.nmt.attention_weights import symmetric
from keras_attention_apps.nmt.formats.lexical_cues import lexical_cues

# Weight of the evidence for and against a word beside its share of attention, and the
# smallest gain of a function word at an end of a range without a known pair.
_SUPPORT, _SURE_GAIN = 0.3, 0.3


class UnplacedDivisionError(Exception):
    """A translation with too few words for all of its parts."""


@dataclasses.dataclass(slots=True, eq=False)
class Mark:
    """A tag around some atoms, or a unit between two of them.

    Attributes:
        piece: The opening tag, or the unit; `None` for the whole run.
        begin, end: Its places among the atoms.
        parent: The tag around it.
        close: The closing tag; `None` if there is none.
        start, stop: Its places in the translation.
        is_aligned: Whether a unit is within a translated sentence.
    """

    piece: Any
    begin: int = 0
    end: int = 0
    parent: "Mark | None" = None
    children: list["Mark"] = dataclasses.field(default_factory=list)
    close: Any = None
    is_unit: bool = False
    start: int = 0
    stop: int = 0
    is_aligned: bool = False


@dataclasses.dataclass(slots=True)
class Sentence:
    """A sentence of a run.

    Attributes:
        text: What the translator sees.
        begin, end: Its range of atoms.
        spans: The range of atoms of each character of the text that is not a space.
    """

    text: str
    begin: int
    end: int
    spans: list[tuple[int, int]]


class _Word:
    """Positions of a word, and of its letters without punctuation around them."""

    __slots__ = ("core_end", "core_start", "end", "start")

    def __init__(self, word, starts, ends):
        """`starts` and `ends` are the places of its characters."""
        # Letters, combining marks and numbers.
        letters = [i for i, x in enumerate(word) if unicodedata.category(x)[0] in "LMN"]
        letters = letters or [0, len(word) - 1]
        self.start, self.end = starts[0], ends[-1]
        self.core_start, self.core_end = starts[letters[0]], ends[letters[-1]]


class _Alignment:
    """The words of a sentence and of its translation, and which belong together.

    Attributes:
        begin, end: The range of atoms of the sentence.
        start, stop: Place of the translation.
        sources, targets: The `_Word`s.
        weights: Joint alignment weights `(targets, sources)`.
    """

    def __init__(self, sentence, result, start, positions, lexicon):
        self.begin, self.end = sentence.begin, sentence.end
        self.start, self.stop = start, positions[-1]
        self.sources, position = [], 0
        last = len(sentence.spans) - 1
        for word in result.source_words:
            indices = [min(position + i, last) for i in range(len(word))]
            spans = [sentence.spans[i] for i in indices]
            starts, ends = [x[0] for x in spans], [x[1] for x in spans]
            self.sources.append(_Word(word, starts, ends))
            position += len(word)
        self.targets, position = [], 0
        for word in result.words:
            begin = max(result.text.find(word, position), position)
            position = min(begin + len(word), len(positions) - 1)
            begin = min(begin, max(position - 1, 0))
            end = max(position, begin + 1)
            starts = positions[begin:end]
            ends = (positions[begin + 1 : end + 1] or starts)[: len(starts)]
            self.targets.append(_Word(word[: len(starts)], starts, ends))
        weights = result.weights
        self._cues = lexical_cues(result.source_words, result.words, lexicon)
        if not weights.any():
            # Without attention, words are aligned in their order.
            rows, columns = len(self.targets), len(self.sources)
            weights = np.eye(columns)[np.arange(rows) * columns // max(rows, 1)]
        else:
            weights = weights + self._cues.weights
        self.weights = symmetric(weights)
        self.totals = self.weights.sum(axis=1)
        self.shares = self.weights / self.totals[:, None]

    def sources_within(self, begin, end):
        """Return the indices of the source words with letters in a range of atoms."""
        return [
            i
            for i, word in enumerate(self.sources)
            if word.core_start < end and word.core_end > begin
        ]

    def free(self, parent, taken):
        """Return which target words are in a tag, and outside of some ranges."""
        free = np.array(
            [
                x.core_end > parent.start and x.core_start < parent.stop
                for x in self.targets
            ]
        )
        for start, stop in taken:
            for i, word in enumerate(self.targets):
                if word.core_start < stop and word.core_end > start:
                    free[i] = False
        return free

    def best_words(self, source_indices, free):
        """Return the range of free target words that translate some source words.

        A word belongs to it if most of its weight is on these, and the evidence for
        other source words is not stronger. The range has the largest sum of gains. It
        is `None` without free words.
        """
        sums = self.weights[:, source_indices].sum(axis=1)
        shares = sums / self.totals
        support = self._cues.support
        others = np.delete(support, source_indices, axis=1).max(axis=1, initial=0)
        gains = (
            shares - 0.5 + _SUPPORT * (support[:, source_indices].max(axis=1) - others)
        )
        gains = np.where(free, gains, -np.inf)
        best, chosen, total, start = 0.0, None, 0.0, 0
        for j, gain in enumerate(gains):
            total += gain
            if total <= 0:
                total, start = 0.0, j + 1
            elif total > best:
                best, chosen = total, (start, j + 1)
        if chosen is None and free.any():
            j = int(np.where(free, sums, -1).argmax())
            chosen = j, j + 1
        return chosen and self._without_function_words(source_indices, gains, *chosen)

    def _without_function_words(self, source_indices, gains, begin, end):
        """Return a range without function words at its ends that translate nothing.

        These are the words without evidence for one of the source words.
        """
        _, _, is_paired, is_listed, is_function = self._cues
        is_sure = is_listed[:, source_indices].any(axis=1) & (gains > _SURE_GAIN)
        is_foreign = is_function & ~is_paired[:, source_indices].any(axis=1) & ~is_sure
        (inside,) = np.nonzero(~is_foreign[begin:end])
        if not len(inside):
            return begin, end
        return begin + int(inside[0]), begin + int(inside[-1]) + 1

    def gap_scores(self, position, parent, taken):
        """Return a score of each gap between the target words of a tag.

        Before a gap with a high score are mostly words that translate those before a
        position in the source, and above all, the words next to it. Also return the
        index of the first target word in the tag.
        """
        source_indices = self.sources_within(parent.begin, parent.end)
        before = [i for i in source_indices if self.sources[i].core_end <= position]
        after = [i for i in source_indices if self.sources[i].core_start >= position]
        (inside,) = np.nonzero(self.free(parent, ()))
        if not len(inside):
            return np.zeros(1), 0
        begin, end = int(inside[0]), int(inside[-1]) + 1
        shares = self.shares[begin:end]
        balance = shares[:, before].sum(axis=1) - shares[:, after].sum(axis=1)
        scores = np.append(0, np.cumsum(balance))
        # The neighbours of the position count most.
        if before:
            scores[1:] += 2 * shares[:, before[-1]]
        if after:
            scores[:-1] += 2 * shares[:, after[0]]
        if before and after and end - begin > 1:
            # There are words on both sides, as in the source.
            scores[[0, -1]] = -np.inf
        for start, stop in taken:
            for gap in range(1, end - begin):
                left, right = self.targets[begin + gap - 1 : begin + gap + 1]
                if left.core_end > start and right.core_start < stop:
                    scores[gap] = -np.inf
        return scores, begin


class Placement:
    """The translation of a run: its text, and the places of its tags and units.

    Args:
        atoms: The atoms of the run, see `runs`.
        spell: Function that returns a character in the syntax of the source.
        lexicon: `Lexicon` of the translator, as evidence of alignments.
    """

    def __init__(self, atoms, spell, lexicon=None):
        self._atoms, self._lexicon = atoms, lexicon
        # Characters are written as references where the run has such references.
        references = {
            shown: spelled
            for shown, spelled in zip(atoms.shown, atoms.spelled, strict=True)
            if type(spelled) is str
            and len(shown) == 1 < len(spelled)
            and not shown.isspace()
        }
        self._spell = lambda x: references.get(x) or spell(x)
        self._target, self._copied = [], 0
        # Stretches of copied atoms: begin, and how far the translation is behind.
        self._begins, self._shifts = [0], [0]
        self._alignments = []

    @property
    def is_changed(self):
        """Whether a sentence is translated."""
        return bool(self._alignments)

    def add(self, sentence, result):
        """Add the next sentence; return whether its units are in its translation.

        A sentence without a translation, or with an equal one, is copied.
        """
        if not result.words or result.cut or result.text == sentence.text:
            return True
        units = self._units(sentence, result.text)
        if units is None:
            return False
        self._copy(sentence.begin)
        start, positions, i = len(self._target), [], 0
        while i < len(result.text):
            piece, end = units.get(i, (None, i + 1))
            positions += [len(self._target)] * (end - i)
            self._target.append(self._spell(result.text[i]) if piece is None else piece)
            i = end
        positions.append(len(self._target))
        self._alignments.append(
            _Alignment(sentence, result, start, positions, self._lexicon)
        )
        self._copied = sentence.end
        self._begins.append(sentence.end)
        self._shifts.append(len(self._target) - sentence.end)
        return True

    def _units(self, sentence, text):
        """Return a dict from places in a translation to units and their ends there.

        It is `None` if the text of a unit is missing, or does not occur as often as in
        the source.
        """
        by_text: dict[str, list] = {}
        for unit in self._atoms.spelled[sentence.begin : sentence.end]:
            if not isinstance(unit, str):
                by_text.setdefault(unit.text, []).append(unit)
        units = {}
        for shown, same_text in by_text.items():
            pattern = rf"(?<!\w){re.escape(shown)}(?!\w)"
            matches = list(re.finditer(pattern, text))
            if len(matches) != len(same_text):
                return None
            for match, unit in zip(matches, same_text, strict=True):
                units[match.start()] = unit, match.end()
        spans = [(begin, end) for begin, (_, end) in sorted(units.items())]
        if any(span[1] > following[0] for span, following in itertools.pairwise(spans)):
            return None
        return units

    def _copy(self, end):
        self._target += self._atoms.spelled[self._copied : end]
        self._copied = end

    def pieces(self):
        """Return the pieces of the translation.

        They are pairs of a kind and a source text, or the `Piece` that is copied.
        """
        self._copy(len(self._atoms.spelled))
        root = self._atoms.root
        root.stop = len(self._target)
        for parent in (root, *self._atoms.marks):
            if parent.children:
                self._place_children(parent)
        return self._emitted(root)

    def _exact(self, position):
        """Return the position of an atom that is not within a translated sentence."""
        i = bisect.bisect_right(self._begins, position) - 1
        return position + self._shifts[i]

    def _around(self, position):
        """Return the alignment of the sentence around a position, or `None`."""
        i = bisect.bisect_left(self._alignments, position, key=lambda x: x.begin) - 1
        if i >= 0 and position < self._alignments[i].end:
            return self._alignments[i]
        return None

    def _place_children(self, parent):
        taken: dict[int, list[tuple[int, int]]] = {}
        divisions: dict[int, tuple[_Alignment, list[Mark]]] = {}
        for tag in parent.children:
            if tag.is_unit:
                continue
            alignment = self._place_tag(tag, parent, taken)
            if alignment and tag.start < tag.stop:
                taken.setdefault(alignment.begin, []).append((tag.start, tag.stop))
        for unit in parent.children:
            if not unit.is_unit:
                continue
            alignment = self._around(unit.begin)
            if unit.piece.divides and alignment:
                divisions.setdefault(alignment.begin, (alignment, []))[1].append(unit)
                continue
            position = self._place_in_gap(unit, parent, alignment, taken)
            unit.start = unit.stop = position
        for alignment, units in divisions.values():
            self._divide(units, parent, alignment, taken.get(alignment.begin, ()))

    def _place_in_gap(self, mark, parent, alignment, taken):
        """Return the position of a unit, or of a tag around nothing."""
        if alignment is None:
            return min(max(self._exact(mark.begin), parent.start), parent.stop)
        mark.is_aligned = True
        within = [x for x in alignment.sources if x.start < mark.begin < x.end]
        source_indices = alignment.sources_within(parent.begin, parent.end)
        sources = [alignment.sources[i] for i in source_indices]
        lower = max(parent.start, alignment.start)
        upper = min(parent.stop, alignment.stop)
        if not within and not any(x.core_end <= mark.begin for x in sources):
            return lower
        if not within and not any(x.core_start >= mark.begin for x in sources):
            return upper
        ranges = taken.get(alignment.begin, ())
        scores, first = alignment.gap_scores(mark.begin, parent, ranges)
        gap = int(scores.argmax())
        return self._of_gap(mark, alignment, first, gap, len(scores), within, parent)

    def _of_gap(self, mark, alignment, first, gap, count, within, parent):
        """Return the position of a gap between the words of an alignment."""
        targets = alignment.targets
        if within and gap:
            position = targets[first + gap - 1].core_end
        elif gap + 1 < count and (self._spaced(mark)[0] or not gap):
            position = targets[first + gap].start
        else:
            position = targets[first + gap - 1].end
        return min(max(position, parent.start), parent.stop)

    def _divide(self, units, parent, alignment, taken):
        """Place units that have words before, between and after them."""
        tables = []
        for unit in units:
            scores, first = alignment.gap_scores(unit.begin, parent, taken)
            tables.append(scores)
        count = len(tables[0])
        if count < len(units) + 2 or first is None:
            raise UnplacedDivisionError
        # The best increasing sequence of gaps, from the first unit on.
        best = np.full((len(units), count), -np.inf)
        back = np.zeros((len(units), count), int)
        best[0, 1:-1] = tables[0][1:-1]
        for k in range(1, len(units)):
            for gap in range(k + 1, count - 1):
                back[k, gap] = best[k - 1, :gap].argmax()
                best[k, gap] = best[k - 1, back[k, gap]] + tables[k][gap]
        gap = int(best[-1].argmax())
        if not np.isfinite(best[-1, gap]):
            raise UnplacedDivisionError
        for k in reversed(range(len(units))):
            unit = units[k]
            unit.is_aligned = True
            unit.start = unit.stop = self._of_gap(
                unit, alignment, first, gap, count, (), parent
            )
            gap = int(back[k, gap])

    def _place_tag(self, tag, parent, taken):
        """Place a tag; return the alignment of the only sentence that it is in."""
        lower, upper = parent.start, parent.stop
        overlapping = [x for x in self._overlapping(tag.begin, tag.end) if x.sources]
        with_words = [
            (x, source_indices)
            for x in overlapping
            if (source_indices := x.sources_within(tag.begin, tag.end))
        ]
        alignment = None
        if with_words:
            start, stop = self._enclosed(tag, parent, with_words, taken)
            if len(with_words) == 1:
                alignment = with_words[0][0]
        elif overlapping and tag.begin < tag.end:
            start, stop = self._around_punctuation(tag, overlapping[0])
        elif around := self._around(tag.begin):
            start = stop = self._place_in_gap(tag, parent, around, taken)
        else:
            start, stop = self._exact(tag.begin), self._exact(tag.end)
        tag.start = min(max(start, lower), upper)
        tag.stop = min(max(stop, tag.start), upper)
        return alignment

    def _overlapping(self, begin, end):
        """Yield the alignments of the sentences that overlap a range of atoms."""
        i = bisect.bisect_right(self._alignments, begin, key=lambda x: x.end)
        while i < len(self._alignments) and self._alignments[i].begin < end:
            yield self._alignments[i]
            i += 1

    def _enclosed(self, tag, parent, with_words, taken):
        """Return the begin and the end of the words that a tag encloses.

        Punctuation around the words is inside of the tag if it is in the source.
        """
        ranges = []
        for alignment, source_indices in (with_words[0], with_words[-1]):
            targets = alignment.targets
            words = 0, len(targets)
            if len(source_indices) < len(alignment.sources):
                free = alignment.free(parent, taken.get(alignment.begin, ()))
                words = alignment.best_words(source_indices, free)
            ranges.append(words)
        (first, source_indices), words = with_words[0], ranges[0]
        is_whole = len(source_indices) == len(first.sources)
        is_single = len(with_words) == 1
        if tag.begin <= first.begin and (
            is_whole
            or not (is_single or words)
            or self._has_atoms(tag.begin, first.begin)
        ):
            start = self._exact(tag.begin)
        elif words is None:
            start = parent.start if is_single else first.stop
        else:
            target, source = first.targets[words[0]], first.sources[source_indices[0]]
            has_before = tag.begin <= source.start < source.core_start
            start = target.start if has_before else target.core_start
        (last, source_indices), words = with_words[-1], ranges[-1]
        is_whole = len(source_indices) == len(last.sources)
        if tag.end >= last.end and (
            is_whole or not (is_single or words) or self._has_atoms(last.end, tag.end)
        ):
            stop = self._exact(tag.end)
        elif words is None:
            stop = start if is_single else last.start
        else:
            target, source = (
                last.targets[words[1] - 1],
                last.sources[source_indices[-1]],
            )
            has_after = tag.end >= source.end > source.core_end
            stop = target.end if has_after else target.core_end
        return start, stop

    def _has_atoms(self, begin, end):
        """Return whether there is more than white space between two places."""
        return any(
            not isinstance(x, str) or x.strip() for x in self._atoms.spelled[begin:end]
        )

    def _around_punctuation(self, tag, alignment):
        """Return the begin and the end of a tag that has punctuation alone."""
        sources = alignment.sources
        i = next((i for i, x in enumerate(sources) if tag.begin < x.end), -1)
        word = alignment.targets[int(alignment.weights[:, i].argmax())]
        if tag.begin < sources[i].core_start:
            return word.start, word.core_start
        return word.core_end, word.end

    def _spaced(self, mark):
        """Return whether a unit has white space before it, and after it."""
        spelled = self._atoms.spelled
        before = spelled[mark.begin - 1] if mark.begin else ""
        after = mark.begin
        # A unit that separates words has an atom of its own.
        while after < len(spelled) and spelled[after] == "":
            after += 1
        after = spelled[after] if after < len(spelled) else ""
        return [isinstance(x, str) and x.isspace() for x in (before, after)]

    def _texts(self, begin, end):
        """Yield the pieces of a part of the text."""
        groups = itertools.groupby(self._target[begin:end], lambda x: type(x) is str)
        for is_text, group in groups:
            if is_text:
                yield "text", "".join(group)
            else:
                yield from (("unit", x.piece) for x in group)

    def _emitted(self, root):
        """Return the pieces of the translation from the places of tags and units."""
        pieces, frames = [], [[root, self._ordered(root), 0]]
        while frames:
            mark, children, position = frames[-1]
            child = next(children, None)
            if child is None:
                pieces += self._texts(position, mark.stop)
                frames.pop()
                if mark is not root:
                    if mark.close is not None:
                        pieces.append(("close", mark.close))
                    frames[-1][2] = mark.stop
                continue
            child.start = min(max(child.start, position), mark.stop)
            child.stop = min(max(child.stop, child.start), mark.stop)
            pieces += self._texts(position, child.start)
            frames[-1][2] = child.start
            source = child.piece
            if not child.is_unit:
                pieces.append(("open", source))
                frames.append([child, self._ordered(child), child.start])
            elif child.is_aligned:
                # It has spaces around it where the source has them.
                before, after = self._spaced(child)
                if before and self._is_word(child.start - 1):
                    pieces.append(("text", " "))
                pieces.append(("unit", source))
                if after and self._is_word(child.start):
                    pieces.append(("text", " "))
                elif not (after or before or child.piece.joins):
                    # The unit alone separates the words.
                    space = self._target[child.start : child.start + 1] == [" "]
                    frames[-1][2] += space and child.start < mark.stop
            else:
                pieces.append(("unit", source))
        return [(kind, content) for kind, content in pieces if content != ""]

    def _ordered(self, mark):
        # The sort is stable: units in one position keep their order.
        return iter(sorted(mark.children, key=lambda x: (x.start, x.stop)))

    def _is_word(self, position):
        """Return whether there is something else than a space at a position."""
        if not 0 <= position < len(self._target):
            return False
        x = self._target[position]
        return not isinstance(x, str) or bool(x.strip())
