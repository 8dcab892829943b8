"""The texts of a training."""

import shutil

import pytest

from attention_testing.nmt.trainings import command, history, lines, small
from keras_attention_apps.common.training import runner
from keras_attention_apps.common.training.runner import ValidateDecoded
from keras_attention_apps.nmt.main import main


@pytest.mark.exhaustive
def test_one_pair_is_trained_on(echoed, eager, tmp_path):
    files = {}
    for name, text in (("source", "the red dog\n"), ("target", "le chien rouge\n")):
        (tmp_path / name).write_text(text)
        files |= {name: tmp_path / name, f"valid-{name}": tmp_path / name}
    options = {"pair": None, "model.max-length": 12, "subword-dropout": 0.5}
    assert main(small(None, tmp_path / "run", **files, **options)) == 0

    # Two epochs, and their average.
    assert len(history(tmp_path / "run")) == 3


def test_short_text_is_validated_by_chrf(corpus, tmp_path, capsys, monkeypatch, begin):
    for path in corpus.iterdir():
        short = [" ".join(line.split()[:3]) for line in lines(path)]
        (tmp_path / path.name).write_text("\n".join(short), encoding="utf-8")
    ranks = []

    def record(score, rank, *keep, **options):
        ranks.append(rank({"bleu": 1, "chrf": 2}))
        return ValidateDecoded(score, rank, *keep, **options)

    monkeypatch.setattr(runner, "ValidateDecoded", record)
    begin(command(tmp_path, tmp_path / "run"))

    assert ranks == [(2, 1)]
    assert "the best epoch is chosen by chrf" in capsys.readouterr().out


def test_pairs_that_are_left_out_are_counted(few, tmp_path, capsys, begin):
    for path in few.iterdir():
        added = f"{'dog ' * 9}\n\n" if path.suffix == ".en" else f"{'chien ' * 9}\nle\n"
        (tmp_path / path.name).write_text(path.read_text() + added)
    begin(small(tmp_path, tmp_path / "run"))

    out = capsys.readouterr().out
    assert "; 1 left out with an empty side; 1 left out with more than 8 sub" in out
    assert main(small(few, tmp_path / "other", **{"model.max-length": 2})) == 2
    expected = "every pair has a side of more subwords than max_length, 2"
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_another_text_is_refused(corpus, tmp_path, capsys, begin):
    data, output = tmp_path / "data", tmp_path / "run"
    shutil.copytree(corpus, data)
    begin(command(data, output))
    with open(data / "train.en", "a") as source, open(data / "train.fr", "a") as target:
        source.write("the dog\n")
        target.write("le chien\n")
    assert main(command(data, output)) == 2

    err = capsys.readouterr().err
    assert "another training: text was '100 pairs, 8 for validation, digest " in err
    assert "and is now '101 pairs, 8 for validation, digest " in err


def test_pairs_are_held_out_where_there_is_no_validation(
    untrained_copies, few, tmp_path, capsys
):
    files = {"source": few / "train.en", "target": few / "train.fr"}
    assert main(small(None, tmp_path / "run", pair=None, epochs=1, **files)) == 0
    expected = "9 pairs of sentences for training; 1 pair for val"
    assert expected in capsys.readouterr().out
