"""Fitting of a `Confidence`, or of a `Calibration`, to the outputs of a model.

A `Confidence` needs outputs that references call usable or unusable. Both are fitted by
the command `calibrate`, and a `Calibration` at the end of a training.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_attention_apps.common.confidence import (
    DIGITS,
    THRESHOLD,
    Calibration,
    Confidence,
    Features,
    logistic,
    rounded_score,
    sigmoid,
)
from keras_attention_apps.common.errors import UserError

# L2 penalty of the weights of standardised features, for data of `DATA_WEIGHT`.
PENALTY = 3.0
# Sum of the weights of the outputs of each data set, however many they are.
DATA_WEIGHT = 1000.0
# Newton's method ends when no weight changes by more than this, or after these steps.
TOLERANCE, MAX_STEPS = 1e-8, 100
# Parts of the data of which each is judged by a model that is fitted to the others.
FOLDS = 5
# A word of an output is doubtful if it is less probable than this share of the words
# of usable outputs.
DOUBTFUL_SHARE = 0.05
# Significant digits of weights.
WEIGHT_DIGITS = 7
# Quantiles that a calibration has.
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
# Maximum share of the validation data below a fitted threshold: where both data sets
# overlap, a model would otherwise be unsure of half of what it is for.
MAX_UNSURE = 0.1


@dataclasses.dataclass(frozen=True)
class Judged:
    """The outputs for a data set, as features, and which of them are usable.

    Attributes:
        features: List of the features of each output.
        usable: List of whether each is usable; `None` for an output that is neither
            clearly usable nor clearly unusable, to which nothing is fitted.
        words: Lists of the probabilities of the words of each output.
    """

    features: Sequence[Features]
    usable: Sequence[bool | None]
    words: Sequence[Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Figures:
    """How well a model marks the unusable outputs of a data set."""

    usable: int
    unusable: int
    auc: float
    marked_usable: float
    marked_unusable: float

    @classmethod
    def measured(cls, probabilities, usable, threshold):
        """Measure probabilities of outputs; those that are `None` do not count."""
        usable = np.array(usable, object)
        good, bad = (np.asarray(probabilities)[usable == x] for x in (True, False))
        return cls(
            len(good),
            len(bad),
            area_under_curve(good, bad),
            *(float(np.mean(x < threshold)) if len(x) else np.nan for x in (good, bad)),
        )

    def __str__(self):
        def percent(share):
            return "  none" if np.isnan(share) else f"{share:6.1%}"

        auc = "none" if np.isnan(self.auc) else f"{self.auc:.2f}"
        return (
            f"AUC {auc}, unsure of {percent(self.marked_unusable)} of "
            f"{self.unusable:5,} unusable, {percent(self.marked_usable)} of "
            f"{self.usable:5,} usable"
        )


def fit_confidence(
    data: Mapping[str, Judged],
    out_of_domain: tuple[str, Sequence[Features]] | None = None,
    domain_features: Sequence[str] = (),
    ignored: Sequence[str] = (),
    threshold: float = THRESHOLD,
) -> tuple[Confidence, dict[str, Figures]]:
    """Fit a `Confidence` to the outputs of several data sets, which count alike.

    `out_of_domain` is a name, and the features of outputs for inputs that the model is
    not for; these are told apart by the `domain_features`, if there are any, and
    otherwise by all. Nothing is fitted to the features of the names `ignored`. Outputs
    with a probability below the `threshold` are marked. Also return the figures of each
    data set, by cross-validation.

    Raises:
        UserError: If all outputs are usable, or none is.
    """
    features = [x for judged in data.values() for x in judged.features]
    usable = [x for judged in data.values() for x in judged.usable]
    importance = np.concatenate([_importance(x.usable) for x in data.values()])
    counts = {x: usable.count(x) for x in (True, False)}
    if not all(counts.values()):
        raise UserError(
            "a confidence needs usable and unusable outputs. Received: "
            f"{counts[True]} and {counts[False]}"
        )
    labels = np.array([bool(x) for x in usable], float)
    names = sorted(
        {name for x in features for name in x} - {*domain_features, *ignored}
    )
    bias, weights = _fit(features, names, labels, importance)
    # Every fold has its share of each data set.
    folds = np.arange(len(features)) % FOLDS
    held_out = np.zeros(len(features))
    for fold in range(FOLDS):
        fitted, left_out = (np.flatnonzero(x) for x in (folds != fold, folds == fold))
        fold_bias, fold_weights = _fit(
            [features[i] for i in fitted], names, labels[fitted], importance[fitted]
        )
        held_out[left_out] = [
            logistic(fold_bias, fold_weights, features[i]) for i in left_out
        ]
    domain: dict = {}
    if out_of_domain is not None:
        name, others = out_of_domain
        inside = np.concatenate([_importance(x.features) for x in data.values()])
        outside = _importance(others) * len(data)
        labels = np.repeat([1.0, 0.0], [len(features), len(others)])
        domain_bias, domain_weights = _fit(
            [*features, *others],
            domain_features or names,
            labels,
            np.concatenate([inside, outside]),
        )
        domain = {
            "out_of_domain": name,
            "domain_bias": domain_bias,
            "domain_weights": domain_weights,
        }
        familiar = [logistic(domain_bias, domain_weights, x) for x in features]
        held_out = np.minimum(held_out, familiar)
    probable = [
        word
        for judged in data.values()
        for words, good in zip(judged.words, judged.usable, strict=True)
        if good
        for word in words
    ]
    confidence = Confidence(
        data=list(data),
        count=len(features),
        bias=bias,
        weights=weights,
        threshold=threshold,
        auc=round(Figures.measured(held_out, usable, threshold).auc, DIGITS),
        doubtful_below=round(float(np.quantile(probable, DOUBTFUL_SHARE)), DIGITS),
        **domain,
    )
    figures, first = {}, 0
    for name, judged in data.items():
        last = first + len(judged.usable)
        figures[name] = Figures.measured(held_out[first:last], judged.usable, threshold)
        first = last
    return confidence, figures


def _importance(usable):
    """Return the weight of each output of a data set; that of `None` is 0."""
    counts = np.array([x is not None for x in usable], float)
    return counts * DATA_WEIGHT / max(counts.sum(), 1)


def _fit(features, names, labels, importance):
    """Fit a logistic model by Newton's method; return its bias and its weights.

    It has the features of these names. They are standardised, so that the L2 penalty
    is the same for all.
    """
    values = np.array([[x.get(name, 0.0) for name in names] for x in features], float)
    mean = np.average(values, axis=0, weights=importance)
    scale = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=importance))
    # A feature that is always the same says nothing; its weight stays 0.
    scale[scale < TOLERANCE] = np.inf
    inputs = np.column_stack([np.ones(len(values)), (values - mean) / scale])
    penalty = np.append(0.0, np.full(len(names), PENALTY))
    weights = np.zeros(len(penalty))
    for _ in range(MAX_STEPS):
        probabilities = sigmoid(inputs @ weights)
        gradient = inputs.T @ (importance * (labels - probabilities))
        gradient -= penalty * weights
        curvature = importance * probabilities * (1 - probabilities)
        hessian = (inputs.T * curvature) @ inputs + np.diag(penalty + TOLERANCE)
        step = np.linalg.solve(hessian, gradient)
        # A long step could leave the region in which the curvature is that of the loss.
        step /= max(np.abs(step).max() / 2, 1.0)
        weights += step
        if np.abs(step).max() < TOLERANCE:
            break
    raw = weights[1:] / scale
    bias = weights[0] - float(raw @ mean)
    return _rounded(bias), {
        name: _rounded(x) for name, x in zip(names, raw, strict=True)
    }


def _rounded(value):
    """Return a number with few digits, so that a file shows no noise."""
    return float(f"{value:.{WEIGHT_DIGITS}g}")


def area_under_curve(larger, smaller):
    """Return the share of pairs in which the first is larger; ties count half.

    It is NaN if there are no pairs.
    """
    larger, smaller = np.asarray(larger), np.sort(smaller)
    if not (len(larger) and len(smaller)):
        return np.nan
    below = np.searchsorted(smaller, larger, "left")
    at_most = np.searchsorted(smaller, larger, "right")
    return float(np.mean(below + at_most) / 2 / len(smaller))


def fit_calibration(
    data: str,
    outputs: Sequence[Any],
    out_of_domain: str | None = None,
    others: Sequence[Any] = (),
) -> Calibration:
    """Measure the quantiles of outputs for a data set, and fit a threshold.

    `others` are outputs for a data set `out_of_domain`, which the model is not for;
    without them, there is no threshold.
    """
    inside, outside = (np.sort([*map(rounded_score, x)]) for x in (outputs, others))
    quantiles = np.quantile(inside, LEVELS).round(DIGITS).tolist()
    calibration = Calibration(data, len(inside), [*LEVELS], quantiles)
    if not len(outside):
        return calibration
    return dataclasses.replace(
        calibration,
        out_of_domain=out_of_domain,
        auc=round(area_under_curve(inside, outside), DIGITS),
        threshold=round(_best_threshold(inside, outside), DIGITS),
    )


def _best_threshold(inside, outside):
    """Return the threshold of a `Calibration` for two sorted arrays of scores."""
    candidates = np.unique(np.concatenate([inside, outside]))
    marked = np.searchsorted(outside, candidates) / len(outside)
    wrong = np.searchsorted(inside, candidates) / len(inside)
    return float(
        candidates[np.argmax(np.where(wrong <= MAX_UNSURE, marked - wrong, -1))]
    )
