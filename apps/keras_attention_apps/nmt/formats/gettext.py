"""Messages of gettext: the translations that a .po file lacks.

The messages of a file are the source text of the runs, and their translations are
written where the file has empty ones. Everything else is copied.
"""

import bisect
import dataclasses
import re
from typing import Any

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.formats import html
from keras_attention_apps.nmt.formats.runs import (
    TEXT,
    UNIT,
    Document,
    Piece,
    Run,
    has_letters,
    merged,
)

# What separates the messages of the source text; no message has it.
_SEPARATOR = "\0\n"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_STRING = re.compile(r'\s*"')
_KEYWORD = re.compile(r"msgstr(?:\[(\d+)\])?\s*(?=\")")
_REFERENCE = re.compile(r"&(?:#\w+|[A-Za-z]+\d*);")
_TAG = re.compile(rf"</?[A-Za-z][^<>]*>|{_REFERENCE.pattern}")
_FORMAT = re.compile(
    r"%(?:\([^)]*\))?(?:\d+\$)?[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?[hlLqjzt]*"
    r"[diouxXeEfFgGcrsaAp%]|\{[^{}\n]*\}|\$\{?\w+\}?"
)
# Mnemonics: the letter after the sign is the key of a menu.
_MNEMONIC = re.compile(
    r"(?<![&\w])&(?=[^\W_])(?!#?\w+;)|(?<=[^\W_])&(?=[^\W_])(?!\w+;)"
)
_UNDERSCORE = re.compile(r"^_(?=[^\W_])|(?<=^[A-Z])_(?=[a-z])|(?<=\s)_(?=[A-Z])")
_LANGUAGE = re.compile(r'^("Language:)[ \t]*(\\n"[ \t]*\r?)$', re.MULTILINE)


@dataclasses.dataclass(slots=True)
class Message:
    """A text of an entry, and the position of its empty translation.

    Attributes:
        text: The text, without the sign of a mnemonic.
        mnemonic: The sign, or an empty string.
        start, end: Place of the strings of the translation in the file.
        entry: Place of the entry's first line that is no comment.
        flags: Place in the line of the entry's flags, or -1.
        line: The line of the entry.
        is_uncertain: Whether the language has other plurals than English.
    """

    text: str
    mnemonic: str
    start: int
    end: int
    entry: int
    flags: int
    line: int
    is_uncertain: bool = False


def parsed_messages(content: str) -> Any:
    """Return the entries of a file of messages, as polib parses them.

    Raises:
        UserError: If the file is no valid .po file.
    """
    try:
        # A name of a file would be read.
        return _polib().pofile(f"{content.removeprefix(chr(0xFEFF))}\n")
    except (OSError, ValueError) as error:
        raise UserError(f"expected a .po file. {error}") from error


def messages(content: str) -> list[Message]:
    """Return the messages of a file that have no translation.

    Raises:
        UserError: If the file is no valid .po file, or has no messages.
    """
    entries = [entry for entry in parsed_messages(content) if not entry.obsolete]
    if not entries:
        raise UserError("expected the messages of a .po file. There is none")
    lines = [match.span() for match in _LINE.finditer(content)]
    untranslated = []
    for entry in entries:
        texts = entry.msgstr_plural or {None: entry.msgstr}
        if any(texts.values()) or not entry.msgid:
            continue
        untranslated += _of_entry(content, lines, entry)
    return untranslated


def _of_entry(content, lines, entry):
    """Yield the messages of an entry."""
    number, flags, first = entry.linenum - 1, -1, None
    while number < len(lines):
        start, end = lines[number]
        line = content[start:end]
        if line.startswith("#,"):
            flags = start + 2
        elif first is None and line.startswith("msg"):
            first = start
        match = _KEYWORD.match(line)
        if match:
            position = start + match.end()
            while number + 1 < len(lines) and _STRING.match(
                content, *lines[number + 1]
            ):
                number += 1
            end = lines[number][0] + len(content[slice(*lines[number])].rstrip())
            index = match[1]
            is_plural = index not in (None, "0")
            text = entry.msgid_plural if is_plural else entry.msgid
            text, mnemonic = _without_mnemonic(text)
            is_uncertain = index is not None and len(entry.msgstr_plural) != 2
            yield Message(
                *(text, mnemonic, position, end, first or start, flags, entry.linenum),
                is_uncertain,
            )
        elif first is not None and not line.strip():
            return
        elif first is not None and line.startswith(("#", "msgid ", "msgctxt ")):
            has_strings = _KEYWORD.search(content, first, start)
            if has_strings:
                return
        number += 1


def _without_mnemonic(text):
    """Return a text without the sign of its mnemonic, and the sign."""
    for pattern in (_MNEMONIC, _UNDERSCORE):
        matches = list(pattern.finditer(text))
        if len(matches) == 1 and "\n" not in text and not _TAG.search(text):
            match = matches[0]
            return text[: match.start()] + text[match.end() :], match[0]
    return text, ""


def read(content: str, language: str | None = None) -> Document:
    """Return the messages of a file that have no translation.

    `language` is the code of the target language, written if the file has none.

    Raises:
        UserError: If the file is no valid .po file, or has no messages.
    """
    untranslated = messages(content)
    runs: list[Run] = []
    offsets = [0]
    for message in untranslated:
        text, offset = message.text, offsets[-1]
        if _TAG.search(text):
            message_runs = html.read(text).runs
        else:
            message_runs = [Run(_pieces(text))] if any(map(str.isalpha, text)) else []
        for run in message_runs:
            if not _REFERENCE.search(text):
                # Signs such as "&" stand for themselves.
                run.spell = str
            for piece in run.pieces:
                piece.start += offset
                piece.end += offset
        runs += message_runs
        offsets.append(offset + len(text) + len(_SEPARATOR))

    def number_of(position):
        return bisect.bisect_right(offsets, position) - 1

    def finish(translation, unsure):
        doubts = {number_of(run.start) for run in unsure}
        return _filled(content, untranslated, translation, doubts, language)

    return Document(
        _SEPARATOR.join(message.text for message in untranslated),
        runs,
        place_of=lambda position: f"line {untranslated[number_of(position)].line}",
        finish=finish,
    )


def _pieces(text):
    """Return the pieces of a message without tags; line breaks may end a sentence."""
    pieces: list[Piece] = []
    position = 0
    for match in re.finditer(r"\r?\n", text):
        if position < match.start():
            pieces.append(
                Piece(TEXT, position, match.start(), text[position : match.start()])
            )
        pieces.append(Piece(UNIT, *match.span(), name="br"))
        position = match.end()
    if position < len(text):
        pieces.append(Piece(TEXT, position, len(text), text[position:]))
    return merged(html.broken(pieces)) if has_letters(pieces) else pieces


def _filled(
    content: str,
    untranslated: list[Message],
    translation: str,
    doubts: set[int],
    language: str | None,
) -> str:
    """Return the content of a file with the translations of its messages.

    `doubts` are the numbers of the messages whose translation is unsure.
    """
    texts = translation.split(_SEPARATOR) if untranslated else []
    edits: list[tuple[int, int, str]] = []
    fuzzy: dict[int, int] = {}
    newline = "\r\n" if "\r\n" in content else "\n"
    for number, (message, text) in enumerate(zip(untranslated, texts, strict=True)):
        is_same = sorted(_FORMAT.findall(text)) == sorted(_FORMAT.findall(message.text))
        text = _with_mnemonic(text, message.mnemonic)
        edits.append((message.start, message.end, _strings(text, newline)))
        if number in doubts or message.is_uncertain or not is_same:
            fuzzy[message.entry] = message.flags
    for entry, flags in fuzzy.items():
        if flags < 0:
            edits.append((entry, entry, f"#, fuzzy{newline}"))
        elif "fuzzy" not in content[flags:entry].split("\n")[0]:
            edits.append((flags, flags, " fuzzy,"))
    if language:
        match = _LANGUAGE.search(content)
        if match:
            edits.append((match.end(1), match.start(2), f" {language}"))
    parts: list[str] = []
    position = 0
    for start, end, text in sorted(edits):
        parts += content[position:start], text
        position = end
    return "".join([*parts, content[position:]])


def _with_mnemonic(text, mnemonic):
    match = mnemonic and re.search(r"[^\W_]", text)
    if not match:
        return text
    return text[: match.start()] + mnemonic + text[match.start() :]


def _strings(text, newline):
    """Return a text as the strings of a translation."""
    entry = str(_polib().POEntry(msgid="a", msgstr=text))
    strings = entry[entry.index("\nmsgstr ") + len("\nmsgstr ") :].rstrip("\n")
    return strings.replace("\n", newline)


def _polib():
    try:
        import polib
    except ImportError as error:
        raise UserError(
            'Messages need polib: python -m pip install "keras-attention-apps[train]"'
        ) from error
    return polib
