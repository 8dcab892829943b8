"""Captions of a few validation images, for the report of a training."""

import html

from keras_attention_apps.captioner.images.reading import read_image
from keras_attention_apps.captioner.web.views import (
    map_uri,
    photo_style,
    preview,
    word_notes,
)
from keras_attention_apps.common.training.report import Samples

# Longer side of an image in the report, in pixels.
SIDE = 400


class CaptionSamples(Samples):
    """Captions of a few validation images, with the attention map of every word.

    The examples are `CaptionedImage`s, and the outputs `Caption`s.
    """

    def head(self, example):
        references = "".join(
            f'<li dir="auto">{html.escape(text)}</li>' for text in example.captions
        )
        name = html.escape(example.path.name)
        return (
            f'<div class="head"><div class="photo" role="img" aria-label="{name}">'
            f'</div><ul aria-label="References">{references}</ul></div>'
        )

    def style(self, example):
        return photo_style(*preview(read_image(example.path), SIDE))

    def figure(self, output):
        words = zip(output.words, output.weights, word_notes(output), strict=True)
        tiles = "".join(
            f'<li><div class="photo"><div class="photo-layer" '
            f'style="--map:url({map_uri(weights, output.boxes)})"></div></div>'
            f'<span dir="auto">{html.escape(word)}</span>'
            f"<small>{note}</small></li>"
            for word, weights, note in words
        )
        return f'<ol class="words">{tiles}</ol>'
