"""Numbers, money, times and dates in the form of another language.

1,250.50 is 1.250,50 in German, and 2:30 p.m. is 14:30 Uhr. The TypeScript of the page
without a server has the same forms, in `spans.ts`.
"""

import re
from collections.abc import Callable

from keras_attention_apps.nmt.spans import (
    CURRENCIES,
    CURRENCY,
    MONTHS,
    NUMBER,
    NUMERAL,
    ORDINAL,
    TIME,
    WORD,
)


def in_language(text: str, kind: int, source: str | None, target: str | None) -> str:
    """Return the text of a span as another language writes it.

    Only English and German are known; every other text stays as it is, and so does a
    date whose day and month cannot be told apart.

    >>> in_language("$1,250.50", NUMBER, "en", "de")
    '1.250,50 $'
    >>> in_language("14:30 Uhr", TIME, "de", "en")
    '2:30 p.m.'
    """
    forms = _FORMS.get((source, target))
    if forms is None or kind == WORD:
        return text
    return forms[kind](text)


_GROUPED = {
    "en": re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+\.[0-9]+"),
    "de": re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]+)?|[0-9]+,[0-9]+"),
}
_NUMERALS = re.compile(NUMERAL)
_SWAPPED = str.maketrans(".,", ",.")
_LEADING_MONEY = re.compile(
    f"([-+\u2212]?)((?:US|A|C|NZ)?{CURRENCY}|(?:{CURRENCIES})) ?([0-9].*?)([kKMm]?)"
)
_TRAILING_MONEY = re.compile(
    f"([-+\u2212]?)([0-9].*?)(?:,[-\u2013])?[ \u00a0\u202f]?({CURRENCY})"
)
_PERCENT = re.compile("[ \u00a0\u202f]?(%|\u2030)")
_DEGREES = re.compile("(?<=[0-9])(\u00b0[CFK])")
_ORDINAL_NUMBER = re.compile(f"([0-9][0-9,]*){ORDINAL}")
_DECADE = re.compile("'?([0-9]+)['\u2019]?s")
_ENGLISH_CLOCK = re.compile(
    "([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))? ?(?:([AaPp])\\.?[Mm]\\.?)"
)
_GERMAN_CLOCK = re.compile(
    "([0-9]{1,2})(?:[:.]([0-9]{2}))? ?(?:Uhr|h)(?: ([0-9]{1,2}))?"
)
_ENGLISH_DATES = (
    re.compile(
        f"(?:the )?(?P<day>[0-9]{{1,2}}){ORDINAL}? (?:of )?(?P<month>[A-Z][a-z]+)\\.?"
        "(?:,? (?P<year>[0-9]{4}))?"
    ),
    re.compile(
        f"(?P<month>[A-Z][a-z]+)\\.? (?P<day>[0-9]{{1,2}}){ORDINAL}?"
        "(?:,? (?P<year>[0-9]{4}))?"
    ),
    re.compile("(?P<month>[A-Z][a-z]+)\\.? (?P<day>)(?P<year>[0-9]{4})"),
)
_GERMAN_DATES = (
    re.compile(
        "(?P<day>[0-9]{1,2})\\. ?(?P<month>[A-Z][a-z\u00e4]+)(?: (?P<year>[0-9]{4}))?"
    ),
    re.compile("(?P<month>[A-Z][a-z\u00e4]+) (?P<day>)(?P<year>[0-9]{4})"),
    re.compile(
        "(?P<day>[0-9]{1,2})\\.(?P<month>[0-9]{1,2})(?:\\.(?P<year>[0-9]{4}|[0-9]{2})?)?"
    ),
)
_SLASHED = re.compile("([0-9]{1,2})/([0-9]{1,2})/([0-9]{4}|[0-9]{2})")


def _with_separators(text, language):
    """Return a text whose numerals have the separators of the other language."""

    def swapped(match):
        numeral = match[0]
        if _GROUPED[language].fullmatch(numeral):
            return numeral.translate(_SWAPPED)
        return numeral

    return _NUMERALS.sub(swapped, text)


def _german_number(text):
    if match := _ORDINAL_NUMBER.fullmatch(text):
        return f"{_with_separators(match[1], 'en')}."
    if match := _DECADE.fullmatch(text):
        return f"{match[1]}er"
    text = _with_separators(text, "en")
    if match := _LEADING_MONEY.fullmatch(text):
        sign, currency, amount, suffix = match.groups()
        suffix = {"M": " Mio.", "m": " Mio.", "k": " Tsd.", "K": " Tsd."}.get(
            suffix, ""
        )
        return f"{sign}{amount}{suffix} {currency}"
    return _DEGREES.sub(r" \1", _PERCENT.sub(r" \1", text))


def _english_number(text):
    if text.endswith(".") and text[:-1].isdigit():
        number = int(text[:-1])
        teens = 10 < number % 100 < 14
        return f"{number}{'th' if teens else _SUFFIXES.get(number % 10, 'th')}"
    if text.endswith("er") and text[:-2].isdigit():
        return f"{text[:-2]}s"
    text = _with_separators(text, "de")
    if match := _TRAILING_MONEY.fullmatch(text):
        sign, amount, currency = match.groups()
        return f"{sign}{currency}{amount}"
    return _PERCENT.sub(r"\1", text)


_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


def _german_time(text):
    if match := _ENGLISH_CLOCK.fullmatch(text):
        hour, minute, second, half = match.groups()
        number = int(hour)
        if half in "Pp" and number < 12:
            number += 12
        if half in "Aa" and number == 12:
            number = 0
        clock = ":".join(x for x in (str(number), minute, second) if x)
        return f"{clock} Uhr"
    if "clock" in text:
        return f"{text.split()[0]} Uhr"
    if match := _SLASHED.fullmatch(text):
        first, other, year = match.groups()
        if int(first) > 12:
            first, other = other, first
        is_clear = int(other) > 12 or first == other
        if not is_clear or not 0 < int(first) <= 12 or int(other) > 31:
            return text
        return f"{int(other)}.{int(first)}.{year}"
    for pattern in _ENGLISH_DATES:
        if match := pattern.fullmatch(text):
            month = _month(match["month"], "en")
            day, year = match["day"], match["year"]
            if month is None:
                return text
            parts = [f"{int(day)}." if day else "", MONTHS["de"][month], year or ""]
            return " ".join(filter(None, parts))
    return text


def _english_time(text):
    if match := _GERMAN_CLOCK.fullmatch(text):
        hour = int(match[1])
        minute: str | None = match[2] or match[3]
        if hour > 24 or (minute and int(minute) > 59):
            return text
        if minute is None and 0 < hour <= 12:
            return f"{hour} o'clock"
        half = "p.m." if 12 <= hour < 24 else "a.m."
        clock = f"{(hour + 11) % 12 + 1}"
        return f"{clock}:{minute.zfill(2)} {half}" if minute else f"{clock} {half}"
    for pattern in _GERMAN_DATES:
        if match := pattern.fullmatch(text):
            day, year = match["day"], match["year"]
            month = _month(match["month"], "de")
            if month is None or (day and not 0 < int(day) <= 31):
                return text
            name = MONTHS["en"][month]
            if not day:
                return f"{name} {year}"
            if year and len(year) == 2:
                year = f"20{year}" if int(year) < 50 else f"19{year}"
            return f"{name} {int(day)}" + (f", {year}" if year else "")
    return text


def _month(name, language):
    """Return the index of a month from its name, abbreviation or number, or `None`."""
    if name.isdigit():
        return int(name) - 1 if 0 < int(name) <= 12 else None
    name = {"J\u00e4nner": "Januar", "Feber": "Februar"}.get(name, name)
    for i, month in enumerate(MONTHS[language]):
        if len(name) > 2 and month.startswith(
            name.removesuffix("t") if name == "Sept" else name
        ):
            return i
    return None


_FORMS: dict[tuple[str | None, str | None], dict[int, Callable[[str], str]]] = {
    ("en", "de"): {NUMBER: _german_number, TIME: _german_time},
    ("de", "en"): {NUMBER: _english_number, TIME: _english_time},
}
