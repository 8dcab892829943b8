"""Comparison of models on one data set: confidence intervals and significance tests.

The tests are paired bootstrap tests: the items of the data set are resampled with
replacement, and the scores of both models are computed on the same samples.

Reference: [Koehn, 2004](https://aclanthology.org/W04-3250).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.output import FIGURE_SUFFIXES, write_figure

SAMPLES = 1000
SEED = 12345
# The alternative hypothesis is accepted below this.
SIGNIFICANT = 0.05


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of one model, and how sure it is.

    Attributes:
        score: The score of the whole data set.
        interval: Half the width of the 95 % confidence interval.
        p_value: Probability of a difference to the first model that is at least as
            large, if both were equally good; `None` for the first model.
    """

    score: float
    interval: float
    p_value: float | None = None

    def __str__(self) -> str:
        text = f"{self.score:.2f} ± {self.interval:.2f}"
        if self.p_value is None:
            return text
        mark = "*" if self.p_value < SIGNIFICANT else ""
        return f"{text} (p = {self.p_value:.3f}{mark})"


def compare_means(scores_of_each: Sequence[np.ndarray]) -> list[Score]:
    """Compare models by the mean of a score of each item, `(items,)` for each model.

    The procedure is that of sacrebleu, but equal scores are no evidence: p is 1.
    """
    first, *_ = scores_of_each
    indices = np.random.default_rng(SEED).choice(
        len(first), size=(SAMPLES, len(first)), replace=True
    )
    samples = [np.asarray(scores)[indices].mean(axis=1) for scores in scores_of_each]
    compared = []
    for scores, sampled in zip(scores_of_each, samples, strict=True):
        low, high = np.quantile(sampled, [0.025, 0.975])
        p_value = None
        if scores is not first:
            differences = np.abs(sampled - samples[0])
            centred = differences - differences.mean()
            difference = abs(np.mean(scores) - np.mean(first))
            p_value = float((centred > difference).sum() + 1) / (SAMPLES + 1)
            p_value = p_value if difference else 1.0
        compared.append(Score(float(np.mean(scores)), float(high - low) / 2, p_value))
    return compared


def compare_texts(
    metric: Any, texts: Sequence[Sequence[str]], references: Sequence[Sequence]
) -> list[Score]:
    """Compare models by a metric of sacrebleu; `texts` are the outputs of each.

    `references` are lists of a reference of each item, or `None` for no further one.
    """
    from sacrebleu.significance import PairedTest

    named: list[tuple[str, Sequence[str]]] = [
        (str(i), list(outputs)) for i, outputs in enumerate(texts)
    ]
    test = PairedTest(
        named, {"metric": metric}, references, test_type="bs", n_samples=SAMPLES
    )
    _, scores = test()
    results: list[Any] = next(x for name, x in scores.items() if name != "System")
    first = results[0].score
    # Equal scores are no evidence.
    p_values = [x.p_value if x.score != first else 1.0 for x in results[1:]]
    return [
        Score(x.score, float(x.ci), p_value)
        for x, p_value in zip(results, [None, *p_values], strict=True)
    ]


def table(names: Sequence[str], rows: dict[str, list[Score]]) -> str:
    """Return the scores of models as a table with a row for each metric."""
    cells = [["", *(f"[{i}] {name}" for i, name in enumerate(names, start=1))]]
    cells += [[metric, *map(str, scores)] for metric, scores in rows.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


# The line below a table.
LEGEND = (
    "± half of the 95 % confidence interval; p by the paired bootstrap test against "
    f"[1], {SAMPLES:,} samples; * p < {SIGNIFICANT}"
)


def check_plot(path: Path | None, names: Sequence[str]) -> None:
    """Raise a `UserError` if the plot of a comparison cannot be written."""
    if path is None:
        return
    if len(names) < 2:
        raise UserError(f"--plot needs several --model. Received: {', '.join(names)}")
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        raise UserError(
            f"--plot must end in {', '.join(FIGURE_SUFFIXES)}. Received: {str(path)!r}"
        )


def write_plot(
    path: Path,
    names: Sequence[str],
    rows: dict[str, list[Score]],
    curves: tuple[str, list[str], list[list[float]]] | None = None,
) -> None:
    """Draw the scores of models with their intervals, a panel for each metric.

    `curves` are the last panel: its title, labels of the horizontal axis, and the
    values of each model.
    """

    def draw():
        from matplotlib.figure import Figure

        count = len(rows) + (curves is not None)
        figure = Figure(figsize=(2.6 * count, 3.2), layout="constrained")
        panels = figure.subplots(1, count, squeeze=False)[0]
        colors = [f"C{i}" for i in range(len(names))]
        for panel, (metric, scores) in zip(panels, rows.items(), strict=False):
            for i, (score, color) in enumerate(zip(scores, colors, strict=True)):
                label = names[i] if panel is panels[0] else None
                panel.errorbar(
                    i,
                    score.score,
                    score.interval,
                    fmt="o",
                    capsize=5,
                    color=color,
                    label=label,
                )
            panel.set_title(metric)
            panel.set_xticks([])
            panel.margins(x=0.3)
        if curves is not None:
            title, labels, values = curves
            for of_model, color in zip(values, colors, strict=True):
                panels[-1].plot(labels, of_model, marker="o", color=color)
            panels[-1].set_title(title)
            panels[-1].tick_params(axis="x", labelrotation=30)
        figure.legend(loc="outside lower center", ncols=len(names))
        return figure

    write_figure(path, draw, dpi=150)
