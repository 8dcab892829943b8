"""Commands of short trainings, and what they write."""

import json

from programs import training

SIZES = {
    "vocabulary-size": 340,
    "batch-tokens": 300,
    "min-steps": 1,
    "model.embedding-units": 12,
    "model.units": 14,
    "model.encoder-units": 7,
    "model.attention-units": 5,
    "model.encoder-layers": 1,
    "model.decoder-layers": 1,
    "model.max-length": 20,
}


def command(corpus, output, **changes):
    options = {
        "data": corpus,
        "pair": "en-fr",
        "output": output,
        **SIZES,
        "epochs": 3,
        "average": 2,
        "learning-rate": 1e-2,
        "warm-up": 3,
        "ema-momentum": 0.5,
    }
    options = {**options, **changes}
    attention = options.get("model.attention", "bahdanau")
    if attention == "self-attention":
        del options["model.encoder-units"]
    if attention in ("self-attention", "luong"):
        del options["model.attention-units"]
    return training(options)


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
    text = (folder / "checkpoints" / "progress.json").read_text()
    return json.loads(text)["history"]
