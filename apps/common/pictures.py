"""Writing figures of attention as image files."""

import warnings

from keras_attention_apps.common.files import atomic_path

# Image formats of plots.
PICTURES = (".png", ".jpg", ".pdf", ".svg")


def write_figure(path, draw, *, dpi):
    """Draw a figure, and write it as an image file.

    Args:
        path: Name of the file.
        draw: Function without arguments that returns a matplotlib figure.
        dpi: Dots per inch.
    """
    with warnings.catch_warnings(), atomic_path(path) as temporary:
        # Characters that no font has are boxes, which speak for themselves.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        draw().savefig(temporary, dpi=dpi)
