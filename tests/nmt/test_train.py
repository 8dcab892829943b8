import dataclasses
import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest
from combinations import quick_first
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.training import runner
from keras_attention_apps.common.training.callbacks import (
    SaveEveryEpoch,
    ValidateDecoded,
)
from keras_attention_apps.nmt.config import TrainConfig
from keras_attention_apps.nmt.data.text import Subwords
from keras_attention_apps.nmt.inference import Translator
from keras_attention_apps.nmt.main import main
from keras_attention_apps.nmt.network.recurrent import BahdanauNetwork
from keras_attention_apps.nmt.training import train as training
from keras_attention_apps.nmt.translations import Translation

from .conftest import untrained, write_links


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "run"
    assert main(command(corpus, output)) == 0
    return output


@pytest.fixture
def copied(monkeypatch):
    """Let the translation of a text be the text."""

    def translate(self, texts, **options):
        nothing = np.zeros((0, 0)), np.zeros(0)
        return [Translation(text, [], [], 0.0, 0.0, *nothing) for text in texts]

    monkeypatch.setattr(Translator, "translate", translate)


@pytest.fixture
def untrained_copies(without_steps, copied):
    """Train without steps, and validate without a search."""


@pytest.fixture
def begin(monkeypatch):
    """A function that begins a training, and interrupts it before its first step."""

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    def begin(arguments):
        with monkeypatch.context() as patch:
            patch.setattr(keras.Model, "fit", interrupt)
            assert main(arguments) == 130

    return begin


def command(corpus, output, **changes):
    options = {
        "data": corpus,
        "pair": "en-fr",
        "output": output,
        "vocabulary-size": 340,
        "batch-tokens": 300,
        "min-steps": 1,
        "epochs": 3,
        "average": 2,
        "learning-rate": 1e-2,
        "warm-up": 3,
        "ema-momentum": 0.5,
        "model.embedding-units": 12,
        "model.units": 14,
        "model.encoder-units": 7,
        "model.attention-units": 5,
        "model.encoder-layers": 1,
        "model.decoder-layers": 1,
        "model.max-length": 20,
        **changes,
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ["train", *map(str, flags)]


def small(few, output, **changes):
    """Return the command of a training of short sentences, two steps an epoch."""
    sizes = {"vocabulary-size": 320, "model.max-length": 8, "batch-tokens": 2000}
    return command(few, output, **{**sizes, "epochs": 2, **changes})


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def history(folder):
    text = (folder / "checkpoints" / "progress.json").read_text()
    return json.loads(text)["history"]


def test_the_best_model_is_a_folder_that_translates(trained):
    translator = Translator.from_preset(trained / "model")

    assert translator.config.units == 14
    assert translator.translate("the red dog sees a cat").source_words[1] == "red"


def test_the_training_is_recorded_with_the_model(trained):
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["training"]["learning_rate"] == 1e-2
    assert config["training"]["data"] == "corpus0"
    assert config["model"]["encoder_layers"] == 1
    assert config["model"]["length_ratio"] > 0

    progress = json.loads((trained / "checkpoints" / "progress.json").read_text())
    assert progress["phase"] == 3
    # Of three epochs, and of their average.
    assert len(progress["history"]) == 4
    assert {"loss", "bleu", "chrf-lc"} <= set(progress["history"][0])


def test_it_learns(trained):
    first, _, third, _ = history(trained)

    assert third["loss"] < first["loss"] - 0.5


def test_the_report_shows_translations_and_alignments(trained, corpus):
    text = (trained / "report.html").read_text(encoding="utf-8")

    *_, best = sorted(epoch["bleu"] for epoch in history(trained))
    assert f"<b>BLEU {best:.1f}</b>" in text
    assert "Teacher forcing, epochs: 3" in text and "Average of 2 epochs" in text
    # Six of eight sentences with their references.
    for name in ("val.en", "val.fr"):
        assert sum(f">{line}<" in text for line in lines(corpus / name)) == 6
    # Two translations at least: of the first and of the best epoch.
    assert text.count('class="ka-heat"') >= 12
    assert "model.units" in text


def test_warm_up_and_average_are_short_where_the_training_is(
    corpus, tmp_path, monkeypatch, begin
):
    given, optimizer = {}, runner.AdamW

    def record(schedule, **options):
        given.update(options, schedule=schedule)
        return optimizer(schedule, **options)

    monkeypatch.setattr(runner, "AdamW", record)
    arguments = command(
        corpus, tmp_path, **{"warm-up": 500, "epochs": 1, "batch-tokens": 60}
    )
    place = arguments.index("--ema-momentum")
    del arguments[place : place + 2]
    begin(arguments)

    steps = given["schedule"].steps
    assert 10 < steps < 500
    assert given["schedule"].warm_up == steps // 10
    assert given["ema_momentum"] == 1 - 1 / (2 * steps)


def test_a_finished_training_has_nothing_left_to_do(trained, corpus, capsys):
    before = (trained / "model" / "model.weights.h5").stat().st_mtime_ns
    assert main(command(corpus, trained)) == 0
    assert (trained / "model" / "model.weights.h5").stat().st_mtime_ns == before


def test_a_finished_training_misses_its_model(trained, corpus, tmp_path, capsys):
    moved = tmp_path / "moved"
    shutil.copytree(trained, moved)
    (moved / "model").rename(tmp_path / "elsewhere")
    assert main(command(corpus, moved)) == 2

    out, err = capsys.readouterr()
    assert "The best model is in" not in out
    assert len(err.splitlines()) == 1 and f"no longer in {moved / 'model'}" in err


def test_another_configuration_does_not_continue(trained, corpus, capsys):
    assert main(command(corpus, trained, epochs=4)) == 2
    assert "another value of epochs: 3, and not 4" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_after_an_interruption_it_continues_as_if_nothing_happened(
    copied, eager, few, tmp_path, monkeypatch
):
    save = SaveEveryEpoch.on_epoch_end

    def interrupt(self, *args, **kwargs):
        save(self, *args, **kwargs)
        raise KeyboardInterrupt

    output, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    # The rate of scheduled sampling depends on the number of steps.
    changes = {"scheduled-sampling": 1, "sampling-schedule": "linear"}
    assert main(small(few, undisturbed, **changes)) == 0
    with monkeypatch.context() as patch:
        patch.setattr(SaveEveryEpoch, "on_epoch_end", interrupt)
        assert main(small(few, output, **changes)) == 130
    # As if it had been killed while the model was replaced.
    (output / "model").rename(output / ".old-7-model")
    assert main(small(few, output, **changes)) == 0

    assert not list(output.glob(".*"))
    for ours, theirs in zip(history(output), history(undisturbed), strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
    ours, theirs = (Translator.from_preset(x / "model") for x in (output, undisturbed))
    for one, other in zip(
        ours.network.get_weights(), theirs.network.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.exhaustive
def test_self_critical_training_learns_and_resumes(
    corpus, tmp_path, monkeypatch, capsys, model_folder
):
    # Another training's, which are not to be averaged.
    for name in ("epoch-0001", "epoch-0002"):
        shutil.copytree(model_folder, tmp_path / "a" / "epochs" / name)
    save = SaveEveryEpoch.on_epoch_end

    def interrupt(self, *args, **kwargs):
        save(self, *args, **kwargs)
        raise KeyboardInterrupt

    # All sentences are searched equally far.
    changes = {"epochs": 0, "self-critical-epochs": 2, "model.max-length": 16}
    begun, whole = (command(corpus, tmp_path / x, **changes) for x in ("a", "b"))
    with monkeypatch.context() as patch:
        patch.setattr(SaveEveryEpoch, "on_epoch_end", interrupt)
        assert main(begun) == 130
    assert main(begun) == 0
    assert main(whole) == 0

    reported = capsys.readouterr().out
    assert reported.count("Self-critical training, epochs: 2\n") == 3
    ours, theirs = (history(tmp_path / x) for x in ("a", "b"))
    assert [sorted(figures) for figures in ours] == [
        ["bleu", "bleu-lc", "chrf", "chrf-lc", "loss", "reward"]
    ] * 2
    assert min(figures["reward"] for figures in ours) > 0
    for one, other in zip(ours, theirs, strict=True):
        # Where two subwords are equally probable, rounding decides.
        assert one == pytest.approx(other, rel=1e-2, abs=1e-3)
    config = json.loads((tmp_path / "a" / "model" / "config.json").read_text())
    assert config["training"]["self_critical_epochs"] == 2


def test_samples_alone_may_be_learned_from(few, tmp_path, monkeypatch):
    phases = []
    monkeypatch.setattr(
        training.SelfCriticalTranslations,
        "fit",
        lambda self, epochs, **_: phases.append(epochs),
    )
    # No model has been written.
    assert main(small(few, tmp_path, epochs=0, **{"self-critical-epochs": 3})) == 2
    assert phases == [3]


@pytest.mark.exhaustive
def test_the_self_critical_model_is_kept_if_better_than_the_average(
    untrained_copies, eager, few, tmp_path, monkeypatch
):
    # Of two epochs, their average, and a self-critical one.
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
    base = tmp_path / model_folder.name
    shutil.copytree(model_folder, base)
    options = {
        "data": few,
        "pair": "en-fr",
        "output": tmp_path / "run",
        "from-preset": base,
        "model.dropout": 0.0,
        "epochs": 1,
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    assert main(["train", *flags]) == 0

    start = Translator.from_preset(model_folder)
    adapted = Translator.from_preset(tmp_path / "run" / "model")
    assert start.config.dropout > 0
    assert adapted.config == dataclasses.replace(start.config, dropout=0.0)
    assert adapted.tokenizer.model == start.tokenizer.model
    for one, other in zip(
        adapted.network.get_weights(), start.network.get_weights(), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-3)
    reported = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert reported["training"]["from_preset"] == model_folder.name
    assert reported["training"]["vocabulary_size"] == len(start.tokenizer)
    # Another model took its place: its words are others.
    untrained(unspaced_subwords, "bahdanau", length_ratio=3.0).save(base)
    assert main(["train", *flags]) == 2
    assert (
        "another value of from_preset's subwords: 'digest " in capsys.readouterr().err
    )


def test_a_model_to_start_from_keeps_its_sizes(corpus, model_folder, tmp_path, capsys):
    def train(*flags):
        data = [f"--data={corpus}", "--pair=en-fr", f"--output={tmp_path / 'run'}"]
        assert main(["train", *data, f"--from-preset={model_folder}", *flags]) == 2
        return capsys.readouterr().err

    said = train("--model.units", "17")
    assert "units=14, which cannot be changed. Received: 17" in said
    assert "which has its own vocabulary. Received: 400 and" in train(
        "--vocabulary-size=400"
    )
    assert "at least one epoch in one of the phases. Received: 0" in train(
        "--epochs", "0"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_a_loss_that_is_no_number_ends_the_training(
    copied, eager, few, tmp_path, capsys, monkeypatch
):
    compute = BahdanauNetwork.compute_loss

    def fail_later(self, *args, **kwargs):
        # In the second epoch: each has two steps.
        is_early = keras.ops.cast(self.optimizer.iterations < 2, "float32")
        return compute(self, *args, **kwargs) + 0.0 / is_early

    monkeypatch.setattr(BahdanauNetwork, "compute_loss", fail_later)
    assert main(small(few, tmp_path)) == 2

    err = capsys.readouterr().err
    assert "the loss of step 1 of epoch 2 is nan" in err and "learning rate" in err
    assert len(history(tmp_path)) == 1
    weights = Translator.from_preset(tmp_path / "model").network.get_weights()
    assert all(np.isfinite(x).all() for x in weights)


def test_an_invalid_preset_is_refused_before_the_training(corpus, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.tex").touch()
    assert main(command(corpus, tmp_path)) == 2

    assert "Received a folder with other contents" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_output_that_is_a_model_stays_as_it_is(model_folder, tmp_path, capsys):
    output = tmp_path / "model"
    shutil.copytree(model_folder, output)
    before = contents(output)
    assert main(command("nowhere", output)) == 2

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "Received the folder of a model: " in err
    assert contents(output) == before


def test_missing_tensorboard_is_an_error_before_reading(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main([*command("nowhere", tmp_path), "--tensorboard"]) == 2

    assert "pip install tensorboard" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_training_that_fails_at_once_deletes_nothing(
    corpus, model_folder, tmp_path, capsys
):
    shutil.copytree(model_folder, tmp_path / "epochs" / "epoch-0001")
    (tmp_path / "subwords.model").write_bytes(b"mine")
    before = contents(tmp_path)
    assert main(command(corpus, tmp_path, **{"vocabulary-size": 10})) == 2

    assert "vocabulary_size must be at least" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("attention", quick_first(["self-attention", "luong", "none"]))
def test_every_network_trains(attention, copied, eager, few, tmp_path):
    output = tmp_path / "run"
    changes = {"model.attention": attention, "epochs": 1, "ema-momentum": 0}
    changes["precision"] = "mixed_bfloat16"
    if attention != "none":
        changes["guide"] = write_links(few, tmp_path / "guide", "train")
    if attention != "self-attention":
        changes["scheduled-sampling"] = 0.5
    assert main(small(few, output, **changes)) == 0

    assert keras.config.dtype_policy().name == "float32"
    network = Translator.from_preset(output / "model").network
    assert {variable.dtype for variable in network.trainable_weights} == {"float32"}
    assert np.isfinite(history(output)[0]["loss"])


@pytest.mark.exhaustive
def test_a_location_has_room_for_padding_and_dropout(eager, few, tmp_path):
    changes = {"model.attention": "luong", "model.score": "location", "epochs": 1}
    changes |= {"model.max-length": 6, "subword-dropout": 0.5}
    assert main(small(few, tmp_path, **changes)) == 0

    translator = Translator.from_preset(tmp_path / "model")
    assert translator.translate("the red dog " * 99).cut


def test_models_of_another_training_are_not_used(
    untrained_copies, few, model_folder, tmp_path
):
    output = tmp_path / "run"
    names = ["epoch-0001", "epoch-0002", ".part-7-epoch-0003", ".old-7-epoch-0003"]
    for name in (*names, "epoch-of-mine", ".part-7-mine"):
        shutil.copytree(model_folder, output / "epochs" / name)
    (output / "epochs" / "epoch-0004").mkdir()
    (output / "epochs" / "epoch-0004" / "config.json").write_text("mine")
    (output / "subwords.model").write_bytes(Subwords.train(["other words"], 300).model)
    assert main(small(few, output, epochs=1, average=0)) == 0

    translator = Translator.from_preset(output / "model")
    assert "\u2581the" in translator.tokenizer.pieces
    left = {folder.name for folder in (output / "epochs").iterdir()}
    assert left == {"epoch-0004", "epoch-of-mine", ".part-7-mine"}


def test_only_its_own_epochs_are_averaged_and_removed(
    untrained_copies, few, tmp_path, model_folder
):
    shutil.copytree(model_folder, tmp_path / "epochs" / "epoch-of-mine")
    before = contents(tmp_path / "epochs")
    assert main(small(few, tmp_path)) == 0

    assert contents(tmp_path / "epochs") == before


def test_the_links_of_a_guide_belong_to_the_training(few, tmp_path, capsys, begin):
    guide = write_links(few, tmp_path / "guide", "train")
    run = small(few, tmp_path / "run", guide=guide)
    begin(run)
    assert "2 for validation; 50 links; " in capsys.readouterr().out
    guide.write_text("0-0\n" * 10)
    assert main(run) == 2
    assert "another value of links of the guide: '50 links" in capsys.readouterr().err

    assert main([*run, "--model.attention", "none"]) == 2
    assert "guide needs a model with attention" in capsys.readouterr().err


def test_scheduled_sampling_needs_a_recurrent_decoder(few, tmp_path, capsys):
    changes = {"scheduled-sampling": 0.5, "model.attention": "self-attention"}
    assert main(small(few, tmp_path / "run", **changes)) == 2
    assert "reads one word after the other" in capsys.readouterr().err
    run = small(few, tmp_path / "run", **{"scheduled-sampling": 0.5})
    assert main([*run, "--copy"]) == 2
    assert "needs a model without copy" in capsys.readouterr().err


def test_word_vectors_are_the_first_embeddings(few, tmp_path, capsys, begin):
    path = tmp_path / "vectors.txt"
    path.write_text("".join(f"{word} {'1 ' * 12}\n" for word in ("dog", "dog", "cat")))
    begin(small(few, tmp_path / "run", embeddings=path))
    reported = capsys.readouterr().out
    assert re.search(r"2 of 3\d\d subwords \(0.\d%\) have a vector in vec", reported)
    assert "1 lines of vectors.txt repeat a word" in reported

    wrong = {"embeddings": path, "model.embedding-units": 10}
    assert main(small(few, tmp_path / "other", **wrong)) == 2
    assert re.search(
        "vectors.txt: Line 1 must be a word and 10 numbers, .* Received: 12 numbers; "
        "--model.embedding-units is 10",
        capsys.readouterr().err,
    )
    assert main(small(few, tmp_path / "run")) == 2
    assert "another value of embeddings: 'vectors.txt'" in capsys.readouterr().err
    with pytest.raises(UserError, match="embeddings must not be set with from_preset"):
        training.train(TrainConfig(output=tmp_path, embeddings=path, from_preset="x"))


def test_one_pair_is_trained_on(copied, eager, tmp_path):
    files = {}
    for name, text in (("source", "the red dog\n"), ("target", "le chien rouge\n")):
        (tmp_path / name).write_text(text)
        files |= {name: tmp_path / name, f"valid-{name}": tmp_path / name}
    flags = small(tmp_path, tmp_path / "run", **files, **{"model.max-length": 12})
    for name in ("--data", "--pair"):
        place = flags.index(name)
        del flags[place : place + 2]
    assert main([*flags, "--subword-dropout", "0.5"]) == 0

    *epochs, _ = history(tmp_path / "run")
    assert len(epochs) == 2


def test_short_text_is_validated_by_chrf(corpus, tmp_path, capsys, monkeypatch, begin):
    for path in corpus.iterdir():
        short = [" ".join(line.split()[:3]) for line in lines(path)]
        (tmp_path / path.name).write_text("\n".join(short), encoding="utf-8")
    ranks = []

    def record(score, rank, keep, **options):
        ranks.append(rank({"bleu": 1, "chrf": 2}))
        return ValidateDecoded(score, rank, keep, **options)

    monkeypatch.setattr(runner, "ValidateDecoded", record)
    begin(command(tmp_path, tmp_path / "run"))

    assert ranks == [(2, 1)]
    assert "the best epoch is chosen by chrf" in capsys.readouterr().out


def test_pairs_that_are_left_out_are_counted(few, tmp_path, capsys, begin):
    for name in ("train", "val"):
        source, target = lines(few / f"{name}.en"), lines(few / f"{name}.fr")
        source += ["the dog " * 9, ""]
        target += ["le chien " * 9, "le chien"]
        (tmp_path / f"{name}.en").write_text("\n".join(source) + "\n")
        (tmp_path / f"{name}.fr").write_text("\n".join(target) + "\n")
    begin(small(tmp_path, tmp_path / "run"))

    out = capsys.readouterr().out
    assert "; 1 left out with an empty side; 1 left out with more than 8 sub" in out
    changes = {"model.max-length": 2}
    assert main(small(few, tmp_path / "other", **changes)) == 2
    assert "no pair has at most max_length=2" in capsys.readouterr().err


def test_of_equals_the_average_stays(untrained_copies, few, tmp_path, monkeypatch):
    scores = {"bleu": 0.0, "chrf": 0.0}
    monkeypatch.setattr(training, "translation_scores", lambda *_: (scores, {}))
    assert main(small(few, tmp_path)) == 0

    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["average_of"] == ["epoch-0001", "epoch-0002"]


@pytest.mark.parametrize("average_of, first", [("best", 1), ("last", 2)])
def test_where_bleu_is_zero_chrf_decides(
    average_of, first, untrained_copies, few, tmp_path, monkeypatch
):
    chrf = iter([5.0, 9.0, 3.0, 8.0])
    monkeypatch.setattr(
        training,
        "translation_scores",
        lambda *_: ({"bleu": 0.0, "chrf": next(chrf)}, {}),
    )
    averaged, average = [], training.average_models

    def record(folders, load):
        averaged.extend(folder.name for folder in folders)
        return average(folders, load)

    monkeypatch.setattr(training, "average_models", record)
    changes = {"average-of": average_of, "epochs": 3}
    assert main(small(few, tmp_path, **changes)) == 0

    assert averaged == [f"epoch-000{epoch}" for epoch in (first, first + 1)]
    # The second epoch was better than the average.
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert "average_of" not in config


def test_epochs_stay_until_their_average_is_recorded(
    untrained_copies, few, tmp_path, capsys, monkeypatch
):
    def die(folder):
        epochs = list(folder.glob("epoch-*"))
        if epochs:
            shutil.rmtree(epochs[0])
            raise KeyboardInterrupt

    begun = small(few, tmp_path / "run", average=2)
    with monkeypatch.context() as patch:
        patch.setattr(training, "_remove_epochs", die)
        assert main(begun) == 130
    assert "The average of 2 epochs" in capsys.readouterr().out

    assert main(begun) == 0
    assert "The average of" not in capsys.readouterr().out
    assert not (tmp_path / "run" / "epochs").exists()


def test_another_text_does_not_continue(corpus, tmp_path, capsys, begin):
    data, output = tmp_path / "data", tmp_path / "run"
    shutil.copytree(corpus, data)
    begin(command(data, output))
    with open(data / "train.en", "a") as source, open(data / "train.fr", "a") as target:
        source.write("the dog\n")
        target.write("le chien\n")
    assert main(command(data, output)) == 2

    err = capsys.readouterr().err
    assert "another value of text: '100 pairs, 8 for validation, digest " in err
    assert "and not '101 pairs, 8 for validation, digest " in err


def test_pairs_are_held_out_where_there_is_no_validation(
    untrained_copies, few, tmp_path, capsys
):
    changes = {"source": few / "train.en", "target": few / "train.fr"}
    flags = small(few, tmp_path / "run", epochs=1, **changes)
    for name in ("--data", "--pair"):
        place = flags.index(name)
        del flags[place : place + 2]
    assert main(flags) == 0

    assert "9 pairs of sentences for training; 1 for val" in capsys.readouterr().out
