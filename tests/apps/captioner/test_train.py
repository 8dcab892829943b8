import dataclasses
import itertools
import json
import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from attention_testing.captioner.datasets import entries
from attention_testing.captioner.trainings import (
    ONE_PHASE,
    SHORT,
    SIZES,
    command,
    history_of,
)
from attention_testing.combinations import quick_first
from attention_testing.programs import training
from keras_attention_apps.captioner import captions
from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.training import train


@pytest.fixture(scope="module")
def trained(squares, tmp_path_factory, without_tracing):
    output = tmp_path_factory.mktemp("trained") / "run"
    with without_tracing():
        assert main(command(squares, output)) == 0
    return output


def test_the_best_model_is_a_folder_that_captions(eager, trained, squares):
    captioner = Captioner.from_preset(trained / "model")

    assert captioner.config.units == 13
    assert set(captioner.tokenizer.words[4:]) >= {"square", "red"}
    captioner.caption(squares / "Images" / "red-0.png")


def test_the_training_is_recorded_with_the_model(trained):
    config = json.loads((trained / "model" / "config.json").read_text())
    assert config["training"]["epochs"] == 2
    assert config["training"]["backbone_weights"] == "none"
    # The best epoch has calibrated the model, by the beam width of the validation.
    # The training captions are such as "a red square".
    assert config["model"]["repeatable_words"] == []
    calibration = config["calibration"]
    assert calibration["count"] == 4 and calibration["threshold"] is None
    assert calibration["quantiles"] == sorted(calibration["quantiles"])

    progress = json.loads((trained / "checkpoints" / "progress.json").read_text())
    assert progress["phase"] == 3
    assert len(progress["history"]) == 4
    assert {"loss", "bleu-4", "cider"} <= progress["history"][0].keys()


def test_the_report_shows_captions_and_maps(trained, squares):
    text = (trained / "report.html").read_text(encoding="utf-8")

    for phase in ("Training of the decoder", "Fine-tuning", "Self-critical training"):
        assert f"{phase}, epochs: " in text
    # All four validation images have captions after the first epoch and each phase.
    assert text.count('<article class="sample"') == 4
    assert text.count("--photo:url(data:image/jpeg;base64,") == 4
    for colour in ("red", "green", "blue", "white"):
        assert f'<li dir="auto">the square is {colour}</li>' in text
    stages = text.count('<ol class="words">')
    assert stages in (12, 16)
    captions = re.findall(r'<p class="text" dir="auto">(.*)</p>', text)
    captions = [caption.removesuffix(" (unsure)") for caption in captions]
    assert text.count("--map:url(") == sum(len(x.split()) for x in captions) >= stages
    assert "soft attention" in text and "model.units" in text


def test_a_finished_training_has_nothing_left_to_do(trained, squares):
    weights = trained / "model" / "model.weights.npz"
    before = weights.stat().st_mtime_ns
    assert main(command(squares, trained)) == 0
    assert weights.stat().st_mtime_ns == before


LARGE, HEADS = {"model.backbone": "MobileNetV2"}, {"model.decoder": "transformer"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.backbone": "MobilNetV2"}, "Did you mean 'MobileNetV2'?"),
        ({"model.backbone": "MobileNetV9"}, "Received: 'MobileNetV9'"),
        ({**LARGE, "model.image-size": 8}, "cannot be built for images of 8 x 8"),
        ({"backbone-weights": "imagenet"}, "SmallCNN comes without weights"),
        ({"backbone-weights": "missing.weights.h5"}, "missing.weights.h5"),
        ({"backbone-weights": "weights.txt"}, "Received: 'weights.txt'"),
        ({**HEADS, "model.attention": "hard"}, "must be soft with the transformer"),
        ({**HEADS, "model.heads": 4}, "multiple of heads. Received: 7 and 4"),
        ({"supervision": 0.5}, "supervision needs "),
        ({"min-count": 25}, "so the vocabulary would be empty. Choose a smaller --m"),
        (
            {"ema-momentum": 1},
            "--ema-momentum must be between 0 and 0.99999. Rec",
        ),
        ({"captions-per-image": 1}, "must be at least 2 in self-critical training"),
        ({**ONE_PHASE, "epochs": 0}, "expected at least one epoch in one of the phase"),
    ],
)
def test_options_that_do_not_fit_are_errors(
    changes, message, squares, tmp_path, capsys
):
    assert main(command(squares, tmp_path / "run", **changes)) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_little_data_is_reported_and_other_data_does_not_resume(
    eager, without_steps, squares, tmp_path, capsys
):
    data, output = shutil.copytree(squares, tmp_path / "squares"), tmp_path / "run"
    (data / "devImages.txt").write_text("red-32.png")
    captions = data / "captions.txt"
    text = captions.read_text()
    captions.write_text(text.replace("the square is red", "red square " * 4))
    run = command(data, output, epochs=1, **ONE_PHASE)
    assert main(run) == 0

    out = capsys.readouterr().out
    assert "3 captions cut to 4 words; --model.max-length all" in out
    assert "the best epoch is chosen by ROUGE-L" in out
    captions.write_text(text)
    assert main(run) == 2
    err = capsys.readouterr().err
    assert "another training: text was '12 and 1 images, digest" in err


def test_few_captions_are_learned_word_by_word(
    eager, without_steps, squares, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    options = {"data": squares, "output": tmp_path / "run", "epochs": 1, **ONE_PHASE}
    options |= {"model.backbone": "SmallCNN", "backbone-weights": "none"}
    options |= {"model.image-size": 32, "model.max-length": 5}
    assert main(training(options)) == 0

    assert "unknown" not in capsys.readouterr().out
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["training"]["min_count"] == 1
    assert config["training"]["batch_images"] == 1
    assert list((tmp_path / "keras" / "captioner").iterdir())


def json_lines(squares, folder, **fields):
    """Copy four squares in Hugging Face's layout: two are for training, one for dev."""
    folder.mkdir(exist_ok=True)
    rows = []
    for path in sorted((squares / "Images").glob("*-8.png")):
        shutil.copy(path, folder / f"other-{path.name}")
        caption = f"other {path.stem.partition('-')[0]} square"
        rows.append({"file_name": f"other-{path.name}", "caption": caption, **fields})
    (folder / "metadata.jsonl").write_text(entries(*rows))
    return folder


@pytest.mark.exhaustive
def test_boxes_are_those_of_single_words_and_of_one_training(
    squares, tmp_path, capsys, monkeypatch
):
    def interrupt(self, batches, **options):
        reported.append(batches.boxes)
        raise KeyboardInterrupt

    reported = []
    monkeypatch.setattr(keras.Model, "fit", interrupt)
    box, output = [0, 0, 0.5, 1], tmp_path / "run"
    names = {"Square": box, "red square": box, "dog": box}
    data = json_lines(squares, tmp_path / "data", boxes=names)
    assert main(command(data, output, supervision=0.5)) == 130
    out = capsys.readouterr().out
    assert "1 of 3 box names are phrases, the first 'red square'" in out
    for boxes in reported[0]:
        assert list(boxes.values()) == [(tuple(box),)]

    json_lines(squares, data, boxes={"square": [0, 0, 1, 1]})
    assert main(command(data, output, supervision=0.5)) == 2
    assert "holds another training: boxes was " in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize("texts", quick_first([["a square"], ["a square", "a dog"]]))
def test_equal_captions_are_reported(
    texts, eager, without_steps, squares, tmp_path, capsys, monkeypatch
):
    reported = itertools.cycle(texts)
    monkeypatch.setattr(captions, "detokenize", lambda words: next(reported))
    run = command(squares, tmp_path / "run", SHORT, epochs=1, **ONE_PHASE)
    assert main(run) == 0

    out = capsys.readouterr().out
    alike = "All images have the same caption: 'a square'" in out
    assert alike == (len(texts) == 1)


@pytest.mark.exhaustive
def test_a_model_of_another_training_is_not_resumed(
    eager, without_steps, squares, tmp_path, model_folder
):
    shutil.copytree(model_folder, tmp_path / "run" / "model")
    changes = {"epochs": 0, "self-critical-epochs": 0}
    assert main(command(squares, tmp_path / "run", **changes)) == 0

    captioner = Captioner.from_preset(tmp_path / "run" / "model")
    assert captioner.config.image_size == SIZES["image-size"]


def test_a_training_that_was_moved_resumes(trained, squares, tmp_path, capsys):
    moved = shutil.copytree(trained, tmp_path / "moved")
    assert main(command(squares, moved, cache=tmp_path / "cache")) == 0

    assert main(command(squares, moved, {**SIZES, "units": 17})) == 2
    expected = "another training: model.units was 13, and is now 17."
    assert expected in capsys.readouterr().err
    shutil.rmtree(moved / "model")
    assert main(command(squares, moved, cache=tmp_path / "cache")) == 2
    out, err = capsys.readouterr()
    assert "The best model is in" not in out
    assert f"no longer in {moved / 'model'}" in err


def test_an_output_that_is_a_model_stays_as_it_is(model_folder, tmp_path, capsys):
    output = shutil.copytree(model_folder, tmp_path / "model")
    names = sorted(output.iterdir())
    assert main(command("nowhere", output)) == 2

    assert "Received the folder of a model: " in capsys.readouterr().err
    assert sorted(output.iterdir()) == names


@pytest.mark.exhaustive
def test_half_precision_trains_float32_weights(eager, squares, tmp_path):
    output = tmp_path / "run"
    changes = {**ONE_PHASE, "precision": "mixed_bfloat16", "batch-images": 12}

    assert main(command(squares, output, SHORT, epochs=1, **changes)) == 0

    assert keras.config.dtype_policy().name == "float32"
    network = Captioner.from_preset(output / "model").network
    assert {variable.dtype for variable in network.weights} == {"float32"}


def test_a_training_starts_from_another_model(eager, squares, model_folder, tmp_path):
    changes = {
        "batch-images": 12,
        "from-preset": model_folder,
        "attention": "hard",
        "model.image-size": 24,
        # A given option applies, even if it is the default of a training from scratch.
        "model.max-length": ModelConfig().max_length,
        "epochs": 0,
        # Self-critical training needs several captions, the other phases do not.
        "self-critical-epochs": 0,
        "captions-per-image": 1,
        "fine-tune-learning-rate": 1e-12,
        "weight-decay": 0,
    }
    # The sizes are those of the model.
    assert main(command(squares, tmp_path / "run", sizes={}, **changes)) == 0

    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "captioner with hard attention" in report and "--map:url(" in report
    start = Captioner.from_preset(model_folder)
    adapted = Captioner.from_preset(tmp_path / "run" / "model")
    assert start.config.max_length != ModelConfig().max_length
    assert adapted.config == dataclasses.replace(
        start.config,
        attention="hard",
        image_size=24,
        max_length=ModelConfig().max_length,
        repeatable_words=[],
    )
    known, words = start.tokenizer.words, adapted.tokenizer.words
    assert words[: len(known)] == known
    # The baseline of its loss is its own.
    ours = [x for x in adapted.network.weights if not x.path.endswith("baseline")]
    for variable, expected in zip(ours, start.network.get_weights(), strict=True):
        same = keras.ops.convert_to_numpy(variable)[tuple(map(slice, expected.shape))]
        np.testing.assert_allclose(same, expected, atol=1e-3)


@pytest.mark.exhaustive
def test_a_preset_learns_gently_from_few(
    eager, without_steps, squares, model_folder, tmp_path, capsys
):
    options = {"from-preset": model_folder, "cache": tmp_path, "patience": 9}
    changes = {"data": squares, "output": tmp_path / "run", "learning-rate": 1e-4}
    assert main(training(options, **changes)) == 0

    out = capsys.readouterr().out
    assert "training images are few for a preset. epochs 4, fine_tune_epochs 0, " in out
    saved = json.loads((tmp_path / "run/model/config.json").read_text())["training"]
    names = "epochs", "fine_tune_epochs", "self_critical_epochs", "batch_images"
    # A given option applies.
    assert [saved[x] for x in (*names, "learning_rate")] == [4, 0, 0, 16, 1e-4]


def test_a_model_to_start_from_keeps_its_sizes(squares, model_folder, tmp_path, capsys):
    changes = {"from-preset": model_folder, "model.units": 17}
    assert main(command(squares, tmp_path / "run", sizes={}, **changes)) == 2
    assert "the weights fix units=13. Received: units=17" in capsys.readouterr().err

    changes = {"from-preset": model_folder, "backbone-weights": "mine.weights.h5"}
    assert main(command(squares, tmp_path / "run", **changes)) == 2
    assert "which has its own. Received: 'mine.weig" in capsys.readouterr().err

    changes = {"from-preset": f"{model_folder}+{model_folder}"}
    assert main(command(squares, tmp_path / "run", sizes={}, **changes)) == 2
    assert "training needs a single captioner" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_several_data_sets_train_one_captioner(
    eager, squares, tmp_path, capsys, monkeypatch
):
    run = command(squares, tmp_path / "run", SHORT, epochs=1)
    index = run.index("--data")
    other = json_lines(squares, tmp_path / "other")
    # CIDEr is 0 for a single image, which is why ROUGE-L selects the best epoch.
    scores = {4: 10.0, 1: 20.0}
    monkeypatch.setattr(
        train, "caption_scores", lambda texts, _: {"rouge-l": scores[len(texts)]}
    )
    both = [*run[:index], "--data", str(other), *run[index:]]
    both += ["--data-weights", "2", "1"]
    assert main(both) == 0

    out = capsys.readouterr().out
    # Of four images, one is for validation and one for testing. The others occur twice.
    assert "other: 2 images with 2 captions, 1 image for validation, which " in out
    assert f"{squares.name}: 12 images with 24 captions, 4 images for valid" in out
    figures = f"other: rouge-l 20.0\n{squares.name}: rouge-l 10.0\nmean: rouge-l 15.0"
    # Each phase has one epoch, whose line has the loss alone.
    assert out.count(figures) == 3
    line = r"^3/3 - \d+s - .* - loss: [\d.]+ - words_loss: [\d.]+ - "
    assert len(re.findall(line, out, re.MULTILINE)) == 2
    last = history_of(tmp_path / "run")[2]
    actual = {x: y for x, y in last.items() if "rouge" in x}
    expected = {"rouge-l": 15, "rouge-l other": 20, f"rouge-l {squares.name}": 10}
    assert actual == expected and "reward" in last
    assert "ROUGE-L (other)" in (tmp_path / "run/report.html").read_text()
    captioner = Captioner.from_preset(tmp_path / "run/model")
    assert {"other", "square"} <= {*captioner.tokenizer.words}

    assert main([*both[:-1], "3"]) == 2
    expected = "another training: data_weights was [2.0, 1.0], and is now"
    assert expected in capsys.readouterr().err
    assert main([*run[:index], *run[index + 2 :]]) == 2
    assert "arguments are required: --data" in capsys.readouterr().err


@pytest.mark.parametrize("scores, best", [((5, 5, 4), 0), ((5, 4, 6), 2)])
def test_a_preset_is_epoch_0_and_kept_unless_an_epoch_exceeds_it(
    scores, best, eager, without_steps, squares, model_folder, tmp_path, monkeypatch
):
    def saved(captioner, folder, **metadata):
        if Path(folder).name == "model":
            saves.append(len(saves))
        save(captioner, folder, **metadata)

    figures, saves, save = iter(scores), [], Captioner.save
    monkeypatch.setattr(Captioner, "save", saved)
    monkeypatch.setattr(
        train, "caption_scores", lambda *texts: {"cider": next(figures)}
    )
    changes = {"from-preset": model_folder, **ONE_PHASE}
    run = command(squares, tmp_path / "run", {}, **changes)
    assert [main(run), main(run)] == [0, 0]

    assert len(saves) == (2 if best else 1)
    assert tuple(x["cider"] for x in history_of(tmp_path / "run")) == scores
    report = (tmp_path / "run/report.html").read_text(encoding="utf-8")
    names = ["Epoch 0: tiny", *(f"Training of the decoder, epoch {n}" for n in (1, 2))]
    assert f"the best model: {names[best]}" in report
    assert "4 images for validation, which is too few" in report
