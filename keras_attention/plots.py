"""Attention weights as matplotlib figures, and as highlighted text."""

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

# Maximum height of a panel, relative to its width; taller images are scaled down.
MAX_ASPECT_RATIO = 4
# Standard deviation of the Gaussian that smooths maps, relative to a region.
SMOOTHING = 0.5
# Rounding errors of weights and of floating-point images.
TOLERANCE = 1e-6
# Background of a word with the largest weight; that of a weight of zero is white.
DARKEST = np.array([8, 81, 156])
# Share of the largest weight from which a word has a background.
SMALLEST_SHARE = 0.02
# Share of the largest weight above which white letters are easier to read than black.
WHITE_LETTERS = 0.77


def attention_overlay(
    image: Any,
    words: Iterable[str],
    weights: Any,
    *,
    boxes: Any = None,
    title: str | None = None,
    columns: int = 5,
    width: float = 12.0,
) -> Any:
    """Overlay the attention weights of each word on an image.

    The first panel is the image. Each word has a panel in which the brightness of a
    region is its attention weight, relative to the maximum of the word. If the regions
    are `boxes`, the brightness of a pixel is the sum of the weights of all boxes that
    contain it, and the box with the largest weight has an outline.

    Args:
        image: Array `(height, width, 3)`, integers up to 255 or floats up to 1, or an
            object that NumPy converts to one, such as a Pillow image.
        words: The words, one for each map.
        weights: Attention weights, `(len(words), rows, columns)`, or
            `(len(words), rows * columns)` for a square grid; with `boxes`,
            `(len(words), len(boxes))`.
        boxes: Boxes of the regions, `(regions, 4)`: left, top, right and bottom as
            fractions of width and height; parts outside of the image are cut off. By
            default, the regions form a grid.
        title: Title of the figure; the words, separated by spaces, if omitted.
        columns: Number of panels per row.
        width: Width of the figure in inches.

    Returns:
        A `matplotlib.figure.Figure`, not registered with pyplot: write it with
        `figure.savefig(path)`.

    Raises:
        ValueError: If a shape does not fit.
    """
    from matplotlib.figure import Figure

    image = np.asarray(image)
    if image.ndim != 3 or image.shape[-1] != 3 or not image.size:
        raise ValueError(
            f"image must have the shape (height, width, 3). Received: {image.shape}"
        )
    if np.issubdtype(image.dtype, np.floating) and not image.max() <= 1 + TOLERANCE:
        raise ValueError(
            "an image of floating-point numbers must not exceed 1. "
            f"Received: {image.dtype} up to {image.max()}"
        )
    if not isinstance(columns, int) or columns < 1:
        raise ValueError(f"columns must be a positive integer. Received: {columns!r}")
    words, weights = list(map(str, words)), _to_array(weights)
    # NaN fails this comparison, too.
    if not (-TOLERANCE <= weights.min(initial=0) <= weights.max(initial=0) < math.inf):
        raise ValueError(
            "weights must be finite and not negative. "
            f"Received: {weights.min()} to {weights.max()}"
        )
    image_height, image_width = image.shape[:2]
    if boxes is None:
        maps: Any = _as_maps(weights, len(words))
    else:
        boxes = _as_boxes(boxes, weights.shape, len(words))
        maps = [box_map(weight, boxes, image_height, image_width) for weight in weights]
    rows = math.ceil((len(words) + 1) / columns)
    panel_height = width / columns * min(image_height / image_width, MAX_ASPECT_RATIO)
    # 0.35 inches for the titles of each row, 0.5 for that of the figure.
    height = rows * (panel_height + 0.35) + 0.5
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set_axis_off()
    title = " ".join(words) if title is None else title
    font = {"fontfamily": _font_families([*words, title]), "parse_math": False}
    axes[0].imshow(image)
    axes[0].set_title("image", fontsize=12, color="0.45")
    for index, (axis, word) in enumerate(zip(axes[1:], words, strict=False)):
        brightness = maps[index]
        if boxes is None:
            brightness = enlarge(brightness, image_height, image_width)
        axis.imshow(_highlight(image, brightness))
        axis.set_title(word, fontsize=14, **font)
        if boxes is not None and len(boxes):
            box = boxes[weights[index].argmax()]
            _outline(axis, box, image_height, image_width)
    figure.suptitle(title, fontsize=15, **font)
    return figure


def attention_heatmap(
    weights: Any,
    source_words: Iterable[str],
    target_words: Iterable[str] | None = None,
    *,
    vmax: float | str = 1.0,
    title: str | None = None,
) -> Any:
    """Heat map of the attention weights of target words over source words.

    Columns are source words and rows are target words; larger weights are darker. By
    default, the colour scale is 0 to 1, so that figures can be compared. Source words
    wider than their column are rotated. Up to about 60 words per side are legible.
    Characters that the default font lacks are drawn in another installed font that
    has them.

    Args:
        weights: Attention weights in `[0, 1]`,
            `(len(target_words), len(source_words))`, or `(len(source_words),)` for
            a single row, such as those of `AttentionPooling`.
        source_words: Words of the source, one for each column.
        target_words: Words of the target, one for each row. Weights of one dimension
            need none.
        vmax: The weight with the darkest colour; larger ones have the same colour.
            `"auto"` is the largest weight, which shows differences between weights
            that are all small.
        title: Title of the figure, if any.

    Returns:
        A `matplotlib.figure.Figure` whose size fits the words, not registered with
        pyplot: write it with `figure.savefig(path)`.

    Raises:
        ValueError: If there are no words, the weights have another shape or do not
            lie in `[0, 1]`, or `vmax` is neither positive nor `"auto"`.

    Example:

    >>> weights = np.array([[0.9, 0.1, 0.0], [0.1, 0.2, 0.7]])
    >>> figure = attention_heatmap(weights, ["le", "chat", "dort"], ["cats", "sleep"])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['cats', 'sleep']

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), figure 3.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    weights = _to_array(weights)
    if target_words is None and weights.ndim == 1:
        target_words = [""]
    if target_words is None:
        raise ValueError(
            "weights of several target words need target_words. "
            f"Received: weights {weights.shape}"
        )
    source_words, target_words = (
        list(map(str, words)) for words in (source_words, target_words)
    )
    weights = _as_grid(weights, len(target_words), len(source_words))
    darkest = _as_vmax(vmax, weights)
    # Cells shrink with the number of words, down to the smallest legible labels.
    cell = float(np.clip(5.0 / max(weights.shape), 0.16, 0.36))
    height, width = cell * weights.shape[0], cell * weights.shape[1]
    figure = Figure(figsize=(width, height))
    renderer = FigureCanvasAgg(figure).get_renderer()
    font = {
        "fontfamily": _font_families([*source_words, *target_words, title or ""]),
        "parse_math": False,
    }

    grid = figure.add_axes((0, 0, 1, 1))
    image = grid.imshow(weights, cmap="Blues", vmin=0, vmax=darkest)
    lines: dict[str, Any] = {"color": "0.85", "linewidth": 0.5}
    grid.vlines(np.arange(1, len(source_words)) - 0.5, *grid.get_ylim(), **lines)
    grid.hlines(np.arange(1, len(target_words)) - 0.5, *grid.get_xlim(), **lines)
    size = min(11.0, 0.66 * 72 * cell)
    grid.xaxis.tick_top()
    grid.set_xticks(range(len(source_words)), source_words, fontsize=size, **font)
    grid.set_yticks(range(len(target_words)), target_words, fontsize=size, **font)
    labels = grid.get_xticklabels()
    widest = max(label.get_window_extent(renderer).width for label in labels)
    if widest > 0.9 * cell * figure.dpi:
        for label in labels:
            label.set_rotation(90)
    if title is not None:
        grid.set_title(title, fontsize=13, pad=10, **font)

    bar = figure.add_axes((1 + 0.12 / width, 0, 0.1 / width, 1))
    figure.colorbar(image, cax=bar, ticks=[0, darkest / 2, darkest])
    bar.set_ylabel("attention", fontsize=9)
    bar.tick_params(labelsize=9)
    for axis in (grid, bar):
        axis.tick_params(length=0)
        axis.spines[:].set(color="0.6", linewidth=0.6)
    _fit_figure(figure, renderer)
    return figure


def attention_text(
    words: Iterable[Any],
    weights: Any,
    *,
    vmax: float | str = "auto",
    titles: Any = None,
    underlined: Any = None,
) -> str:
    """Text whose words are highlighted by their attention weights, as HTML.

    A notebook shows the result if it is the last expression of a cell. The background
    of a word is the darker, the larger its weight is; a word whose weight is nearly
    zero has none.

    Args:
        words: The words of a text, or a list of texts, each a list of its words.
        weights: Attention weights in `[0, 1]`: `(len(words),)`, such as those of
            `AttentionPooling` for one row; for several texts `(texts, S)`, of which
            positions after the last word of a text are padding.
        vmax: The weight with the darkest background; larger ones have the same.
            `"auto"` is the largest weight of each text.
        titles: Title of the text, or list of titles, one for each text.
        underlined: Whether to underline each word, such as those that a person would
            have chosen. Shaped as the weights.

    Returns:
        A string of HTML, with a paragraph for each text.

    Raises:
        ValueError: If a text has no words, weights, titles and words do not fit, the
            weights do not lie in `[0, 1]`, or `vmax` is neither positive nor
            `"auto"`.

    Example:

    >>> page = attention_text(["a", "great", "film"], [0.1, 0.8, 0.1])
    >>> "great</span>" in page
    True
    """
    words = list(words)
    if all(isinstance(word, str) for word in words):
        words, weights = [words], [weights]
        titles = None if titles is None else [titles]
        underlined = None if underlined is None else [underlined]
    titles = [None] * len(words) if titles is None else titles
    underlined = [None] * len(words) if underlined is None else underlined
    if not len(words) == len(weights) == len(titles) == len(underlined):
        raise ValueError(
            "weights, titles and underlined must have one entry for each text. "
            f"Received: {len(words)} texts, weights of {len(weights)}, "
            f"{len(titles)} titles, underlined of {len(underlined)}"
        )
    texts = zip(words, weights, titles, underlined, strict=True)
    return _Html("\n".join(_paragraph(*text, vmax) for text in texts))


class _Html(str):
    """HTML that notebooks show."""

    def _repr_html_(self) -> str:
        return str(self)


def _paragraph(
    words: Sequence[Any], weights: Any, title: str | None, underlined: Any, vmax: Any
) -> str:
    """Return a text as HTML; positions after its last word are left out."""
    words = list(map(str, words))
    weights = _to_array(weights)[: len(words)]
    if weights.shape != (len(words),) or not words:
        raise ValueError(
            f"weights must have one number for each of the {len(words)} words, at "
            f"least one. Received: {weights.shape}"
        )
    _check_range(weights)
    shares = np.clip(weights / _as_vmax(vmax, weights), 0.0, 1.0)
    lines = [False] * len(words) if underlined is None else underlined[: len(words)]
    if len(lines) != len(words):
        raise ValueError(
            f"underlined must have {len(words)} entries, one for each word. "
            f"Received: {len(lines)}"
        )
    spans = []
    for word, weight, share, line in zip(words, weights, shares, lines, strict=True):
        style = "padding:0.1em 0.2em"
        # Without a background, words that hardly count suit light and dark pages.
        if share >= SMALLEST_SHARE:
            red, green, blue = np.rint(255 + share * (DARKEST - 255)).astype(int)
            letters = "white" if share > WHITE_LETTERS else "black"
            style += f";background:rgb({red},{green},{blue});color:{letters}"
        tag = "u" if line else "span"
        text = html.escape(word)
        spans.append(f'<{tag} style="{style}" title="{weight:.2f}">{text}</{tag}>')
    heading = "" if title is None else f"<strong>{html.escape(str(title))}</strong><br>"
    return f'<p dir="auto" style="line-height:1.9">{heading}{" ".join(spans)}</p>'


def _as_maps(weights: Any, count: int) -> np.ndarray:
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


def _as_boxes(boxes: Any, shape: tuple[int, ...], count: int) -> np.ndarray:
    boxes = _to_array(boxes)
    if boxes.shape[1:] != (4,) or shape != (count, len(boxes)):
        raise ValueError(
            "boxes must have the shape (regions, 4) and weights the shape "
            f"({count}, regions), one row for each word. Received: boxes "
            f"{boxes.shape}, weights {shape}"
        )
    return boxes.clip(0.0, 1.0)


def box_map(weight: np.ndarray, boxes: Any, height: int, width: int) -> np.ndarray:
    """Return a map of the sum of the weights of boxes, with a maximum of one.

    Args:
        weight: Attention weights of the boxes, `(regions,)`.
        boxes: Array `(regions, 4)`: left, top, right and bottom as fractions of width
            and height.
        height, width: Size of the map in pixels.
    """
    total = np.zeros((height, width))
    for box_weight, (left, top, right, bottom) in zip(weight, boxes, strict=True):
        rows = slice(math.floor(top * height), math.ceil(bottom * height))
        columns = slice(math.floor(left * width), math.ceil(right * width))
        total[rows, columns] += box_weight
    return total / max(total.max(initial=0.0), 1e-12)


def _outline(axis: Any, box: Any, height: int, width: int) -> None:
    """Draw the outline of a box."""
    from matplotlib.patches import Rectangle

    left, top, right, bottom = box * (width, height, width, height)
    corner, size = (left - 0.5, top - 0.5), (right - left, bottom - top)
    axis.add_patch(Rectangle(corner, *size, fill=False, color="tab:orange", lw=1.5))


def enlarge(weight: np.ndarray, height: int, width: int) -> np.ndarray:
    """Upsample the weights of regions to a smooth map with a maximum of one.

    Args:
        weight: Attention weights of the regions, `(rows, columns)`.
        height, width: Size of the map in pixels.
    """
    across = _blend(weight.shape[1], width)
    down = _blend(weight.shape[0], height)
    smooth = down @ weight @ across.T
    return smooth / max(smooth.max(), 1e-12)


def _blend(cells: int, pixels: int) -> np.ndarray:
    """Return Gaussian interpolation weights from cells to pixels, `(pixels, cells)`."""
    positions = (np.arange(pixels) + 0.5) * cells / pixels
    distance = positions[:, None] - (np.arange(cells) + 0.5)
    blend = np.exp(-0.5 * (distance / SMOOTHING) ** 2)
    return blend / blend.sum(axis=1, keepdims=True)


def _highlight(image: np.ndarray, brightness: Any) -> np.ndarray:
    """Blend the image towards dark grey where the brightness is low."""
    image = image / 255.0 if np.issubdtype(image.dtype, np.integer) else image
    grey = 0.25 * image.mean(axis=-1, keepdims=True) + 0.05
    share = brightness[..., None]
    return np.clip(share * image + (1 - share) * grey, 0.0, 1.0)


def _as_vmax(vmax: Any, weights: Any) -> float:
    """Return the weight with the darkest colour."""
    if isinstance(vmax, str) and vmax == "auto":
        return float(weights.max()) or 1.0
    if isinstance(vmax, str) or not 0 < vmax < math.inf:
        raise ValueError(
            f'vmax must be a positive number or "auto". Received: {vmax!r}'
        )
    return float(vmax)


def _as_grid(weights: Any, rows: Any, columns: Any) -> np.ndarray:
    weights = weights[None] if weights.ndim == 1 and rows == 1 else weights
    if weights.shape != (rows, columns) or not weights.size:
        raise ValueError(
            "weights must have one row for each target word and one column for each "
            f"source word, at least one of each, here the shape ({rows}, {columns}). "
            f"Received: {weights.shape}"
        )
    _check_range(weights)
    return weights


def _check_range(weights: Any) -> None:
    # NaN fails this comparison, too.
    if not (weights.min() >= -TOLERANCE and weights.max() <= 1 + TOLERANCE):
        raise ValueError(
            "weights must lie between 0 and 1. "
            f"Received: {weights.min()} to {weights.max()}"
        )


def _font_families(texts: Iterable[str]) -> list[str]:
    """Return the default font, and fonts with the characters that it lacks."""
    import matplotlib
    from matplotlib import font_manager

    families = list(matplotlib.rcParams["font.family"])
    default = font_manager.get_font(
        font_manager.findfont(font_manager.FontProperties())
    )
    missing = {c for c in "".join(texts) if not default.get_char_index(ord(c))}
    missing = {c for c in missing if c.isprintable()}
    if not missing:
        return families
    characters: dict[str, set[str]] = {}
    for entry in font_manager.fontManager.ttflist:
        # The glyphs of Last Resort only name the script of a character.
        if entry.name.startswith("Last Resort"):
            continue
        try:
            font = font_manager.get_font(entry.fname)
        except (OSError, RuntimeError):
            continue
        # Bitmap fonts, such as emoji, cannot be scaled.
        if font.scalable:
            has = {c for c in missing if font.get_char_index(ord(c))}
            characters[entry.name] = characters.get(entry.name, set()) | has
    while characters:
        best = max(sorted(characters), key=lambda name: len(characters[name] & missing))
        if not characters[best] & missing:
            break
        missing -= characters.pop(best)
        families.append(best)
    return families


def _fit_figure(figure: Any, renderer: Any) -> None:
    """Resize a figure to fit all artists, without resizing its axes."""
    margin = 0.08
    width, height = figure.get_size_inches()
    drawn = figure.get_tightbbox(renderer).padded(margin)
    figure.set_size_inches(drawn.width, drawn.height)
    for axis in figure.axes:
        box = axis.get_position(original=True)
        axis.set_position(
            (
                (box.x0 * width - drawn.x0) / drawn.width,
                (box.y0 * height - drawn.y0) / drawn.height,
                box.width * width / drawn.width,
                box.height * height / drawn.height,
            )
        )


def _to_array(weights: Any) -> np.ndarray:
    """Return an array or a tensor of any backend as a float64 array."""
    if hasattr(weights, "detach"):
        # PyTorch: NumPy reads neither gradients, nor other devices, nor bfloat16.
        weights = weights.detach().cpu().double()
    return np.asarray(weights, "float64")
