"""Translations of a few validation sentences, for the report of a training."""

import html

from keras_attention_apps.common.training.report import Samples
from keras_attention_apps.nmt.web.views import heat_map


class TranslationSamples(Samples):
    """Translations of a few validation sentences, with their alignments.

    The examples are pairs of a sentence and its reference, the outputs `Translation`s.
    """

    def head(self, example):
        source, reference = map(html.escape, example)
        return (
            f'<div class="head"><p class="source" dir="auto">{source}</p>'
            f'<ul aria-label="Reference"><li dir="auto">{reference}</li></ul></div>'
        )

    def figure(self, output):
        return heat_map(output)
