"""The flow from inputs over a model to outputs, which both programs share."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.commands import caption
from keras_attention_apps.captioner.main import main as captioner
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.inference import Predictor
from keras_attention_apps.nmt.commands import translate
from keras_attention_apps.nmt.main import main as nmt
from keras_attention_apps.nmt.translations import Translation

REASON = "a word is improbable"


def make_caption(text, score, unsure):
    words = text.split()
    numbers = score, score, score, [0.5] * len(words), np.ones((len(words), 1, 1))
    return Caption(text, words, *numbers, unsure=unsure, reason=REASON)


def make_translation(text, score, unsure):
    words = text.split()
    weights = np.ones((len(words), 1))
    ends = np.zeros(len(words))
    # The mean log-probability is that of two subwords.
    parts = {"subwords": ["a", "b"], "unsure": unsure, "reason": REASON}
    return Translation(text, ["x"], words, score, 2 * score, weights, ends, **parts)


@dataclasses.dataclass(frozen=True)
class Program:
    main: Callable[[list[str]], int]
    command: str
    module: Any
    make: Callable[..., Any]
    noun: str
    identities: tuple[Any, Any]
    names: tuple[str, str]

    def run(self, *options):
        return self.main([self.command, "one", "two", *options])


CAPTIONER = Program(
    *(captioner, "caption", caption, make_caption, "caption"),
    ({"image": "one"}, {"image": "two"}),
    ("'one'", "'two'"),
)
NMT = Program(
    *(nmt, "translate", translate, make_translation, "translation"),
    ({"line": 1}, {"line": 2}),
    ("arguments, line 1", "arguments, line 2"),
)


class Model(Predictor):
    """A model that returns given results, whatever its inputs are."""

    attends = True

    def __init__(self, results):
        self.results = results

    def search_options(self, **options):
        return {"beam_size": 5, **options}

    def each(self, inputs, *, n_best, batch_size, **options):
        for _, result in zip(inputs, self.results, strict=True):
            yield result if isinstance(result, UserError) else result[:n_best]


@pytest.fixture(params=[CAPTIONER, NMT], ids=["captioner", "nmt"])
def program(request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.fixture
def results(program, monkeypatch):
    """Return a function that sets the results of the model, as scores or errors."""

    def set_results(*results):
        outputs = [
            [
                program.make(f"{word} {rank}", score, score < -1)
                for rank, score in enumerate(scores, 1)
            ]
            if isinstance(scores, tuple)
            else scores
            for word, scores in zip(("first", "second"), results, strict=True)
        ]
        load = lambda *_, **__: Model(outputs)  # noqa: E731
        monkeypatch.setattr(type(program.module.RUNTIMES), "load_for", load)
        return outputs

    return set_results


def test_every_input_gives_a_line(program, results, capsys):
    results((-0.5,), (-0.25,))

    assert program.run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["first 1", "second 1"]


def test_several_outputs_have_their_scores(program, results, capsys):
    results((-0.5, -0.75), (-0.25,))

    assert program.run("--n-best", "2") == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[-2:] for row in rows] == [
        ["-0.5000", "first 1"],
        ["-0.7500", "first 2"],
        ["-0.2500", "second 1"],
    ]
    assert rows[0][0] == rows[1][0] != rows[2][0]


@pytest.mark.parametrize("n_best", [1, 2])
def test_json_has_an_object_for_each_input(program, results, capsys, n_best):
    ranked = results((-0.5, -0.75), (-0.25,))

    assert program.run("--json", "--n-best", str(n_best)) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, identity, outputs in zip(lines, program.identities, ranked, strict=True):
        entries = [result.details() for result in outputs[:n_best]]
        listed = {f"{program.noun}s": entries}
        assert json.loads(line) == identity | (listed if n_best > 1 else entries[0])


@pytest.mark.parametrize("n_best", [1, 2])
def test_improbable_outputs_are_left_out_with_a_warning(
    program, results, capsys, n_best
):
    results((-0.5, -0.75), (-0.8, -0.7))
    options = "--min-score", "-0.6", "--n-best", str(n_best)

    assert program.run("--json", *options) == 0
    out, err = capsys.readouterr()
    first, second = map(json.loads, out.splitlines())
    best = -0.7 if n_best == 2 else -0.8
    empty = {f"{program.noun}s": []} if n_best == 2 else {program.noun: None}
    assert second == program.identities[1] | empty | {"mean_log_probability": best}
    texts = first[f"{program.noun}s"] if n_best == 2 else [first]
    assert [entry[program.noun] for entry in texts] == ["first 1"]
    assert err.splitlines() == [
        f"{program.main.__module__.split('.')[1]}: warning: {program.names[1]}: no "
        f"{program.noun} with a mean log-probability of at least -0.6; that of the "
        f"best one is {best}"
    ]


def test_unsure_outputs_are_named(program, results, capsys):
    results((-2.0,), (-0.5,))

    assert program.run() == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.endswith(
        f"warning: {program.names[0]}: unsure of the {program.noun} 'first 1': {REASON}"
    )


def test_an_input_with_an_error_does_not_stop_the_others(program, results, capsys):
    results(UserError("broken\x1b"), (-0.5,))

    assert program.run() == 2
    out, err = capsys.readouterr()
    assert out.endswith("second 1\n") and len(out.splitlines()) == 1
    assert err.endswith(": error: broken\\x1b\n")


def test_a_drawing_that_fails_is_an_error_of_its_input(
    program, results, capsys, monkeypatch
):
    drawn = []

    def draw(*arguments, **options):
        drawn.append(arguments)
        if len(drawn) == 1:
            raise OSError("no space")

    name = "write_overlay" if program is CAPTIONER else "write_figure"
    monkeypatch.setattr(program.module, name, draw)
    option = "--overlay" if program is CAPTIONER else "--plot"
    results((-0.5,), (-0.25,))

    assert program.run(option, "figures") == 2
    out, err = capsys.readouterr()
    assert len(drawn) == len(out.splitlines()) == 2
    assert err.endswith("error: no space\n") and len(err.splitlines()) == 1


def test_the_output_of_an_interrupted_command_is_left_as_it_was(
    program, results, capsys, monkeypatch, tmp_path
):
    results((-0.5,), (-0.25,))
    (tmp_path / "out.jsonl").write_text("")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Model, "each", interrupt)
    assert program.run("--output", "out.jsonl") == 130
    assert (tmp_path / "out.jsonl").read_text() == ""
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["out.jsonl"]


def test_a_string_is_no_list_of_inputs(program):
    model = Model([])
    with pytest.raises(UserError, match=r"expected several inputs.*Received one: 'a'"):
        model.checked_search("a", 1, 1, {})
    with pytest.raises(
        UserError, match=r"n_best must be between 1 and beam_size, 5\. "
    ):
        model.checked_search(["a"], 6, 1, {})
    with pytest.raises(UserError, match=r"batch_size must be at least 1\. Received: 0"):
        model.checked_search(["a"], 1, 0, {})
