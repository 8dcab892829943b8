"""Commands that read sentence pairs from one file, and compare models."""

import shutil

import pytest

from attention_testing.programs import calibration_of
from keras_attention_apps.nmt.config import TrainConfig
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.training.train import read_texts

from .conftest import WORDS


@pytest.fixture
def table(corpus, tmp_path):
    """A table with the validation pairs of `corpus`, and named columns."""
    sides = [(corpus / f"val.{x}").read_text().splitlines() for x in ("en", "fr")]
    path = tmp_path / "pairs.csv"
    pairs = enumerate(zip(*sides, strict=True))
    rows = "".join(f"{n},{fr},{en}\n" for n, (en, fr) in pairs)
    path.write_text(f"id,fr,en\n{rows}")
    return path


def test_files_of_pairs_are_evaluated_as_their_texts(
    table, corpus, model_folder, echoed, capsys
):
    model = ["--model", str(model_folder)]
    of_folder = ["--data", str(corpus), "--pair", "en-fr"]
    of_files = ["--source", str(corpus / "val.en"), "--target", str(corpus / "val.fr")]
    of_table = ["--data", str(table), "--pair", "en-fr"]
    printed = []
    for options in (of_folder, of_files, of_table):
        assert main(["evaluate", *options, *model]) == 0
        printed.append(capsys.readouterr().out.splitlines()[1:])
    assert printed[0] == printed[1] == printed[2]
    assert any(line.startswith("bleu ") for line in printed[0])
    assert main(["evaluate", *of_table, *model, "--columns", "fr", "x"]) == 2
    assert "en, fr, id" in capsys.readouterr().err


def test_models_are_compared(corpus, model_folder, echoed, tmp_path, capsys):
    models = ["--model", str(model_folder), "--model", str(model_folder)]
    data = ["--data", str(corpus), "--pair", "en-fr"]
    plot = tmp_path / "scores.png"
    assert main(["evaluate", *data, *models, "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("chrf "))
    assert row.count("±") == 2 and row.endswith("(p = 1.000)")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["evaluate", *data, *models[:2], "--plot", str(plot)]) == 2
    assert "several --model" in capsys.readouterr().err


def test_pairs_are_held_out_of_files(table, corpus, tmp_path):
    many = tmp_path / "many.tsv"
    words = [*WORDS.items()]
    many.write_text("".join(f"{a} {i}\t{b} {i}\n" for i in range(9) for a, b in words))
    config = TrainConfig(output=tmp_path / "model", data=(many,), pair="en-fr")
    training, validation = read_texts(config)
    (held_out,) = validation.values()
    assert len(training) + len(held_out) == 9 * len(words) and len(held_out) >= 9
    assert not set(training.source) & set(held_out.source)
    # A folder has its own validation pairs.
    config = TrainConfig(output=config.output, data=(corpus, table), pair="en-fr")
    training, validation = read_texts(config)
    assert list(validation) == [corpus.name] and "8" not in training.source
    assert len(training) == len((corpus / "train.en").read_text().splitlines()) + 8


def test_files_are_calibrated_as_their_folder(
    table, corpus, few, model_folder, echoed, tmp_path
):
    val = corpus / "val.en", corpus / "val.fr"
    calibrations = []
    for name, options in {
        "folder": ["--data", corpus],
        "files": ["--source", val[0], "--target", val[1]],
        "table": ["--data", table],
    }.items():
        folder = tmp_path / name
        shutil.copytree(model_folder, folder)
        options += ["--out-of-domain", few, "--pair", "en-fr"]
        assert main(["calibrate", *map(str, [folder, *options])]) == 0
        calibration = calibration_of(folder)
        # The name of the data.
        del calibration["data"]
        calibrations.append(calibration)
    assert (
        calibrations[0] == calibrations[1] == calibrations[2]
        and calibrations[0]["count"] == 8
    )
