"""Writing figures of attention as image files."""

import contextlib
import functools
import importlib.util
import warnings
from pathlib import Path

from keras_attention_apps.common.files import atomic_path

# Image formats of plots.
FIGURE_SUFFIXES = (".png", ".jpg", ".pdf", ".svg")


@functools.cache
def plots():
    """Return the module `keras_attention.plots`.

    It is loaded without its package, which would import Keras and take seconds.
    """
    package = importlib.util.find_spec("keras_attention")
    path = Path(package.submodule_search_locations[0], "plots.py")
    spec = importlib.util.spec_from_file_location("keras_attention_plots", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_figure(path, draw, *, dpi):
    """Draw a figure, and write it as an image file."""
    is_open = hasattr(path, "write")
    target = contextlib.nullcontext(path) if is_open else atomic_path(path)
    with warnings.catch_warnings(), target as file:
        # Characters that no font has are drawn as boxes, so warnings about them are
        # silenced.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        draw().savefig(file, dpi=dpi)
