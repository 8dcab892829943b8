"""Output of commands: progress, formats of files, and figures."""

import contextlib
import contextvars
import functools
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from pathlib import Path

from keras_attention_apps.common.files import atomic_path

_QUIET = contextvars.ContextVar("quiet", default=False)


@contextlib.contextmanager
def quiet():
    """Show no progress in the context."""
    token = _QUIET.set(True)
    try:
        yield
    finally:
        _QUIET.reset(token)


def note(text):
    """Print a line about finished work on the standard error, unless it is quiet."""
    if not _QUIET.get():
        print(text, file=sys.stderr)


def progress_bar(**options):
    """Return a `tqdm.tqdm`, which shows nothing where the output is no terminal."""
    from tqdm import tqdm

    # `None` means: unless it is a terminal.
    return tqdm(disable=_QUIET.get() or None, **options)


def shows_bars():
    """Return whether bars are shown on the standard output: on a terminal alone."""
    return sys.stdout.isatty() and not _QUIET.get()


JSON_LINES = ".jsonl"
TABLES = (".csv", ".tsv")


def is_table(path: Path) -> bool:
    """Return whether the name of an output is that of a table."""
    return path.suffix.lower() in TABLES


# Image formats of plots.
FIGURE_SUFFIXES = (".png", ".jpg", ".pdf", ".svg")


@functools.cache
def plots():
    """Return the module `keras_attention.plots`.

    It is loaded without its package, which would import Keras and take seconds.
    """
    package = importlib.util.find_spec("keras_attention")
    assert package and package.origin
    path = str(Path(package.origin).with_name("plots.py"))
    loader = importlib.machinery.SourceFileLoader("keras_attention_plots", path)
    module = types.ModuleType(loader.name)
    loader.exec_module(module)
    return module


def write_figure(path, draw, *, dpi):
    with warnings.catch_warnings(), atomic_path(path) as file:
        # Characters that no font has are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        draw().savefig(file, dpi=dpi)
