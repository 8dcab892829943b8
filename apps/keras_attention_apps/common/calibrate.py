"""The command `calibrate`: fit the confidence of a model to data, and store it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras_attention_apps.common.calibration import (
    Figures,
    Judged,
    fit_calibration,
    fit_confidence,
)
from keras_attention_apps.common.confidence import (
    THRESHOLD,
    UNSURE_LEVEL,
    Confidence,
    check_purpose,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import is_litert, resolved
from keras_attention_apps.common.litert import update_metadata
from keras_attention_apps.common.models import update_sealed
from keras_attention_apps.common.training.data_sets import names_of

# Minimum number of usable outputs, and of unusable ones, to fit a confidence.
MIN_JUDGED = 20


@dataclasses.dataclass(frozen=True)
class Program:
    """Functions and names that the calibration of a program needs.

    Attributes:
        read: Function from the folder of a data set to its inputs and references.
        read_others: Function from the folder of `--out-of-domain` to its inputs.
        run: Function from a model and inputs to outputs with `features`.
        judge: Function from outputs and references to a list of whether each output is
            usable, `None` where that is not clear.
        prepare: Function of the model that runs before all others.
        domain_features: Names of the features by which inputs are told apart that the
            model is not for; all if empty.
        ignored: Names of features to which nothing is fitted.
        threshold: Probability of being usable below which a model is unsure.
    """

    read: Callable[[Any], tuple[list, list]]
    read_others: Callable[[Any], list]
    run: Callable[[Any, list], list]
    judge: Callable[[list, list], list[bool | None]]
    prepare: Callable[[Any], None] = lambda model: None
    domain_features: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    threshold: float = THRESHOLD


def calibrate(config, runtimes, program):
    """Calibrate a model as a `CalibrateConfig` describes it, and say what it is for."""
    if not config.data and (config.out_of_domain or config.purpose is None):
        raise UserError("expected --data, or --purpose alone. Received: neither")
    files = runtimes.described_files(config.model)
    entries: dict = {}
    contents: dict[str, bytes] = {}
    if config.purpose is not None:
        check_purpose(config.purpose)
        entries["purpose"] = config.purpose
    if config.data:
        paths = [resolved(x) for x in config.data]
        data = dict(zip(names_of(paths), map(program.read, paths), strict=True))
        others = None
        if config.out_of_domain:
            path = resolved(config.out_of_domain)
            *_, name = names_of([*paths, path])
            others = name, program.read_others(path)
        model = runtimes.load(config.model, config.runtime, search={})
        program.prepare(model)
        entries |= _fitted(config.model, model, data, others, program)
        contents = model.description_files
    for path in files:
        if is_litert(path):
            update_metadata(path, runtimes.litert.noun, entries, contents)
        else:
            update_sealed(path, entries, contents)
    print(f"Wrote {' and '.join(map(str, files))}")


def _fitted(model_name, model, data, others, program):
    """Print and return the new entries of the description of a model."""
    search = model.search_options()
    count = sum(len(inputs) for inputs, _ in data.values())
    print(
        f"{model_name} on {count:,} inputs of {' and '.join(data)}, beam "
        f"{search['beam_size']}, length penalty {search['length_penalty']}"
    )
    outputs, usable = {}, {}
    for key, (inputs, references) in data.items():
        outputs[key], computed_references = _computed(
            program.run(model, inputs), references
        )
        usable[key] = program.judge(outputs[key], computed_references)
    if others is not None:
        name, inputs = others
        others = name, _computed(program.run(model, inputs), inputs)[0]
    fewest = min(
        sum(x.count(value) for x in usable.values()) for value in (True, False)
    )
    if fewest < MIN_JUDGED:
        print(
            f"a confidence needs {MIN_JUDGED} usable and {MIN_JUDGED} unusable outputs."
            f" Received: {fewest} of one kind. Quantiles of the mean log-probability "
            "take its place"
        )
        together = [x for of_data in outputs.values() for x in of_data]
        calibration = _measure(" and ".join(data), together, others)
        return {"calibration": dataclasses.asdict(calibration), "confidence": None}
    judged = {
        key: Judged(
            [x.features for x in outputs[key]],
            usable[key],
            [x.word_probabilities for x in outputs[key]],
        )
        for key in data
    }
    domain = others and (others[0], [x.features for x in others[1]])
    confidence, figures = fit_confidence(
        judged, domain, program.domain_features, program.ignored, program.threshold
    )
    print(
        f"usable with a probability of at least {confidence.threshold}; by outputs "
        "that the model was not fitted to:"
    )
    width = max(map(len, figures))
    for key, of_data in figures.items():
        print(f"{key:{width}}  {of_data}")
    if domain:
        marked = [confidence.probability(x) < confidence.threshold for x in domain[1]]
        share = sum(marked) / len(marked)
        print(f"{domain[0]:{width}}  unsure of {share:.1%} of {len(marked):,}")
    return {"confidence": dataclasses.asdict(confidence), "calibration": None}


def _computed(outputs, references):
    """Return the outputs that a model computed, with their references.

    An input that is copied as it is, such as a number, has an output without features.
    """
    pairs = zip(outputs, references, strict=True)
    computed = [(x, reference) for x, reference in pairs if x.features is not None]
    return [x for x, _ in computed], [reference for _, reference in computed]


def print_figures(confidence: Confidence | None, outputs: list, usable: list) -> None:
    """Print how well the confidence of a model marks outputs that were judged."""
    if confidence is not None:
        probabilities = [x.confidence for x in outputs]
        figures = Figures.measured(probabilities, usable, confidence.threshold)
        print(f"confidence: {figures}")


def _measure(data, inside, others):
    """Print and return the quantiles of a model, and a threshold."""
    other, outside = others or (None, ())
    calibration = fit_calibration(data, inside, other, outside)
    print("mean log-probability:")
    levels = zip(calibration.levels, calibration.quantiles, strict=True)
    for level, quantile in levels:
        print(f"{quantile:8.2f}  {level:.0%} quantile")
    shares = [f"{calibration.share_unsure(inside):.1%} of {data}"]
    origin = f"{UNSURE_LEVEL:.0%} quantile"
    if others:
        print(
            f"{calibration.auc:8.2f}  area under the ROC curve, against "
            f"{len(outside):,} inputs of {other}"
        )
        origin = "threshold that separates both"
        shares.append(f"{calibration.share_unsure(outside):.1%} of {other}")
    print(f"{calibration.limit:8.2f}  {origin}; below it: {' and '.join(shares)}")
    return calibration
