"""The model card of a trained model, with metadata for the Hugging Face Hub."""

import json
import re

from keras_attention_apps.common.training.report import NAMES

# Other metrics of an epoch tell how the training went.
_METRICS = set(NAMES) - {"loss", "words_loss", "reward"}
_LANGUAGE = re.compile("[a-z]{2,3}")
_COMMANDS = {
    "image-to-text": "captioner caption photo.jpg --model .",
    "translation": 'nmt translate "A sentence." --model .',
}


def model_card(name, description, metrics, *, task, languages=(), data=(), base=None):
    """Return the text of a model card.

    `metrics` are those of the validation, such as `"cider"`, or `"cider coco"` for one
    of several data sets; `task` is one of the Hub, a key of `_COMMANDS`.
    """
    # The means over several data sets are no result of one of them.
    has_parts = any(" " in key for key in metrics)
    whole = data[0] if len(data) == 1 else "validation"
    scores = [
        (metric, place or whole, value)
        for key, value in metrics.items()
        for metric, _, place in [key.partition(" ")]
        if metric in _METRICS and (place or not has_parts)
    ]
    entries = {
        # The Hub's name for a licence that nobody has stated.
        "license": "unknown",
        "language": [x for x in languages if _LANGUAGE.fullmatch(x)],
        "library_name": "keras",
        "pipeline_tag": task,
        "tags": ["keras-attention"],
        "datasets": [_identifier(x) for x in data],
        "metrics": list(dict.fromkeys(_kind(metric) for metric, *_ in scores)),
        "model-index": [{"name": name, "results": _results(task, scores)}],
    }
    # Every line is JSON, which YAML contains.
    head = [f"{key}: {json.dumps(x)}" for key, x in entries.items() if x]
    rows = [
        f"| {NAMES[metric]} | {_line(place)} | {value:.2f} |"
        for metric, place, value in scores
    ]
    start = f" The training started from `{_line(base)}`." if base else ""
    return "\n".join(
        [
            "---",
            *head,
            "---",
            f"# {_line(name)}",
            "",
            f"{_line(description)}.{start}",
            "`config.json` has all options of the training.",
            "",
            "## Scores",
            "",
            "On the validation data, by which the epoch was selected:",
            "",
            "| metric | data | value |",
            "|---|---|---:|",
            *rows,
            "",
            "## Use",
            "",
            "With keras-attention-layers, in the folder of this file:",
            "",
            f"    {_COMMANDS[task]}",
            "",
            "## Data and terms",
            "",
            "The terms of the training data, and of the model from which a training",
            "starts, may limit the use of these weights. State them here, and replace",
            "`license: unknown` before you publish the folder.",
            "",
        ]
    )


def _results(task, scores):
    """Return the results of the model index, one for each data set."""
    places = dict.fromkeys(place for _, place, _ in scores)
    return [
        {
            "task": {"type": task},
            "dataset": {
                "type": _identifier(place),
                "name": place,
                "split": "validation",
            },
            "metrics": [
                {
                    "type": _kind(metric),
                    "name": NAMES[metric],
                    "value": round(float(x), 2),
                }
                for metric, own, x in scores
                if own == place
            ],
        }
        for place in places
    ]


def _kind(metric):
    """Return the Hub's name of a metric: that of its family."""
    return metric.partition("-")[0]


def _identifier(name):
    """Return a name as the Hub allows it for a data set."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "data"


def _line(text):
    return " ".join(str(text).split())
