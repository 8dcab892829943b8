"""Commands of short trainings, and what they write."""

import json

from attention_testing.programs import training

# Sizes of a network that trains in no time.
TINY = {
    "embedding_units": 12,
    "units": 14,
    "encoder_units": 7,
    "attention_units": 5,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_length": 20,
    # The searches of all batches have the same number of steps.
    "length_ratio": 10.0,
}
SIZES = {"vocabulary-size": 340, "batch-tokens": 300, "min-steps": 1} | {
    f"model.{name.replace('_', '-')}": size
    for name, size in TINY.items()
    if name not in ("heads", "length_ratio")
}
PLAN = {"average": 2, "learning-rate": 1e-2, "warm-up": 3}


def command(corpus, output, **changes):
    """Return the command of a training; an option that is `None` is left out."""
    options = {"data": corpus, "pair": "en-fr", "output": output, **SIZES}
    options = {**options, **PLAN, "epochs": 3, "ema-momentum": 0.5, **changes}
    attention = options.get("model.attention", "bahdanau")
    if attention == "self-attention":
        del options["model.encoder-units"]
    if attention in ("self-attention", "luong"):
        del options["model.attention-units"]
    return training({name: x for name, x in options.items() if x is not None})


def small(few, output, **changes):
    """Return the command of a training of short sentences, two steps an epoch."""
    sizes = {"vocabulary-size": 320, "model.max-length": 8, "batch-tokens": 2000}
    return command(few, output, **{**sizes, "epochs": 2, **changes})


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def history(folder):
    return json.loads((folder / "checkpoints" / "progress.json").read_text())["history"]
