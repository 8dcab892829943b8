"""Features of captions and images that tell how usable they are, and doubtful words.

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

# Number of the words with the smallest probabilities whose mean is a feature.
LEAST = 3
# Neighbouring pixels differ little, or much, within these numbers of 255.
FLAT, EDGE = 3, 80
# Features of an image, which tell photographs from other pictures.
IMAGE_FEATURES = (
    "image_equal",
    "image_flat",
    "image_contrast",
    "image_squared_contrast",
    "image_direction",
    "image_edges",
)


def features_of(
    words: Sequence[int], hypothesis: Hypothesis, ranked: Sequence[Hypothesis]
) -> Features:
    """Return the features of a caption.

    Args:
        words: Ids of the words of the caption, which are numbered from the most
            frequent word on.
        hypothesis: The `Hypothesis` of the caption.
        ranked: All hypotheses of its search.
    """
    length = max(hypothesis.length, 1)
    probabilities = np.sort(hypothesis.token_log_probabilities[:length])
    ranks = [math.log(word + 1) for word in words] or [0.0]
    total = np.logaddexp.reduce([x.log_probability for x in ranked])
    return {
        "mean_log_probability": hypothesis.mean_log_probability,
        "least_log_probabilities": float(probabilities[:LEAST].mean()),
        "log_probability_of_all": float(total),
        "length": float(length),
        "rarest_word": max(ranks),
        "rarity_of_words": sum(ranks) / len(ranks),
        "agreement": agreement(hypothesis, ranked),
    }


def image_features(image: np.ndarray) -> Features:
    """Return the features of an image `(rows, columns, 3)` of uint8.

    Photographs have few neighbouring pixels that are equal, and as much contrast
    from left to right as from top to bottom; charts, documents and pictures of one
    colour do not.
    """
    pixels = image.astype(np.int32)
    shares, contrasts, edges = [], [], []
    for axis in (0, 1):
        steps = np.diff(pixels, axis=axis)
        largest = np.abs(steps).max(axis=2)
        # Steps of the grey value, times three.
        grey = np.abs(steps.sum(axis=2))
        shares.append(((largest == 0).mean(), (largest <= FLAT).mean()))
        contrasts.append(float(grey.mean()) / 3)
        edges.append(float((grey > 3 * EDGE).mean()))
    equal, flat = np.mean(shares, axis=0).tolist()
    contrast = math.log1p(sum(contrasts) / 2)
    down, across = contrasts
    return dict(
        zip(
            IMAGE_FEATURES,
            (
                equal,
                flat,
                contrast,
                contrast**2,
                abs(math.log((across + 1) / (down + 1))),
                sum(edges) / 2,
            ),
            strict=True,
        )
    )


def with_doubts(caption: Any, confidence: Confidence | None) -> Any:
    """Return a marked caption with its doubtful words, and why it is unsure."""
    if confidence is not None:
        pairs = enumerate(caption.probabilities)
        doubtful = [i for i, x in pairs if x < confidence.doubtful_below]
        caption = dataclasses.replace(caption, doubtful=doubtful)
    if caption.unsure:
        reason = _reason(caption, confidence)
        caption = dataclasses.replace(caption, reason=reason)
    return caption


def _reason(caption, confidence):
    """Return in a few words why a caption is unsure."""
    if confidence is None:
        return "its words are less probable than usual"
    if confidence.is_unfamiliar(caption.features or {}):
        return "the picture is not of the kind that the model knows"
    if caption.doubtful:
        words = ", ".join(f'"{caption.words[i]}"' for i in caption.doubtful)
        return f"improbable words: {words}"
    return "captions like this one are often wrong"
