"""The hypotheses of a search as arrays, and how sure of them a model is.

Shapes: B rows, K hypotheses, T tokens, S positions that are attended to.
"""

import dataclasses
import os
from typing import Any

import numpy as np
from keras_attention_apps.common import options
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert, resolved
from keras_attention_apps.common.models import update_sealed

# Lower bound of the scores of possible hypotheses; a search gives impossible ones -1e9.
MIN_SCORE = -1e8


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One sequence that a search has found, with T tokens.

    `token_ids` are padded with END after the last token, and `token_log_probabilities`
    with zeros; `length` counts END. Hypotheses are ranked by `score`.
    """

    token_ids: np.ndarray
    score: float
    log_probability: float
    token_log_probabilities: np.ndarray
    length: int
    weights: np.ndarray


def hypotheses(outputs: dict[str, Any], n_best: int = 1) -> list[list[Hypothesis]]:
    """Return the best hypotheses of every row, best first."""
    outputs = {name: np.asarray(values) for name, values in outputs.items()}
    # A search without a possible hypothesis returns -1e9; comparing NaN is false.
    if not np.all(outputs["scores"][:, 0] > MIN_SCORE):
        raise UserError(
            "The model computes no finite scores: its weights are NaN or infinite. Its "
            "training has diverged, or a file is damaged."
        )
    return [
        [
            Hypothesis(
                outputs["token_ids"][row, rank],
                float(outputs["scores"][row, rank]),
                float(outputs["log_probs"][row, rank]),
                outputs["token_log_probs"][row, rank],
                int(outputs["lengths"][row, rank]),
                outputs["weights"][row, rank],
            )
            for rank in range(n_best)
            if rank == 0 or outputs["lengths"][row, rank]
        ]
        for row in range(len(outputs["token_ids"]))
    ]


def check_n_best(n_best: int, search: dict[str, Any]) -> None:
    """Raise a `UserError` if `n_best` exceeds the beam width, or is below 1."""
    beam_size = search["beam_size"]
    if not 1 <= n_best <= beam_size:
        raise UserError(
            f"n_best must be between 1 and beam_size, {beam_size}. Received: {n_best}"
        )


def check_several(inputs: object) -> None:
    """Raise a `UserError` for one input; the items of a string are its characters."""
    if isinstance(inputs, (str, bytes, os.PathLike)):
        raise UserError(
            f"expected several inputs, such as a list. Received one: {inputs!r:.60}"
        )


def check_batch_size(batch_size: int) -> None:
    """Raise a `UserError` if the batch size is below 1."""
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1. Received: {batch_size}")


# Quantiles that a calibration has.
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
# Without a fitted threshold, a model is unsure of an output below this quantile.
UNSURE_LEVEL = 0.02
# Maximum share of the validation data below a fitted threshold: where both data sets
# overlap, a model would otherwise be unsure of half of what it is for.
MAX_UNSURE = 0.1
# Decimals of a mean log-probability in every output.
DIGITS = 4
MAX_PURPOSE = 200


def rounded_score(output):
    """Return the mean log-probability of an output, with the digits of every output."""
    return round(output.mean_log_probability, DIGITS)


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Quantiles of the mean log-probability of outputs, and a threshold, if fitted.

    They are those of `count` outputs for the data set `data`. `out_of_domain` is a data
    set that the model is not for, and `auc` the area under the ROC curve that separates
    both: the probability that an output of the first one has a larger value than one of
    the second. The `threshold` separates them best: the shares of both below it differ
    most (Youden's J), and that of the first is at most `MAX_UNSURE`.
    """

    data: str
    count: options.Natural
    levels: list[options.Fraction]
    quantiles: list[options.LogProbability]
    out_of_domain: str | None = None
    auc: options.Fraction | None = None
    threshold: options.LogProbability | None = None

    @classmethod
    def measured(cls, data, outputs, out_of_domain=None, others=()):
        inside, outside = (np.sort([*map(rounded_score, x)]) for x in (outputs, others))
        quantiles = np.quantile(inside, LEVELS).round(DIGITS).tolist()
        found = cls(data, len(inside), [*LEVELS], quantiles)
        if not len(outside):
            return found
        return dataclasses.replace(
            found,
            out_of_domain=out_of_domain,
            auc=round(_area_under_curve(inside, outside), DIGITS),
            threshold=round(_best_threshold(inside, outside), DIGITS),
        )

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


class Described:
    """Base class of models that say what they are for, and when they are unsure.

    Attributes:
        purpose: What the model is for, such as `"English to German, everyday
            sentences"`; `None` if unknown.
        calibration: Its `Calibration`; `None` if it has none. Outputs are then not
            marked. It belongs to the weights: set it to `None` when they change.
    """

    purpose: str | None = None
    calibration: Calibration | None = None

    def read_description(self, content: dict[str, Any]) -> None:
        """Set both from a dict that was read from JSON, which need not have them."""
        purpose, calibration = content.get("purpose"), content.get("calibration")
        if purpose is not None:
            check_purpose(purpose)
        self.purpose = purpose
        self.calibration = None
        if calibration is not None:
            found = self.calibration = options.from_json(Calibration, calibration)
            if not 0 < len(found.levels) == len(found.quantiles):
                raise UserError(
                    "a calibration needs as many quantiles as levels, at least one. "
                    f"Received: {len(found.quantiles)} and {len(found.levels)}"
                )

    @property
    def description(self) -> dict[str, Any]:
        """Dict of both, as `read_description` reads it."""
        found = {
            "purpose": self.purpose,
            "calibration": self.calibration and dataclasses.asdict(self.calibration),
        }
        return {name: value for name, value in found.items() if value is not None}

    def calibrate(self, data, outputs):
        """Set the calibration from outputs for validation data; return them, marked."""
        self.calibration = Calibration.measured(data, outputs)
        return list(map(self.marked, outputs))

    def marked(self, output):
        """Return an output with its attribute `unsure`, if there is a calibration."""
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


def calibrate(config, runtimes, *, read, run):
    """Calibrate a model as a `CalibrateConfig` describes it, and say what it is for."""
    if config.data is None and (config.out_of_domain or config.purpose is None):
        raise UserError("expected --data, or --purpose alone. Received: neither")
    # It imports this module.
    from keras_attention_apps.common.litert import update_metadata

    files = runtimes.described_files(config.model)
    entries: dict = {}
    if config.purpose is not None:
        check_purpose(config.purpose)
        entries["purpose"] = config.purpose
    if config.data:
        # The other commands need this module, but not this one.
        from keras_attention_apps.common.training.data_sets import names_of

        paths = [resolved(x) for x in (config.data, config.out_of_domain) if x]
        inputs = dict(zip(names_of(paths), map(read, paths), strict=True))
        model = runtimes.load(config.model, config.runtime, search={})
        found = _measure(
            config.model,
            model.search_options(),
            {name: run(model, x) for name, x in inputs.items()},
        )
        entries["calibration"] = dataclasses.asdict(found)
    for path in files:
        if is_litert(path):
            update_metadata(path, runtimes.litert.noun, entries)
        else:
            update_sealed(path, entries)
    print(f"Wrote {' and '.join(map(str, files))}")


def _measure(name, search, outputs):
    """Print and return the calibration of a model."""
    (data, inside), *others = outputs.items()
    other, outside = others[0] if others else (None, ())
    found = Calibration.measured(data, inside, other, outside)
    print(
        f"{name} on {found.count:,} inputs of {data}, beam {search['beam_size']}, "
        f"length penalty {search['length_penalty']}"
    )
    print("mean log-probability:")
    for level, quantile in zip(found.levels, found.quantiles, strict=True):
        print(f"{quantile:8.2f}  {level:.0%} quantile")
    if others:
        print(
            f"{found.auc:8.2f}  area under the ROC curve, against {len(outside):,} "
            f"inputs of {other}"
        )
    quantile = f"{UNSURE_LEVEL:.0%} quantile"
    origin = "threshold that separates both" if others else quantile
    shares = (f"{found.share_unsure(x):.1%} of {key}" for key, x in outputs.items())
    print(f"{found.limit:8.2f}  {origin}; below it: {' and '.join(shares)}")
    return found


def _area_under_curve(inside, outside):
    """Return the share of pairs in which `inside` is larger; ties count half."""
    smaller = np.searchsorted(outside, inside, "left")
    at_most = np.searchsorted(outside, inside, "right")
    return float(np.mean(smaller + at_most) / 2 / len(outside))


def _best_threshold(inside, outside):
    """Return the threshold of a `Calibration` for two sorted arrays of scores."""
    candidates = np.unique(np.concatenate([inside, outside]))
    found = np.searchsorted(outside, candidates) / len(outside)
    wrong = np.searchsorted(inside, candidates) / len(inside)
    return float(
        candidates[np.argmax(np.where(wrong <= MAX_UNSURE, found - wrong, -1))]
    )
