"""Invisible characters, by value, by class, and in every tokenizer."""

import unicodedata

import pytest

from keras_attention_apps.captioner.vocabulary import tokenize
from keras_attention_apps.common.characters import remove_invisible
from keras_attention_apps.nmt.subwords import clean

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
# Scripts whose letters joiners shape: Persian, Hindi, Sinhala, Mongolian.
SHAPED = "\u0645\u06cc\u200c\u062f", "\u0915\u094d\u200d\u0937"
SHAPED += "\u0dc1\u0dca\u200d\u0dbb\u0dd3", "\u182d\u180b\u180e\u1820"
# Format characters that are visible, and those that arrange hieroglyphs.
VISIBLE = {*map(chr, (*range(0x600, 0x606), *range(0x13430, 0x13440)))}
VISIBLE |= {*"\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Fuss\u00adball", "Fussball"),
        ("zero\u200bwidth\u2060 \ufeffmarks\ufeff", "zerowidth marks"),
        ("Auf\u200clage a\u200db", "Auflage ab"),
        ("\u202aleft\u202c \u200eto\u200f \u2066right\u2069", "left to right"),
        ("\u2764\ufe0f 1\ufe0f\u20e3 \u845b\U000e0100", "\u2764 1\u20e3 \u845b"),
        ("a\u034f\u0308 \u3164\uffa0\ufffb", "a\u0308 "),
        ("hidden\U000e0068\U000e0069", "hidden"),
        # Joiners between emoji, and the tags of a flag.
        (FAMILY, FAMILY),
        ("\u2764\ufe0f\u200d\U0001f525", "\u2764\u200d\U0001f525"),
        (f"{ENGLAND}\u200d", ENGLAND),
        ("\U0001f469\u200d \u200d\U0001f469", "\U0001f469 \U0001f469"),
        *((text, text) for text in SHAPED),
        ("\u0645\u200c\u200c\u061c\u200c\u06cc", "\u0645\u200c\u06cc"),
        ("A dog.", "A dog."),
    ],
)
def test_values(text, expected):
    assert remove_invisible(text) == expected
    assert remove_invisible(expected) == expected


def test_every_format_character_is_removed_or_visible():
    formats = {c for c in map(chr, range(0x110000)) if unicodedata.category(c) == "Cf"}
    assert {c for c in formats if remove_invisible(c)} == formats & VISIBLE


@pytest.mark.parametrize(
    "text", ["\u200b", "\u00ad\u2060", " \ufeff\t\u3164", "\u2800"]
)
def test_text_without_visible_characters_is_empty(text):
    assert clean(text) == ""
    assert tokenize(text) == []


def test_removal_comes_before_the_normal_form():
    assert clean("e\u200b\u0301") == tokenize("E\u2060\u0301")[0] == "\xe9"
