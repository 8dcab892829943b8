"""The captions that `captioner caption` prints, as lines and as JSON."""

import json
import math
import os
import sys
from pathlib import Path

import pytest

from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main

from .conftest import lines_of

pytestmark = pytest.mark.usefixtures("cached_models")


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


def test_folders_inside_of_folders_are_searched_on_request(
    photographs, model_folder, tmp_path, capsys
):
    album = tmp_path / "album"
    (album / "2024").mkdir(parents=True)
    (photographs / "red-0.png").rename(album / "red-0.png")
    (photographs / "blue-0.png").rename(album / "2024/red-0.png")
    command = ["caption", str(album), "--model", str(model_folder)]

    assert main(command) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == (
        f"captioner: warning: the folders inside {str(album)!r}, which have images, "
        "are not searched: --recursive searches them\n"
    )

    maps = tmp_path / "maps"
    assert main([*command, "--recursive", "--overlay", str(maps)]) == 0
    out, err = capsys.readouterr()
    assert [Path(x.split("\t")[0]) for x in out.splitlines()] == [
        album / "2024/red-0.png",
        album / "red-0.png",
    ]
    assert err == "" and len(list(maps.iterdir())) == 2
    assert main([*command, "--recursive", "--overlay", str(album / "maps")]) == 2
    assert "must be outside of the folders that --recursive" in capsys.readouterr().err


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


def test_json_contains_the_attention(photographs, model_folder, capsys):
    path = str(photographs / "red-0.png")
    # An untrained model often gives empty captions: prefer long ones.
    options = ["--model", str(model_folder), "--length-penalty", "2", "--json"]
    assert main(["caption", path, *options]) == 0

    reported = json.loads(capsys.readouterr().out)
    assert reported["image"] == path
    assert reported["caption"].split()[0] == reported["words"][0]
    assert len(reported["attention"]) == len(reported["words"])
    numbers = [x for row in reported["attention"][0] for x in row]
    assert sum(numbers) == pytest.approx(1, abs=1e-3)
    assert numbers == [round(x, 4) for x in numbers]
    assert [len(row) for row in reported["attention"][0]] == [2, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="such names are refused")
def test_json_is_utf8_whatever_the_names(photographs, model_folder, capfdbinary):
    photo = photographs / os.fsdecode(b"bad\xff.png")
    (photographs / "red-0.png").rename(photo)
    assert main(["caption", str(photo), "--model", str(model_folder), "--json"]) == 0

    [line] = capfdbinary.readouterr().out.decode("utf-8").splitlines()
    assert json.loads(line)["image"] == str(photo)


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
    names = ("caption", "score", "mean_log_probability")
    brief = [{name: x[name] for name in names} for x in entries]
    origin = {"image": path, "model": str(model_folder), "options": "--n-best 3"}
    assert written == {**origin, "captions": brief}


@pytest.fixture
def four(squares):
    """Four photographs."""
    return sorted((squares / "Images").iterdir())[:4]


def entries(capsys, *command):
    assert main([*map(str, command)]) == 0
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_the_probabilities_of_the_words_and_of_the_end_multiply(captioner, four):
    [(_, captions)] = captioner.caption_each(four[:1], n_best=5)
    for caption in captions:
        count = len(caption.words)
        assert len(caption.probabilities) == count
        product = math.log(math.prod(caption.probabilities))
        # The end token, which usually follows the last word, has a probability, too.
        assert product > caption.log_probability
        mean = caption.log_probability / (count + 1)
        assert caption.mean_log_probability == pytest.approx(mean)


def test_improbable_captions_are_left_out(four, model_folder, tmp_path, capsys):
    command = ["caption", *four, "--model", model_folder, "--json"]
    results, _ = entries(capsys, *command)
    scores = sorted(x["mean_log_probability"] for x in results)
    threshold = (scores[1] + scores[2]) / 2
    some = ["--min-score", f"{threshold:.6f}", "--overlay", tmp_path]
    filtered, error = entries(capsys, *command, *some)
    for before, after in zip(results, filtered, strict=True):
        left_out = before["mean_log_probability"] < threshold
        if not left_out:
            assert after == before
        assert (after["caption"] is None) == left_out
        assert (f"warning: {before['image']!r}: no caption" in error) == left_out
    assert error.count("\n") == len(list(tmp_path.iterdir())) == 2


def test_of_several_captions_some_are_left_out(four, model_folder, capsys):
    path = four[0]
    command = ["caption", path, "--model", model_folder, "--json", "--n-best", "3"]
    [whole], _ = entries(capsys, *command)
    scores = [x["mean_log_probability"] for x in whole["captions"]]
    threshold = sum(sorted(scores)[:2]) / 2
    [filtered], error = entries(capsys, *command, "--min-score", threshold)
    assert filtered["captions"] == [
        x for x in whole["captions"] if x["mean_log_probability"] >= threshold
    ]
    assert 0 < len(filtered["captions"]) < 3 and not error
