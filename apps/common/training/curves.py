"""SVG charts of the metrics of a training by epoch."""

import html
import math

# Size of a chart, and the margins of its labels.
WIDTH, HEIGHT = 300, 180
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 14, 24
# Maximum number of labelled epochs.
MAX_LABELS = 8
# Beyond this number of epochs, a chart has no dots.
MAX_DOTS = 80


def chart(title, values, phases, labels, *, marked=None):
    """Return an SVG chart of one figure, with a colour for each phase.

    Args:
        title: Name of the figure.
        values: Its value after each epoch, or `None` where there is none.
        phases: Pairs of the first epoch of a phase, counted from 0, and its end.
        labels: Label of each epoch on the axis; empty for none.
        marked: Index of the best epoch, which is marked with a ring; `None` for none.
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    ticks = _ticks(min(known), max(known))
    low, high = min(ticks[0], *known), max(ticks[-1], *known)
    xs = [
        LEFT + (i + 0.5) * (WIDTH - LEFT - RIGHT) / len(values)
        for i in range(len(values))
    ]

    def y_of(value):
        share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [_bands(phases, len(values))]
    parts += [_grid_line(y_of(tick), _number(tick)) for tick in ticks]
    parts += [
        f'<text x="{xs[i]:.1f}" y="{HEIGHT - 7}" text-anchor="middle">'
        f"{html.escape(labels[i])}</text>"
        for i in _labelled(labels)
    ]
    for number, (first, end) in enumerate(phases):
        points = [
            (xs[i], y_of(values[i]), labels[i] or "average", values[i])
            for i in range(first, end)
            if values[i] is not None
        ]
        parts.append(_line(points, number, dots=len(values) <= MAX_DOTS))
    note = ""
    if marked is not None:
        parts.append(
            f'<circle class="mark" cx="{xs[marked]:.1f}" '
            f'cy="{y_of(values[marked]):.1f}" r="5"/>'
        )
        note = f" <span>best: {_number(values[marked])}</span>"
    summary = f"{title}: first {_number(known[0])}, last {_number(known[-1])}"
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}{note}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(summary)}">{"".join(parts)}</svg></figure>'
    )


def _bands(phases, count):
    """Return a background for each phase."""
    slot = (WIDTH - LEFT - RIGHT) / count
    return "".join(
        f'<rect class="band phase-{number % 4}" x="{LEFT + first * slot:.1f}" '
        f'y="{TOP}" width="{(end - first) * slot:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/>'
        for number, (first, end) in enumerate(phases)
    )


def _grid_line(y, label):
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
        f'y2="{y:.1f}"/><text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
        f"{label}</text>"
    )


def _line(points, number, *, dots):
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in points)
    circles = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{html.escape(label)}: '
        f"{_number(value)}</title></circle>"
        for x, y, label, value in points
        if dots or len(points) == 1
    ]
    return (
        f'<g class="phase-{number % 4}"><polyline points="{line}"/>'
        f"{''.join(circles)}</g>"
    )


def _labelled(labels):
    """Return the indices of the epochs whose labels fit the axis."""
    every = max(math.ceil(len(labels) / MAX_LABELS), 1)
    return [i for i in range(0, len(labels), every) if labels[i]]


def _ticks(low, high):
    """Return about four round numbers that enclose a range."""
    # With a smaller span, the chart would show noise, and labels would be equal.
    span = max(high - low, 0.02 * max(abs(low), abs(high)), 0.01)
    magnitude = 10.0 ** math.floor(math.log10(span / 3))
    step = next(x * magnitude for x in (1, 2, 5, 10) if span / (x * magnitude) <= 3.5)
    first, last = math.floor(low / step), math.ceil(high / step)
    # If all values are equal, the axis still needs two ticks.
    last = max(last, first + 1)
    return [i * step for i in range(first, last + 1)]


def _number(value):
    """Format a number with three significant digits, and from 100 on as an integer."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
