"""Errors of the commands: one line each, with exit code 2."""

import keras
import pytest

from attention_testing.programs import check_flipped_bits, error_of, with_content
from keras_attention_apps.captioner.captions import check_inference
from keras_attention_apps.captioner.config import ChosenModel, WebConfig
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError

pytestmark = pytest.mark.usefixtures("cached_models")

TRAIN = ["train", "--data", "nowhere", "--output", "o"]


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["caption"], "at least one image"),
        (["caption", "x.jpg", "--model", "nowhere"], "Received: 'nowhere'"),
        (["caption", "x.jpg", "--beam-size", "0"], "--beam-size must be between 1 and"),
        (["caption", "x.jpg", "--n-best", "6"], "n_best must be between 1 and"),
        (["caption", "x.jpg", "--length-penalty", "-1"], "Received: -1"),
        (["caption", "x.jpg", "--image-size", "0"], "--image-size must be between 1"),
        (["caption", "x.jpg", "--overlay", "x.txt"], "Received: 'x.txt'"),
        (["caption", "x.jpg", "y.jpg", "--overlay", "x.png"], "Received: 'x.png'"),
        (["caption", "x.png", "--overlay", "x.png"], "not an input"),
        (["caption", "x.jpg", "--output", "."], "Received a folder: '.'"),
        (["evaluate", "--data", ".", "--output", "."], "Received a folder: '.'"),
        (["export", "."], "expected the name of a new folder"),
        (["average", ".", "flickr8k-coco-soft"], "expected the name of a new folder."),
        (["evaluate", "--data", "nowhere"], "nowhere"),
        (TRAIN, "nowhere"),
        ([*TRAIN, "--model.dropout", "1.5"], "dropout must be between 0 and 0.99. Rec"),
        ([*TRAIN, "--validation-beam-size", "5000"], "and 1000. Received: 5000"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(
    arguments, problem, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert problem in error_of(main, arguments, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "model", ["flickr8k-coco-ensemble", "flickr8k-coco-soft+flickr8k-coco-soft"]
)
@pytest.mark.parametrize(
    "command",
    [
        ["caption", "x.jpg"],
        ["caption", "x.jpg", "--engine", "ray", "--output", "x.jsonl"],
        ["evaluate", "--data", "."],
        ["export", "x.tflite"],
    ],
    ids=lambda command: "-".join(command[:4:2]),
)
def test_inference_needs_hard_attention(command, model, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command[0] == "export" and keras.backend.backend() != "tensorflow":
        pytest.skip("exports need TensorFlow")
    arguments = [*command, "--inference", "argmax", "--model", model]
    error = f"hard attention. Received: {model!r}, with soft attention\n"
    assert error in error_of(main, arguments, capsys)


def test_inference_is_an_option_of_an_ensemble_with_hard_attention():
    hard = "flickr8k-coco-hard"
    for model in (hard, f"flickr8k-coco-soft+{hard}", "some.tflite"):
        check_inference(ChosenModel(model, inference="argmax"))
    pytest.importorskip("gradio")
    from keras_attention_apps.captioner.web import CaptionPage

    with pytest.raises(UserError, match="--inference needs a model with hard"):
        CaptionPage(WebConfig(ChosenModel("flickr8k-coco-soft", inference="argmax")))


def test_a_folder_without_images_is_an_error(model_folder, tmp_path, capsys):
    command = ["caption", tmp_path, "--model", model_folder]
    assert str(tmp_path) in error_of(main, command, capsys)


def test_unreadable_images_give_one_line_each_and_exit_code_2(
    photographs, model_folder, capsys
):
    (photographs / "text.jpg").write_text("I am not a picture")
    (photographs / "empty.jpg").touch()
    whole = (photographs / "red-0.png").read_bytes()
    (photographs / "cut.png").write_bytes(whole[: len(whole) // 2])
    names = ["text.jpg", "red-0.png", "empty.jpg", "missing.jpg", "cut.png"]
    paths = [str(photographs / name) for name in names]
    code = main(["caption", *paths, "--model", str(model_folder)])

    out, err = capsys.readouterr()
    assert code == 2
    assert [line.split("\t")[0] for line in out.splitlines()] == [paths[1]]
    errors = err.splitlines()
    assert len(errors) == 4
    for line, name in zip(errors, [names[0], *names[2:]], strict=True):
        assert line.startswith("captioner: error: ") and name in line


@pytest.mark.parametrize(
    "file, content, problem",
    [
        ("config.json", "[" * 200_000, "nested too deeply"),
        ("config.json", '{"model": []}', 'config.json has no object "model"'),
        ("config.json", '{"model": {"image_size": 1000000000}}', "and 4096. Received"),
        ("config.json", '{"model": {"units": 65536}}', "expected at least 17,"),
        ("config.json", '{"model": {"max_length": 0}}', "max_length must be between"),
        ("model.weights.npz", "no weights", "File is not a zip file"),
        ("model.weights.npz", None, "No such file"),
        ("vocabulary.json", None, "No such file"),
        ("vocabulary.json", "", "Expecting value"),
        ("vocabulary.json", "[1]", "vocabulary.json must be a list of words"),
        ("vocabulary.json", '"dog"', "vocabulary.json must be a list of words"),
        ("vocabulary.json", '["a", "a"]', "Received 1 duplicates"),
    ],
)
def test_a_damaged_model_is_one_line(
    file, content, problem, model_folder, tmp_path, capsys
):
    damaged = with_content(model_folder, tmp_path / "damaged", file, content)
    error = error_of(main, ["caption", "x.jpg", "--model", damaged], capsys)

    assert "not a complete captioner" in error and problem in error


def test_flipped_bits_are_one_line(model_folder, tmp_path, capsys):
    check_flipped_bits(main, ["caption", "x.jpg"], model_folder, tmp_path, capsys)
