"""How sure a model is of an output, and which outputs it marks as unsure.

Features, a dict of numbers, describe an output: how probable its words are, how much of
the input it covers, and more. A `Confidence` is a logistic model of them. A model whose
outputs nothing has judged has a `Calibration` in its place, a threshold of the mean
log-probability. `calibration.py` fits both.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import (
    Fraction,
    LogProbability,
    Natural,
    from_json,
)

Features = Mapping[str, float]

# Below this probability, an output is more likely unusable than usable.
THRESHOLD = 0.5
# Largest linear term of a probability. A larger one would overflow.
MAX_LOGIT = 30.0
# Without a fitted threshold, a model is unsure of an output below this quantile.
UNSURE_LEVEL = 0.02
# Decimals of probabilities, and of a mean log-probability in every output.
DIGITS = 4
# Maximum number of characters of the purpose of a model.
MAX_PURPOSE = 200


@dataclasses.dataclass(frozen=True)
class Confidence:
    """A logistic model of whether an output is usable.

        probability = sigmoid(bias + sum of weights[x] * features[x])

    If it was fitted with inputs that the model is not for, the probability is at most
    that of an input which the model is for, which has its own bias and weights. A
    feature that an output does not have counts as 0.

    Attributes:
        data: Data sets whose references it was fitted to.
        count: Number of outputs that it was fitted to.
        bias, weights: Of the probability of being usable.
        threshold: A model is unsure of an output with a smaller probability.
        auc: Area under the ROC curve of outputs that it was not fitted to (5-fold
            cross-validation): the probability that a usable output has a larger
            probability than an unusable one.
        doubtful_below: A word of an output is doubtful if its probability is smaller.
        out_of_domain: Data set of inputs that the model is not for, if any.
        domain_bias, domain_weights: Of the probability that a model is for an input.
    """

    data: list[str]
    count: Natural
    bias: float
    weights: dict[str, float]
    threshold: Fraction
    auc: Fraction
    doubtful_below: Fraction
    out_of_domain: str | None = None
    domain_bias: float | None = None
    domain_weights: dict[str, float] | None = None

    def __post_init__(self):
        if (self.domain_bias is None) != (self.domain_weights is None):
            raise UserError("domain_bias and domain_weights must be given together")
        numbers = [self.bias, *self.weights.values(), self.domain_bias or 0.0]
        numbers += (self.domain_weights or {}).values()
        if not np.all(np.isfinite(numbers)):
            raise UserError("a confidence must have finite weights")

    def probability(self, features: Features) -> float:
        """Return the probability that an output with these features is usable."""
        probability = logistic(self.bias, self.weights, features)
        if self.domain_bias is not None and self.domain_weights is not None:
            familiar = logistic(self.domain_bias, self.domain_weights, features)
            probability = min(probability, familiar)
        return round(probability, DIGITS)

    def is_unfamiliar(self, features: Features) -> bool:
        """Return whether a model is probably not for the input of these features."""
        if self.domain_bias is None or self.domain_weights is None:
            return False
        familiar = logistic(self.domain_bias, self.domain_weights, features)
        return familiar < THRESHOLD


def logistic(bias: float, weights: Mapping[str, float], features: Features) -> float:
    """Return the probability of a logistic model; an absent feature counts as 0."""
    logit = bias + sum(x * features.get(name, 0.0) for name, x in weights.items())
    return sigmoid(logit).item()


def sigmoid(logits: Any) -> Any:
    """Return the logistic function of numbers, without overflow."""
    return 1 / (1 + np.exp(-np.clip(logits, -MAX_LOGIT, MAX_LOGIT)))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Quantiles of the mean log-probability of outputs, and a threshold, if fitted.

    They are those of `count` outputs for the data set `data`. `out_of_domain` is a data
    set that the model is not for, and `auc` the area under the ROC curve that separates
    both: the probability that an output of the first one has a larger value than one of
    the second. The `threshold` separates them best: the shares of both below it differ
    most (Youden's J), and that of the first is at most 10 %.
    """

    data: str
    count: Natural
    levels: list[Fraction]
    quantiles: list[LogProbability]
    out_of_domain: str | None = None
    auc: Fraction | None = None
    threshold: LogProbability | None = None

    @property
    def limit(self):
        """The mean log-probability below which the model is unsure."""
        if self.threshold is not None:
            return self.threshold
        return float(np.interp(UNSURE_LEVEL, self.levels, self.quantiles))

    def is_unsure(self, output):
        return self.limit > rounded_score(output)

    def share_unsure(self, outputs):
        return sum(map(self.is_unsure, outputs)) / len(outputs)


def rounded_score(output):
    """Return the mean log-probability of an output, with the digits of every output."""
    return round(output.mean_log_probability, DIGITS)


class Described:
    """Base class of models that say what they are for, and when they are unsure.

    Attributes:
        purpose: What the model is for, such as `"English to German, everyday
            sentences"`; `None` if unknown.
        confidence: Its `Confidence`, by which outputs are marked, or `None`.
        calibration: Its `Calibration`, by which outputs are marked if there is no
            `confidence`; `None` if there is none either. Outputs are then not marked.
            Both belong to the weights: set them to `None` when those change.
    """

    purpose: str | None = None
    confidence: Confidence | None = None
    calibration: Calibration | None = None

    def read_description(
        self,
        content: dict[str, Any],
        read: Callable[[str], bytes | None] = lambda name: None,
    ) -> None:
        """Set the attributes from a dict that was read from JSON.

        The dict need not have them. `read` returns the content of another file of the
        model by its name, or `None`.
        """
        purpose, calibration = content.get("purpose"), content.get("calibration")
        if purpose is not None:
            check_purpose(purpose)
        self.purpose = purpose
        self.confidence = self.calibration = None
        if content.get("confidence") is not None:
            self.confidence = from_json(Confidence, content["confidence"])
        if calibration is not None:
            self.calibration = from_json(Calibration, calibration)
            quantiles, levels = self.calibration.quantiles, self.calibration.levels
            if not 0 < len(levels) == len(quantiles):
                raise UserError(
                    "a calibration needs as many quantiles as levels, at least one. "
                    f"Received: {len(quantiles)} and {len(levels)}"
                )

    @property
    def description(self) -> dict[str, Any]:
        """Dict of the attributes, as `read_description` reads it."""
        entries = {
            "purpose": self.purpose,
            "confidence": self.confidence and dataclasses.asdict(self.confidence),
            "calibration": self.calibration and dataclasses.asdict(self.calibration),
        }
        return {name: value for name, value in entries.items() if value is not None}

    @property
    def description_files(self) -> dict[str, bytes]:
        """Contents of the other files of the model that `read_description` reads."""
        return {}

    def calibrate(self, calibration: Calibration) -> None:
        """Mark outputs by the calibration of new weights, and by nothing older."""
        self.confidence, self.calibration = None, calibration

    def marked(self, output, features: Features | None = None):
        """Return an output with its `features`, its `confidence`, and `unsure`.

        The features are `None` if there was nothing to compute. Without any
        calibration, neither `confidence` nor `unsure` is set.
        """
        output = dataclasses.replace(output, features=features)
        if self.confidence is not None:
            probability = 1.0
            if features is not None:
                probability = self.confidence.probability(features)
            return dataclasses.replace(
                output,
                confidence=probability,
                unsure=probability < self.confidence.threshold,
            )
        if self.calibration is None:
            return output
        return dataclasses.replace(output, unsure=self.calibration.is_unsure(output))


def check_purpose(purpose: Any) -> None:
    """Raise a `UserError` if the purpose of a model is not one short line."""
    is_line = isinstance(purpose, str) and purpose.isprintable()
    if not (is_line and 0 < len(purpose) <= MAX_PURPOSE):
        raise UserError(
            f"purpose must be one line of at most {MAX_PURPOSE} characters. "
            f"Received: {purpose!r:.200}"
        )
