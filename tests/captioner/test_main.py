import json
import os
import shutil
import sys

import numpy as np
import pytest
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.commands.overlays import write_overlay
from keras_attention_apps.captioner.commands.records import Records
from keras_attention_apps.captioner.data.text import Vocabulary
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from PIL import Image

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture
def photographs(squares, tmp_path):
    for name in ("red-0.png", "blue-0.png"):
        shutil.copy(squares / "Images" / name, tmp_path / name)
    return tmp_path


def test_one_image_prints_its_caption(photographs, model_folder, capsys):
    code = main(
        ["caption", str(photographs / "red-0.png"), "--model", str(model_folder)]
    )

    lines = capsys.readouterr().out.splitlines()
    assert (code, len(lines)) == (0, 1)
    assert "\t" not in lines[0]


def test_a_folder_prints_a_line_for_each(photographs, model_folder, capsys):
    code = main(["caption", str(photographs), "--preset", str(model_folder)])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    paths = [line.split("\t")[0] for line in lines]
    assert paths == [str(photographs / n) for n in ("blue-0.png", "red-0.png")]


def test_unsupported_images_of_a_folder_are_counted(photographs, model_folder, capsys):
    for name in ("b.HEIC", "a.heif", ".hidden.heic", "notes.txt"):
        (photographs / name).touch()

    assert main(["caption", str(photographs), "--model", str(model_folder)]) == 0

    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == (
        f"captioner: warning: 2 of the files in {str(photographs)!r} are images of "
        "formats that cannot be read, the first 'a.heif'\n"
    )


@pytest.mark.exhaustive
def test_a_compiled_search_prints_the_same(
    photographs, model_folder, capsys, monkeypatch
):
    command = ["caption", str(photographs), "--model", str(model_folder)]
    assert main(command) == 0
    expected = capsys.readouterr().out
    asked = []
    build = Captioner.__init__

    def note(self, *parts, jit_compile):
        asked.append(jit_compile)
        build(self, *parts, jit_compile=jit_compile)

    monkeypatch.setattr(Captioner, "__init__", note)
    assert main([*command, "--jit-compile"]) == 0
    assert capsys.readouterr().out == expected
    assert asked == [True]


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


def test_json_contains_the_attention(photographs, model_folder, capsys):
    path = str(photographs / "red-0.png")
    # An untrained model often gives empty captions: prefer long ones.
    options = ["--model", str(model_folder), "--length-penalty", "2", "--json"]
    assert main(["caption", path, *options]) == 0

    reported = json.loads(capsys.readouterr().out)
    assert reported["photo"] == path
    assert reported["caption"].split()[0] == reported["words"][0]
    assert len(reported["attention"]) == len(reported["words"])
    numbers = [x for row in reported["attention"][0] for x in row]
    assert sum(numbers) == pytest.approx(1, abs=1e-3)
    assert numbers == [round(x, 4) for x in numbers]
    assert [len(row) for row in reported["attention"][0]] == [2, 2]


def test_larger_images_have_more_regions(photographs, model_folder, capsys):
    command = ["caption", str(photographs / "red-0.png"), "--model", str(model_folder)]
    command += ["--length-penalty", "2", "--json", "--image-size"]
    assert main([*command, "24"]) == 0

    reported = json.loads(capsys.readouterr().out)
    assert [len(row) for row in reported["attention"][0]] == [3, 3, 3]


def test_images_may_be_too_small_for_a_preset(photographs, capsys):
    command = [
        "caption",
        str(photographs / "red-0.png"),
        "--model",
        "flickr8k-soft-mobilenet",
    ]
    assert main([*command, "--image-size", "8"]) == 2
    assert "cannot be built for images of 8 x 8" in capsys.readouterr().err


def test_several_captions_of_an_image(photographs, model_folder, capsys, tmp_path):
    path, output = str(photographs / "red-0.png"), tmp_path / "captions.jsonl"
    command = ["caption", path, "--model", str(model_folder), "--n-best", "3"]
    assert main(command) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert main([*command, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert main([*command, "--output", str(output)]) == 0
    [written] = lines_of(output)

    assert [photo for photo, _, _ in lines] == [path] * 3
    entries = reported["captions"]
    captions = [[f"{x['score']:.4f}", x["caption"]] for x in entries]
    assert captions == [rest for _, *rest in lines]
    assert len(entries[1]["attention"]) == len(entries[1]["words"])
    brief = [{name: x[name] for name in ("caption", "score")} for x in entries]
    assert written == {"photo": path, "model": str(model_folder), "captions": brief}


def test_an_overlay_is_an_image_file(photographs, model_folder, capsys):
    target = photographs / "new" / "overlay.png"
    path = str(photographs / "red-0.png")
    code = main(
        ["caption", path, "--model", str(model_folder), "--overlay", str(target)]
    )

    assert code == 0
    with Image.open(target) as overlay:
        assert overlay.width > 1000


def test_missing_glyphs_give_no_warning(photographs, recwarn):
    caption = Caption(
        "\ue123", ["\ue123"], 0.0, 0.0, 0.0, [1.0], np.ones((1, 2, 2)) / 4
    )
    write_overlay(photographs / "red-0.png", caption, photographs / "overlay.png")

    assert (photographs / "overlay.png").exists()
    assert not [str(x.message) for x in recwarn if "Glyph" in str(x.message)]


def test_several_overlays_go_into_a_folder(photographs, model_folder, capsys):
    folder = photographs / "overlays"
    paths = [str(photographs / n) for n in ("red-0.png", "blue-0.png")]
    code = main(
        ["caption", *paths, "--model", str(model_folder), "--overlay", str(folder)]
    )

    assert code == 0
    assert {path.name for path in folder.iterdir()} == {"red-0.png", "blue-0.png"}


def test_a_folder_of_one_image_is_still_a_folder(
    photographs, model_folder, tmp_path, capsys
):
    album, maps = tmp_path / "album", tmp_path / "2024.07"
    album.mkdir()
    shutil.copy(photographs / "red-0.png", album)
    command = ["caption", str(album), "--model", str(model_folder), "--overlay"]
    assert main([*command, str(maps)]) == 0

    assert [path.name for path in maps.iterdir()] == ["red-0.png"]
    assert capsys.readouterr().out.startswith(f"{album / 'red-0.png'}\t")
    photograph = (album / "red-0.png").read_bytes()
    assert main([*command, str(album)]) == 2
    assert "must not lie among the images" in capsys.readouterr().err
    assert (album / "red-0.png").read_bytes() == photograph


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk here")
def test_an_overlay_that_cannot_be_written_does_not_end_the_others(
    photographs, model_folder, tmp_path, capsys
):
    maps = tmp_path / "maps"
    maps.mkdir()
    (maps / "blue-0.png").symlink_to("/dev/full")
    paths = [str(photographs / name) for name in ("blue-0.png", "red-0.png")]
    command = ["caption", *paths, "--model", str(model_folder), "--overlay", str(maps)]

    assert main(command) == 2
    reported = capsys.readouterr()
    assert len(reported.out.splitlines()) == 2 and "No space left" in reported.err
    assert (maps / "red-0.png").is_file()


def test_images_of_one_name_get_overlays_of_their_own(
    photographs, model_folder, capsys
):
    other = photographs / "other"
    other.mkdir()
    shutil.copy(photographs / "red-0.png", other)
    folder = photographs / "overlays"
    with Image.open(other / "red-0.png") as image:
        image.save(other / "red-0.jpg")
    paths = [photographs / "red-0.png", other / "red-0.png", other / "red-0.jpg"]
    command = ["caption", *map(str, paths), "--overlay", str(folder)]
    assert main([*command, "--model", str(model_folder)]) == 0

    assert {path.name for path in folder.iterdir()} == {
        "red-0.png",
        "red-0.png.png",
        "red-0.jpg.png",
    }


def test_a_missing_overlay_is_drawn_when_the_run_resumes(
    photographs, model_folder, tmp_path, capsys
):
    output, maps = tmp_path / "captions.jsonl", tmp_path / "maps"
    command = ["caption", str(photographs), "--model", str(model_folder)]
    command += ["--output", str(output)]
    assert main(command) == 0
    reported = lines_of(output)

    assert main([*command, "--overlay", str(maps)]) == 0
    (maps / "red-0.png").unlink()
    drawn = (maps / "blue-0.png").stat().st_mtime_ns
    assert main([*command, "--overlay", str(maps)]) == 0

    assert (maps / "red-0.png").exists()
    assert (maps / "blue-0.png").stat().st_mtime_ns == drawn
    assert lines_of(output) == reported


def test_of_several_folders_one_may_be_empty(
    photographs, model_folder, tmp_path, capsys
):
    empty = tmp_path / "empty"
    empty.mkdir()
    command = ["caption", str(empty), str(photographs), "--model", str(model_folder)]

    assert main(command) == 2
    reported = capsys.readouterr()
    assert len(reported.out.splitlines()) == 2
    assert "error: No image in" in reported.err


def test_an_image_has_one_line_whatever_its_name(photographs, model_folder, capsys):
    (photographs / "red-0.png").rename(photographs / "a\tred\nsquare.png")
    assert main(["caption", str(photographs), "--model", str(model_folder)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.count("\t") for line in lines] == [1, 1]
    assert lines[0].startswith(str(photographs / "a\\tred\\nsquare.png"))


def test_records_are_utf8_whatever_the_names(tmp_path):
    name = os.fsdecode(b"bad\xff.jpg")
    with Records(tmp_path / "new.jsonl", "model") as records:
        records.add(tmp_path / name, {"caption": "é"})

    [reported] = lines_of(tmp_path / "new.jsonl")
    assert reported["photo"].endswith(name) and reported["caption"] == "é"
    with Records(tmp_path / "new.jsonl", "model") as records:
        assert tmp_path / name in records


@pytest.mark.skipif(sys.platform != "linux", reason="such names are refused")
def test_json_is_utf8_whatever_the_names(photographs, model_folder, capfdbinary):
    photo = photographs / os.fsdecode(b"bad\xff.png")
    (photographs / "red-0.png").rename(photo)
    assert main(["caption", str(photo), "--model", str(model_folder), "--json"]) == 0

    [line] = capfdbinary.readouterr().out.decode("utf-8").splitlines()
    assert json.loads(line)["photo"] == str(photo)


def test_an_image_that_is_given_twice_has_one_line(
    photographs, model_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(photographs)
    output = tmp_path / "captions.jsonl"
    command = ["caption", "red-0.png", str(photographs / "red-0.png")]
    command += ["--model", str(model_folder), "--output", str(output)]
    assert main(command) == 0

    [reported] = lines_of(output)
    assert reported["photo"] == "red-0.png"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_an_output_must_be_a_file(photographs, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    command = ["caption", str(photographs / "red-0.png"), "--model", "nowhere"]

    assert main([*command, "--output", str(tmp_path / "pipe")]) == 2
    err = capsys.readouterr().err
    assert "--output must be a file" in err and f"device: '{tmp_path / 'pipe'}'" in err


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["caption"], "at least one image"),
        (["caption", "x.jpg", "--model", "nowhere"], "Received: 'nowhere'"),
        (["caption", "x.jpg", "--beam-size", "0"], "beam_size must be at least 1"),
        (["caption", "x.jpg", "--n-best", "6"], "n_best must be between 1 and"),
        (["caption", "x.jpg", "--length-penalty", "-1"], "Received: -1"),
        (
            ["caption", "x.jpg", "--image-size", "0"],
            "image_size must be between 1 and 4096",
        ),
        (["caption", "x.jpg", "--overlay", "x.txt"], "Received: 'x.txt'"),
        (["caption", "x.jpg", "y.jpg", "--overlay", "x.png"], "Received: 'x.png'"),
        (["caption", "x.png", "--overlay", "x.png"], "not an input"),
        (["caption", "x.jpg", "--output", "."], "Received a folder: '.'"),
        (["evaluate", "--data", ".", "--output", "."], "Received a folder: '.'"),
        (["export", "."], "expected the name of a new folder"),
        (["average", ".", "flickr8k-soft"], "expected the name of a new folder."),
        (["evaluate", "--data", "nowhere"], "nowhere"),
        (["train", "--data", "nowhere", "--output", "o"], "nowhere"),
        (
            ["train", "--data", ".", "--output", "o", "--model.dropout", "1.5"],
            "dropout must be between 0 and 0.99. Received: 1.5",
        ),
    ],
)
def test_a_wrong_command_gets_one_clear_line(
    arguments, problem, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1 and problem in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "file, content, problem",
    [
        ("config.json", "{}", 'config.json has no "model"'),
        ("config.json", "[]", "config.json is not an object"),
        ("config.json", "[" * 200_000, "nested too deeply"),
        ("config.json", '{"model": []}', "expected an object with options"),
        ("config.json", '{"model": {"image_size": 1e9}}', "image_size must be an int"),
        ("config.json", '{"model": {"image_size": 1000000000}}', "and 4096. Received"),
        ("config.json", '{"model": {"units": 65536}}', "expected at least 17,"),
        ("config.json", '{"model": {"max_length": 0}}', "max_length must be between"),
        ("config.json", '{"model": {"attention": {}}}', "attention must be one of s"),
        ("config.json", '{"model": {"dropout": NaN}}', "dropout must be a finite num"),
        ("model.weights.h5", "no weights", "file signature not found"),
        ("model.weights.h5", None, "No such file"),
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
    damaged = tmp_path / "damaged"
    shutil.copytree(model_folder, damaged)
    # An attacker can write matching digests.
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({"model": config["model"]}))
    if content is None:
        (damaged / file).unlink()
    else:
        (damaged / file).write_text(content)
    assert main(["caption", "x.jpg", "--model", str(damaged)]) == 2

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "not a complete captioner" in err
    assert problem in err


@pytest.mark.parametrize("file", ["config.json", "model.weights.h5", "vocabulary.json"])
@pytest.mark.parametrize("place", [5, -5])
def test_flipped_bits_are_one_line(place, file, model_folder, tmp_path, capsys):
    damaged = tmp_path / "damaged"
    shutil.copytree(model_folder, damaged)
    content = bytearray((damaged / file).read_bytes())
    content[place] ^= 1
    (damaged / file).write_bytes(content)
    assert main(["caption", "x.jpg", "--model", str(damaged)]) == 2

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "not a complete captioner" in err


@pytest.mark.parametrize(
    "option, value, error",
    [
        ("backbone-weights", "missing.weights.h5", "missing.weights.h5"),
        ("backbone-weights", "weights.txt", "Received: 'weights.txt'"),
        ("model.backbone", "MobileNetV9", "Received: 'MobileNetV9'"),
    ],
)
def test_a_wrong_backbone_is_one_line(option, value, error, squares, tmp_path, capsys):
    options = ["--data", str(squares), "--output", str(tmp_path / "run")]
    start = [] if option == "backbone-weights" else ["--backbone-weights", "none"]
    assert main(["train", *options, *start, f"--{option}", value]) == 2

    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and error in err


class QuarterMeteor:
    """Replaces METEOR, whose Java program needs eight seconds to start."""

    def compute_score(self, references, captions):
        assert references.keys() == captions.keys()
        return 0.25, [0.25] * len(captions)


def test_evaluation_prints_scores_and_writes_coco_results(
    squares, model_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr("pycocoevalcap.meteor.meteor.Meteor", QuarterMeteor)
    results = tmp_path / "results.json"
    arguments = ["--data", str(squares), "--model", str(model_folder)]
    assert main(["evaluate", *arguments, "--output", str(results)]) == 0

    out = capsys.readouterr().out
    for name in ("bleu-1", "bleu-4", "cider", "rouge-l", "meteor    25.00"):
        assert name in out
    reported = json.loads(results.read_text())
    assert {entry["image_id"] for entry in reported} == {
        f"{colour}-32" for colour in ("red", "green", "blue", "white")
    }
    assert all(isinstance(entry["caption"], str) for entry in reported)


def lines_of(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_models_are_averaged(model_folder, tmp_path, capsys):
    models = [str(model_folder)] * 2
    assert main(["average", str(tmp_path / "mean"), *models]) == 0

    assert "the average of 2 models" in capsys.readouterr().out
    config = json.loads((tmp_path / "mean" / "config.json").read_text())
    assert config["average_of"] == [model_folder.name] * 2
    mean = Captioner.from_preset(tmp_path / "mean").network.get_weights()
    one = Captioner.from_preset(model_folder).network.get_weights()
    for x, y in zip(mean, one, strict=True):
        assert x == pytest.approx(y)


def test_models_of_other_words_are_not_averaged(model_folder, tmp_path, capsys):
    model = Captioner.from_preset(model_folder)
    vocabulary = Vocabulary([*model.tokenizer.words[4:-1], "unheard-of"])
    other = Captioner(model.config, vocabulary, model.network)
    other.save(tmp_path / "other")
    models = [str(model_folder), str(tmp_path / "other")]

    assert main(["average", str(tmp_path / "mean"), *models]) == 2
    assert "has another configuration or vocabulary than" in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_an_interrupted_output_resumes(
    photographs, model_folder, tmp_path, capsys, monkeypatch
):
    output = tmp_path / "new" / "captions.jsonl"
    output.parent.mkdir()
    broken = output.with_name("broken.jpg")
    broken.write_text("no picture")
    command = ["caption", str(photographs), str(broken), "--model", str(model_folder)]
    command += ["--output", str(output)]
    assert main(command) == 2
    whole = lines_of(output)
    count = len(whole)
    reported = capsys.readouterr()
    assert f"{count}/{count} [" in reported.err
    assert "error: Cannot read" in reported.err
    assert "caption" in whole[0] and "words" not in whole[0]
    assert whole[-1]["photo"] == str(broken)
    assert "Cannot read" in whole[-1]["error"]

    # The last two lines are lost, one of them in the middle.
    lines = output.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:-2]) + lines[-2][:9]
    output.write_bytes(kept)
    assert main(command) == 2

    assert lines_of(output) == whole
    assert "2/2 [" in capsys.readouterr().err

    # Unreadable images are tried again, here with paths from another working folder.
    monkeypatch.chdir(photographs)
    assert main([*command[:1], ".", *command[2:]]) == 2
    assert lines_of(output) == whole
    assert "1/1 [" in capsys.readouterr().err
    shutil.copy(photographs / "red-0.png", broken)
    assert main(command) == 0
    *before, last = lines_of(output)
    assert before == whole[:-1] and "caption" in last
    assert main(command) == 0
    assert lines_of(output) == [*before, last]


def test_an_output_has_lines_of_one_model_and_one_kind(
    photographs, model_folder, tmp_path, capsys
):
    shutil.copytree(model_folder, tmp_path / "other")
    output, first = tmp_path / "captions.jsonl", str(photographs / "red-0.png")
    options = ["--output", str(output), "--model", str(model_folder)]
    assert main(["caption", first, *options]) == 0
    [line] = lines_of(output)

    # Shell completion appends a slash to the name of a folder.
    assert main(["caption", first, *options[:-1], f"{options[-1]}{os.sep}"]) == 0
    assert main(["caption", str(photographs), *options, "--n-best", "2"]) == 2
    assert (
        "was written with other options: expected the keys caption"
        in capsys.readouterr().err
    )
    options[-1] = str(tmp_path / "other")
    assert main(["caption", str(photographs), *options]) == 2
    assert f"captions of {options[-1]!r}. Received" in capsys.readouterr().err
    assert lines_of(output) == [line]


@pytest.mark.parametrize(
    "text", ["My notes\n", "My notes", '{"photo": 3}\n', '{ "photo": "a.jpg"}']
)
def test_an_output_with_other_content_is_not_changed(
    photographs, model_folder, tmp_path, capsys, text
):
    output = tmp_path / "notes.txt"
    output.write_text(text)
    command = ["caption", str(photographs), "--model", str(model_folder)]

    assert main([*command, "--output", str(output)]) == 2
    assert "line 1: expected a JSON object" in capsys.readouterr().err
    assert output.read_text() == text


def test_names_that_are_not_utf_8_have_a_line(tmp_path):
    photo, file = os.fsdecode(b"caf\xe9.jpg"), tmp_path / "captions.jsonl"
    with Records(file, "a model") as records:
        records.add(photo, {"caption": "a cup"})

    with Records(file, "a model") as records:
        assert photo in records and "tea.jpg" not in records


def test_a_folder_without_images_is_an_error(model_folder, tmp_path, capsys):
    assert main(["caption", str(tmp_path), "--model", str(model_folder)]) == 2

    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and str(tmp_path) in err


def test_an_evaluation_does_not_replace_its_data(
    without_java, squares, model_folder, tmp_path, capsys
):
    data = tmp_path / "data"
    shutil.copytree(squares, data)
    captions = (data / "captions.txt").read_text()
    command = ["evaluate", "--data", str(data), "--model", str(model_folder)]
    assert main([*command, "--output", str(data / "captions.txt")]) == 2
    assert "not an input" in capsys.readouterr().err
    assert (data / "captions.txt").read_text() == captions
    # Results are not data.
    for _ in range(2):
        assert main([*command, "--output", str(data / "results.json")]) == 0
