"""Spans that must survive a translation: numbers, times, codes, placeholders.

`find_spans` finds them in a text; `locales.py` writes them as another language does.
The patterns are valid in Python and in JavaScript: the page without a server reads them
from `spans.json`, and the tests of both read `symbol_cases.json`.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator

# Kinds of spans. Each has symbols of its own in the vocabulary, since a number, a time
# and a word have different neighbours.
NUMBER, TIME, WORD = range(3)


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a text that must survive, from `begin` up to `end`."""

    begin: int
    end: int
    kind: int


# Letters of Latin scripts, and those of them that English and German texts have.
_LATIN = "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
_SMALL = "a-z\u00df-\u00e2\u00e4\u00e7-\u00eb\u00ee\u00ef\u00f1\u00f4\u00f6\u00fb\u00fc"
_USUAL = f"A-Z\u00c4\u00c9\u00d6\u00dc{_SMALL}"
_BEGIN = f"(?<![{_LATIN}0-9_])"
_END = f"(?![{_LATIN}0-9_])"
# Where a part could be read again from several places, its length is bounded, so that
# a text takes time in proportion to its length.
#
# Punctuation at the end of an address belongs to the sentence.
_INNER = '[^\\s<>"`\u201c\u201d\u201e\u00ab\u00bb]'
_LAST = "[^\\s<>\"`\u201c\u201d\u201e\u00ab\u00bb.,;:!?'\u2019\u2026)\\]}]"

_FILE_TYPES = (
    "txt|pdf|docx?|xlsx?|pptx?|od[tsp]|rtf|csv|tsv|json|ya?ml|xml|html?|css|scss|jsx?|"
    "tsx?|py|ipynb|java|jar|whl|cpp|hpp|so|dylib|dll|rs|go|rb|php|swift|sh|bat|ps1|exe|"
    "msi|deb|rpm|apk|zip|gz|tar|tgz|7z|rar|iso|dmg|jpe?g|png|gif|svg|webp|bmp|tiff?|ico|"
    "heic|avif|psd|mp[34]|m4[av]|wav|flac|aac|ogg|avi|mov|mkv|webm|srt|vtt|md|rst|tex|"
    "epub|log|ini|cfg|conf|toml|lock|sql|db|bak|tmp|parquet|pem|vcf|ics|eml|ttf|otf|"
    "woff2?|tflite|npz|npy|pkl|h5|keras|onnx"
)
_DOMAINS = "com|org|net|edu|gov|info|io|dev|app|eu|de|at|ch|uk|us|fr|nl|biz|shop|ai"

NUMERAL = "[0-9]+(?:[.,'\u2019\u00a0\u202f][0-9]+)*"
_FRACTIONS = "\u00bc-\u00be\u2150-\u215e"
CURRENCY = "[$\u20ac\u00a3\u00a5\u20b9\u20bd\u20ba]"
CURRENCIES = "USD|EUR|GBP|CHF|JPY|CNY|AUD|CAD|SEK|NOK|DKK|PLN"
_UNITS = (
    "%|\u2030|\u00b0 ?[CFK]?|km/h|m/s|mph|[kcmn\u00b5]?m[\u00b2\u00b3]?|[km\u00b5]?g|"
    "[cmd]?l|ha|[kMGT]i?B|[kMG]?bit/s|[kMGT]?Hz|[kM]?Wh?|[kM]?V|mAh|mA|kcal|kJ|px|dpi|"
    "lbs?|oz|ft|sq ?ft|bar|dB|min|ms|h|s"
)
MONTHS = {
    "en": [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ],
    "de": [
        "Januar",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
    ],
}
_SHORT_MONTHS = "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
_ENGLISH_MONTH = f"(?:{'|'.join(MONTHS['en'])}|(?:{_SHORT_MONTHS})\\.?)"
_GERMAN_MONTH = f"(?:{'|'.join(MONTHS['de'])}|J\u00e4nner|Feber)"
ORDINAL = "(?:st|nd|rd|th)"

# Writing systems that are not Latin.
_OTHER_LETTER = (
    "[\u0370-\u1dff\u1f00-\u1fff\u2c00-\u2fff\u3005-\ud7ff\uf900-\ufdff\ufe70-\ufeff"
    "\uff66-\uff9f\U00010000-\U0001efff\U00020000-\U0003ffff]"
)
_EMOJI = (
    "[\u2190-\u21ff\u2300-\u23ff\u2460-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\U0001f000-\U0001faff]"
)
_EMOJI_PART = "[\u200d\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
# Symbols of the vocabulary are in this area; so a text may contain them.
_PRIVATE = "[\ue000-\uf8ff\U000f0000-\U0010ffff]"

_WORDS = (
    "`[^`\\n]+`",
    f"{_BEGIN}(?:(?:https?|ftps?|sftp|file|wss?|git|ssh)://|www\\.|mailto:|tel:)"
    f"{_INNER}*{_LAST}/?",
    f"{_BEGIN}[{_LATIN}0-9._%+-]{{1,64}}@[{_LATIN}0-9-]{{1,63}}"
    f"(?:\\.[{_LATIN}0-9-]{{1,63}}){{0,9}}\\.[A-Za-z]{{2,}}",
    "<!--[^\\n]{0,2000}?-->|</?[A-Za-z][^<>\\n]*>|</?[0-9]+ ?/?>",
    "&(?:#[0-9]+|#[xX][0-9A-Fa-f]+|[A-Za-z][A-Za-z0-9]*);",
    # Placeholders of templates, with braces inside of them, and of `printf`.
    "[$#%]?\\{\\{[^{}\\n]*\\}\\}|[$#%]?\\{[^{}\\n]*(?:\\{[^{}\\n]*\\}[^{}\\n]*)*\\}",
    "\\[\\[[^\\[\\]\\n]*\\]\\]|\\[%[^\\n]{0,1000}?%\\]",
    "(?<![0-9%])%(?:\\([A-Za-z_][A-Za-z0-9_]*\\)|[0-9]+\\$)?[-+0#]{0,5}[0-9]{0,9}"
    f"(?:\\.[0-9]+)?(?:ll|l|h|z)?[sdifuxXeEgGcpq@](?![{_LATIN}])",
    "(?<![0-9%])%[0-9]{1,2}(?![0-9.,%])|(?<![0-9])%%",
    "\\$[A-Za-z_][A-Za-z0-9_]*",
    # Unbalanced placeholders.
    f"\\$?\\{{+[{_LATIN}0-9_.]+|"
    f"(?:(?<![{_LATIN}])|(?![{_LATIN}]))[{_LATIN}0-9_.]{{1,100}}\\}}+",
    # Paths, names of files, and domains.
    f"{_BEGIN}[A-Za-z]:[\\\\/]{_INNER}*{_LAST}|\\\\\\\\{_INNER}*{_LAST}",
    f"(?<![{_LATIN}0-9_.~/)])(?:~|\\.{{1,2}})?/(?:[{_LATIN}0-9_.@%+~-]+/)*"
    f"[{_LATIN}0-9_.@%+~-]*[{_LATIN}0-9_~/-]",
    f"{_BEGIN}(?:[{_LATIN}0-9_.-]{{1,100}}[/\\\\]){{0,30}}"
    f"[{_LATIN}0-9_][{_LATIN}0-9_.-]{{0,100}}\\.(?:{_FILE_TYPES}){_END}",
    f"{_BEGIN}[a-z0-9-]{{1,63}}(?:\\.[a-z0-9-]{{1,63}}){{0,9}}"
    f"\\.(?:{_DOMAINS})(?![{_LATIN}0-9_-])(?:/{_INNER}*{_LAST})?",
    f"(?<![{_LATIN}0-9_@#&/])[@#]+[{_LATIN}0-9_](?:[{_LATIN}0-9_.-]*[{_LATIN}0-9_])?",
    f"[0-9#*]\ufe0f?\u20e3|{_EMOJI}{_EMOJI_PART}*(?:{_EMOJI}{_EMOJI_PART}*)*",
    f"(?<![{_LATIN}0-9])(?:[:;=8][-']?[)(DPpOo|/\\\\*](?![{_LATIN}0-9/])|<3(?![0-9]))",
    f"{_OTHER_LETTER}+(?:[ '\u2019\u00b7-]?{_OTHER_LETTER}+)*",
    f"{_PRIVATE}+",
)
_TIMES = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\\.[0-9]+)?)?"
    f"(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?{_END}",
)
_DAY, _MONTH_NUMBER = "(?:0?[1-9]|[12][0-9]|3[01])", "(?:0?[1-9]|1[0-2])"
_DOTTED_DATE = f"{_DAY}\\.{_MONTH_NUMBER}\\.(?:[0-9]{{4}}|[0-9]{{2}}){_END}"
_SLASHED_DATE = f"[0-9]{{1,2}}/[0-9]{{1,2}}/(?:[0-9]{{4}}|[0-9]{{2}}){_END}"
_CLOCK = "[0-9]{1,2}(?::[0-9]{2}){1,2}"
# The point of "p.m." at the end of a sentence belongs to the sentence, too.
_HALF_DAY = f" ?(?:[AaPp]\\.[Mm](?:\\.(?!\\s*$))?|[AaPp][Mm]){_END}"
_TIMES_OF: dict[str, tuple[str, ...]] = {
    "en": (
        f"(?:the )?[0-9]{{1,2}}{ORDINAL}? (?:of )?{_ENGLISH_MONTH}"
        f"(?:,? [0-9]{{4}})?{_END}",
        f"{_ENGLISH_MONTH} [0-9]{{1,2}}(?:{ORDINAL})?(?:,? [0-9]{{4}})?{_END}",
        f"{_ENGLISH_MONTH} [0-9]{{4}}{_END}",
        _DOTTED_DATE,
        _SLASHED_DATE,
        f"{_CLOCK}{_HALF_DAY}|[0-9]{{1,2}}{_HALF_DAY}|[0-9]{{1,2}} o['\u2019]clock",
        f"{_CLOCK}{_END}",
    ),
    "de": (
        f"[0-9]{{1,2}}\\. ?{_GERMAN_MONTH}(?: [0-9]{{4}})?{_END}",
        f"{_GERMAN_MONTH} [0-9]{{4}}{_END}",
        _DOTTED_DATE,
        # Without a year, it looks like the number of a section.
        "(?:(?<=[Aa]m )|(?<=[Vv]om )|(?<=[Zz]um )|(?<=[Bb]is )|(?<=[Aa]b )|(?<=den ))"
        f"{_DAY}\\.{_MONTH_NUMBER}(?:\\.(?!\\s*$){_END}|(?=\\.\\s*$))",
        _SLASHED_DATE,
        f"[0-9]{{1,2}}[:.][0-9]{{2}} ?(?:Uhr|h){_END}",
        f"[0-9]{{1,2}} ?Uhr(?: [0-9]{{1,2}}{_END})?{_END}",
        f"{_CLOCK}{_END}",
    ),
}
# Large numbers with points look like versions.
_GROUPED_OF: dict[str, tuple[str, ...]] = {
    "de": (f"[0-9]{{1,3}}(?:\\.[0-9]{{3}}){{2,}}(?:,[0-9]+)?{_END}",)
}
_CODES = (
    # Telephone numbers, versions and addresses of the Internet Protocol.
    "(?:\\+[0-9]{1,3}|\\(0[0-9]{1,5}\\)|00[0-9]{2}|0[0-9]{2,5})"
    "(?:[ /.-]?\\(?[0-9]{1,5}\\)?){2,6}" + _END,
    f"v?[0-9]+(?:\\.[0-9]+){{2,}}(?:-[a-z0-9.]+)?{_END}",
)
_MONEY = (
    f"[-+\u2212]?(?:(?:US|A|C|NZ)?{CURRENCY}|(?:{CURRENCIES}) ?) ?{NUMERAL}"
    f"(?:[-\u2013] ?{NUMERAL})?[kKMm]?{_END}",
    f"[-+\u2212]?{NUMERAL}(?:,[-\u2013])?[ \u00a0\u202f]?"
    f"(?:{CURRENCY}|(?:{CURRENCIES}|ct){_END})",
)
_SIGNED = f"[-+\u2212\u00b1\u2248~<>\u2264\u2265]{{0,2}}{NUMERAL}"
_UNIT = f"[ \u00a0\u202f]?(?:{_UNITS})(?![{_LATIN}0-9_/\u00b2\u00b3])"
_NUMBERS = (
    f"{_SIGNED} ?[x\u00d7] ?{NUMERAL}(?: ?[x\u00d7] ?{NUMERAL})?(?:{_UNIT}|{_END})",
    f"{_SIGNED}(?: ?[-\u2013\u2014] ?{NUMERAL})?{_UNIT}",
)
_NUMBERS_OF: dict[str, tuple[str, ...]] = {
    "en": (
        f"[0-9]+(?:,[0-9]{{3}})*{ORDINAL}{_END}",
        f"'?[0-9]{{2,4}}['\u2019]?s{_END}",
    ),
    "de": (
        "(?:(?<=[Aa]m )|(?<=[Dd]er )|(?<=[Dd]ie )|(?<=[Dd]as )|(?<=[Dd]em )|"
        "(?<=[Dd]en )|(?<=[Dd]es )|(?<=[Zz]um )|(?<=[Zz]ur )|(?<=[Vv]om )|"
        f"(?<=[Bb]eim )|(?<=[Ii]m ))[0-9]{{1,3}}\\.(?= [{_LATIN}])",
        f"[0-9]{{2,4}}er{_END}",
    ),
}
_LAST_CODES = (
    # Of letters and digits, such as A4, B2B, 4711-882 or LH 454, but not 20-year-old.
    f"(?![0-9]+-[{_LATIN}][a-z\u00e4\u00f6\u00fc\u00df]{{2,}})"
    "(?=[A-Za-z0-9_/.+-]{0,250}[0-9])(?=[A-Za-z0-9_/.+-]{0,250}[A-Za-z_/])"
    f"[A-Za-z0-9](?:[A-Za-z0-9_/.+-]{{0,250}}[A-Za-z0-9+]){_END}",
    "[0-9]+(?:[-/][0-9]+){2,50}" + _END,
    f"[0-9]{{4,}}(?:[-/][0-9]+){{1,50}}{_END}|[0-9]+(?:[-/][0-9]{{4,}}){{1,50}}{_END}",
)
# Not beside another word in capital letters: "HE IS 19" has no code.
_SPACED_CODE = (
    f"{_BEGIN}(?<![A-Z] )[A-Z]{{2,4}} [0-9]{{2,}}(?![0-9]*[.,:%\u20ac$]?[0-9]){_END}"
    "(?! [A-Z]{2})"
)
_LAST_NUMBERS = (
    f"{_SIGNED}(?: ?[-\u2013\u2014/] ?{NUMERAL})?[{_FRACTIONS}]?|[{_FRACTIONS}]",
)
_LAST_WORDS = (
    f"{_BEGIN}[{_LATIN}0-9]+(?:_[{_LATIN}0-9]+)+|{_BEGIN}_+[{_LATIN}0-9_]+",
    f"{_BEGIN}[a-z]+(?:[A-Z][a-z0-9]*)+(?:\\(\\))?{_END}",
    f"{_BEGIN}[A-Za-z_][A-Za-z0-9_.]{{0,100}}\\(\\)",
    f"(?<!\\S)--?[A-Za-z][A-Za-z0-9-]*=\\S*[^\\s.,;:!?]|(?<!\\S)--[A-Za-z][A-Za-z0-9-]*"
    f"|(?<!\\S)-[A-Za-z]{_END}",
    f"{_BEGIN}[A-Za-z]+(?:[#*^|\\\\][A-Za-z0-9#]*)+",
    f"{_BEGIN}[IVX]{{2,}}{_END}",
    # Words with a letter that neither English nor German has.
    f"{_BEGIN}[{_LATIN}]*(?![{_USUAL}])[{_LATIN}][{_LATIN}'\u2019-]*",
    # Marks that English and German sentences do not have.
    "(?:\\*\\*|__|~~|[\\]\\[{}<>\\\\|~^*#=_\u00a7\u00a9\u00ae\u2122\u2020\u2021\u2022"
    "\u00a1\u00bf\u00b6\u00b7])+",
)


@functools.cache
def pattern_of(language: str | None) -> tuple[str, list[int]]:
    """Return the pattern of all spans of a language, and the kinds of its groups.

    It is valid in Python and, with the flag `u`, in JavaScript.
    """
    key = str(language)
    parts = [
        *((WORD, x) for x in _WORDS),
        *((TIME, _BEGIN + x) for x in _TIMES),
        *((TIME, f"{_BEGIN}(?:{x})") for x in _TIMES_OF.get(key, ())),
        *((NUMBER, f"{_BEGIN}(?:{x})") for x in (*_MONEY, *_NUMBERS)),
        *((NUMBER, f"{_BEGIN}(?:{x})") for x in _GROUPED_OF.get(key, ())),
        *((WORD, f"{_BEGIN}(?:{x})") for x in _CODES),
        *((NUMBER, f"{_BEGIN}(?:{x})") for x in _NUMBERS_OF.get(key, ())),
        *((WORD, f"{_BEGIN}(?:{x})") for x in _LAST_CODES),
        (WORD, _SPACED_CODE),
        *((NUMBER, x) for x in _LAST_NUMBERS),
        *((WORD, x) for x in _LAST_WORDS),
    ]
    kinds = [kind for kind, _ in parts]
    return "|".join(f"({x})" for _, x in parts), kinds


@functools.cache
def _compiled(language):
    pattern, kinds = pattern_of(language)
    return re.compile(pattern), kinds


# Ordinary words, none of which begins a span. Those before a number may be a month.
_ORDINARY = re.compile(f"(?:[{_USUAL}][{_SMALL}]*+[,;.!?]?(?:[ \\n]++(?![0-9])|$))++")
# A character, and letters or blanks after it, in front of which no span begins.
_NEXT = re.compile(f"[{_LATIN}0-9_][{_LATIN}]*|\\s+|.", re.DOTALL)


def each_span(text: str, language: str | None = None) -> Iterator[Span]:
    """Yield what must survive a translation of a text, in order."""
    pattern, kinds = _compiled(language)
    position = 0
    while position < len(text):
        if ordinary := _ORDINARY.match(text, position):
            position = ordinary.end()
            continue
        match = pattern.match(text, position)
        if match and match.end() > position:
            yield Span(position, match.end(), kinds[match.lastindex - 1])
            position = match.end()
        else:
            position = next(_NEXT.finditer(text, position)).end()


def find_spans(text: str, language: str | None = None) -> list[Span]:
    """Return what must survive a translation of a text, in order.

    >>> text = "Call +49 30 1234 at 2:30 p.m., or pay $1,250.50 to anna@mail.org."
    >>> [text[x.begin : x.end] for x in find_spans(text, "en")]
    ['+49 30 1234', '2:30 p.m.', '$1,250.50', 'anna@mail.org']
    """
    return list(each_span(text, language))
