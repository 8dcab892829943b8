import csv
import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest

from attention_testing.arrays import assert_close
from attention_testing.combinations import quick_first
from attention_testing.nmt.trainings import command, history, lines, small
from attention_testing.programs import training as arguments_of
from keras_attention_apps.common import distribution
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.training import train as training

from .conftest import untrained


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "run"
    assert main(command(corpus, output)) == 0
    return output


def test_the_best_model_is_a_folder_that_translates(trained):
    translator = Translator.from_preset(trained / "model")
    assert translator.translate("the red dog sees a cat").source_words[1] == "red"


def test_the_training_is_recorded_with_the_model(trained):
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["training"]["learning_rate"] == 1e-2
    assert config["training"]["data"] == ["corpus0"]
    assert config["model"]["encoder_layers"] == 1 and config["model"]["units"] == 14
    assert config["model"]["length_ratio"] > 0

    progress = json.loads((trained / "checkpoints" / "progress.json").read_text())
    assert progress["phase"] == 3
    # The history has three epochs, and their average.
    first, _, third, _ = progress["history"]
    assert {"loss", "bleu", "chrf-lc"} <= set(first)
    assert third["loss"] < first["loss"] - 0.5


def test_the_report_shows_translations_and_alignments(trained, corpus):
    text = (trained / "report.html").read_text(encoding="utf-8")

    *_, best = sorted(epoch["bleu"] for epoch in history(trained))
    assert f"<b>BLEU {best:.1f}</b>" in text
    assert "Teacher forcing, epochs: 3" in text and "Average of 2 epochs" in text
    # Six of eight sentences with their references.
    for name in ("val.en", "val.fr"):
        assert sum(f">{line}<" in text for line in lines(corpus / name)) == 6
    # At least two translations: those of the first and of the best epoch.
    assert text.count('class="ka-heat"') >= 12
    assert "model.units" in text


def test_the_log_has_every_step_and_every_epoch(trained):
    steps, epochs = (
        [*csv.DictReader((trained / name).read_text().splitlines())]
        for name in ("steps.csv", "epochs.csv")
    )
    per_epoch, rest = divmod(len(steps), 3)
    assert not rest and [int(x["step"]) for x in steps] == [*range(1, len(steps) + 1)]
    *trained_epochs, average = epochs
    for number, row in enumerate(trained_epochs, 1):
        metrics = history(trained)[number - 1]
        assert row["phase"] == "Teacher forcing" and row["epoch"] == str(number)
        assert int(row["step"]) == number * per_epoch
        assert float(row["bleu"]) == pytest.approx(metrics["bleu"], rel=1e-4)
        # The loss of an epoch is the mean of its steps, weighted by their tokens.
        losses = [float(x["loss"]) for x in steps if x["epoch"] == str(number)]
        assert np.mean(losses) == pytest.approx(metrics["loss"], rel=0.1)
        assert min(losses) < metrics["loss"] < max(losses)
    assert average["phase"] == "Average of 2 epochs"
    assert average["epoch"] == average["loss"] == "" and float(average["chrf"]) >= 0
    rates = [float(x["learning_rate"]) for x in steps]
    assert 0 <= rates[-1] < max(rates) <= 1e-2


def test_warm_up_and_average_are_short_where_the_training_is(
    corpus, tmp_path, monkeypatch, begin
):
    arguments, optimizer = {}, distribution.AdamW

    def record(schedule, **options):
        arguments.update(options, schedule=schedule)
        return optimizer(schedule, **options)

    monkeypatch.setattr(distribution, "AdamW", record)
    changes = {"warm-up": 500, "batch-tokens": 60, "ema-momentum": None}
    begin(command(corpus, tmp_path, epochs=1, **changes))

    schedule = arguments["schedule"]
    steps = schedule.warmup_steps + schedule.decay_steps
    assert 10 < steps < 500
    assert schedule.warmup_steps == steps // 10
    assert arguments["ema_momentum"] == 1 - 1 / (2 * steps)


def test_a_finished_training_has_nothing_left_to_do(trained, corpus, tmp_path, capsys):
    weights = trained / "model" / "model.weights.npz"
    before = weights.stat().st_mtime_ns
    assert main(command(corpus, trained)) == 0
    assert weights.stat().st_mtime_ns == before
    assert main(command(corpus, trained, epochs=4)) == 2
    out, err = capsys.readouterr()
    assert f"The best model is in {trained / 'model'}" in out
    assert "another training: epochs was 3, and is now 4" in err

    moved = shutil.copytree(trained, tmp_path / "moved")
    shutil.rmtree(moved / "model")
    assert main(command(corpus, moved)) == 2
    out, err = capsys.readouterr()
    assert "The best model is in" not in out
    assert len(err.splitlines()) == 1 and f"no longer in {moved / 'model'}" in err


@pytest.mark.parametrize("name", ["ema-momentum", "beta-2"])
def test_an_average_that_never_changes_is_refused(name, few, tmp_path, capsys):
    assert main(small(few, tmp_path, **{name: 1})) == 2
    expected = f"--{name} must be between 0 and 0.99999. Received: 1.0"
    assert expected in capsys.readouterr().err


@pytest.mark.exhaustive
def test_a_resumed_training_equals_an_uninterrupted_one(
    echoed, eager, few, tmp_path, interrupting
):
    output, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    assert main(small(few, undisturbed)) == 0
    with interrupting():
        assert main(small(few, output)) == 130
    # The state after a kill while the model was replaced.
    (output / "model").rename(output / ".old-7-model")
    assert main(small(few, output)) == 0

    assert not list(output.glob(".*"))
    for ours, theirs in zip(history(output), history(undisturbed), strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    ours, theirs = (Translator.from_preset(x / "model") for x in (output, undisturbed))
    assert_close(ours.network.get_weights(), theirs.network.get_weights(), 1e-3)


@pytest.mark.exhaustive
def test_self_critical_training_learns_and_resumes(
    corpus, tmp_path, interrupting, capsys, model_folder
):
    # Another training's, which are not to be averaged.
    for name in ("epoch-0001", "epoch-0002"):
        shutil.copytree(model_folder, tmp_path / "a" / "epochs" / name)
    # The searches of all sentences have the same number of steps.
    changes = {"epochs": 0, "self-critical-epochs": 2, "model.max-length": 16}
    begun, whole = (command(corpus, tmp_path / x, **changes) for x in ("a", "b"))
    with interrupting():
        assert main(begun) == 130
    assert main(begun) == 0
    assert main(whole) == 0

    assert capsys.readouterr().out.count("Self-critical training, epochs: 2\n") == 3
    ours, theirs = (history(tmp_path / x) for x in ("a", "b"))
    assert [sorted(figures) for figures in ours] == [
        ["bleu", "bleu-lc", "chrf", "chrf-lc", "loss", "reward"]
    ] * 2
    assert min(figures["reward"] for figures in ours) > 0
    for row, expected in zip(ours, theirs, strict=True):
        # Among equally probable subwords, the best one depends on rounding.
        assert row == pytest.approx(expected, rel=1e-2, abs=1e-3)
    config = json.loads((tmp_path / "a" / "model" / "config.json").read_text())
    assert config["training"]["self_critical_epochs"] == 2


def test_self_critical_training_needs_no_other_phase(few, tmp_path, monkeypatch):
    phases = []

    def record(self, epochs, **_):
        phases.append(epochs)

    monkeypatch.setattr(training.SelfCriticalTranslations, "fit", record)
    # No model has been written.
    assert main(small(few, tmp_path, epochs=0, **{"self-critical-epochs": 3})) == 2
    assert phases == [3]


@pytest.mark.exhaustive
def test_the_self_critical_model_is_kept_if_better_than_the_average(
    untrained_copies, eager, few, tmp_path, monkeypatch
):
    # The history has two epochs, their average, and a self-critical epoch.
    scores = iter([1.0, 2.0, 4.0, 3.0])

    def reported(*_):
        score = next(scores)
        return {"bleu": score, "chrf": score}, {}

    monkeypatch.setattr(training, "translation_scores", reported)
    assert main(small(few, tmp_path, **{"self-critical-epochs": 1})) == 0

    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["average_of"] == ["epoch-0001", "epoch-0002"]


@pytest.mark.exhaustive
def test_a_training_starts_from_another_model(
    untrained_copies, few, model_folder, unspaced_subwords, tmp_path, capsys
):
    base = shutil.copytree(model_folder, tmp_path / model_folder.name)
    options = {"data": few, "output": tmp_path / "run", "from-preset": base}
    changes = {"pair": "en-fr", "model.dropout": 0.0, "epochs": 1}
    arguments = arguments_of(options, **changes)
    assert main(arguments) == 0

    start = Translator.from_preset(model_folder)
    adapted = Translator.from_preset(tmp_path / "run" / "model")
    assert start.config.dropout > 0
    assert adapted.config == dataclasses.replace(start.config, dropout=0.0)
    # The symbols, and their embeddings, are new.
    assert adapted.tokenizer.content == start.tokenizer.with_symbols().content
    expected = start.network.get_weights()
    weights = zip(adapted.network.get_weights(), expected, strict=True)
    assert_close([x[: len(y)] for x, y in weights], expected, 1e-3)
    reported = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert reported["training"]["from_preset"] == model_folder.name
    assert reported["training"]["vocabulary_size"] == len(adapted.tokenizer)
    # Another model, with other words, is now in its place.
    untrained(unspaced_subwords, "bahdanau", length_ratio=3.0).save(base)
    # The defaults for few pairs are printed before.
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "another training: from_preset's subwords was 'digest " in error


def test_the_last_epoch_is_saved_where_the_start_is_best(
    eager, few, model_folder, tmp_path, monkeypatch
):
    scores = iter([2.0, 1.0])
    monkeypatch.setattr(
        training,
        "translation_scores",
        lambda *_: ({"bleu": (score := next(scores)), "chrf": score}, {}),
    )
    output = tmp_path / "run"
    options = {"data": few, "output": output, "from-preset": model_folder}
    changes = {"pair": "en-fr", "epochs": 1, "learning-rate": 0.1}
    assert main(arguments_of(options, **changes)) == 0

    start, best, last = (
        Translator.from_preset(folder).network.get_weights()
        for folder in (model_folder, output / "model", output / "last")
    )
    # The embeddings of the symbols are new.
    assert_close([x[: len(y)] for x, y in zip(best, start, strict=True)], start, 1e-3)
    largest = max(np.abs(x - y).max() for x, y in zip(last, best, strict=True))
    assert largest > 1e-2


def test_a_preset_learns_gently_from_few_pairs(
    untrained_copies, corpus, model_folder, tmp_path, capsys
):
    data = [f"--data={corpus}", "--pair=en-fr", f"--output={tmp_path / 'run'}"]
    assert main(["train", *data, f"--from-preset={model_folder}", "--min-steps=1"]) == 0

    out = capsys.readouterr().out
    assert "pairs are few for a preset. epochs 4, learning_rate 0.0003\n" in out
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["training"]["epochs"] == 4
    assert config["training"]["learning_rate"] == 3e-4
    assert config["training"]["warm_up"] == 800


def test_a_model_to_start_from_keeps_its_sizes(corpus, model_folder, tmp_path, capsys):
    def train(*flags):
        data = [f"--data={corpus}", "--pair=en-fr", f"--output={tmp_path / 'run'}"]
        assert main(["train", *data, f"--from-preset={model_folder}", *flags]) == 2
        return capsys.readouterr().err

    message = train("--model.units", "17")
    assert "the weights fix units=14. Received: units=17" in message
    message = train("--vocabulary-size", "400")
    assert "which has its own vocabulary. Received: 400 and" in message
    message = train("--epochs", "0")
    assert "at least one epoch in one of the phases. Received: 0" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("attention", quick_first(["self-attention", "luong", "none"]))
def test_every_network_trains(attention, echoed, eager, few, tmp_path):
    output = tmp_path / "run"
    changes = {"model.attention": attention, "epochs": 1, "ema-momentum": 0}
    changes["precision"] = "mixed_bfloat16"
    assert main(small(few, output, **changes)) == 0

    assert keras.config.dtype_policy().name == "float32"
    network = Translator.from_preset(output / "model").network
    assert {variable.dtype for variable in network.trainable_weights} == {"float32"}
    assert np.isfinite(history(output)[0]["loss"])
