"""Markup: texts with tags are translated, and tags go where the attention aligns them.

A run is a text with tags and no block element inside, such as a paragraph. It is a list
of events: `("text", string)`, `("open", tag)`, `("close", tag)`, and `("unit", thing)`
for a thing that stays as it is, such as an image or code. A tag or a thing may be any
object.
"""

import dataclasses
import itertools
import re
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.text import (
    block_diagonal,
    clean,
    join_sentences,
    split_sentences,
    symmetric,
)

if TYPE_CHECKING:
    from keras_attention_apps.nmt.translations import Translation

# Punctuation that belongs to the word before it.
_CLOSING = tuple(".,;:!?)]}\u2026\u201d\u00bb")


@dataclasses.dataclass
class _Tag:
    """A tag of a run, or a unit, which has no text.

    Places in the text are counted in characters that are not spaces. `before` and
    `after` say whether a unit has white space before it, and after it.
    """

    value: object
    start: int = 0
    end: int = 0
    children: list = dataclasses.field(default_factory=list)
    is_unit: bool = False
    before: bool = False
    after: bool = False


class _Word:
    """A word: its place in a text, and that of its letters, without punctuation."""

    def __init__(self, word, start):
        letters = [i for i, x in enumerate(word) if x.isalnum()] or [0, len(word) - 1]
        self.start, self.end = start, start + len(word)
        self.core_start, self.core_end = start + letters[0], start + letters[-1] + 1


def translate_runs(translator, runs, **options):
    """Translate runs sentence by sentence; the options are those of `translate_each`.

    Tags of a run are closed in reverse order. The translated runs have the same tags
    and things, and the white space of the source at both ends.
    """
    parsed = [_Run(events, translator) for events in runs]
    sentences = [x for run in parsed for x in run.sentences]
    wanted = [x for x in dict.fromkeys(sentences) if any(map(str.isalpha, x))]
    found: dict[str, Translation] = {}
    if wanted:
        translations = translator.translate(wanted, split=False, **options)
        found = dict(zip(wanted, translations, strict=True))
    return [run.translated(found) for run in parsed]


class _Run:
    """A run of text with tags; see the head of the module."""

    def __init__(self, events, translator):
        self.root = _Tag(None)
        units: list[_Tag] = []
        open_tags, text, raw, count = [self.root], "", "", 0
        first, last = "".join(_edge(events)), "".join(_edge(events[::-1])[::-1])
        self.leading = first[: len(first) - len(first.lstrip())]
        for kind, value in events:
            if kind == "text":
                cleaned = clean(value)
                begins, ends = value[:1].isspace(), value[-1:].isspace()
                if value:
                    raw = value
                    for unit in units:
                        unit.after = begins
                    units = []
                if cleaned.startswith(_CLOSING) and text.endswith("\0"):
                    # Punctuation after a unit follows the word before it.
                    text = text.rstrip("\0 ")
                    begins = False
                text += f"{' ' * begins}{cleaned}{' ' * ends}"
                count += len(cleaned.replace(" ", ""))
            elif kind == "close":
                open_tags.pop().end = count
            else:
                tag = _Tag(value, count, count, is_unit=kind == "unit")
                open_tags[-1].children.append(tag)
                if kind == "open":
                    open_tags.append(tag)
                    continue
                tag.before = raw[-1:].isspace()
                units.append(tag)
                # Nothing but a unit may separate two words.
                text += " \0"
        self.root.end = count
        is_blank = not last.strip() and all(kind != "unit" for kind, _ in events)
        self.trailing = "" if is_blank else last[len(last.rstrip()) :]
        self.sentences = [
            part
            for sentence in split_sentences(clean(text.replace("\0", "")))
            for part in fitting_parts(sentence, translator)
            if part
        ]

    def translated(self, translations):
        """Return the events of the translation, from those of the sentences, a dict."""
        sources, texts, words, blocks = [], [], [], []
        for sentence in self.sentences:
            one = translations.get(sentence)
            if one is None or not one.words or one.cut:
                # The text stays as it is.
                own = sentence.split()
                texts.append(sentence)
                of_sentence, block = (own, own), np.eye(len(own))
            else:
                texts.append(one.text)
                of_sentence, block = (one.source_words, one.words), one.weights
                if not block.any():
                    # Without attention, words are aligned in their order.
                    rows, columns = block.shape
                    block = np.eye(columns)[np.arange(rows) * columns // max(rows, 1)]
            sources += of_sentence[0]
            words += of_sentence[1]
            blocks.append(symmetric(block))
        text, targets, place = join_sentences(texts), [], 0
        for word in words:
            targets.append(_Word(word, max(text.find(word, place), place)))
            place = targets[-1].end
        begins = itertools.accumulate(map(len, sources), initial=0)
        sources = [_Word(*x) for x in zip(sources, begins, strict=False)]
        transfer = _Transfer(text, sources, targets, block_diagonal(blocks))
        events = transfer.inside(self.root, (0, len(text)), (0, len(targets)))
        events = [("text", self.leading), *events, ("text", self.trailing)]
        return [x for x in events if x[1] != ""]


def _edge(events):
    """Return the texts before the first unit."""
    edge = itertools.takewhile(lambda event: event[0] != "unit", events)
    return [x for kind, x in edge if kind == "text"]


class _Transfer:
    """Places of the tags of a source in its translation, a text.

    The `_Word`s of the source are counted without spaces; the joint alignment weights
    are `(targets, sources)`.
    """

    def __init__(self, text, sources, targets, weights):
        self.text, self.sources, self.targets = text, sources, targets
        self.weights = weights
        self.totals = weights.sum(axis=1)
        self.shares = weights / self.totals[:, None]
        # Sums over the source words before each, which many units of one text need.
        self.sums = np.pad(np.cumsum(self.shares, axis=1), ((0, 0), (1, 0)))

    def inside(self, tag, places, words):
        """Return the events inside a tag, which has some places and target words."""
        parts = []
        taken: list[tuple[int, int]] = []
        for child in sorted(tag.children, key=lambda child: child.is_unit):
            if child.is_unit:
                place = self._place_of_unit(child, tag, words, taken, places)
                parts.append((place, place, 0, child, None))
                continue
            span, place = self._enclosed(child, words, places, taken)
            if span[0] < span[1]:
                taken.append(span)
            parts.append((*place, 1, child, span))
        # The sort is stable: units in one place keep their order.
        parts.sort(key=lambda x: x[:3])
        events, (place, end) = [], places
        for start, stop, _, child, span in parts:
            start, stop = max(start, place), min(max(stop, start, place), end)
            events.append(("text", self.text[place:start]))
            if child.is_unit:
                # It has spaces around it where the source has them.
                before = " " if child.before and self.text[:start][-1:].strip() else ""
                after = " " if child.after and self.text[start:][:1].strip() else ""
                content = ("text", before), ("unit", child.value), ("text", after)
            else:
                content = self.inside(child, (start, stop), span)
                content = ("open", child.value), *content, ("close", child.value)
            events += content
            place = max(stop, start)
        return [*events, ("text", self.text[place:end])]

    def _source_words(self, tag):
        """Return the indices of the source words whose letters a tag has."""
        return [
            i
            for i, word in enumerate(self.sources)
            if word.core_start < tag.end and word.core_end > tag.start
        ]

    def _enclosed(self, tag, words, places, taken):
        """Return the target words, and the places in the text, that a tag encloses.

        Both are pairs of a begin and an end, within those of its parent and without the
        `taken` words. Punctuation around the words is inside of the tag if it is in the
        source.
        """
        own, (begin, end) = self._source_words(tag), words
        if len(own) == len(self.sources):
            return words, places
        words, start, stop = (begin, begin), places[0], places[0]
        if own and begin < end:
            words = self._best_words(own, begin, end, taken)
        if words[0] < words[1]:
            first, last = self.targets[words[0]], self.targets[words[1] - 1]
            before, after = self.sources[own[0]], self.sources[own[-1]]
            has_before = tag.start <= before.start < before.core_start
            has_after = tag.end >= after.end > after.core_end
            start = first.start if has_before else first.core_start
            stop = last.end if has_after else last.core_end
        elif not own and tag.start < tag.end:
            # It has punctuation alone.
            i = next(i for i, word in enumerate(self.sources) if tag.start < word.end)
            word = self.targets[int(self.weights[:, i].argmax())]
            is_before = tag.start < self.sources[i].core_start
            start = word.start if is_before else word.core_end
            stop = word.core_start if is_before else word.end
        return words, tuple(min(max(x, places[0]), places[1]) for x in (start, stop))

    def _best_words(self, own, begin, end, taken):
        """Return the range of target words that translate some source words.

        A word belongs to it if most of its weight is on these. The range has the
        largest sum of the shares above one half.
        """
        sums = self.weights[:, own].sum(axis=1)
        gains = sums / self.totals - 0.5
        free = np.zeros(len(gains), "bool")
        free[begin:end] = True
        for start, stop in taken:
            free[start:stop] = False
        gains[~free] = -np.inf
        best, chosen, total, start = 0.0, None, 0.0, begin
        for j in range(begin, end):
            total += gains[j]
            if total <= 0:
                total, start = 0.0, j + 1
            elif total > best:
                best, chosen = total, (start, j + 1)
        if chosen is None:
            j = int(np.where(free, sums, -1).argmax())
            chosen = (j, j + 1) if free[j] else (begin, begin)
        return chosen

    def _place_of_unit(self, unit, parent, words, taken, places):
        """Return the place of a unit: a gap between the words of its parent.

        Before the gap are mostly words that translate what is before the unit, and
        above all, the words next to it.
        """
        own = self._source_words(parent)
        before = [i for i in own if self.sources[i].core_end <= unit.start]
        after = [i for i in own if self.sources[i].core_start >= unit.start]
        begin, end = words
        if not before:
            return places[0]
        within = [x for x in self.sources if x.start < unit.start < x.end]
        if not after and not within:
            return places[1]
        shares, sums = self.shares[begin:end], self.sums[begin:end]
        balance = sums[:, before[-1] + 1] - sums[:, before[0]]
        if after:
            balance -= sums[:, after[-1] + 1] - sums[:, after[0]]
        scores = np.append(0, np.cumsum(balance))
        # The neighbours of the unit count most.
        scores[1:] += 2 * shares[:, before[-1]]
        if after:
            scores[:-1] += 2 * shares[:, after[0]]
        if after and end - begin > 1:
            # There are words on both sides, as in the source.
            scores[[0, -1]] = -np.inf
        for start, stop in taken:
            scores[start - begin + 1 : stop - begin] = -np.inf
        gap = begin + int(scores.argmax())
        if within and gap > begin:
            return self.targets[gap - 1].core_end
        if unit.before and gap < end:
            return max(self.targets[gap].start, places[0])
        return self.targets[gap - 1].end if gap > begin else places[0]


def fitting_parts(sentence, translator):
    """Return parts of a sentence that are not too long for a model."""
    words = sentence.split()
    half = len(words) // 2
    if not half or len(translator.tokenizer.encode(sentence)) <= translator.max_length:
        return [sentence]
    parts = " ".join(words[:half]), " ".join(words[half:])
    return [x for part in parts for x in fitting_parts(part, translator)]


# Elements inside of a text.
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|del|dfn|em|font|i|ins|label|mark|nobr|q|s|small|"
    "span|strike|strong|sub|sup|time|tt|u"
)
# Elements that stay as they are: code, forms, media, and empty elements.
_UNITS = re.compile(
    "area|audio|base|br|canvas|code|embed|hr|iframe|img|input|kbd|link|map|math|meta|"
    "noscript|object|param|picture|pre|progress|ruby|samp|script|select|source|style|"
    "svg|template|textarea|track|var|video|wbr"
)
# Units that are no part of a text.
_BLOCK_UNITS = ("hr", "pre")
# What XML does not allow.
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DOCUMENT = re.compile(r"<(!doctype|html|head|body)\b", re.IGNORECASE)
_END = re.compile(r"</(?:body|html)\b[^>]*>", re.IGNORECASE)
# Attributes with addresses, and what stands for an address.
_ADDRESSES = ("action", "href", "name", "src")
_MARK = "keras-attention-address-"
_LANGUAGES = ("lang", "{http://www.w3.org/XML/1998/namespace}lang", "xml:lang")


def translate_html(translator, text, *, language=None, **options):
    """Translate a page, or a part of one, which has no `<html>`, `<head>` or `<body>`.

    Block elements separate texts. Inline elements, such as links, enclose the words
    that are aligned with theirs. Code, scripts, preformatted text, attributes, and
    elements with `translate="no"` or the class `notranslate` stay as they are. The
    result is well-formed HTML, and the `lang` of a page is the `language`, such as
    `"de"`, if there is one. The options are those of `translate_each`.
    """
    root, is_page = parsed(text), bool(_DOCUMENT.search(text))
    if root is None:
        return text
    if language is not None:
        for name in _LANGUAGES:
            if name in root.attrib:
                root.set(name, language)
        if is_page:
            root.set("lang", language)
    containers, waiting = [], [root]
    while waiting:
        element = waiting.pop()
        if not _stays(element):
            content = itertools.groupby(_content(element), lambda x: x[0] == "block")
            parts = [(is_block, list(events)) for is_block, events in content]
            containers.append((element, parts))
            waiting += [x for is_block, part in parts if is_block for _, x in part]
    runs = [run for _, parts in containers for is_block, run in parts if not is_block]
    translated = iter(translate_runs(translator, runs, **options))
    for element, parts in containers:
        filled = [part if is_block else next(translated) for is_block, part in parts]
        _fill(element, itertools.chain(*filled))
    if is_page:
        return _serialized(root.getroottree())
    inner = _serialized(root.find("body"))
    return inner[inner.index(">") + 1 : inner.rindex("</body>")]


def parsed(text):
    """Return the root of a page, or of a part of one; `None` if it is empty."""
    html = _lxml()
    is_page = _DOCUMENT.search(text)
    text = _INVALID.sub("\ufffd", text)
    if not is_page:
        # What follows would not be inside.
        text = _END.sub("", text)
    source = text if is_page else f"<html><body>{text}"
    # The parser takes no string that declares an encoding.
    parser = html.HTMLParser(encoding="utf-8")
    try:
        root = html.document_fromstring(source.encode("utf-8"), parser=parser)
    except html.etree.ParserError:
        return None
    return root if is_page or root.find("body") is not None else None


def _serialized(tree):
    """Return a tree as text; the library alone would escape characters of addresses."""
    html, addresses = _lxml(), []
    for element in tree.iter(html.etree.Element):
        for name in element.keys() if isinstance(element.tag, str) else ():
            if name in _ADDRESSES:
                addresses.append(element.get(name))
                element.set(name, f"{_MARK}{len(addresses) - 1}-")
    text = html.tostring(tree, encoding="unicode")
    return re.sub(f"{_MARK}([0-9]+)-", lambda x: escape(addresses[int(x[1])]), text)


def _lxml():
    try:
        from lxml import html
    except ImportError as error:
        raise UserError(
            "HTML needs lxml: python -m pip install keras-attention-layers[markup]"
        ) from error
    return html


def _stays(element):
    """Return whether an element is not translated."""
    return (
        not isinstance(element.tag, str)
        or _UNITS.fullmatch(element.tag)
        or element.get("translate", "").lower() == "no"
        or "notranslate" in element.get("class", "").split()
    )


def _is_inline(element):
    """Return whether an element is a part of a text, with all that it contains."""
    if not isinstance(element.tag, str):
        return True
    if _UNITS.fullmatch(element.tag):
        return element.tag not in _BLOCK_UNITS
    is_inline = _INLINE.fullmatch(element.tag)
    return is_inline and (_stays(element) or all(map(_is_inline, element)))


def _content(element, is_run=False):
    """Return the events inside an element; a child that is a block is one event."""
    events = [("text", element.text)]
    for child in element:
        if not (is_run or _is_inline(child)):
            events.append(("block", child))
        elif _stays(child):
            events.append(("unit", child))
        else:
            inside = _content(child, is_run=True)
            events += [("open", child), *inside, ("close", child)]
        events.append(("text", child.tail))
    return [event for event in events if event != ("text", None)]


def _fill(element, events):
    """Replace the content of an element by that of events."""
    element.text, inner = None, [element]
    del element[:]
    for kind, value in events:
        parent = inner[-1]
        if kind == "text" and len(parent):
            parent[-1].tail = (parent[-1].tail or "") + _INVALID.sub("\ufffd", value)
        elif kind == "text":
            parent.text = (parent.text or "") + _INVALID.sub("\ufffd", value)
        elif kind == "close":
            inner.pop()
        else:
            value.tail = None
            parent.append(value)
            if kind == "open":
                value.text = None
                del value[:]
                inner.append(value)


_PAIR = re.compile(r"(?:^|-)[a-z]{2}-([a-z]{2})(?:-|$)")


def encoded(text, encoding, *, is_html):
    """Return a text in its encoding; characters without a code are references in HTML.

    Subtitles with such characters become UTF-8.
    """
    try:
        return text.encode(encoding, "xmlcharrefreplace" if is_html else "strict")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def language_of(model):
    """Return the target language in the name of a model, `None` if there is none.

    >>> language_of("multi30k-en-de-luong")
    'de'
    """
    match = _PAIR.search(model)
    return match and match[1]


# The line with the times of a subtitle, in SubRip and WebVTT.
_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->\s*(?:\d+:)?\d+:\d+[.,]\d+")
_SUBTITLE_TAG = re.compile(r"<[^<>\n]*>|\{\\[^{}\n]*\}")
_DASH = re.compile("\\s*[-\u2013]\\s*")
_TAG_NAME = re.compile(r"</?\s*([A-Za-z]*)")
_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]]*$")
# Maximum number of subtitles that one sentence goes through.
MAX_SUBTITLES = 6
# Usual limits of subtitles: characters of a line, and lines.
LINE_WIDTH, LINES = 42, 2


def translate_subtitles(translator, text, **options):
    """Translate subtitles in SubRip (.srt) or WebVTT (.vtt).

    All lines but those of the text stay as they are: numbers, times, settings, notes
    and styles. A sentence that goes through several subtitles is translated as a whole,
    and divided where the attention aligns the division. Lines are broken evenly, with
    at most 42 characters in two lines, or as many as the source has. The options are
    those of `translate_each`.
    """
    lines = text.split("\n")
    texts = [_Lines(lines, *place) for place in _places_of_texts(lines)]
    groups: list[list[_Lines]] = [[]]
    for one in texts:
        groups[-1].append(one)
        if _SENTENCE_END.search(one.plain) or len(groups[-1]) == MAX_SUBTITLES:
            groups.append([])
    runs = [[x for one in group for x in (*one.events, *_DIVISION)] for group in groups]
    translated = translate_runs(translator, runs, **options)
    for group, events in zip(groups, translated, strict=True):
        ends = [i for i, event in enumerate(events) if event == _DIVISION[1]]
        for one, begin, end in zip(group, [-1, *ends], ends, strict=False):
            one.translation = one.broken(events[begin + 1 : end])
    for one in reversed(texts):
        lines[one.begin : one.end] = one.translation
    return "\n".join(lines)


# The end of a subtitle in a run.
_DIVISION = ("text", " "), ("unit", object()), ("text", " ")


def _places_of_texts(lines):
    """Yield the begin and the end of the lines of text of each subtitle.

    Lines that begin with a dash are the words of several speakers.
    """
    place = 0
    while place < len(lines):
        place += 1
        if not _TIMES.match(lines[place - 1]):
            continue
        end = place
        while end < len(lines) and lines[end].strip():
            end += 1
        own = lines[place:end]
        spoken = [_DASH.match(line) is not None for line in own]
        if sum(spoken) > 1:
            begins = [place + i for i, dash in enumerate(spoken) if dash or not i]
            yield from zip(begins, [*begins[1:], end], strict=True)
        elif place < end:
            yield place, end
        place = end


class _Lines:
    """Lines of text of a subtitle, and those of its translation."""

    translation: list[str]

    def __init__(self, lines, begin, end):
        self.begin, self.end = begin, end
        own = lines[begin:end]
        self.ending = "\r" if own[0].endswith("\r") else ""
        own = [line.removesuffix("\r") for line in own]
        self.count = max(len(own), LINES)
        self.width = max(LINE_WIDTH, *(len(_SUBTITLE_TAG.sub("", x)) for x in own))
        dash = _DASH.match(own[0])
        self.dash = dash[0] if dash else ""
        own[0] = own[0].removeprefix(self.dash)
        self.events = _subtitle_events("\n".join(own))
        self.plain = "".join(x for kind, x in self.events if kind == "text").strip()

    def broken(self, events):
        """Return the lines of a translation, with breaks at some of its spaces."""
        shown = "".join(x for kind, x in events if kind == "text")
        begin, end = len(shown) - len(shown.lstrip()), len(shown.rstrip())
        breaks = {begin + x for x in _breaks(shown.strip(), self.width, self.count)}
        characters = iter(
            "\n" if i in breaks else x if begin <= i < end else ""
            for i, x in enumerate(shown)
        )
        text = self.dash
        for kind, value in events:
            if kind == "text":
                text += "".join(itertools.islice(characters, len(value)))
            else:
                text += {"open": value[0], "close": value[1]}.get(kind, value)
        return [line + self.ending for line in text.split("\n")]


def _subtitle_events(text):
    """Return the events of a text; a tag is a pair of its opening and its closing."""
    events, place = [], 0
    opened: list[tuple[str, int]] = []
    for match in _SUBTITLE_TAG.finditer(text):
        events.append(("text", text[place : match.start()]))
        place, tag = match.end(), match[0]
        name = _TAG_NAME.match(tag)
        if name and tag.startswith("</"):
            if opened and opened[-1][0] == name[1]:
                _, i = opened.pop()
                pair = events[i][1], tag
                events[i] = ("open", pair)
                events.append(("close", pair))
                continue
        elif name and name[1]:
            opened.append((name[1], len(events)))
        # A tag without a partner stays in its place.
        events.append(("unit", tag))
    events.append(("text", text[place:]))
    return [(kind, x) for kind, x in events if x]


def _breaks(text, width, count):
    """Return the places of spaces where lines end, so that their lengths are even.

    There are as few lines as the width needs, and at most `count`.
    """
    spaces = [i for i, x in enumerate(text) if x == " "]
    for lines in range(1, count + 1):
        found, begin = [], 0
        for left in range(lines - 1, 0, -1):
            # The space next to an equal share of the rest.
            ideal = begin + (len(text) - begin) / (left + 1)
            free = [i for i in spaces if i > begin]
            if not free:
                break
            found.append(min(free, key=lambda i: abs(i - ideal)))
            begin = found[-1] + 1
        edges = [-1, *found, len(text)]
        longest = max(j - i - 1 for i, j in itertools.pairwise(edges))
        if longest <= width or lines == count:
            return found
    return []
