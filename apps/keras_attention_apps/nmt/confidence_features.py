"""Features of translations that tell how usable they are, and doubtful words.

The features are those of a `Confidence`. The TypeScript of the page without a server
computes the same, in `confidence_features.ts`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_attention_apps.common.confidence import Confidence, Features
from keras_attention_apps.common.inference import Hypothesis, agreement
from keras_attention_apps.nmt.lexicon import Lexicon

# Words of this many subwords or more are rare.
MANY_SUBWORDS = 3
# A word that translates no word of the source is doubtful below this probability.
UNEXPLAINED_PROBABILITY = 0.5
# The model is sure of a subword of this probability or more.
SURE_PROBABILITY = 0.9
# Source words of this rarity or more are named if no word translates them.
NAMED_RARITY = 2.0
# Maximum number of words that a reason names.
MAX_NAMED = 3


def features_of(
    translation: Any,
    source_word_indices: np.ndarray,
    hypothesis: Hypothesis,
    ranked: Sequence[Hypothesis],
    lexicon: Lexicon | None,
) -> Features:
    """Return the features of the translation of one sentence.

    Args:
        translation: The `Translation`.
        source_word_indices: Index of the word of each subword of the source, without
            END.
        hypothesis: The `Hypothesis` of the translation.
        ranked: All hypotheses of its search.
        lexicon: `Lexicon` of the model, if it has one.
    """
    sizes = (
        np.bincount(source_word_indices)
        if len(source_word_indices)
        else np.zeros(1, int)
    )
    coverage = translation.weights.sum(axis=0)
    source_length = len(source_word_indices) + 1
    # The end is one more word.
    end = hypothesis.token_log_probabilities[hypothesis.length - 1]
    words = [*map(_logarithm, translation.word_probabilities), float(end)]
    subwords = hypothesis.token_log_probabilities[: hypothesis.length]
    features = {
        "mean_log_probability": hypothesis.mean_log_probability,
        "least_word_log_probability": min(words),
        "log_source_length": math.log(source_length),
        "length_ratio": abs(math.log(max(hypothesis.length, 1) / source_length)),
        "character_ratio": abs(
            math.log(
                _characters(translation.words) / _characters(translation.source_words)
            )
        ),
        "sure_share": _share(subwords >= math.log(SURE_PROBABILITY)),
        "rare_words": float((sizes >= MANY_SUBWORDS).sum()),
        "coverage": float(np.minimum(coverage, 1).mean()) if coverage.size else 0.0,
        "agreement": agreement(hypothesis, ranked),
    }
    if lexicon is not None:
        sentences = translation.source_words, translation.words
        rarities = lexicon.untranslated(*sentences)
        unexplained = lexicon.unexplained(*sentences)
        features |= {
            "untranslated": sum(rarities.values()),
            "rarest_untranslated": max(rarities.values(), default=0.0),
            "unexplained": float(len(unexplained)),
            "unexplained_share": len(unexplained) / max(len(translation.words), 1),
            "mean_rarity": lexicon.mean_rarity(translation.source_words),
            "copied": sum(lexicon.copied(*sentences).values()),
        }
    return features


def with_doubts(
    translation: Any, confidence: Confidence | None, lexicon: Lexicon | None
) -> Any:
    """Return a marked translation with its doubtful words, and why it is unsure.

    It is always unsure if something is lost, or it is not complete. Source words that
    are function words count as translated.
    """
    if translation.lost or not translation.is_complete:
        translation = dataclasses.replace(translation, unsure=True)
    if confidence is not None:
        doubtful, untranslated = _doubtful_words(translation, confidence, lexicon)
        translation = dataclasses.replace(
            translation, doubtful=doubtful, untranslated=untranslated
        )
    if translation.unsure:
        translation = dataclasses.replace(translation, reason=_reason(translation))
    return translation


def _doubtful_words(translation, confidence, lexicon):
    """Return the words that are probably wrong, and the untranslated source words.

    Both are lists of indices.
    """
    rarities, unexplained = {}, ()
    if lexicon is not None:
        sentences = translation.source_words, translation.words
        rarities = lexicon.untranslated(*sentences)
        unexplained = lexicon.unexplained(*sentences)
    doubtful = [
        i
        for i, probability in enumerate(translation.word_probabilities)
        if probability < confidence.doubtful_below
        or (i in unexplained and probability < UNEXPLAINED_PROBABILITY)
    ]
    untranslated = [i for i, rarity in rarities.items() if rarity >= NAMED_RARITY]
    return doubtful, untranslated


def _reason(translation):
    """Return in a few words why a translation is unsure."""
    if translation.lost:
        lost = ", ".join(map(str, translation.lost[:MAX_NAMED]))
        return f"{lost} may be missing, or in the wrong place"
    if not translation.is_complete:
        return "it repeats itself, or has no end"
    if translation.untranslated:
        words = _named(translation.source_words, translation.untranslated)
        return f"no translation of {words} was found in it"
    if translation.doubtful:
        return f"improbable words: {_named(translation.words, translation.doubtful)}"
    return "its words are less probable than usual"


def _named(words, indices):
    """Return the first words of some indices, in quotation marks."""
    chosen = [f'"{words[i].strip(".,;:!?")}"' for i in indices[:MAX_NAMED]]
    return ", ".join(chosen) + ("..." if len(indices) > MAX_NAMED else "")


def _characters(words):
    """Return the number of characters of some words, at least 1."""
    return max(sum(map(len, words)), 1)


def _share(values):
    """Return the share of true values; 0 if there are none."""
    return float(np.mean(values)) if len(values) else 0.0


def _logarithm(probability):
    # A probability may be rounded to zero.
    return math.log(max(probability, 1e-30))
