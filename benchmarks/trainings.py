"""Trainings on artificial data: their texts, options and folders."""

import contextlib
import tempfile
import time
from pathlib import Path


@contextlib.contextmanager
def folder_of(path):
    """Yield the folder `path`, which is created, or a temporary one for `None`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def write_pairs(pairs, folder, name, languages):
    """Write the first two texts of each pair to a file for each of two languages."""
    for side, language in enumerate(languages):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def flags(options):
    """Return command-line options; the value `None` is an option without a value."""
    arguments = []
    for name, value in options.items():
        arguments += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    return arguments


def train_translator(name, options, folder):
    """Return a translator, and the seconds that its training took.

    Args:
        name: Name of the folder and of the log that the training writes.
        options: Dict of options of `nmt train`, see `flags`.
        folder: Folder of the data, to which everything is written.
    """
    from keras_attention_apps.nmt import Translator
    from keras_attention_apps.nmt.main import main as nmt

    options = {**options, "data": folder, "output": folder / name}
    start = time.perf_counter()
    with (
        open(folder / f"{name}.log", "w", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
    ):
        if nmt(["train", *flags(options)]):
            raise SystemExit(f"the training of {name} failed")
    model = folder / name / "model"
    return Translator.from_preset(str(model)), time.perf_counter() - start
