import dataclasses
import html.parser
import json
import math
import operator
import re
import time
import types
import webbrowser

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.training.checkpoints import Checkpoints
from keras_attention_apps.common.training.report import (
    MAX_DOTS,
    MAX_POINTS,
    REPORT,
    SAMPLES,
    Report,
    Samples,
    chart,
    check_report,
)

# Tags without an end tag.
VOID = {"meta"}


@dataclasses.dataclass
class Model:
    units: int = 17


def texts(examples):
    """Return samples whose examples and outputs are texts; figures are their length."""
    return Samples(examples, lambda x: f"<p>{x}</p>", lambda x: f"<b>{len(x.text)}</b>")


class Page(html.parser.HTMLParser):
    """The tags and the text of a page; every tag is closed in order."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def training(output, examples=("one", "two"), steps=(), **options):
    """Return a report of a training, its checkpoints and its samples."""
    checkpoints = Checkpoints(output / "checkpoints", {})
    samples = texts(list(examples))
    training = types.SimpleNamespace(
        config=types.SimpleNamespace(output=output),
        task=types.SimpleNamespace(config=Model()),
        checkpoints=checkpoints,
        progress=checkpoints.progress,
        title="Training of a test",
        data_summary="two texts",
        options={"seed": 3, **options},
        metric="bleu",
        rank=operator.itemgetter("bleu"),
        samples=samples,
        log=types.SimpleNamespace(rows=list(steps)),
    )
    return Report(training), checkpoints, samples


def epoch(report, checkpoints, samples, phase, bleu, *, text, loss=1.0, saved=True):
    for index in range(2):
        output = types.SimpleNamespace(text=f"{text} {index}", unsure=index == 1)
        samples.keep(index, output)
    figures = {"loss": loss, "bleu": bleu}
    report.add_epoch(phase, figures)
    if saved:
        checkpoints.progress.history.append(figures)
        checkpoints._write()


def test_the_first_epoch_and_the_best_of_each_phase_are_shown(tmp_path):
    run = training(tmp_path)
    for bleu, text in ((2.0, "first"), (7.0, "better"), (7.0, "latest"), (5.0, "last")):
        epoch(*run, "Forcing", bleu, text=text)
    for bleu, text in ((6.0, "tuned"), (3.0, "worse")):
        epoch(*run, "Tuning", bleu, text=text)

    text = Page(tmp_path / REPORT).text
    sample = text.split("All epochs")[0]
    for name in ("Forcing, epoch 1", "Forcing, epoch 3", "Tuning, epoch 1"):
        assert name in sample
    for name in ("first", "better", "latest", "last", "tuned", "worse"):
        assert (f"{name} 0" in sample) == (name in ("first", "latest", "tuned"))
    # All texts are in the tables, and those of which the model is unsure are marked.
    assert "worse 0" in text and "worse 0 (unsure)" not in text
    assert "worse 1 (unsure)" in text and "the best model: Forcing, epoch 3" in text
    assert "model.units" in text and "two texts" in text


def test_phases_have_colours_and_charts_all_figures(tmp_path):
    run = training(tmp_path)
    for phase in ("Forcing", "Forcing", "Tuning"):
        epoch(*run, phase, 2.0, text="a")
    tags = Page(tmp_path / REPORT).tags
    styles = [x["style"] for tag, x in tags if tag == "path" and "style" in x]
    bands = [re.search(r"--(phase-\d)", x)[1] for x in styles if "opacity" in x]
    # The charts of the loss and of BLEU.
    assert bands == ["phase-0", "phase-1"] * 2


def test_a_resumed_training_writes_the_same_report(tmp_path):
    pages = []
    for name, interrupted in (("whole", False), ("interrupted", True)):
        run = training(tmp_path / name)
        for phase, bleu in (("A", 1.0), ("A", 3.0), ("B", 2.0), ("B", 5.0)):
            if interrupted:
                # Killed before the checkpoint: the epoch is repeated.
                epoch(*run, phase, 99.0, text="lost", saved=False)
                run = training(tmp_path / name)
            epoch(*run, phase, bleu, text=f"{phase} {bleu}")
        pages.append((tmp_path / name / REPORT).read_text(encoding="utf-8"))

    assert pages[0] == pages[1]
    assert "lost" not in pages[0]


def test_epochs_without_data_have_curves_alone(tmp_path):
    run = training(tmp_path)
    epoch(*run, "A", 1.0, text="forgotten", loss=4.25)
    for broken in ("", "[{"):
        (tmp_path / "checkpoints" / "report.json").write_text(broken)
        run = training(tmp_path)
        epoch(*run, "B", 2.0, text="known")

    text = Page(tmp_path / REPORT).text
    assert "4.250" in text and "Earlier, epoch 1" in text
    assert "known 0" in text and "forgotten" not in text


def test_texts_are_escaped_and_nothing_is_loaded(tmp_path):
    evil = "</p><script>alert(1)</script><img src=x onerror='alert(1)'>&amp;"
    run = training(tmp_path, **{evil: evil})
    run[0].training.title = run[0].training.data_summary = evil
    epoch(*run, evil, 1.0, text=evil)
    epoch(*run, "plain", 2.0, text="plain")

    page = Page(tmp_path / REPORT)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "link"})
    assert page.text.count(evil) > 5
    policies = [x for _, x in page.tags if x.get("http-equiv")]
    assert policies[0]["content"].startswith("default-src 'none';")


def is_reloaded(page):
    return any(x.get("http-equiv") == "refresh" for _, x in page.tags)


def test_a_report_reloads_itself_until_the_training_ends(tmp_path, monkeypatch, capsys):
    opened, steps = [], []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run = training(tmp_path)
    report, path = run[0], tmp_path / REPORT
    report.training.log.rows = steps
    report.begin(opens_browser=True)
    page = Page(path)
    assert is_reloaded(page) and "Running: before the first step, at " in page.text
    assert opened == [path.as_uri()]
    assert f"open {path} in yours" in capsys.readouterr().out

    steps += [("A", {"loss": 3.25}), ("A", {"loss": math.nan})]
    report.refresh("A, epoch 1 of 3, step 2 of 5")
    assert "step 2" not in Page(path).text
    monkeypatch.setattr(time, "monotonic", lambda: math.inf)
    report.refresh("A, epoch 1 of 3, step 2 of 5")
    page = Page(path)
    assert is_reloaded(page) and "Running: A, epoch 1 of 3, step 2 of 5" in page.text
    assert "Training loss by step" in page.text and "Reward" not in page.text

    epoch(*run, "A", 1.0, text="a")
    assert is_reloaded(Page(path))
    for interrupted in (True, False):
        report.end(interrupted=interrupted)
        page = Page(path)
        assert not is_reloaded(page) and "Running" not in page.text
        assert ("same command resumes" in page.text) == interrupted
    assert "a 0" in page.text


def test_charts_of_steps_have_few_points_in_the_colours_of_their_phases(tmp_path):
    rows = [("A", {"loss": 1.0})] * 1500 + [("B", {"loss": 9.0, "reward": 2.0})] * 500
    run = training(tmp_path, steps=rows)
    for phase in ("preset", "A", "average", "B"):
        epoch(*run, phase, 1.0, text="a")
    text = (tmp_path / REPORT).read_text(encoding="utf-8")
    steps, _ = text.split("<h2>Curves")
    loss, reward = steps.split("<figcaption>")[1:]
    assert "Training loss by step, means of 10 steps" in loss
    # The loss of self-critical training has another scale.
    assert "first 1, last 1" in loss and "first 2, last 2" in reward
    lines = re.findall(
        r'<path d="([^"]*)"[^>]*style="fill: none; stroke: ([^;]*)', loss
    )
    points = {colour: path.count("L") + 1 for path, colour in lines if "L" in path}
    assert points["var(--phase-1)"] > 1 and "var(--phase-0)" not in points
    assert all(count <= MAX_POINTS for count in points.values())


def test_a_failure_is_reported_and_does_not_end_the_training(tmp_path, capsys):
    run = training(tmp_path)
    (tmp_path / REPORT).mkdir()
    epoch(*run, "A", 1.0, text="a")

    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and err[0].startswith("Warning: ")
    assert "report.html could not be written: expected the name of a file" in err[0]
    # It is complete as soon as it can be written.
    (tmp_path / REPORT).rmdir()
    epoch(*run, "A", 2.0, text="b")
    assert "a 0" in Page(tmp_path / REPORT).text


def test_names_of_files_need_not_be_utf8(tmp_path, capsys):
    epoch(*training(tmp_path, data="caf\udce9"), "A", 1.0, text="a")
    assert capsys.readouterr().err == ""
    assert r"caf\udce9" in Page(tmp_path / REPORT).text


def test_only_a_report_is_replaced(tmp_path):
    check_report(tmp_path / "new")
    check_report(tmp_path)
    epoch(*training(tmp_path), "A", 1.0, text="a")
    check_report(tmp_path)
    (tmp_path / REPORT).write_text("<html>mine</html>")
    with pytest.raises(UserError, match="is that of a training"):
        check_report(tmp_path)


def test_samples_are_evenly_spaced():
    for count in (1, 2, SAMPLES, 101):
        samples = texts([str(i) for i in range(count)])
        for i in range(count):
            samples.keep(i, types.SimpleNamespace(text=str(i), unsure=None))
        sampled = [text for text, _ in samples.outputs()]
        assert len(sampled) == min(count, SAMPLES)
        assert sampled[0] == "0" and sampled[-1] == str(count - 1)


def test_data_of_a_report_stays_small(tmp_path):
    run = training(tmp_path)
    for bleu in range(9):
        epoch(*run, "A", float(bleu), text="a")
    data = json.loads((tmp_path / "checkpoints" / "report.json").read_text())
    assert [i for i, x in enumerate(data) if "attention" in x] == [0, 8]


CHARTED = [[1.0], [0.0, 0.0], [-0.5, None, 3.0], [3.7101, 3.7132], [12345.0, 12346.0]]


@pytest.mark.parametrize("values", [*CHARTED, [5] * 99])
def test_every_value_lies_inside_its_chart(values, tmp_path):
    path = tmp_path / "chart.html"
    labels = [str(i + 1) for i in range(len(values))]
    path.write_text(chart("a < b", values, [(0, len(values))], labels, marked=0))
    page = Page(path)

    (box,) = (x["viewbox"].split() for tag, x in page.tags if tag == "svg")
    points = [
        (float(x["x"]), float(x["y"]))
        for tag, x in page.tags
        if tag == "use" and "stroke: var(--phase-0)" in x["style"]
    ]
    if len(values) > MAX_DOTS:
        assert points == []
        return
    known = [value for value in values if value is not None]
    assert len(points) == len(known)
    assert all(0 < x < float(box[2]) and 0 < y < float(box[3]) for x, y in points)
    # Larger values are higher up.
    heights = [-y for _, y in points]
    lowest, highest = heights[np.argmin(known)], heights[np.argmax(known)]
    assert (lowest < highest) if min(known) < max(known) else (lowest == highest)


def test_a_figure_without_values_has_no_chart():
    assert chart("reward", [None, None], [(0, 2)], ["1", "2"]) == ""


def labels(svg, anchor):
    return re.findall(rf"text-anchor: {anchor}[^>]*>([^<]*)<", svg)


@pytest.mark.parametrize("values", [[2.2, 4.7], [3.7101, 3.7132], [1e-9, 3e-7]])
def test_axes_have_numbers_that_differ(values):
    svg = chart("title", values, [(0, 2)], ["1", "2"])

    assert labels(svg, "middle") == ["1", "2"]
    numbers = labels(svg, "end")
    assert 2 <= len(numbers) == len(set(numbers)) <= 5


def test_one_epoch_has_one_label_in_any_font_of_a_reader(caplog):
    svg = chart("title", [1.0], [(0, 1)], ["7"])
    assert labels(svg, "middle") == ["7"]
    # None of this machine is looked for.
    assert not caplog.records and "font-family" not in svg
