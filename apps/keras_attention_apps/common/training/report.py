"""The report of a training: curves, samples and options in one HTML file."""

import collections
import contextlib
import dataclasses
import functools
import html
import io
import itertools
import math
import re
import sys
import time
import webbrowser
from pathlib import Path

import numpy as np

from keras_attention_apps.common import files
from keras_attention_apps.common.distribution import is_first_host, on_first_host
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.web.markup import table


def is_epoch(metrics):
    """Return whether metrics are those of an epoch of training.

    Those of a preset before the first epoch, and of an average, have no loss.
    """
    return not {"loss", "reward"}.isdisjoint(metrics)


def best_of(history, rank):
    """Return the index of the best metrics: of equals, the latest.

    The metrics of a preset, which come first, must be exceeded.
    """
    ranks = [rank(metrics) for metrics in history]
    best = max(ranks)
    if ranks[0] == best and not is_epoch(history[0]):
        return 0
    return len(ranks) - 1 - ranks[::-1].index(best)


# Beyond this number of epochs, a chart has no dots.
MAX_DOTS = 80
# Colours in the charts of Matplotlib, and those of the style sheet in place of them.
LABEL, GRID, MARK = "#010101", "#020202", "#030303"
PHASES = [f"#0{number}0000" for number in range(1, 5)]
# Matplotlib contains this font, and measures texts with it. The page shows another one.
FONT = "DejaVu Sans"
COLOURS = {
    LABEL: "var(--dim)",
    GRID: "var(--line)",
    MARK: "var(--text)",
    **{colour: f"var(--phase-{number})" for number, colour in enumerate(PHASES)},
}


def chart(title, values, phases, labels, *, marked=None):
    """Return an SVG chart of one figure, with a colour for each phase."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    options = {"svg.fonttype": "none", "svg.hashsalt": title, "svg.id": None}
    options |= {"axes.edgecolor": GRID, "grid.color": GRID, "font.family": FONT}
    options |= dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), LABEL)
    with rc_context(options):
        figure = Figure((3.4, 2), layout="constrained")
        axes = figure.subplots()
        values = [math.nan if value is None else value for value in values]
        for number, (first, end) in enumerate(phases):
            colour = PHASES[number % len(PHASES)]
            axes.axvspan(first - 0.5, end - 0.5, color=colour, alpha=0.07, lw=0)
            marker = "o" if len(values) <= MAX_DOTS or end - first == 1 else None
            axes.plot(
                range(first, end), values[first:end], color=colour, marker=marker, ms=4
            )
        note = ""
        if marked is not None:
            axes.plot(marked, values[marked], "o", mec=MARK, mfc="none", ms=9)
            note = f" <span>best: {values[marked]:.4g}</span>"
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=(1, 2, 5, 10)))
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        names = dict(enumerate(labels))
        formatter = FuncFormatter(lambda tick, _: names.get(round(tick), ""))
        axes.xaxis.set_major_formatter(formatter)
        # With a smaller span, the chart would show noise.
        low, high = min(known), max(known)
        span = max(0.01, 0.02 * max(abs(low), abs(high))) - (high - low)
        if span > 0:
            axes.set_ylim(low - span / 2, high + span / 2)
        axes.set_xlim(-0.5, len(values) - 0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0, labelsize=8)
        axes.grid(axis="y")
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    title = html.escape(title)
    label = f"{title}: first {known[0]:.4g}, last {known[-1]:.4g}"
    svg = stream.getvalue().replace(f"font-family: '{FONT}';", "")
    removed = r"^.*(?=<svg)|<metadata>.*?</metadata>|<style.*?</style>"
    svg = re.sub(removed, "", svg, flags=re.DOTALL)
    svg = re.sub("|".join(COLOURS), lambda match: COLOURS[match[0]], svg)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f'<figure class="chart"><figcaption>{title}{note}</figcaption>{svg}</figure>'


# The report in the output of a training, and its data in the checkpoints.
REPORT = "report.html"
DATA = "report.json"
STYLE = Path(__file__).parent / "report.css"
# Identifies a file as a report, which may be replaced.
GENERATOR = '<meta name="generator" content="keras-attention">'
# Nothing is loaded from elsewhere, and no script runs.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
# Number of validation examples in a report.
SAMPLES = 6
# Seconds after which the report of a running training is written again.
REFRESH = 20
# Maximum number of points in a chart of steps.
MAX_POINTS = 200

NAMES = {
    "loss": "Training loss",
    "words_loss": "Cross-entropy of the words",
    "reward": "Reward of samples",
    "bleu": "BLEU",
    "bleu-lc": "BLEU, lower-cased",
    "chrf": "chrF2",
    "chrf-lc": "chrF2, lower-cased",
    "cider": "CIDEr",
    "rouge-l": "ROUGE-L",
    **{f"bleu-{n}": f"BLEU-{n}" for n in range(1, 5)},
}


def check_report(output):
    """Raise a `UserError` if the report would replace a file that is no report."""
    path = output / REPORT
    files.check_file(path)
    if path.exists() and GENERATOR.encode() not in path.read_bytes()[:2000]:
        raise UserError(
            f"expected an output folder whose {REPORT}, if any, is that of a training. "
            f"Received: {str(output)!r}"
        )


@contextlib.contextmanager
def with_warning(path):
    """Print errors of writing a file: a training that took hours must not end."""
    try:
        yield
    except Exception as error:
        problem = f"{path} could not be written: {reason(error)}"
        print(f"Warning: {problem}", file=sys.stderr)


class Samples:
    """Fixed validation examples, and the latest output for each.

    `head` returns an example and its references as HTML, `style` CSS properties of it,
    and `figure` the attention of an output, which has a `text` and `unsure`, as HTML.
    """

    def __init__(self, examples, head, figure, style=lambda example: ""):
        count = min(SAMPLES, len(examples))
        indices = np.linspace(0, len(examples) - 1, count).astype(int).tolist()
        self._examples = {i: examples[i] for i in indices}
        self._outputs: dict = {}
        self._head, self._figure, self._style = head, figure, style

    def keep(self, index, output):
        """Keep an output if its example is a sample."""
        if index in self._examples:
            self._outputs[index] = output

    @functools.cached_property
    def heads(self):
        """Pairs for the samples: their heads, and their CSS properties."""
        return [(self._head(x), self._style(x)) for x in self._examples.values()]

    def outputs(self):
        """Return a pair for each sample: the text of its output, and its figure."""
        outputs = [self._outputs[index] for index in self._examples]
        return [
            (x.text + (" (unsure)" if x.unsure else ""), self._figure(x))
            for x in outputs
        ]


class Report:
    """The report of a `Training`, which is rewritten while it runs.

    Until the end, browsers load it again and again. Its data is kept beside the
    checkpoints, so that a resumed training continues it. An error in a report is
    printed, and the training goes on.
    """

    def __init__(self, training):
        self.training = training
        self.path = training.config.output / REPORT
        self._data = training.checkpoints.directory / DATA
        self._epochs = self._read()
        # The parts on the epochs as HTML, until there is another epoch.
        self._parts = None
        # What the training does while it runs, and when the report is written again.
        self._state, self._next = "", 0.0

    def begin(self, *, opens_browser=False):
        """Write the report of a training that begins, and show it in a browser."""
        self.refresh("before the first step")
        if (
            opens_browser
            and is_first_host()
            and not webbrowser.open(self.path.as_uri())
        ):
            print(f"There is no browser here: open {self.path} in yours")

    def refresh(self, state):
        """Write the report if it is old; `state` is what the training does."""
        self._state = state
        if time.monotonic() >= self._next:
            # After an error, only the next epoch is written.
            self._next = math.inf
            with with_warning(self.path):
                on_first_host(self._write)

    def end(self, *, interrupted=False):
        """Write the report for the last time, if there is one."""
        self._state = ""
        if self.path.exists():
            with with_warning(self.path):
                on_first_host(self._write, interrupted=interrupted)

    def add_epoch(self, phase, metrics):
        """Add an epoch, or another model that was validated, and write the report."""
        with with_warning(self.path):
            on_first_host(self._add_epoch, phase, metrics)

    def _add_epoch(self, phase, metrics):
        self._parts = None
        outputs = self.training.samples.outputs()
        self._epochs.append(
            {
                "phase": phase,
                "figures": metrics,
                "texts": [text for text, _ in outputs],
                "attention": [figure for _, figure in outputs],
            }
        )
        indices = self._shown()
        for index, epoch in enumerate(self._epochs):
            if index not in indices:
                epoch.pop("attention", None)
        files.write_json(self._data, self._epochs)
        self._write()

    def _read(self):
        """Return the recorded epochs; of epochs without a record, only metrics."""
        try:
            epochs = files.read_json(self._data)
        except (OSError, ValueError):
            epochs = []
        history = self.training.progress.history
        missing = history[len(epochs) :]
        epochs += [{"phase": "Earlier", "figures": x} for x in missing]
        # An epoch without a checkpoint is repeated when the training resumes.
        return epochs[: len(history)]

    def _phases(self):
        """Return a triple for each phase: title, index of the first epoch, and end."""
        phases, end = [], 0
        for title, group in itertools.groupby(x["phase"] for x in self._epochs):
            first, end = end, end + len(list(group))
            phases.append((title, first, end))
        return phases

    def _best(self, first, end):
        """Return the index of the best epoch of a range; see `best_of`."""
        figures = [epoch["figures"] for epoch in self._epochs[first:end]]
        return first + best_of(figures, self.training.rank)

    def _shown(self):
        """Return the epochs with attention: the first, and the best of each phase."""
        return {0, *(self._best(first, end) for _, first, end in self._phases())}

    def _write(self, *, interrupted=False):
        title = html.escape(self.training.title)
        refresh, state = "", ""
        if self._state:
            refresh = f'<meta http-equiv="refresh" content="{REFRESH}">'
            state = f"Running: {self._state}, at {time.strftime('%H:%M:%S')}"
        elif interrupted:
            state = "Interrupted: the same command resumes the training"
        if self._parts is None:
            self._parts = [*self._curves(), *self._sample_parts(), *self._details()]
        text = "\n".join(
            [
                "<!doctype html>",
                f'<html lang="en"><head><meta charset="utf-8">{GENERATOR}{refresh}',
                f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
                '<meta name="viewport" content="width=device-width">',
                f"<title>{title}</title>",
                f"<style>{STYLE.read_text(encoding='utf-8')}</style></head>",
                f"<body><main><header><h1>{title}</h1>",
                f"<p>{html.escape(self.training.data_summary)}</p></header>",
                f'<p class="state" role="status">{html.escape(state)}</p>'
                * bool(state),
                *self._step_curves(),
                *self._parts,
                "</main></body></html>\n",
            ]
        )
        with files.atomic_path(self.path) as temporary:
            # Names of files may contain bytes that are not UTF-8.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        self._next = time.monotonic() + REFRESH

    def _names(self):
        """Return the name of each epoch: its phase, and its number in it."""
        names = []
        for title, first, end in self._phases():
            for number, epoch in enumerate(self._epochs[first:end], start=1):
                trained = is_epoch(epoch["figures"])
                names.append(f"{title}, epoch {number}" if trained else title)
        return names

    def _step_curves(self):
        """Yield charts of the loss and the reward by step."""
        rows = self.training.log.rows
        sizes = (x * 10**power for power in itertools.count() for x in (1, 2, 5))
        size = next(x for x in sizes if len(rows) <= x * MAX_POINTS)
        points = [rows[i : i + size] for i in range(0, len(rows), size)]
        # With the colours of the other charts: phases without steps have no points.
        titles = [title for title, *_ in self._phases()] + [title for title, _ in rows]
        counts = collections.Counter(point[0][0] for point in points)
        phases, end = [], 0
        for title in dict.fromkeys(titles):
            first, end = end, end + counts[title]
            phases.append((first, end))
        note = f", means of {size:,} steps" if size > 1 else ""
        charts = [
            chart(
                f"{_named(name)} by step{note}",
                [_mean(_comparable(x).get(name) for _, x in point) for point in points],
                phases,
                [str(i * size) for i in range(len(points))],
            )
            for name in ("loss", "reward")
        ]
        if any(charts):
            yield '<section><h2>Steps</h2><div class="charts">'
            yield from charts
            yield "</div></section>"

    def _curves(self):
        """Yield the best epoch, the phases, and a chart for each metric."""
        if not self._epochs:
            return
        phases, metric = self._phases(), self.training.metric
        best = self._best(0, len(self._epochs))
        name = html.escape(self._names()[best])
        metrics = [_comparable(epoch["figures"]) for epoch in self._epochs]
        value = metrics[best][metric]
        yield (
            f'<p class="best"><b>{html.escape(_named(metric))} {value:.1f}</b> '
            f"the best model: {name}</p>"
        )
        yield '<section><h2>Curves</h2><ol class="phases">'
        for number, (title, first, end) in enumerate(phases):
            trained = sum(map(is_epoch, metrics[first:end]))
            count = f", epochs: {trained}" if trained else ""
            yield f'<li class="phase-{number % 4}">{html.escape(title)}{count}</li>'
        yield '</ol><div class="charts">'
        # Epoch 0 is the preset.
        labels, numbers = [], itertools.count(int(is_epoch(metrics[0])))
        for index, epoch in enumerate(metrics):
            labels.append(str(next(numbers)) if is_epoch(epoch) or not index else "")
        names = dict.fromkeys(name for epoch in metrics for name in epoch)
        # The loss, then the metric that chooses the best epoch.
        order = ("loss", metric, *(x for x in names if x.startswith(f"{metric} ")))
        for name in dict.fromkeys([*(x for x in order if x in names), *names]):
            yield chart(
                _named(name),
                [epoch.get(name) for epoch in metrics],
                [(first, end) for _, first, end in phases],
                labels,
                marked=best if name == metric else None,
            )
        yield "</div></section>"

    def _sample_parts(self):
        """Yield every sample: its head, and the attention and texts by epoch."""
        if not self._epochs:
            return
        yield "<section><h2>Samples</h2>"
        yield (
            "<p>Validation examples, decoded after the first epoch and after the best "
            "epoch of each phase.</p>"
        )
        indices, names = sorted(self._shown()), self._names()
        for sample, (head, style) in enumerate(self.training.samples.heads):
            yield f'<article class="sample" aria-label="Sample {sample + 1}" '
            yield f'style="{html.escape(style)}">{head}<div class="stages">'
            for index in indices:
                epoch = self._epochs[index]
                if "attention" in epoch:
                    yield (
                        f"<section><h3>{html.escape(names[index])}</h3>"
                        f'<p class="text" dir="auto">'
                        f"{html.escape(epoch['texts'][sample])}</p>"
                        f"{epoch['attention'][sample]}</section>"
                    )
            rows = [
                [name, epoch["texts"][sample]]
                for name, epoch in zip(names, self._epochs, strict=True)
                if "texts" in epoch
            ]
            texts = table(["epoch", "output"], rows, label="Output after each epoch")
            yield f"</div><details><summary>All epochs</summary>{texts}</details>"
            yield "</article>"
        yield "</section>"

    def _details(self):
        """Yield all metrics and all options, as tables."""
        names = dict.fromkeys(name for x in self._epochs for name in x["figures"])
        rows = [
            [title, *(epoch["figures"].get(name, "") for name in names)]
            for title, epoch in zip(self._names(), self._epochs, strict=True)
        ]
        headers = ["epoch", *map(_named, names)]
        metrics = table(headers, rows, label="Metrics after each epoch")
        model = dataclasses.asdict(self.training.task.config)
        options = {**self.training.options, **{f"model.{x}": model[x] for x in model}}
        rows = [[name, str(value)] for name, value in options.items()]
        options = table(["option", "value"], rows, label="Options of the training")
        yield "<section><h2>Details</h2>"
        yield f"<details><summary>All metrics</summary>{metrics}</details>"
        yield f"<details><summary>Options</summary>{options}</details></section>"


def _comparable(metrics):
    """Return the metrics without the loss of self-critical training."""
    # Its scale differs from that of the other phases.
    left_out = "loss" if "reward" in metrics else None
    return {name: value for name, value in metrics.items() if name != left_out}


def _mean(values):
    """Return the mean of the finite values, or `None`."""
    known = [x for x in values if x is not None and math.isfinite(x)]
    return sum(known) / len(known) if known else None


def _named(name):
    """Return the name of a metric: `"cider"`, or `"cider coco"` of a data set."""
    metric, _, data = name.partition(" ")
    return NAMES.get(metric, metric) + (f" ({data})" if data else "")
