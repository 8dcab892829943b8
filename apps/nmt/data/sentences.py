"""Sentences of a line, by rules that need neither a language nor a model.

A boundary is a mark such as `.`, `!` or `?`, with closing quotes, before a space and a
word that is not in lower case. The rules prefer a missed boundary to a wrong one.
"""

import re

from keras_attention_apps.nmt.data.text import clean

_CLOSING = "\"'\u201d\u2019\u201c\u2018\u00bb\u00ab\u203a\u2039)\\]}"
_CANDIDATE = re.compile(
    # French has a space before a closing mark of quotation.
    rf"(?<![.!?\u2026])(?P<marks>[.!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362]++)"
    rf"(?:[{_CLOSING}]| \u00bb(?= |$))*+ "
    # Chinese and Japanese have no space between sentences.
    "|(?P<unspaced>[\u3002\uff01\uff1f\uff61]++)[\u300d\u300f\uff09\u201d\u2019]*+ ?"
)
_OPENING = re.compile(
    "(?:[\"'\u201c\u201e\u201a\u2018\u00bb\u2039\u203a(\\[{\u00bf\u00a1\u300c\u300e\uff08]"
    "|[-\u2013\u2014\u2022\u00ab] ?)*+"
)
_WORD = re.compile(r"[^\W\d_]++")
_ALPHANUMERIC = re.compile(r"[^\W_]")
# Ordinals, Roman numbers, initials, and abbreviations such as U.S.
_SHORT = re.compile(r"\d{1,2}|[IVXLC]{2,}|[^\W\d_](?:\.[^\W\d_]++)*+")
_AFTER_LETTER = re.compile(r"(?:^| )[^\W\d_]\. $")
_BRACKETS = re.compile("[()\u300c\u300d\u300e\u300f\uff08\uff09]")
_OPEN_BRACKETS = "(\u300c\u300e\uff08"


def _words(text):
    return frozenset(text.split())


# Abbreviations that another word follows.
_TITLES = _words(
    "dr dra drs prof mr mrs ms messrs mx st rev hon gen col lt capt sgt maj cmdr adm "
    "gov sen rep mt hr hrn fr frl dipl ing mag med phil jur mme mlle mm mgr sra srta "
    "e.g i.e eg ie cf vs viz approx nr nrn z.b d.h s.o s.u u.\u00e4 o.\u00e4 ca vgl "
    "bzw ggf evtl inkl exkl zzgl sog bspw geb tel p.ex av"
)
# Abbreviations before numbers.
_BEFORE_NUMBERS = _words(
    "no nos art fig figs vol vols p pp sec ch chap eq abb tab kap bd abs ziff anm s "
    "jan feb apr aug sept sep oct okt nov dec dez"
)
# Abbreviations that may end a sentence.
_AMBIGUOUS = _words(
    "etc usw usf ff al inc ltd co corp bros jr sr dept univ ave blvd rd ft oz lb lbs "
    "min std mio mrd jan feb aug sept sep oct okt nov dec dez"
)
# Words that often begin a sentence, and are no names.
_BEGINNINGS = _words(
    "the this that these those there here he she it they we you i my his her its our "
    "their your and but or so then if when while what who where why how please do does "
    "did is are was can could would will let in on at for from with after before "
    "der die das ein eine er sie es wir ihr ich du mein dein sein unser und aber oder "
    "dann wenn als wie wer was wo warum bitte dies diese dieser dieses dort hier auch "
    "danke im am bei nach vor mit f\u00fcr ist sind war hat haben "
    "le la les un une il elle on nous vous ils elles je tu ce cette ces et mais ou "
    "el los las una ella nosotros ellos yo esto esta y pero"
)


def split_sentences(text):
    """Return the sentences of a text, at least one.

    A text without a boundary is returned as it is; otherwise, `clean` is applied first.
    Sentences in brackets are not split.

    >>> split_sentences("Mr. Smith paid $3.50, e.g. for tea. Was it No. 5? Yes.")
    ['Mr. Smith paid $3.50, e.g. for tea.', 'Was it No. 5?', 'Yes.']
    """
    cleaned = clean(text)
    begins = [0]
    depth = counted = 0
    for match in _CANDIDATE.finditer(cleaned):
        # In Japanese, a sentence continues after another one in brackets.
        end = match.end("unspaced") if match["unspaced"] else match.end()
        for bracket in _BRACKETS.findall(cleaned, counted, end):
            depth = max(depth + (1 if bracket in _OPEN_BRACKETS else -1), 0)
        counted = end
        if not depth and _is_boundary(cleaned, begins[-1], match):
            begins.append(match.end())
    if len(begins) == 1:
        return [text]
    ends = [*begins[1:], len(cleaned)]
    return [cleaned[i:j].strip(" ") for i, j in zip(begins, ends, strict=True)]


def join_sentences(texts):
    """Return one text of the texts of sentences, with spaces where words have them."""
    joined = ""
    for text in filter(None, texts):
        unspaced = joined.rstrip("\u300d\u300f\uff09\u201d\u2019")
        spaced = joined and not unspaced.endswith(("\u3002", "\uff01", "\uff1f"))
        joined += f" {text}" if spaced else text
    return joined


def _is_boundary(text, begin, match):
    """Return whether a sentence that begins at `begin` ends with a `_CANDIDATE`."""
    place = _OPENING.match(text, match.end()).end()
    following = text[place : place + 1]
    if not following.isalnum() or following.islower():
        return False
    if match["unspaced"]:
        return True
    # A sentence has a word.
    if not _ALPHANUMERIC.search(text, begin, match.start()):
        return False
    following_word = _WORD.match(text, place)
    following_word = following_word[0] if following_word else ""
    word_begin = max(text.rfind(" ", begin, match.start()) + 1, begin)
    word = text[_OPENING.match(text, word_begin).end() : match.start()]
    marks = match["marks"]
    if marks == "\u2026" or marks.startswith(".."):
        # After a space, an ellipsis stands for words.
        return bool(word) and following_word != "I"
    if marks != ".":
        return True
    lowered = word.rstrip(_CLOSING).lower()
    if lowered in _TITLES or (following.isdigit() and lowered.endswith("str")):
        return False
    if following.isdigit() and (lowered.isdigit() or lowered in _BEFORE_NUMBERS):
        return False
    if lowered not in _AMBIGUOUS and not _SHORT.fullmatch(word):
        return True
    # "1. The dog" is one sentence, and so is "z. B. die Katze".
    before = text[max(begin, word_begin - 4) : word_begin]
    if not before or (word.isalpha() and _AFTER_LETTER.search(before)):
        return False
    return following_word.lower() in _BEGINNINGS
