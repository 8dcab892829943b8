"""Commands of short trainings, and what they write."""

import json
from pathlib import Path

import pytest

from attention_testing.programs import training

SIZES = {
    "backbone": "SmallCNN",
    "image-size": 64,
    "region-units": 11,
    "embedding-units": 7,
    "units": 13,
    "attention-units": 5,
    "max-length": 5,
}
SHORT = {**SIZES, "max-length": 4}
# Only the decoder is trained.
ONE_PHASE = {"fine-tune-epochs": 0, "self-critical-epochs": 0}


def command(squares, output, sizes=SIZES, **changes):
    options = {
        "data": squares,
        "output": output,
        "cache": Path(output).parent / "cache",
        "backbone-weights": "none",
        "min-count": 1,
        "batch-images": 6,
        "frozen-views": 2,
        "epochs": 2,
        "fine-tune-epochs": 1,
        "self-critical-epochs": 1,
        **{f"model.{name}": value for name, value in sizes.items()},
    }
    return training(options, **changes)


def history_of(output):
    """The figures of every epoch."""
    progress = (output / "checkpoints" / "progress.json").read_text()
    return json.loads(progress)["history"]


def check_history(output, expected):
    for row, reference in zip(history_of(output), history_of(expected), strict=True):
        assert row == pytest.approx(reference, rel=1e-6, abs=1e-6)
