"""Training on several data sets: weights, and metrics of each."""

import numpy as np

from keras_attention_apps.common.errors import UserError, counted

# With fewer validation examples, the noise of the metrics hides what training changes.
MIN_VALIDATION = 100


def check_data_sets(data, weights):
    """Raise a `UserError` unless there are data sets, each with a positive weight."""
    if not data:
        raise UserError("expected a data set: --data. Received: none")
    for index, path in enumerate(data):
        if path in data[:index]:
            raise UserError(
                "expected every data set once; --data-weights sets how often an epoch "
                f"goes through it. Received twice: {str(path)!r}"
            )
    if weights and len(weights) != len(data):
        raise UserError(
            f"data_weights must have one number for each data set, {len(data)}. "
            f"Received: {len(weights)}"
        )
    for weight in weights:
        if not weight > 0:
            raise UserError(f"data_weights must be above 0. Received: {weight}")


def names_of(data):
    """Return a name for each data set: that of its folder, numbered if it is repeated.

    >>> from pathlib import Path
    >>> names_of([Path("a/flickr8k"), Path("b/coco"), Path("c/coco")])
    ['flickr8k', 'coco', 'coco-2']
    """
    names = [path.name for path in data]
    numbers = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [
        name if number == 1 else f"{name}-{number}"
        for name, number in zip(names, numbers, strict=True)
    ]


class Mixture:
    """The examples of each epoch, from several data sets.

    An epoch goes through a data set as often as its weight says: twice with 2, and
    through another random half of it in every epoch with 0.5; without weights, once.
    Examples are numbered from 0, in the order of the data sets.
    """

    def __init__(self, sizes, weights=()):
        self._sizes = sizes
        self._counts = [
            max(round(size * weight), 1)
            for size, weight in zip(sizes, weights or [1] * len(sizes), strict=True)
        ]

    def __len__(self):
        """Return the number of examples of an epoch."""
        return sum(self._counts)

    def split(self, examples):
        """Return all examples as one list for each data set."""
        ends = np.cumsum(self._sizes)
        pairs = zip(ends, self._sizes, strict=True)
        return [examples[end - size : end] for end, size in pairs]

    def draw(self, random):
        """Return the numbers of the examples of an epoch, shuffled."""
        first, drawn = 0, []
        for size, count in zip(self._sizes, self._counts, strict=True):
            examples = np.arange(first, first + size)
            times, rest = divmod(count, size)
            drawn += [examples] * times
            if rest:
                drawn.append(random.choice(examples, rest, replace=False))
            first += size
        return random.permutation(np.concatenate(drawn))


def combined_scores(scores):
    """Return the means of metrics that all data sets have, and the metrics of each.

    >>> combined_scores({"a": {"bleu": 1.0}, "b": {"bleu": 2.0}})
    {'bleu': 1.5, 'bleu a': 1.0, 'bleu b': 2.0}
    """
    first, *others = scores.values()
    if not others:
        return first
    shared = [name for name in first if all(name in other for other in others)]
    means = {
        name: sum(each[name] for each in scores.values()) / len(scores)
        for name in shared
    }
    per_data_set = {
        f"{name} {data}": score
        for data, each in scores.items()
        for name, score in each.items()
    }
    return {**means, **per_data_set}


def formatted_scores(scores, digits=1):
    """Return metrics as text, one line for each data set."""
    rows = dict(scores)
    if len(rows) > 1:
        combined = combined_scores(scores)
        rows["mean"] = {x: score for x, score in combined.items() if " " not in x}
    return "\n".join(
        (f"{data}: " if len(rows) > 1 else "")
        + "  ".join(f"{name} {score:.{digits}f}" for name, score in each.items())
        for data, each in rows.items()
    )


def summary_of(lines):
    """Join the lines of data sets, a dict, with their names if there are several."""
    if len(lines) == 1:
        return "".join(lines.values())
    return "; ".join(f"{name}: {line}" for name, line in lines.items())


def validation_summary(count, noun):
    """Return the number of validation examples of a data set, with a note if too few.

    >>> validation_summary(11, "image")
    '11 images for validation, which is too few to compare epochs: expected 100 or more'
    """
    summary = f"{counted(count, noun)} for validation"
    if count < MIN_VALIDATION:
        summary += (
            f", which is too few to compare epochs: expected {MIN_VALIDATION} or more"
        )
    return summary
