import csv
import io
import json
import sys

import pytest
from PIL import Image

from attention_testing.programs import (
    check_average,
    check_flipped_bits,
    error_of,
    with_content,
)
from keras_attention_apps.common.tables import DIALECTS
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main

# The search itself is tested by test_inference.py.
pytestmark = pytest.mark.usefixtures("cached_models", "echoed")


def translate(*arguments, model):
    return main(["translate", *map(str, arguments), "--model", str(model)])


BAD = (
    b"the red dog\n\nb\xe4d\nthe \xe4\xb8\xad\x00 cat\r\n"
    + b"dog " * 10_000
    + b"\na cat"
)


def check_bad(code, out, err, name):
    lines = out.splitlines()
    assert code == 2
    assert len(lines) == 6
    assert lines[1] == lines[2] == ""
    assert lines[0] and lines[3] and lines[4] and lines[5]
    bad, long = err.splitlines()
    assert bad.startswith("nmt: error: ") and f"{name}, line 3, is not UTF-8" in bad
    assert long.startswith("nmt: warning: ") and f"{name}, line 5: too long" in long


@pytest.mark.parametrize("has_file", [True, False])
def test_no_line_is_lost(has_file, model_folder, tmp_path, capsys, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(BAD)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD)))
    code = translate(*(["--input", path] if has_file else []), model=model_folder)

    name = str(path) if has_file else "standard input"
    check_bad(code, *capsys.readouterr(), name)


class Stream(io.RawIOBase):
    """A stream that returns one line at a time, and notes a value before each."""

    def __init__(self, lines, note=None):
        self.lines, self.note, self.noted = iter(lines), note, []

    def readable(self):
        return True

    def isatty(self):
        return self.note is not None

    def readinto(self, buffer):
        self.noted.append(self.note and self.note())
        line = next(self.lines, b"")
        buffer[: len(line)] = line
        return len(line)


def test_a_line_that_is_typed_is_answered_before_the_next_is_read(
    model_folder, monkeypatch
):
    output = io.BytesIO()
    stream = Stream([b"the dog\n", b"a cat\n"], lambda: output.getvalue().count(b"\n"))
    stdin = io.TextIOWrapper(io.BufferedReader(stream))
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))
    assert translate(model=model_folder) == 0

    assert stream.noted == [0, 1, 2]


def test_a_standard_input_that_is_closed(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert translate(model="nowhere") == 2

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "a closed standard input" in err


def test_an_empty_file_has_no_translations(model_folder, tmp_path, capsys):
    (tmp_path / "empty").touch()
    output = tmp_path / "new" / "output"
    code = translate(
        "--input", tmp_path / "empty", "--output", output, model=model_folder
    )

    assert (code, capsys.readouterr().out, output.read_text()) == (0, "", "")


def test_arguments_that_are_not_utf_8(model_folder, capsys):
    assert translate("a\udce4", "a dog", model=model_folder) == 2

    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "" and len(out.splitlines()) == 2
    assert "arguments, line 1" in err


SENTENCES = ["the red dog, again", "", "a cat"]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt", ".de"])
def test_the_suffix_of_an_output_is_its_format(suffix, model_folder, tmp_path, capsys):
    output, text = tmp_path / f"text{suffix}", tmp_path / "text.en"
    text.write_bytes("\r\n".join(SENTENCES).encode())
    options = ["--input", text, "--output", output]
    for quiet, wrote in (("--quiet",), ""), ((), f"nmt: wrote {output}\n"):
        assert translate(*options, *quiet, model=model_folder) == 0
        assert capsys.readouterr().err == wrote

    lines = output.read_text(encoding="utf-8").splitlines()
    if suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        assert rows[0]["attention"]
    elif suffix in DIALECTS:
        with open(output, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, dialect=DIALECTS[suffix]))
        assert [row["line"] for row in rows] == ["1", "2", "3"]
        assert [row["source"] for row in rows] == SENTENCES
    else:
        rows = [{"translation": line} for line in lines]
    assert [row["translation"] for row in rows] == SENTENCES


def test_several_translations_and_their_alignments(model_folder, capsys):
    options = ["--n-best", 2, "--alignments"]
    assert translate("red dog", "cat", *options, model=model_folder) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    assert [row[::2] for row in rows] == [["1", "red dog"]] * 2 + [["2", "cat"]] * 2
    assert [row[3] for row in rows] == ["0-0 1-1"] * 2 + ["0-0"] * 2
    assert float(rows[0][1]) > float(rows[1][1])


def test_a_table_of_several_translations_has_their_alignments(
    model_folder, tmp_path, capsys
):
    table = tmp_path / "a.csv"
    options = ["--n-best", 2, "--alignments", "--batch-size", 1, "--output", table]
    assert translate("red dog", "cat", *options, model=model_folder) == 0

    with open(table, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["source"] for row in rows] == ["red dog", "red dog", "cat", "cat"]
    assert [row["rank"] for row in rows] == ["1", "2"] * 2
    assert [row["alignment"] for row in rows] == ["0-0 1-1"] * 2 + ["0-0"] * 2


def test_the_name_of_a_file_is_not_translated(
    model_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.en").write_text("the red dog")
    (tmp_path / "dog").mkdir()

    assert translate("cat", "letter.en", model=model_folder) == 2
    out, err = capsys.readouterr()
    assert out == "" and "'letter.en' is a file: translate its lines by --input" in err
    assert translate("dog", model=model_folder) == 0


@pytest.mark.parametrize(
    ("suffix", "advice"),
    [
        (".md", "; --format markdown keeps them"),
        (".PO", "; --format po"),
        (".json", ""),
    ],
)
def test_marks_of_other_formats_are_warned_of(
    suffix, advice, model_folder, tmp_path, capsys
):
    path = tmp_path / f"text{suffix}"
    path.write_text("the red dog")
    assert translate("--input", path, model=model_folder) == 0

    out, err = capsys.readouterr()
    expected = (
        f"{path} is read as lines of plain text, whose marks are not kept{advice}"
    )
    assert out == "the red dog\n" and f"nmt: warning: {expected}" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("sentence", "words"),
    [("the red dog", ["the", "red", "dog"]), ("一只狗。", ["一", "只", "狗。"])],
)
def test_json_contains_the_attention(sentence, words, model_folder, capsys):
    assert translate(sentence, "--json", model=model_folder) == 0

    entry = json.loads(capsys.readouterr().out)
    assert (entry["line"], entry["translation"]) == (1, sentence)
    assert entry["source_words"] == entry["words"] == words
    for index, row in enumerate(entry["attention"]):
        assert row.index(max(row)) == index and 0 < sum(row) <= 1.001


def test_plots_are_image_files(model_folder, tmp_path, capsys):
    picture, folder, other = (tmp_path / name for name in ("a.png", "plots.2", "new"))
    options = ["--plot"]
    assert translate("the red dog", *options, picture, model=model_folder) == 0
    assert translate("a dog", "a cat", *options, folder, model=model_folder) == 0
    other.mkdir()
    assert translate("the red dog", *options, other, model=model_folder) == 0

    with Image.open(picture) as plot:
        assert plot.width > 100
    assert {path.name for path in folder.iterdir()} == {"0001.png", "0002.png"}
    assert (other / "0001.png").read_bytes() == picture.read_bytes()


def test_an_empty_line_has_no_plot(model_folder, tmp_path, capsys):
    plots = tmp_path / "plots"
    assert translate("", "", "--plot", plots, model=model_folder) == 0

    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and "line 2 has nothing to plot" in err[1]
    assert not plots.exists()


def test_a_model_without_attention_has_no_plots(model_folder, capsys, monkeypatch):
    without = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(Translator, "attends", without, raising=False)
    assert translate("the red dog", "--plot", "a.png", model=model_folder) == 2
    captured = capsys.readouterr()
    assert "--plot shows attention, and this model has none. Rec" in captured.err
    assert not captured.out


def test_missing_glyphs_give_no_warning(model_folder, tmp_path, capsys, recwarn):
    # Characters of the private use area, for which no font has a glyph.
    options = ["--plot", tmp_path / "plot.png"]
    assert translate("the \ue123\ue124 dog", *options, model=model_folder) == 0

    assert not [str(x.message) for x in recwarn if "Glyph" in str(x.message)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "command, problem",
    [
        ("translate x --model nowhere", "Received: 'nowhere'"),
        ("translate x --input y", "not both"),
        ("translate --input nowhere", "directory: 'nowhere'"),
        ("translate x --beam-size 0", "--beam-size must be between 1 and"),
        ("translate x --n-best 6", "n_best must be between 1 and"),
        ("translate x --length-penalty 11", "between 0 and 10. Received: 11"),
        (f"translate x --batch-size {'9' * 20}", "between 1 and 1000000. Rec"),
        ("translate x --plot x.txt", "Received: 'x.txt'"),
        ("translate x y --plot x.png", "Received: 'x.png'"),
        ("translate x --output x.json", ".csv, .tsv or the code of a lan"),
        ("translate x --output x.xlsx", "must end in .txt, .jsonl (JSON lines), .csv"),
        ("translate - --format po --output x.csv", "(JSON lines), .csv, .tsv or the"),
        ("translate x --json --output x.csv", "that ends in .jsonl. Received: 'x.csv'"),
        ("translate x --json --output x.txt", "that ends in .jsonl. Rec"),
        ("translate x --language de", "needs --format html or po, whose files name"),
        ("translate x --language ??", "needs --format html or po, whose files name"),
        ("translate x --format html --language ??", "must be the code of a language"),
        # An unwritable output is an error before the model is searched.
        ("translate x --output . --model y", "Received a folder: '.'"),
        ("evaluate", "expected --source and --target"),
        ("evaluate --data . --pair en-de", "expected the files val.en"),
        ("evaluate --data . --source x", "not both"),
        ("evaluate --source x --pair en-de", "pair=en-de without --data"),
        ("evaluate --source x --split test", "split=test without --data"),
        ("train --output o --pair en-de", "pair=en-de without --data"),
        ("train --output o", "expected --source and --target"),
        ("train --output o --data . --source x", "not both"),
        ("train --output o --data .", "needs --pair"),
        ("train --output o --batch-tokens 0", "must be between 1 and 1000000000"),
        ("train --output o --seed 4294967296", "and 4294967295. Rec"),
        ("train --output o --validation-beam-size 0", "1 and 1000. Rec"),
        ("train --output o --vocabulary-size 99999999999", "and 1000000. Rec"),
        ("train --output o --model.dropout 1", "0 and 0.99. Received"),
        ("train --output o --model.length-ratio 0", "0.1 and 1000. Rec"),
        ("train --output o --valid-source x", "--valid-target, or nei"),
        ("train --output o --valid-target x", "valid_source=None, val"),
        ("train --output o --label-smoothing 1", "0 and 0.99. Received"),
        ("average x nowhere", "Received: 'nowhere'"),
        ("translate x --beam-groups 3", "must divide beam_size, 4. Received: 3"),
        ("translate x --beam-groups 0", "--beam-groups must be between 1 and"),
        (
            "translate x --min-length-ratio 2 --max-length-ratio 1",
            "min_length_ratio must be at most max_length_ratio, 1.0. Received: 2.0",
        ),
        ("translate x --glossary nowhere", "directory: 'nowhere'"),
        ("translate --glossary -", "for one input at most"),
        ("translate --input - --glossary -", "for one input at most"),
        ("evaluate --source - --target -", "for one input at most"),
        ("train --output run --source - --target -", "for one input at most"),
        # Options without an effect.
        ("train --output o --model.score dot", "--model.score needs --attention luong"),
        (
            "train --output o --attention luong --model.heads 2",
            "--model.heads needs --decoder transformer. Received: 2",
        ),
        (
            "train --output o --attention luong --decoder transformer",
            "the attention luong needs the recurrent decoder. Received: transformer",
        ),
        (
            "train --output o --attention luong --model.half-width 7",
            "--model.half-width needs --attention luong with a local window. Rec",
        ),
        ("translate x --threads 3000000000", "--threads must be between 1 and 1024. R"),
        ("translate x --max-bytes 10000000000000", "1 and 1000000000000. Received"),
        (
            "train --output o --epochs 3000000000",
            "0 and 1000000000. Received: 3",
        ),
        ("translate x --runtime keras --threads 2", "needs the runtime litert. Rec"),
        ("evaluate --diversity-penalty 0.7", "needs --beam-groups. Received: 0.7"),
        ("export x --diversity-penalty 0.7", "needs --beam-groups. Rec"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(
    command, problem, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert problem in error_of(main, command.split(), capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "translate x --model no.tflite --diversity-penalty 0.7",
        "train --output o --attention luong --model.encoder-units 192",
        "train --output o --decoder transformer --model.encoder-units 0",
    ],
)
def test_options_that_have_an_effect_or_are_defaults_are_accepted(
    command, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert " needs --" not in error_of(main, command.split(), capsys)


def test_the_path_of_plots_is_checked_before_the_model(tmp_path, capsys):
    lines, folder = tmp_path / "lines.txt", tmp_path / "plots"
    lines.write_text("x\n")
    folder.touch()

    assert translate("--input", lines, "--plot", "x.png", model="nowhere") == 2
    assert "a folder otherwise. Rec" in capsys.readouterr().err
    assert translate("x", "y", "--plot", folder, model="nowhere") == 2
    assert "Received a file: " in capsys.readouterr().err
    assert translate("x", "y", "--plot", folder / "new", model="nowhere") == 2
    assert "Received a file: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "file, content, problem",
    [
        ("config.json", "{}", 'config.json has no object "model"'),
        ("config.json", '{"model": {}}', "attention is missing"),
        ("config.json", '{"model": {"backbone": "x"}}', "no option 'backbone'"),
        ("config.json", '{"model": {"pre_norm": false}}', "no option 'pre_norm'"),
        ("config.json", '{"model": {"units": 1000000000}}', "and 65536. Received"),
        ("config.json", '{"model": {"length_ratio": NaN}}', "must be a finite number"),
        ("model.weights.npz", "no weights", "File is not a zip file"),
        ("subwords.model", None, "No such file"),
        ("subwords.model", "", "not a SentencePiece model: there are no bytes"),
        ("subwords.model", "text", "not a SentencePiece model"),
    ],
)
def test_a_damaged_model_is_one_line(
    file, content, problem, model_folder, tmp_path, capsys
):
    damaged = with_content(model_folder, tmp_path / "damaged", file, content)
    error = error_of(main, ["translate", "x", "--model", damaged], capsys)

    assert "not a complete translator" in error and problem in error


def test_flipped_bits_are_one_line(model_folder, tmp_path, capsys):
    check_flipped_bits(main, ["translate", "x"], model_folder, tmp_path, capsys)


def test_models_are_averaged(model_folder, tmp_path, capsys):
    check_average(main, Translator, model_folder, tmp_path / "mean", capsys)


def test_text_with_a_byte_order_mark_is_translated(model_folder, tmp_path, capsys):
    path = tmp_path / "shell.txt"
    path.write_bytes("\ufeffthe dog\r\n\r\na cat\r\n".encode("utf-16-le"))
    assert translate("--input", path, model=model_folder) == 0
    assert capsys.readouterr().out == "the dog\n\na cat\n"
    path.write_bytes("the dog\r\na cat\r\n".encode("utf-16-le"))
    assert translate("--input", path, model=model_folder) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "not UTF-8" in captured.err
    assert captured.err.count("\n") == 1


def test_a_translation_does_not_replace_its_source(model_folder, tmp_path, capsys):
    path = tmp_path / "text.en"
    path.write_text("the dog\n")
    options = ["--input", path, "--output", tmp_path / "." / "text.en"]
    assert translate(*options, model=model_folder) == 2
    assert "not an input" in capsys.readouterr().err
    assert path.read_text() == "the dog\n"
