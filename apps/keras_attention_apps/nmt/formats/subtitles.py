"""Runs of language in subtitles: SubRip, WebVTT and Advanced SubStation Alpha.

A cue begins with its line of times and ends before the next one. Cues of which one
sentence goes through are one run, whose unit is what stands between the cues.
"""

import bisect
import collections
import dataclasses
import itertools
import re
import warnings
from collections.abc import Iterator

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.formats.runs import (
    CLOSE,
    OPEN,
    TEXT,
    UNIT,
    Document,
    Piece,
    Run,
)

SUBRIP, WEBVTT, SUBSTATION = "srt", "vtt", "ass"

_TIME = r"(?:(\d+):)?(\d+):(\d+)(?:[.,](\d{1,3}))?"
TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
# Blocks that are no cues.
_BLOCK = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")
_DIALOGUE = re.compile(r"Dialogue:", re.IGNORECASE)
_SECTION = re.compile(
    r"(?:^|[\r\n])\ufeff?[^\S\r\n]*\[(?:Script Info|V4\+? ?Styles|Events)\]",
    re.IGNORECASE,
)
_FIELDS = [
    "layer",
    "start",
    "end",
    "style",
    "name",
    "marginl",
    "marginr",
    "marginv",
    "effect",
    "text",
]
TAG = re.compile(r"</?[A-Za-z0-9][^<>\n]*>|\{\\[^{}\n]*\}")
_TAG_NAME = re.compile(r"</?\s*([A-Za-z]*)|\{\\([ibus])(?=[01]\})")
# A break that is written as such stays between its words; other lines are broken
# again.
_MARKED_BREAK = re.compile(r"[ \t]*\\[Nn][ \t]*")
_BREAK = re.compile(r"[ \t]*(?:\r\n|\r|\n)[ \t]*")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|nbsp|lrm|rlm);")
_TOKENS = re.compile(f"{TAG.pattern}|{_MARKED_BREAK.pattern}|{_BREAK.pattern}")
_TOKENS_OF_WEBVTT = re.compile(f"{_TOKENS.pattern}|{_REFERENCE.pattern}")
_REFERENCES = {
    "&amp;": "&",
    "&lt;": "<",
    "&gt;": ">",
    "&nbsp;": "\xa0",
    "&lrm;": "\u200e",
    "&rlm;": "\u200f",
}
# What stands before the words of a speaker: dashes, the sign of another speaker, a
# name; and signs of music.
_SPEAKER = re.compile(
    r"\s*(?:[-\u2010-\u2015]+(?=\s|\w|[\"'\u201c<{\[(])\s*|>>+\s*"
    r"|[A-Z\u00c0-\u00dd][A-Z\u00c0-\u00dd0-9 .'#&-]{0,30}:(?=\s|$)\s*)+"
)
_NOTES = re.compile(
    r"[\u2669-\u266f#*]+(?=\s)|(?<=\s)[\u2669-\u266f#*]+|[\u2669-\u266f]+"
)
_BRACKETS = re.compile(r"\[[^\[\]]*\]|\([^()]*\)|\uff08[^\uff08\uff09]*\uff09")
_SENTENCE_END = re.compile(
    r"[.!?:\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]]*$"
)
# Words after which a sentence goes on, even with a capital letter.
_OPEN_ENDS = frozenset(
    word
    for words in (
        "a an the of in on at to for from with by about into and or but nor as than if",
        "because that which who whose my your his her its our their this these those",
        "der die das den dem des ein eine einen einem einer eines in im an am auf mit",
        "von vom zu zum zur f\u00fcr und oder aber als dass weil wenn mein meine",
        "meinen dein deine sein seine ihr ihre unser unsere kein keine keinen sehr",
    )
    for word in words.split()
)
# Maximum number of cues that one sentence goes through, and seconds between two cues.
MAX_CUES = 6
MAX_GAP = 2.0
# Usual limits of subtitles: characters of a line, and lines.
LINE_WIDTH, LINES = 42, 2


@dataclasses.dataclass(slots=True)
class Cue:
    """A cue: its times in seconds, and where its text is, without tags around it.

    Attributes:
        number: Its number, from 1.
        begin, end: Its times.
        parts: Places of texts that are translated on their own, such as those of two
            speakers.
    """

    number: int
    begin: float
    end: float
    parts: list[tuple[int, int]] = dataclasses.field(default_factory=list)


def format_of(text: str) -> str:
    """Return the format of subtitles: `"srt"`, `"vtt"` or `"ass"`."""
    if text.lstrip("\ufeff").startswith("WEBVTT"):
        return WEBVTT
    if _SECTION.search(text):
        return SUBSTATION
    return SUBRIP


def read(text: str, kind: str | None = None) -> Document:
    """Return subtitles, which are written in a format, by default their own.

    Raises:
        UserError: If the text has no cue.
    """
    source_format = format_of(text)
    cues = list(
        _dialogues(text) if source_format == SUBSTATION else _cues(text, source_format)
    )
    if not cues:
        raise UserError(
            "expected subtitles, with lines of times such as "
            "00:00:01,000 --> 00:00:03,000. There is none"
        )
    reader = _Reader(text, source_format)
    groups: list[list[tuple[Cue, int, int]]] = []
    for cue in cues:
        for i, part in enumerate(cue.parts):
            following = (cue, *part)
            if groups and i == 0 and reader.goes_on(groups[-1], following):
                groups[-1].append(following)
            else:
                groups.append([following])
    return Document(
        text,
        [run for group in groups for run in reader.runs(group)],
        place_of=_names_of(cues),
        finish=lambda result, unsure: converted(result, kind or source_format),
    )


def _names_of(cues):
    """Return a function from a position in a text to the number and time of its cue."""
    begins = [(cue.parts[0][0], cue) for cue in cues if cue.parts]

    def name_of(position):
        i = bisect.bisect_right(begins, position, key=lambda x: x[0]) - 1
        cue = begins[max(i, 0)][1]
        minutes, seconds = divmod(int(cue.begin), 60)
        hours, minutes = divmod(minutes, 60)
        return f"subtitle {cue.number} ({hours:02}:{minutes:02}:{seconds:02})"

    return name_of


def _lines(text: str) -> list[tuple[int, int, int]]:
    """Return the position of each line, and the end of its characters."""
    lines = []
    for match in _LINE.finditer(text):
        if match.start() < len(text):
            end = match.start() + len(match[0].rstrip("\r\n"))
            lines.append((match.start(), end, match.end()))
    return lines


def _cues(text: str, kind: str) -> Iterator[Cue]:
    """Yield the cues of SubRip or WebVTT."""
    lines = _lines(text)
    contents = [text[begin:end] for begin, end, _ in lines]
    times = [i for i, line in enumerate(contents) if TIMES.match(line)]
    for number, (first, following) in enumerate(
        zip(times, [*times[1:], len(lines)], strict=False), start=1
    ):
        last = following
        if following < len(lines):
            last = _before_identifier(contents, first + 1, following, kind)
        match = TIMES.match(contents[first])
        assert match
        begin, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
        cue = Cue(number, begin, end)
        index = first + 1
        while index < last:
            if not _is_text(contents, index):
                index += 1
                continue
            stop = index
            while stop < last and _is_text(contents, stop):
                stop += 1
            if index == first + 1 or not _BLOCK.match(contents[index]):
                for begin, end in _spoken(contents, index, stop):
                    cue.parts.append((lines[begin][0], lines[end - 1][1]))
            index = stop
        yield cue


def _is_text(contents, index):
    """Return whether a line is text, and no damaged line of times or its number."""
    line = contents[index].strip()
    following = contents[index + 1] if index + 1 < len(contents) else ""
    return line and "-->" not in line and not (line.isdigit() and "-->" in following)


def _before_identifier(contents, first, times, kind):
    """Return the end of the lines of a cue before the next line of times.

    The line before it may be a number, or the name of a cue.
    """
    last = times - 1
    if last < first or not contents[last].strip():
        return times
    is_number = contents[last].strip().isdigit()
    is_alone = last == first or not contents[last - 1].strip()
    if is_number or (kind == WEBVTT and is_alone and last > first):
        return last
    return times


def _seconds(parts):
    hours, minutes, seconds, fraction = parts
    whole = 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)
    return whole + int((fraction or "").ljust(3, "0")) / 1000


def _spoken(contents, begin, end):
    """Yield the ranges of lines that belong to one speaker each."""
    starts = [begin]
    for i in range(begin + 1, end):
        line = contents[i].lstrip()
        is_bracketed = any(
            _BRACKETS.fullmatch(x.strip()) for x in (contents[i - 1], line)
        )
        if _SPEAKER.match(TAG.sub("", line)) or line.startswith("<v") or is_bracketed:
            starts.append(i)
    yield from zip(starts, [*starts[1:], end], strict=True)


def _dialogues(text: str) -> Iterator[Cue]:
    """Yield the cues of Advanced SubStation Alpha."""
    names, number = _FIELDS, 0
    for begin, end, _ in _lines(text):
        line = text[begin:end]
        key, _, values = line.partition(":")
        if key.strip().lower() == "format":
            fields = [x.strip().lower() for x in values.split(",")]
            if fields[-1] == "text":
                names = fields
        elif _DIALOGUE.match(line):
            content = values.split(",", len(names) - 1)
            if len(content) < len(names):
                continue
            number += 1
            dialogue = dict(zip(names, content, strict=True))
            cue = Cue(
                number, _clock(dialogue.get("start")), _clock(dialogue.get("end"))
            )
            start = end - len(content[-1])
            cue.parts.append((start, end))
            yield cue


def _clock(time):
    match = re.fullmatch(rf"\s*{_TIME}\s*", time or "")
    return _seconds(match.groups()) if match else 0.0


class _Reader:
    """Finds the pieces of the texts of cues."""

    def __init__(self, text, kind):
        self.text, self.kind = text, kind
        self._newline = next((x[0] for x in re.finditer("\r\n?|\n", text)), "\n")

    def goes_on(self, group, following):
        """Return whether the last sentence of cues plainly goes on in another one."""
        cue, begin, end = group[-1]
        other, *span = following
        if len(group) == MAX_CUES or not -MAX_GAP < other.begin - cue.end < MAX_GAP:
            return False
        before, after = self._plain(begin, end), self._plain(*span)
        if not before or not after or _SPEAKER.match(after):
            return False
        if any(x.search(y) for x in (_BRACKETS, _NOTES) for y in (before, after)):
            return False
        if self.text[span[0] : span[1]].lstrip().startswith("<v"):
            return False
        words = before.split()
        last = words[-1].strip("\"'\u201c\u201d,;").lower()
        if _SENTENCE_END.search(before) or last.isdigit() or before[-1] in "-\u2014":
            return False
        if not (before[-1].isalpha() or before[-1] in ",;'\u2019"):
            return False
        if before.upper() == before and len(before) > 1:
            return False
        if after.upper() == after and len(after) > 1:
            return False
        first = after.lstrip("\"'\u201c\u201e")[:1]
        if first.islower():
            return True
        is_word = re.match(r"I(?:'\w+|\u2019\w+)?\b", after)
        return first.isupper() and (
            last in _OPEN_ENDS or (is_word is not None and before[-1] == ",")
        )

    def _plain(self, begin, end):
        """Return the text of a cue without tags, in one line."""
        return " ".join(TAG.sub("", self.text[begin:end]).split())

    def runs(self, group):
        """Yield the runs of a group of cues that have one sentence."""
        if len(group) == 1:
            _, begin, end = group[0]
            yield from self._runs_of_part(begin, end)
            return
        spans = [self._trimmed(begin, end) for _, begin, end in group]
        speaker = _SPEAKER.match(self.text, *spans[0])
        if speaker:
            spans[0] = self._trimmed(speaker.end(), spans[0][1])
        alternative = [
            run for _, begin, end in group for run in self._runs_of_part(begin, end)
        ]
        pieces: list[Piece] = []
        for i, (begin, end) in enumerate(spans):
            if i:
                start = spans[i - 1][1]
                pieces.append(Piece(UNIT, start, begin, name="cue", divides=True))
            pieces += self._pieces(begin, end)
        yield self._run(pieces, spans, alternative)

    def _trimmed(self, begin, end):
        """Return the position of a text without spaces and whole tags around it."""
        tags = list(TAG.finditer(self.text, begin, end))
        partners = _partners(tags)
        first, last = 0, len(tags) - 1
        while True:
            while begin < end and self.text[begin].isspace():
                begin += 1
            while begin < end and self.text[end - 1].isspace():
                end -= 1
            if first > last or tags[first].start() != begin:
                return begin, end
            if not _name_of(tags[first][0]):
                begin = tags[first].end()
                first += 1
            elif partners.get(first) == last and tags[last].end() == end:
                begin, end = tags[first].end(), tags[last].start()
                first, last = first + 1, last - 1
            else:
                return begin, end

    def _runs_of_part(self, begin, end):
        """Yield the runs of the words of one speaker.

        Signs of speakers, sounds in brackets, and notes stay in their places.
        """
        start, stop = self._trimmed(begin, end)
        text = self.text
        speaker = _SPEAKER.match(text, start, stop)
        if speaker and speaker.end() < stop:
            start, stop = self._trimmed(speaker.end(), stop)
        position = start
        cuts = [
            *_BRACKETS.finditer(text, start, stop),
            *_NOTES.finditer(text, start, stop),
        ]
        for match in sorted(cuts, key=lambda x: x.start()):
            if match.start() < position:
                continue
            yield from self._own_run(position, match.start())
            if match[0][0] in "[(\uff08":
                # A sound in the source language is better than a wrong one.
                for run in self._own_run(match.start() + 1, match.end() - 1):
                    run.keeps_unsure = True
                    yield run
            position = match.end()
        yield from self._own_run(position, stop)

    def _own_run(self, begin, end):
        begin, end = self._trimmed(begin, end)
        if any(map(str.isalpha, self.text[begin:end])):
            yield self._run(self._pieces(begin, end), [(begin, end)], None)

    def _run(self, pieces, spans, alternative):
        sources = [self.text[begin:end] for begin, end in spans]
        layout = _Layout(sources, self.kind, self._newline)
        spell = _escaped if self.kind == WEBVTT else _plain
        return Run(pieces, spell, layout, None, alternative)

    def _pieces(self, begin, end):
        """Return the pieces of a text; line breaks are spaces."""
        pieces: list[Piece] = []
        position = begin
        tokens = _TOKENS_OF_WEBVTT if self.kind == WEBVTT else _TOKENS
        for match in tokens.finditer(self.text, begin, end):
            self._add_text(pieces, position, match.start())
            position = match.end()
            if match[0].startswith("&"):
                pieces.append(Piece(TEXT, *match.span(), _REFERENCES[match[0]]))
                continue
            name = _name_of(match[0])
            if _MARKED_BREAK.fullmatch(match[0]):
                pieces.append(Piece(UNIT, *match.span()))
            elif not match[0].startswith(("<", "{")):
                pieces.append(Piece(TEXT, *match.span(), " "))
            elif name and _is_closing(match[0]):
                pieces.append(Piece(CLOSE, *match.span(), name=name, joins=True))
            elif name:
                pieces.append(Piece(OPEN, *match.span(), name=name))
            else:
                pieces.append(Piece(UNIT, *match.span(), joins=True))
        self._add_text(pieces, position, end)
        return _make_unclosed_tags_units(pieces)

    def _add_text(self, pieces, begin, end):
        if begin < end:
            pieces.append(Piece(TEXT, begin, end, self.text[begin:end]))


def _name_of(tag):
    """Return the name of a tag, which is empty for a tag around nothing."""
    match = _TAG_NAME.match(tag)
    return (match[1] or match[2] or "") if match else ""


def _is_closing(tag):
    return tag.startswith("</") or tag.endswith("0}")


def _partners(tags):
    """Return a dict from the indices of opening tags to those that close them."""
    opened: dict[str, list[int]] = collections.defaultdict(list)
    partners = {}
    for i, tag in enumerate(tags):
        name = _name_of(tag[0])
        if name and not _is_closing(tag[0]):
            opened[name].append(i)
        elif opened[name]:
            partners[opened[name].pop()] = i
    return partners


def _make_unclosed_tags_units(pieces):
    """Replace opening tags that nothing closes by units; return the pieces."""
    opened: list[int] = []
    for i, piece in enumerate(pieces):
        if piece.kind == OPEN:
            opened.append(i)
        elif piece.kind == CLOSE:
            for j in reversed(opened):
                if pieces[j].name == piece.name:
                    opened.remove(j)
                    break
    for i in opened:
        pieces[i] = dataclasses.replace(pieces[i], kind=UNIT, joins=True)
    return pieces


def _plain(character):
    return character


def _escaped(character):
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, character)


class _Layout:
    """Breaks the lines of the translation of cues.

    Args:
        sources: The text of each cue of the run.
        kind: The format.
        newline: What ends the lines of the file.
    """

    def __init__(self, sources, kind, newline):
        self._sources, self._kind, self._newline = sources, kind, newline

    def __call__(self, pieces):
        """Return the source text of a translation, with even lines."""
        parts: list[list[tuple[str, str]]] = [[]]
        dividers = []
        for kind, text in pieces:
            if kind == UNIT and (TIMES.search(text) or "Dialogue:" in text):
                dividers.append(text)
                parts.append([])
            else:
                parts[-1].append((kind, text))
        texts = [
            self._broken(part, source)
            for part, source in zip(parts, self._sources, strict=True)
        ]
        joined = itertools.zip_longest(texts, dividers, fillvalue="")
        return "".join(x for pair in joined for x in pair)

    def _broken(self, pieces, source):
        """Return a text with breaks at some of its spaces."""
        breaks = [x[0].strip(" \t") for x in _BREAK.finditer(source)]
        lines = [TAG.sub("", x) for x in _BREAK.split(source)]
        # Pairs of what is shown, a character or nothing, and the source text of it.
        items: list[tuple[str, str]] = []
        for kind, text in pieces:
            if kind != TEXT:
                items.append(("\v" if _MARKED_BREAK.fullmatch(text) else "", text))
                continue
            position = 0
            for match in _BREAK.finditer(text):
                items += ((x, x) for x in text[position : match.start()])
                items.append(("\n", match[0].strip(" \t")))
                position = match.end()
            items += ((x, x) for x in text[position:])
        visible = [i for i, (x, _) in enumerate(items) if x]
        while visible and items[visible[0]][0].isspace():
            items[visible.pop(0)] = "", ""
        while visible and items[visible[-1]][0].isspace():
            items[visible.pop()] = "", ""
        text = "".join(items[i][0] for i in visible)
        width = max(LINE_WIDTH, *map(len, lines))
        for i in range(1, len(text) - 1):
            if text[i] == " " and "\v" in (text[i - 1], text[i + 1]):
                items[visible[i]] = "", ""
        if (
            "\v" in text
            or self._kind == SUBSTATION
            or ("\n" in text and max(map(len, text.split("\n"))) <= width)
        ):
            line_ends = [i for i, x in enumerate(text) if x == "\n"]
        else:
            count = max(len(lines), LINES)
            line_ends = _breaks(text.replace("\n", " "), width, count)
        newline = breaks[0] if breaks else self._newline
        for i, x in enumerate(text):
            if x == "\n":
                items[visible[i]] = " ", " "
        for k, i in enumerate(line_ends):
            items[visible[i]] = "\n", breaks[k] if k < len(breaks) else newline
        return "".join(spelled for _, spelled in items)


def _breaks(text, width, count):
    """Return the places of spaces where lines end, so that their lengths are even.

    There are as few lines as the width needs, and at most `count`.
    """
    spaces = [i for i, x in enumerate(text) if x == " "]
    for lines in range(1, count + 1):
        line_ends, begin = [], 0
        for left in range(lines - 1, 0, -1):
            # The space next to an equal share of the rest.
            ideal = begin + (len(text) - begin) / (left + 1)
            free = [i for i in spaces if i > begin]
            if not free:
                break
            line_ends.append(min(free, key=lambda i: abs(i - ideal)))
            begin = line_ends[-1] + 1
        edges = [-1, *line_ends, len(text)]
        longest = max(j - i - 1 for i, j in itertools.pairwise(edges))
        if longest <= width or lines == count:
            return line_ends
    return []


# Tags that SubRip and WebVTT share.
_SHARED_TAG = re.compile(r"</?[bius]>")


def converted(text: str, kind: str) -> str:
    """Return subtitles in another format: `"srt"`, `"vtt"` or `"ass"`.

    Settings of cues, notes and styles that the format does not have are left out.
    """
    source_format = format_of(text)
    if source_format == kind:
        return text
    pysubs2 = _pysubs2()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if source_format == SUBSTATION:
                return pysubs2.SSAFile.from_string(
                    text, format_=source_format
                ).to_string(kind)
            return _written(pysubs2, text, source_format, kind)
    # Damaged files raise errors of all kinds.
    except Exception as error:
        raise UserError(
            f"the subtitles cannot be written as {kind}: {error}"
        ) from error


def _written(pysubs2, text, source_format, kind):
    """Return the cues of SubRip or WebVTT in another format."""
    file = pysubs2.SSAFile()
    for cue in _cues(text, source_format):
        parts = "\n".join(text[begin:end] for begin, end in cue.parts)
        lines = re.split(r"\r\n|\r|\n|\\N", parts)
        converted = "\\N".join(map(_shared(source_format, kind), lines))
        times = round(1000 * cue.begin), round(1000 * cue.end)
        file.append(pysubs2.SSAEvent(*times, converted))
    if kind == SUBSTATION:
        text = file.to_string(SUBRIP, keep_ssa_tags=True)
        return pysubs2.SSAFile.from_string(text, format_=SUBRIP).to_string(kind)
    return file.to_string(kind, keep_ssa_tags=True)


def _shared(source_format, kind):
    """Return the function that writes a line of one format in another one."""

    def written(line):
        text, position = "", 0
        for match in [*TAG.finditer(line), None]:
            part = line[position : match.start() if match else None]
            if source_format == WEBVTT:
                part = _REFERENCE.sub(lambda x: _REFERENCES[x[0]], part)
            text += "".join(map(_escaped, part)) if kind == WEBVTT else part
            if match:
                text += match[0] if _SHARED_TAG.fullmatch(match[0]) else ""
                position = match.end()
        return text

    return written


def _pysubs2():
    try:
        import pysubs2
    except ImportError as error:
        raise UserError(
            "another format of subtitles needs pysubs2: "
            'python -m pip install "keras-attention-apps[train]"'
        ) from error
    return pysubs2
