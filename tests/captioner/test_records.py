"""Output files that a run can resume: which lines it keeps, and which it refuses."""

import os
import shutil

import pytest
from keras_attention_apps.captioner.commands.caption import Records
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError

from .conftest import lines_of


def written(path, *described, options=""):
    """Write a line for each dict, and return the lines of the file."""
    with Records(path, "model", options) as records:
        for number, one in enumerate(described):
            records.add(f"{number}.jpg", one)
    return lines_of(path)


@pytest.mark.parametrize(
    "text",
    [
        "My notes\n",
        "My notes",
        '{"image": 3, "model": "model", "options": ""}\n',
        '{"image": "a.jpg", "model": "model"}\n',
        '{ "image": "a.jpg", "model": "model", "options": ""}',
    ],
)
def test_a_file_of_another_program_is_not_changed(tmp_path, text):
    path = tmp_path / "captions.jsonl"
    path.write_text(text)

    for _ in range(2):
        message = r"captions.jsonl, line 1: expected a JSON object .* Received: b'"
        with pytest.raises(UserError, match=message):
            written(path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/7"])
def test_an_image_of_an_open_file_is_never_counted_as_captioned(tmp_path, name):
    path = tmp_path / "captions.jsonl"
    for count in (1, 2):
        with Records(path, "model") as records:
            assert name not in records
            records.add(name, {"caption": "a dog"})
            assert name not in records and "./-" not in records
        assert [line["image"] for line in lines_of(path)] == [name] * count


def test_an_output_belongs_to_one_process(tmp_path):
    path = tmp_path / "captions.jsonl"
    with Records(path, "model") as records:
        records.add("a.jpg", {"error": "damaged"})
        with pytest.raises(UserError, match=r"no other process .*captions.jsonl'"):
            written(path, {"caption": "a dog"})
    [line] = written(path, {"caption": "a dog"})
    assert line["caption"] == "a dog"


def test_lines_with_an_error_are_removed(tmp_path):
    path = tmp_path / "captions.jsonl"
    empty = {"caption": None, "mean_log_probability": -1.5}
    first, _, third = written(path, {"caption": "a dog"}, {"error": "damaged"}, empty)
    with Records(path, "model") as records:
        assert [f"{n}.jpg" in records for n in range(3)] == [True, False, True]
    assert lines_of(path) == [first, third]


def test_lines_are_utf8_whatever_the_names(tmp_path):
    name = os.fsdecode(b"bad\xff.jpg")
    with Records(tmp_path / "new.jsonl", "model") as records:
        records.add(tmp_path / name, {"caption": "é"})

    [reported] = lines_of(tmp_path / "new.jsonl")
    assert reported["image"].endswith(name) and reported["caption"] == "é"
    with Records(tmp_path / "new.jsonl", "model") as records:
        assert tmp_path / name in records and "tea.jpg" not in records


def test_an_output_has_captions_of_one_search(tmp_path):
    path = tmp_path / "captions.jsonl"
    [line] = written(path, {"caption": "a dog"}, options="--beam-size 3")
    assert line == {
        "image": "0.jpg",
        "model": "model",
        "options": "--beam-size 3",
        "caption": "a dog",
    }

    with pytest.raises(UserError) as caught:
        written(path, options="")
    assert str(caught.value) == (
        f"{path}, line 1: expected captions with the default options. Received: those "
        "with --beam-size 3. Choose another output"
    )
    assert written(path, options="--beam-size 3") == [line]


def test_a_resumed_run_must_have_the_same_model_and_options(
    cached_models, photographs, model_folder, tmp_path, capsys
):
    output = tmp_path / "captions.jsonl"
    command = ["caption", str(photographs / "red-0.png"), "--output", str(output)]
    command += ["--model", str(model_folder)]
    assert main(command) == 0
    [line] = lines_of(output)
    assert line["options"] == ""
    # These are the defaults, and shell completion appends a slash to a folder.
    defaults = ["--length-penalty", "0.7", "--precision", "float32"]
    assert main([*command[:-1], f"{model_folder}{os.sep}", *defaults]) == 0
    capsys.readouterr()

    for changed in ("beam-size 3", "n-best 2", "image-size 24", "min-score -9.0"):
        assert main([*command, *f"--{changed}".split()]) == 2
        expected = f"expected captions with --{changed}. Received: those with the "
        assert f"{expected}default options" in capsys.readouterr().err
    assert main([*command, "--json"]) == 2
    assert "expected captions with --json. Received" in capsys.readouterr().err
    other = shutil.copytree(model_folder, tmp_path / "other")
    assert main([*command[:-1], str(other)]) == 2
    assert f"captions of {str(other)!r}. Received" in capsys.readouterr().err
    assert lines_of(output) == [line]
