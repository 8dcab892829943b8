"""Parts of the page that need no browser."""

import dataclasses
import re
import types

import numpy as np
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.overlays import caption_figure


def test_figures_of_the_same_title_are_chosen_from_separately():
    maps = np.full((2, 3, 3), 1 / 9)
    caption = Caption("a dog", ["a", "dog"], -1.0, -2.0, -0.7, [0.5, 0.3], maps)
    photo = types.SimpleNamespace(preview=b"", width=4, height=3)

    figures = [caption_figure(photo, caption, "model", number) for number in (0, 1)]
    first, second = (set(re.findall('name="(.*?)"', x)) for x in figures)

    assert len(first) == len(second) == 1 and first != second
    assert "Unsure" not in figures[0]
    unsure = caption_figure(photo, dataclasses.replace(caption, unsure=True), "", 0)
    assert "Unsure: " in unsure
