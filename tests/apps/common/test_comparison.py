"""Comparison of models: intervals, tests, tables and figures."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from keras_attention_apps.common.comparison import (
    Score,
    check_plot,
    compare_means,
    compare_texts,
    table,
    write_plot,
)
from keras_attention_apps.common.errors import UserError


def test_intervals_are_those_of_a_normal_mean():
    random = np.random.default_rng(1)
    scores = random.normal(50, 10, 400)
    (score,) = compare_means([scores])
    assert score.score == pytest.approx(scores.mean()) and score.p_value is None
    # The mean of 400 has the standard deviation 10 / 20.
    assert score.interval == pytest.approx(1.96 * 0.5, rel=0.15)


def test_the_least_p_value_is_that_of_no_sample():
    _, second = compare_means([np.zeros(50), np.ones(50)])
    # None of 1,000 samples has a difference as large by chance.
    assert second.p_value == pytest.approx(1 / 1001)


def test_a_difference_is_significant_if_it_is_paired():
    random = np.random.default_rng(2)
    # Items differ by far more than models.
    first = random.normal(50, 10, 300)
    better = first + random.normal(1, 2, 300)
    same = first + random.normal(0, 2, 300) - 0.02
    baseline, improved, equal, copy = compare_means([first, better, same, first.copy()])
    assert baseline.p_value is None and improved.p_value < 0.01
    assert equal.p_value > 0.2
    # No difference is no evidence.
    assert copy.p_value == 1 and copy.interval == pytest.approx(baseline.interval)


def test_texts_are_compared_by_sacrebleu():
    references = [f"the dog number {i} runs over the green hill" for i in range(40)]
    worse = [
        x.replace("green", "blue") if i % 2 else x for i, x in enumerate(references)
    ]
    scores = compare_texts(BLEU(), [worse, references, worse], [references])
    assert scores[1].score == pytest.approx(100) and scores[1].interval < 1e-3
    assert scores[0].score == BLEU().corpus_score(worse, [references]).score
    assert scores[1].p_value < 0.01 and scores[2].p_value == 1


def test_tables_and_figures(tmp_path):
    rows = {
        "bleu": [Score(40, 1.5), Score(41.25, 1.25, 0.004)],
        "chrf-lc": [Score(60, 1), Score(60, 1, 0.5)],
    }
    assert table(["a", "folder/b"], rows).splitlines() == [
        "         [1] a         [2] folder/b",
        "bleu     40.00 ± 1.50  41.25 ± 1.25 (p = 0.004*)",
        "chrf-lc  60.00 ± 1.00  60.00 ± 1.00 (p = 0.500)",
    ]
    path = tmp_path / "plot.svg"
    write_plot(path, ["a", "b"], rows, ("by words", ["1 to 5", "6"], [[1, 2], [3, 4]]))
    text = path.read_text()
    assert text.startswith("<?xml") and text.count('<g id="axes_') == 3


@pytest.mark.parametrize(
    ("path", "names", "fault"),
    [("a.png", ["x"], "several --model"), ("a.txt", ["x", "y"], "--plot must end in")],
)
def test_plots_need_several_models_and_a_format(tmp_path, path, names, fault):
    with pytest.raises(UserError, match=fault):
        check_plot(tmp_path / path, names)
    check_plot(None, names)
