import csv
import io
import json
import os
import subprocess
import sys
import threading

import pytest
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from PIL import Image
from programs import check_average, check_flipped_bits, error_of, with_content

from .conftest import untrained

pytestmark = pytest.mark.usefixtures("cached_models")


def translate(*arguments, model):
    return main(["translate", *map(str, arguments), "--model", str(model)])


def test_a_sentence_prints_its_translation(model_folder, capsys):
    assert translate("the red dog", model=model_folder) == 0

    assert len(capsys.readouterr().out.splitlines()) == 1


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


def test_no_line_of_a_file_is_lost(model_folder, tmp_path, capsys):
    path = tmp_path / "text"
    path.write_bytes(BAD)
    code = translate("--input", path, "--length-penalty", 2, model=model_folder)

    check_bad(code, *capsys.readouterr(), str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert translate("--input", tmp_path / "pipe", model="nowhere") == 2
    assert "expected a regular file" in capsys.readouterr().err


def test_files_and_lines_have_a_limit(model_folder, tmp_path, capsys):
    path = tmp_path / "text"
    path.write_bytes(b"the red dog\n")
    options = ["--input", path, "--max-bytes"]
    assert translate(*options, 10, model=model_folder) == 2
    assert "more than 10 bytes; --max-bytes sets the limit" in capsys.readouterr().err


def test_no_line_of_the_standard_input_is_lost(model_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD)))
    code = translate("--length-penalty", 2, model=model_folder)

    check_bad(code, *capsys.readouterr(), "standard input")


@pytest.mark.parametrize(
    "command",
    [
        "translate --glossary -",
        "translate --input - --glossary -",
        "evaluate --source - --target -",
        "train --output run --source - --target -",
    ],
)
def test_the_standard_input_is_one_input_at_most(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert "for one input at most" in error_of(main, command.split(), capsys)
    assert not list(tmp_path.iterdir())


def test_a_line_that_is_typed_is_answered_before_the_next_is_read(
    model_folder, monkeypatch
):
    class Typed(io.RawIOBase):
        """A terminal that returns one line at a time, and counts lines of output."""

        def __init__(self):
            self.lines = [b"the red dog\n", b"a cat\n"]
            self.written = []

        def readable(self):
            return True

        def isatty(self):
            return True

        def readinto(self, buffer):
            self.written.append(output.getvalue().count(b"\n"))
            line = self.lines.pop(0) if self.lines else b""
            buffer[: len(line)] = line
            return len(line)

    typed, output = Typed(), io.BytesIO()
    stdin = io.TextIOWrapper(io.BufferedReader(typed))
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output))
    assert translate("--beam-size", 1, model=model_folder) == 0

    assert typed.written == [0, 1, 2]


def test_a_thousand_lines_of_a_pipe_are_read_before_the_model_is_loaded(monkeypatch):
    class Pipe(io.RawIOBase):
        """A pipe that returns one line at a time, without end, and counts the lines."""

        count = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.count += 1
            buffer[:2] = b"x\n"
            return 2

    def load(*arguments, count, **options):
        counts.extend([count, pipe.count])
        raise UserError("loaded")

    pipe, counts = Pipe(), []
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(pipe)))
    monkeypatch.setattr("keras_attention_apps.common.models.Runtimes.load", load)
    assert translate(model="nowhere") == 2

    assert counts == [1001, 1001]


@pytest.mark.exhaustive
def test_a_process_answers_every_line_before_it_reads_the_next(model_folder):
    program = [sys.executable, "-m", "keras_attention_apps.nmt.main", "translate"]
    options = ["--model", str(model_folder), "--batch-size", "1", "--beam-size", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*program, *options, "--json"], **pipes) as process:
        # The test also ends if there is no answer.
        timer = threading.Timer(300, process.kill)
        timer.start()
        try:
            for line in (b"the red dog\n", b"a cat\n"):
                process.stdin.write(line)
                process.stdin.flush()
                answer = json.loads(process.stdout.readline() or "{}")
                assert " ".join(answer["source_words"]) == line.decode().strip()
            process.stdin.close()
            assert process.wait() == 0
        finally:
            timer.cancel()
            process.kill()


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


def test_several_translations_and_their_alignments(model_folder, capsys):
    texts, translator = ["the red dog", "a cat"], Translator.from_preset(model_folder)
    options = ["--n-best", 2, "--alignments", "--length-penalty", 2]
    assert translate(*texts, *options, model=model_folder) == 0

    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    expected = [
        (str(line), found.text, " ".join(f"{i}-{j}" for i, j in found.alignment))
        for line, several in enumerate(
            translator.translate_each(texts, length_penalty=2, n_best=2), start=1
        )
        for found in several
    ]
    assert [(row[0], *row[2:]) for row in rows] == expected
    assert any(row[3] for row in rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".txt", ".de"])
def test_the_suffix_of_an_output_is_its_format(suffix, model_folder, tmp_path, capsys):
    sentences = ["the red dog, again", "", "a cat"]
    options = ["--length-penalty", 2]
    assert translate(*sentences, *options, model=model_folder) == 0
    lines = capsys.readouterr().out.splitlines()
    output = tmp_path / f"text{suffix}"
    options += ["--output", output]
    for quiet, wrote in (("--quiet",), ""), ((), f"nmt: wrote {output}\n"):
        assert translate(*sentences, *options, *quiet, model=model_folder) == 0
        assert capsys.readouterr().err == wrote

    text = output.read_text(encoding="utf-8")
    if suffix in (".csv", ".tsv"):
        delimiter = "," if suffix == ".csv" else "\t"
        rows = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))
        assert [row["source"] for row in rows] == sentences
        assert [row["line"] for row in rows] == ["1", "2", "3"]
        assert float(rows[0]["mean_log_probability"]) < 0
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows[0]["attention"]
    else:
        rows = [{"translation": line} for line in text.splitlines()]
    assert [row["translation"] for row in rows] == lines and any(lines)


def test_a_table_has_a_row_of_every_translation(model_folder, tmp_path):
    output = tmp_path / "text.csv"
    options = ["--n-best", 2, "--alignments", "--output", output]
    assert translate("the red dog", "a cat", *options, model=model_folder) == 0

    rows = list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))
    assert [row["line"] for row in rows] == ["1", "1", "2", "2"]
    assert float(rows[0]["score"]) >= float(rows[1]["score"])
    assert all("-" in row["alignment"] or not row["translation"] for row in rows)


def test_a_table_has_the_lines_of_a_file_without_their_ends(model_folder, tmp_path):
    text, output = tmp_path / "text.en", tmp_path / "text.csv"
    text.write_bytes(b"the red dog\r\na cat\n")
    options = ["--input", text, "--output", output]
    assert translate(*options, model=model_folder) == 0

    with open(output, encoding="utf-8", newline="") as file:
        assert [row["source"] for row in csv.DictReader(file)] == [
            "the red dog",
            "a cat",
        ]


def test_json_contains_the_attention(model_folder, capsys):
    options = ["--length-penalty", "2", "--json"]
    assert translate("the red dog", *options, model=model_folder) == 0

    entry = json.loads(capsys.readouterr().out)
    assert entry["line"] == 1
    assert entry["source_words"] == ["the", "red", "dog"]
    assert entry["translation"].split() == entry["words"]
    assert len(entry["attention"]) == len(entry["words"])
    assert all(0 < sum(row) <= 1.001 for row in entry["attention"])


def test_json_contains_the_attention_of_scripts_without_spaces(model_folder, capsys):
    assert translate("一只狗。", "--json", model=model_folder) == 0

    entry = json.loads(capsys.readouterr().out)
    assert entry["source_words"] == ["一", "只", "狗。"]
    assert {len(row) for row in entry["attention"]} == {3}


def test_plots_are_image_files(model_folder, tmp_path, capsys):
    picture, folder, other = (tmp_path / name for name in ("a.png", "plots.2", "new"))
    options = ["--length-penalty", "2", "--plot"]
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


def test_a_model_without_attention_has_no_plots(subwords, tmp_path, capsys):
    untrained(subwords, "none").save(tmp_path / "none")

    picture = tmp_path / "a.png"
    assert translate("the red dog", "--plot", picture, model=tmp_path / "none") == 2
    captured = capsys.readouterr()
    assert "--plot shows attention, and this model has none. Rec" in captured.err
    assert not captured.out


def test_missing_glyphs_give_no_warning(model_folder, tmp_path, capsys, recwarn):
    # Characters of the private use area, for which no font has a glyph.
    options = ["--length-penalty", "2", "--plot", tmp_path / "plot.png"]
    assert translate("the \ue123\ue124 dog", *options, model=model_folder) == 0

    assert not [str(x.message) for x in recwarn if "Glyph" in str(x.message)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["translate", "x", "--model", "nowhere"], "Received: 'nowhere'"),
        (["translate", "x", "--input", "y"], "not both"),
        (["translate", "--input", "nowhere"], "directory: 'nowhere'"),
        (["translate", "x", "--beam-size", "0"], "beam_size must be between 1 and"),
        (["translate", "x", "--n-best", "6"], "n_best must be between 1 and"),
        (["translate", "x", "--length-penalty", "-1"], "Received: -1"),
        (["translate", "x", "--length-penalty", "11"], "between 0 and 10. Received"),
        (["translate", "x", "--batch-size", "9" * 20], "between 1 and 1000000. Rec"),
        (["translate", "x", "--plot", "x.txt"], "Received: 'x.txt'"),
        (["translate", "x", "y", "--plot", "x.png"], "Received: 'x.png'"),
        (["translate", "x", "--output", "x.json"], "JSON lines) or the code of a lan"),
        (["translate", "x", "--json", "--output", "x.csv"], "that ends in .jsonl. Rec"),
        # An unwritable output is an error before the model is searched.
        (["translate", "x", "--output", ".", "--model", "y"], "Received a folder: '.'"),
        (["evaluate", "--output", "."], "Received a folder: '.'"),
        (["evaluate"], "expected --source and --target"),
        (["evaluate", "--data", ".", "--pair", "en-de"], "expected the files val.en"),
        (["evaluate", "--data", ".", "--source", "x"], "not both"),
        (["evaluate", "--source", "x", "--pair", "en-de"], "pair=en-de without --data"),
        (["evaluate", "--source", "x", "--split", "test"], "split=test without --data"),
        (["train", "--output", "o", "--pair", "en-de"], "pair=en-de without --data"),
        (["train", "--output", "o"], "expected --source and --target"),
        (["train", "--output", "o", "--data", ".", "--source", "x"], "not both"),
        (["train", "--output", "o", "--data", "."], "needs --pair"),
        (["train", "--output", "o", "--batch-tokens", "0"], "must be at least 1"),
        (["train", "--output", "o", "--seed", "4294967296"], "and 4294967295. Rec"),
        (["train", "--output", "o", "--validation-beam-size", "0"], "1 and 1000. Rec"),
        (["train", "--output", "o", "--vocabulary-size", "9" * 11], "and 1000000. Rec"),
        (["train", "--output", "o", "--character-coverage", "0"], "0.98 and 1. Rec"),
        (["train", "--output", "o", "--model.dropout", "1"], "0 and 0.99. Received"),
        (
            ["train", "--output", "o", "--model.length-ratio", "0"],
            "0.1 and 1000. Rec",
        ),
        (["train", "--output", "o", "--valid-source", "x"], "--valid-target, or nei"),
        (["train", "--output", "o", "--valid-target", "x"], "valid_source=None, val"),
        (["train", "--output", "o", "--label-smoothing", "1"], "0 and 0.99. Received"),
        (["average", "x", "nowhere"], "Received: 'nowhere'"),
        # Options without an effect.
        (["train", "--output", "o", "--guide-weight", "2"], "-weight needs --guide. R"),
        (
            ["train", "--output", "o", "--model.score", "dot"],
            "--model.score needs --attention luong. Received: 'dot'",
        ),
        (
            ["train", "--output", "o", "--attention", "luong", "--model.heads", "2"],
            "--model.heads needs --decoder transformer. Received: 2",
        ),
        (
            ["train", "--output=o", "--attention=luong", "--decoder=transformer"],
            "the attention luong needs the recurrent decoder. Received: transformer",
        ),
        (
            ["train", "--output=o", "--attention=luong", "--model.half-width=7"],
            "--model.half-width needs --attention luong with a local window. Rec",
        ),
        (
            ["translate", "x", "--runtime", "keras", "--threads", "2"],
            "--threads needs the runtime litert. Received: 2",
        ),
        (
            ["evaluate", "--diversity-penalty", "0.7"],
            "--diversity-penalty needs --beam-groups. Received: 0.7",
        ),
        (["export", "x", "--diversity-penalty", "0.7"], "needs --beam-groups. Rec"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(
    arguments, problem, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert problem in error_of(main, arguments, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "x", "--model", "no.tflite", "--diversity-penalty", "0.7"],
        ["train", "--output=o", "--attention=luong", "--model.encoder-units=192"],
        [
            "train",
            "--output=o",
            "--decoder=transformer",
            "--model.encoder-units=0",
        ],
    ],
)
def test_options_that_have_an_effect_or_are_defaults_are_accepted(
    arguments, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert " needs --" not in error_of(main, arguments, capsys)


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


def test_an_unwritable_output_is_an_error_before_the_evaluation(
    corpus, model_folder, tmp_path, capsys
):
    (tmp_path / "file").touch()
    output = str(tmp_path / "file" / "translations")
    arguments = ["--data", str(corpus), "--pair", "en-fr", "--output", output]
    assert main(["evaluate", *arguments, "--model", str(model_folder)]) == 2

    captured = capsys.readouterr()
    assert "Received a file" in captured.err
    assert not captured.out


def test_models_are_averaged(model_folder, tmp_path, capsys):
    check_average(main, Translator, model_folder, tmp_path / "mean", capsys)


@pytest.mark.parametrize("name", ["source", "target"])
def test_an_evaluation_does_not_replace_what_it_reads(name, tmp_path, capsys):
    files = [tmp_path / "source", tmp_path / "target"]
    for file in files:
        file.write_text("x\n")
    arguments = ["--source", files[0], "--target", files[1], "--output"]
    arguments += [tmp_path / "." / name, "--model", "nowhere"]

    assert main(["evaluate", *map(str, arguments)]) == 2
    assert "an output that is not an input" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "x\n"


def test_text_with_a_byte_order_mark_is_translated(model_folder, tmp_path, capsys):
    path = tmp_path / "shell.txt"
    path.write_bytes("\ufeffthe dog\r\n\r\na cat\r\n".encode("utf-16-le"))
    command = ["translate", "--model", str(model_folder), "--input", str(path)]
    assert main(command) == 0
    found = capsys.readouterr().out
    path.write_text("the dog\n\na cat\n")
    assert main(command) == 0
    assert found == capsys.readouterr().out and found.count("\n") == 3


def test_text_without_a_byte_order_mark_is_refused(model_folder, tmp_path, capsys):
    path = tmp_path / "shell.txt"
    path.write_bytes("the dog\r\na cat\r\n".encode("utf-16-le"))
    command = ["translate", "--model", str(model_folder), "--input", str(path)]
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "not UTF-8" in captured.err
    assert captured.err.count("\n") == 1


def test_a_translation_does_not_replace_its_source(model_folder, tmp_path, capsys):
    path = tmp_path / "text.en"
    path.write_text("the dog\n")
    command = ["translate", "--model", str(model_folder), "--input", str(path)]
    assert main([*command, "--output", str(tmp_path / "." / "text.en")]) == 2
    assert "not an input" in capsys.readouterr().err
    assert path.read_text() == "the dog\n"
