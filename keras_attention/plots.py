"""Pictures of attention, good enough for a paper. They return the figure."""

import math

import numpy as np

# Enlarged maps are smoothed by this share of a region's width.
SMOOTHING = 0.5


def attention_overlay(image, words, weights, *, title=None, columns=5, width=12.0):
    """Show where a model looked in an image for each word.

    The first panel is the image; every word gets one panel, in which the image is
    as bright as the attention that its region received, relative to the word's maximum.

    Args:
        image: Array `(height, width, 3)`, integers up to 255 or floats up to 1, or a
            picture that NumPy can read as such.
        words: The words, one for each map.
        weights: Attention weights, `(len(words), rows, columns)`, or
            `(len(words), rows * columns)` for a square grid.
        title: Text above the image; the words joined by blanks if omitted.
        columns: Number of panels in a row.
        width: Width of the figure in inches.

    Returns:
        A `matplotlib.figure.Figure`, not registered with pyplot: write it with
        `figure.savefig(path)`.

    Raises:
        ValueError: If a shape does not fit.
    """
    from matplotlib.figure import Figure

    image = np.asarray(image)
    if image.ndim != 3 or image.shape[-1] != 3:
        raise ValueError(
            f"image must have the shape (height, width, 3). Received: {image.shape}"
        )
    maps = _as_maps(weights, len(words))
    height, span = image.shape[:2]
    rows = math.ceil((len(words) + 1) / columns)
    panel = width / columns
    figure = Figure(
        figsize=(width, rows * (panel * height / span + 0.35) + 0.5),
        layout="constrained",
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    axes[0].imshow(image)
    axes[0].set_title("photograph", fontsize=12, color="0.45")
    for axis, word, weight in zip(axes[1:], words, maps, strict=False):
        brightness = _enlarge(weight, height, span)
        axis.imshow(_highlight(image, brightness))
        axis.set_title(word, fontsize=14, parse_math=False)
    title = " ".join(words) if title is None else title
    figure.suptitle(title, fontsize=15, parse_math=False)
    return figure


def _as_maps(weights, count):
    weights = np.asarray(weights, "float64")
    if weights.ndim == 2:
        side = math.isqrt(weights.shape[1])
        if side * side == weights.shape[1]:
            weights = weights.reshape(len(weights), side, side)
    if weights.ndim != 3 or len(weights) != count:
        raise ValueError(
            f"weights must have the shape ({count}, rows, columns), one map for each "
            f"word. Received: {weights.shape}"
        )
    return weights


def _enlarge(weight, height, width):
    """A smooth map of the image's size in [0, 1], from one weight per region."""
    across = _blend(weight.shape[1], width)
    down = _blend(weight.shape[0], height)
    smooth = down @ weight @ across.T
    return smooth / max(smooth.max(), 1e-12)


def _blend(cells, pixels):
    """Gaussian interpolation from cell centres to pixels, `(pixels, cells)`."""
    positions = (np.arange(pixels) + 0.5) * cells / pixels
    distance = positions[:, None] - (np.arange(cells) + 0.5)
    blend = np.exp(-0.5 * (distance / SMOOTHING) ** 2)
    return blend / blend.sum(axis=1, keepdims=True)


def _highlight(image, brightness):
    """The image, washed out towards grey where nobody looked."""
    image = image / 255.0 if np.issubdtype(image.dtype, np.integer) else image
    grey = 0.25 * image.mean(axis=-1, keepdims=True) + 0.05
    share = brightness[..., None]
    return np.clip(share * image + (1 - share) * grey, 0.0, 1.0)
