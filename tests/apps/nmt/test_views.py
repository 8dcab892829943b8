"""Translations as HTML."""

import numpy as np

from keras_attention_apps.nmt.translations import Translation


def test_a_notebook_shows_where_the_words_looked():
    weights, end_weights = np.array([[0.2, 0.8], [0.7, 0.1]]), np.array([0.0, 0.2])
    words = ["a", "<b>"], ["c", "d"]
    translation = Translation("c d", *words, -1.0, -2.0, weights, end_weights)

    first, second = translation._repr_html_(), translation._repr_html_()

    assert first.count("<svg") == 2 and "&lt;b&gt;" in first and "<b>d" not in first
    assert first.startswith("<div><style>@scope {") and "ka-notebook" in first
    # The words of two outputs are chosen separately.
    assert first != second
