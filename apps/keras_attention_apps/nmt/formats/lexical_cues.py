"""Evidence for the alignment of words beside attention.

Attention often passes over a word such as "of", since the words around it say as much.
Words that are spelled alike, function words that translate each other, and the pairs of
a lexicon are evidence that does not depend on it.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_attention_apps.nmt.lexicon import Lexicon, stem

# Weights of a pair of words that belong together, and of a pair of the lexicon, beside
# the attention of a row, whose sum is one, and by how much they fall with the distance
# between the words. The values are those with the most tags at the right words, see
# benchmarks/markup.py.
_WEIGHT, _DECAY = 1.0, 0.9
_LEXICON_WEIGHT, _LEXICON_DECAY = 1.0, 0.3
# Letters at their beginning by which two words are alike, and what that is worth.
_ALIKE, _ALIKE_SHARE = 4, 0.5
# Function words of English, and those of German that translate them.
_FUNCTION_WORDS = """
a an: ein eine einen einem einer eines
the: der die das den dem des
of: von vom des der aus
and: und
or: oder
but: aber sondern
in into inside within: in im ins
on onto: auf am an
at: an am bei auf um
to: zu zum zur nach an
for: f\u00fcr
from: von vom aus
with: mit
by: von vom durch bei neben
over above: \u00fcber
under: unter
near: nahe neben bei
behind: hinter
through: durch
along: entlang
while: w\u00e4hrend
is: ist wird
are: sind werden
was: war wurde
were: waren wurden
has: hat
have: haben habe
his its: sein seine seinen seinem seiner seines
her their: ihr ihre ihren ihrem ihrer ihres
my: mein meine meinen meinem meiner
your: dein deine deinen deinem deiner ihr ihre ihren
our: unser unsere unseren unserem unserer
this: dies diese dieser dieses diesen diesem
who which that: der die das den dem welche welcher welches dass
not: nicht kein keine keinen
as: als wie
if when: wenn als
because: weil
i: ich
you: du sie ihr dich dir ihnen
he: er
she: sie
it: es er sie
we: wir
they: sie
up: auf hoch
out: aus
off: aus ab
down: herunter hinunter unten
around: um herum
between: zwischen
other: andere anderen anderer anderes
"""
# Further function words, which often have no translation.
UNPAIRED = """
am be been being da dass did do does had nur sich so will would zu
"""


@functools.cache
def function_word_pairs() -> frozenset[tuple[str, str]]:
    """Return the pairs of function words that translate each other, both ways."""
    pairs: set[tuple[str, str]] = set()
    for line in _FUNCTION_WORDS.strip().splitlines():
        english, german = (x.split() for x in line.split(":"))
        pairs.update((x, y) for x in english for y in german)
    return frozenset(pairs | {(y, x) for x, y in pairs})


class LexicalCues(NamedTuple):
    """Evidence for the alignment of a translation, `(words, source_words)`.

    Attributes:
        weights: Weights of pairs of words, beside their attention.
        support: Strength of the evidence for each pair, from 0 to 1.
        is_paired: Whether two words are spelled alike or are function words that
            translate each other.
        is_listed: Whether the lexicon has a pair; without a lexicon, all pairs count.
        is_function: Whether a word of the translation is a function word, `(words,)`.
    """

    weights: np.ndarray
    support: np.ndarray
    is_paired: np.ndarray
    is_listed: np.ndarray
    is_function: np.ndarray


def lexical_cues(
    source_words: Sequence[str], words: Sequence[str], lexicon: Lexicon | None = None
) -> LexicalCues:
    """Return the evidence for the alignment of the words of a translation."""
    sources, targets = (list(map(_letters, x)) for x in (source_words, words))
    shape = len(targets), len(sources)
    likeness = np.array(
        [[_likeness(x, y) for x in sources] for y in targets], "float64"
    ).reshape(shape)
    listed = np.zeros(shape)
    if lexicon is not None:
        stems = [list(map(stem, x)) for x in (source_words, words)]
        listed = np.array(
            [[lexicon.translates(x, y) for x in stems[0]] for y in stems[1]], "float64"
        ).reshape(shape)
    positions = (np.arange(len(x)) / max(len(x), 1) for x in (sources, targets))
    source_positions, target_positions = positions
    distances = abs(target_positions[:, None] - source_positions) * max(shape)
    near = np.exp(-_LEXICON_DECAY * distances)
    weights = _WEIGHT * likeness * np.exp(-_DECAY * distances)
    return LexicalCues(
        weights + _LEXICON_WEIGHT * listed * near,
        np.maximum(likeness, listed) * near,
        likeness > 0,
        listed > 0 if lexicon is not None else np.ones(shape, bool),
        np.array([x in _function_words() for x in targets], bool),
    )


@functools.cache
def _function_words() -> frozenset[str]:
    """Return the function words of both languages."""
    return frozenset(x for pair in function_word_pairs() for x in pair) | set(
        UNPAIRED.split()
    )


def _letters(word):
    return "".join(x for x in word.lower() if x.isalnum())


def _likeness(word, other):
    if not word or not other:
        return 0.0
    if word == other or (word, other) in function_word_pairs():
        return 1.0
    is_alike = min(len(word), len(other)) >= _ALIKE and word[:_ALIKE] == other[:_ALIKE]
    return _ALIKE_SHARE if is_alike else 0.0
