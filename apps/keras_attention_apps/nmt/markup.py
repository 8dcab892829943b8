"""Files with markup: a translator translates the language in them, and nothing else.

The modules of `formats` find the runs of language in a source text. Every other
character of a file is copied.
"""

import dataclasses
import re
from collections.abc import Callable
from html import escape
from typing import Any

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt import symbols
from keras_attention_apps.nmt.formats import gettext, html, markdown, subtitles
from keras_attention_apps.nmt.formats.runs import Run, replaced, translate_runs
from keras_attention_apps.nmt.sentences import split_sentences

# Formats of files, and the suffixes of their names.
FORMATS = ("html", "srt", "vtt", "ass", "markdown", "po")
# Sentences that are translated between two reports of the progress.
SENTENCES_AT_ONCE = 64
# Addresses are not looked for in texts with longer words, since that takes long.
LONGEST_WORD = 2000


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A run whose translation is unsure, or that stays in the source language.

    Attributes:
        place: Where it is, such as `"line 12"` or `"subtitle 3 (00:01:02)"`.
        text: Its source text, without tags.
        reason: Why.
    """

    place: str
    text: str
    reason: str


@dataclasses.dataclass(frozen=True)
class TranslatedFile:
    """The translation of a file with markup.

    Attributes:
        text: Its text.
        runs: Number of the runs of language.
        doubts: The runs that are unsure.
    """

    text: str
    runs: int
    doubts: list[Doubt]


def translate_html(
    translator: Any, text: str, *, language: str | None = None, **options: Any
) -> str:
    """Translate a page in HTML or XHTML, or a part of one.

    Block elements separate texts. Inline elements, such as links, enclose the words
    that are aligned with theirs. The text of elements and the attributes that people
    read, such as `alt` and `title`, are translated; code, scripts, preformatted text,
    and elements with `translate="no"` or the class `notranslate` stay as they are.
    Everything else is copied. The `lang` of a page becomes the `language`, such as
    `"de"`, if there is one. The options are those of `translate_each`.
    """
    return translate_file(translator, text, "html", language=language, **options).text


def translate_subtitles(translator: Any, text: str, **options: Any) -> str:
    """Translate subtitles in SubRip (.srt), WebVTT (.vtt) or SubStation Alpha (.ass).

    Numbers, times, settings, notes, styles and signs of speakers stay as they are. A
    sentence that plainly goes through several subtitles is translated as a whole, and
    divided where the attention aligns the division. Lines are broken evenly, with at
    most 42 characters in two lines, or as many as the source has. The options are those
    of `translate_each`.

    Raises:
        UserError: If the text has no subtitle.
    """
    kind = subtitles.format_of(text)
    return translate_file(translator, text, kind, **options).text


def translate_file(
    translator: Any,
    text: str,
    kind: str,
    *,
    language: str | None = None,
    marks_unsure: bool = False,
    min_score: float | None = None,
    report: Callable[[int, int], object] | None = None,
    **options: Any,
) -> TranslatedFile:
    """Translate the text of a file.

    Args:
        translator: A translator with `translate`, `tokenizer` and `max_length`.
        text: The text of the file.
        kind: Its format, one of `FORMATS`. Subtitles may have another one: they are
            converted.
        language: Code of the target language, which the file then declares.
        marks_unsure: Whether elements of HTML with an unsure translation get the
            attribute `data-unsure`.
        min_score: Minimum mean log-probability of a sentence that is translated.
        report: Function that receives the number of translated sentences, and that of
            all, after each batch.
        **options: Options of `translate_each`.
    """
    document = _read(text, kind, language)
    reasons: dict[str, str] = {}

    def translate(sentences):
        results = _translated(translator, sentences, options, report)
        for i, (sentence, result) in enumerate(zip(sentences, results, strict=True)):
            is_improbable = (
                min_score is not None
                and result.words
                and round(result.mean_log_probability, 4) < min_score
            )
            reason = _doubt(result, min_score) if is_improbable else _doubt(result)
            if reason:
                reasons[sentence] = reason
            if is_improbable:
                results[i] = None
        return results

    def split(paragraph):
        held: str = paragraph
        parts: list[str] = []
        if max(map(len, paragraph.split()), default=0) <= LONGEST_WORD:
            # No sentence ends within an address.
            held, parts = symbols.hold(paragraph)
        sentences = (symbols.release(x, parts) for x in split_sentences(held))
        return [
            x for sentence in sentences for x in fitting_parts(sentence, translator)
        ]

    translated = translate_runs(
        document.source,
        document.runs,
        translate,
        split,
        # A placeholder survives in a model with symbols.
        stand_ins=getattr(translator, "has_symbols", False),
        lexicon=getattr(translator, "lexicon", None),
    )
    doubts: list[Doubt] = []
    unsure: list[Run] = []
    marks: dict[int, str] = {}
    for run, _ in sorted(translated, key=lambda x: x[0].start):
        reason = next((reasons[x] for x in run.sentences if x in reasons), None)
        if reason is None:
            continue
        unsure.append(run)
        doubts.append(Doubt(document.place_of(run.start), run.text, reason))
        if marks_unsure and run.tag is not None:
            marks.setdefault(run.tag, reason)
    edits = [(tag, tag, _mark(reason)) for tag, reason in marks.items()]
    result = replaced(document.source, translated, [*document.edits, *edits])
    if document.finish:
        result = document.finish(result, unsure)
    return TranslatedFile(result, len(translated), doubts)


def _read(text, kind, language):
    """Return the `Document` of a text in a format."""
    if kind == "html":
        return html.read(text, language)
    if kind == "markdown":
        return markdown.read(text)
    if kind == "po":
        return gettext.read(text, language)
    if kind in FORMATS:
        return subtitles.read(text, kind)
    raise UserError(f"expected a format of {', '.join(FORMATS)}. Received: {kind}")


def _translated(translator, sentences, options, report):
    """Return the best translation of each sentence; those of a batch are as long."""
    translations: list[Any] = [None] * len(sentences)
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    for begin in range(0, len(order), SENTENCES_AT_ONCE):
        batch = order[begin : begin + SENTENCES_AT_ONCE]
        texts = [sentences[i] for i in batch]
        results = translator.translate(texts, split=False, **options)
        for i, result in zip(batch, results, strict=True):
            translations[i] = result
        if report:
            report(begin + len(batch), len(sentences))
    return translations


def _doubt(result, min_score=None):
    """Return why a translation is unsure, or an empty string."""
    if result.cut:
        return "too long to translate"
    if not result.words:
        return "no translation"
    if min_score is not None:
        return f"mean log-probability below {min_score}"
    if not getattr(result, "unsure", None):
        return ""
    return getattr(result, "reason", "") or "unsure of the translation"


def _mark(reason):
    """Return the attribute of an element with an unsure text."""
    return f' data-unsure="{escape(reason)}"'


def fitting_parts(sentence: str, translator: Any) -> list[str]:
    """Return parts of a sentence that are not too long for a model."""
    words = sentence.split()
    half = len(words) // 2
    if not half or translator.token_count(sentence) <= translator.max_length:
        return [sentence]
    parts = " ".join(words[:half]), " ".join(words[half:])
    return [x for part in parts for x in fitting_parts(part, translator)]


_PAIR = re.compile(r"(?:^|-)[a-z]{2}-([a-z]{2})(?:-|$)")


def language_of(model: str) -> str | None:
    """Return the target language in the name of a model, `None` if there is none.

    >>> language_of("multi30k-en-de-luong")
    'de'
    """
    match = _PAIR.search(model)
    return match and match[1]
