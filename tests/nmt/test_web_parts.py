"""Parts of the page of the translator that need no browser."""

import dataclasses
import re

import numpy as np
import pytest
from keras_attention_apps.nmt.config import ChosenModel, WebConfig
from keras_attention_apps.nmt.translations import RUNTIMES, Translation
from keras_attention_apps.nmt.views import alignment_figure


def test_figures_of_the_same_title_are_chosen_from_separately():
    weights, end_weights = np.array([[0.2, 0.8], [0.7, 0.1]]), np.array([0.0, 0.2])
    words = ["a", "b"], ["c", "d"]
    translation = Translation("c d", *words, -1.0, -2.0, weights, end_weights)

    figures = [alignment_figure(translation, "model", number) for number in (0, 1)]
    first, second = (set(re.findall('name="(.*?)"', x)) for x in figures)

    assert len(first) == len(second) == 1 and first != second
    assert "Unsure" not in figures[0]
    unsure = dataclasses.replace(translation, unsure=True)
    assert "Unsure: " in alignment_figure(unsure, "model", 0)


@pytest.mark.parametrize(
    ("model", "compare", "others"),
    [
        ("a", ("b", "c"), ["b", "c"]),
        ("a", ("b", "a", "b"), ["b"]),
        ("run/model", ("./run/model", "run/../run/other"), ["run/../run/other"]),
        ("run/model", (), []),
    ],
)
def test_models_are_compared_with_others(model, compare, others, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    config = WebConfig(model=ChosenModel(name=model), compare=compare)
    assert RUNTIMES.others(config.compare, config.model.name) == others
