"""Writing figures of attention as pictures."""

import warnings

from keras_attention_apps.common.files import atomic_path

# Formats of pictures that plots are written in.
PICTURES = (".png", ".jpg", ".pdf", ".svg")


def write_figure(path, draw, *, dpi):
    """Draw a figure, and write it as a picture.

    Args:
        path: Name of the picture.
        draw: Function without arguments that returns a matplotlib figure.
        dpi: Dots per inch.
    """
    with warnings.catch_warnings(), atomic_path(path) as temporary:
        # Characters that no font has are boxes, which speak for themselves.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        draw().savefig(temporary, dpi=dpi)
