"""Characters: invisible ones, and writing systems without spaces."""

import re

# Invisible characters that no text needs.
_NEVER_NEEDED = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e001f\U000e0080-\U000e0fff"
)
# Invisible characters that some texts need: zero-width non-joiner and joiner,
# Mongolian selectors, and tags.
_JOINERS = "\u200c\u200d"
_SELECTORS = "\u180b-\u180f"
_TAGS = "\U000e0020-\U000e007f"
_SOMETIMES_NEEDED = _JOINERS + _SELECTORS + _TAGS
_EMOJI = "[\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]"
# Scripts whose letters change their form before a joiner: Arabic and its neighbours,
# the scripts of India and of South-East Asia, and Adlam.
_SHAPED = (
    "[\u0600-\u0dff\u1000-\u109f\u1780-\u180a\u1810-\u18af\u1a20-\u1aaf\u1b00-\u1c7f"
    "\u1cd0-\u1cff\ua800-\ua8ff\ua980-\uaa7f\uabc0-\uabff\ufb50-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00010aff\U00010d00-\U00011fff\U0001e900-\U0001e95f]"
)

_MONGOLIAN = "[\u1800-\u180a\u1810-\u18af]"
_FLAG = "\U0001f3f4"

_NEEDED = "|".join(
    (
        f"{_EMOJI}(?:\u200d{_EMOJI})+",
        f"{_MONGOLIAN}[{_SELECTORS}{_JOINERS}]+",
        f"{_SHAPED}[{_JOINERS}]",
        f"{_FLAG}[{_TAGS}]+",
    )
)
# Patterns and replacements, in order; RE2 supports all of them.
REMOVALS = ((f"[{_NEVER_NEEDED}]+", ""), (f"({_NEEDED})|[{_SOMETIMES_NEEDED}]+", r"\1"))
_ANY = re.compile(f"[{_NEVER_NEEDED}{_SOMETIMES_NEEDED}]")
_REMOVALS = [(re.compile(pattern), text) for pattern, text in REMOVALS]


def remove_invisible(text):
    """Return a text without its invisible characters.

    Joiners stay between emoji and in scripts whose letters they shape, selectors in
    Mongolian, and tags in flags.

    >>> remove_invisible("Fuss\\u00adball\\u200b \\u2764\\ufe0f\\u200d\\U0001f525")
    'Fussball ❤\\u200d🔥'
    """
    if text.isascii() or not _ANY.search(text):
        return text
    for pattern, replacement in _REMOVALS:
        text = pattern.sub(replacement, text)
    return text


HAN = "[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
KANA = "[\u3040-\u30ff\u31f0-\u31ff]"
# Writing systems without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_UNSPACED = re.compile(UNSPACED)


def has_unspaced(text):
    """Return whether a text has characters of a writing system without spaces."""
    return _UNSPACED.search(text) is not None


def begins_unspaced(text):
    """Return whether the first character is of a writing system without spaces."""
    return _UNSPACED.match(text) is not None
