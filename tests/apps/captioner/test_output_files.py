"""Files that the commands write: overlays, captions that a run can resume, models."""

import codecs
import csv
import os
import shutil

import pytest

from attention_testing.programs import check_average
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.records import Records
from keras_attention_apps.common.tables import DIALECTS, TableWriter

from .conftest import lines_of

pytestmark = pytest.mark.usefixtures("cached_models")


def records_at(path, options=""):
    return Records(path, "model", options, key="image", noun="caption")


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
    assert "a folder other than that of the images" in capsys.readouterr().err
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
    wrote = f"captioner: wrote captions of {count - 1} images to {output}"
    assert f"{wrote}; 1 image could not be read\n" in reported.err
    # A progress bar has no place in a log file.
    assert "\r" not in reported.err
    assert "error: Cannot read" in reported.err
    assert "caption" in whole[0] and "words" not in whole[0]
    assert whole[-1]["image"] == str(broken)
    assert "Cannot read" in whole[-1]["error"]

    # The last two lines are lost, one of them in the middle.
    lines = output.read_bytes().splitlines(keepends=True)
    truncated = b"".join(lines[:-2]) + lines[-2][:9]
    output.write_bytes(truncated)
    assert main(command) == 2

    assert lines_of(output) == whole
    wrote = f"wrote captions of 1 image to {output}; those of {count - 2} were there"
    assert f"{wrote} before; 1 image could not be read\n" in capsys.readouterr().err

    # Unreadable images are tried again, here with paths from another working folder.
    monkeypatch.chdir(photographs)
    assert main([*command[:1], ".", *command[2:]]) == 2
    assert lines_of(output) == whole
    assert "wrote captions of 0 images to" in capsys.readouterr().err
    shutil.copy(photographs / "red-0.png", broken)
    assert main(command) == 0
    *before, last = lines_of(output)
    assert before == whole[:-1] and "caption" in last
    assert main(command) == 0
    assert lines_of(output) == [*before, last]


def test_an_interrupted_run_says_that_its_command_resumes(
    photographs, model_folder, tmp_path, capsys, monkeypatch
):
    output = tmp_path / "captions.jsonl"
    command = ["caption", str(photographs), "--model", str(model_folder)]
    command += ["--output", str(output)]
    add = Records.add

    def interrupt(self, path, described):
        if path.name == "red-0.png":
            raise KeyboardInterrupt
        add(self, path, described)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "add", interrupt)
        assert main(command) == 130
    err = capsys.readouterr().err
    assert err.endswith("captioner: interrupted: the same command resumes\n")
    assert len(lines_of(output)) == 1
    assert main([*command, "--quiet"]) == 0

    assert capsys.readouterr().err == "" and len(lines_of(output)) == 2


def rows_of(path):
    """Return the rows of a table as dicts, read as a spreadsheet reads them."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, dialect=DIALECTS[path.suffix]))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_table_has_the_captions_of_json_lines(
    suffix, photographs, model_folder, tmp_path, capsys
):
    (photographs / 'a "b", c.png').write_text("no picture")
    command = ["caption", str(photographs), "--model", str(model_folder)]
    table, lines = tmp_path / f"captions{suffix}", tmp_path / "captions.jsonl"

    for output in (table, lines):
        assert main([*command, "--output", str(output)]) == 2
        assert str(output) in capsys.readouterr().err.splitlines()[-1]

    assert table.read_bytes().startswith(codecs.BOM_UTF8)
    rows, entries = rows_of(table), lines_of(lines)
    assert len(rows) == len(entries) == 3
    for row, entry in zip(rows, entries, strict=True):
        assert row["image"] == entry["image"]
        for name in ("caption", "mean_log_probability", "error"):
            assert row[name] == str(entry.get(name, ""))
    assert rows[0]["error"].startswith("Cannot read")


def test_a_table_ranks_several_captions(photographs, model_folder, tmp_path, capsys):
    table = tmp_path / "captions.csv"
    command = ["caption", str(photographs), "--model", str(model_folder)]
    assert main([*command, "--n-best", "2", "--output", str(table)]) == 0

    rows = rows_of(table)
    assert [row["rank"] for row in rows] == ["1", "2"] * 2
    assert float(rows[0]["score"]) > float(rows[1]["score"])
    assert main([*command, "--min-score", "-0.001", "--output", str(table)]) == 0
    expected = [("", "below --min-score")] * 2
    assert [(x["caption"], x["error"]) for x in rows_of(table)] == expected
    assert all(float(x["mean_log_probability"]) < 0 for x in rows_of(table))


def test_an_interrupted_table_is_not_written(
    photographs, model_folder, tmp_path, capsys, monkeypatch
):
    table = tmp_path / "captions.csv"
    table.write_text("older")
    command = ["caption", str(photographs), "--model", str(model_folder)]

    def interrupt(self, number, outputs, probable):
        raise KeyboardInterrupt

    monkeypatch.setattr(TableWriter, "write", interrupt)
    assert main([*command, "--output", str(table)]) == 130
    assert capsys.readouterr().err.endswith("captioner: interrupted\n")
    assert table.read_text() == "older"
    assert not list(tmp_path.glob(".*"))


def test_a_table_has_no_maps(photographs, tmp_path, capsys):
    command = ["caption", str(photographs), "--json", "--output", "captions.csv"]
    assert main(command) == 2
    expected = "--json needs an --output that ends in .jsonl. Received: 'captions.csv'"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("name", ["captions.xlsx", "captions.json", "captions"])
def test_other_suffixes_are_refused_before_the_images_are_listed(
    name, tmp_path, capsys
):
    empty, output = tmp_path / "empty", tmp_path / name
    empty.mkdir()
    assert main(["caption", str(empty), "--output", str(output)]) == 2

    err = capsys.readouterr().err
    assert "must end in .jsonl" in err and f"Received: '{output}'" in err
    assert not output.exists()


def test_models_are_averaged(model_folder, tmp_path, capsys):
    check_average(main, Captioner, model_folder, tmp_path / "mean", capsys)


def written(path, *described, options=""):
    """Write a line for each dict, and return the lines of the file."""
    with records_at(path, options) as records:
        for number, details in enumerate(described):
            records.add(f"{number}.jpg", details)
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
        with records_at(path) as records:
            assert name not in records
            records.add(name, {"caption": "a dog"})
            assert name not in records and "./-" not in records
        assert [line["image"] for line in lines_of(path)] == [name] * count


def test_an_output_belongs_to_one_process(tmp_path):
    path = tmp_path / "captions.jsonl"
    with records_at(path) as records:
        records.add("a.jpg", {"error": "damaged"})
        with pytest.raises(UserError, match=r"no other process .*captions.jsonl'"):
            written(path, {"caption": "a dog"})
    [line] = written(path, {"caption": "a dog"})
    assert line["caption"] == "a dog"


def test_lines_with_an_error_are_removed(tmp_path):
    path = tmp_path / "captions.jsonl"
    empty = {"caption": None, "mean_log_probability": -1.5}
    first, _, third = written(path, {"caption": "a dog"}, {"error": "damaged"}, empty)
    with records_at(path) as records:
        assert [f"{n}.jpg" in records for n in range(3)] == [True, False, True]
    assert lines_of(path) == [first, third]


def test_lines_are_utf8_whatever_the_names(tmp_path):
    name = os.fsdecode(b"bad\xff.jpg")
    with records_at(tmp_path / "new.jsonl") as records:
        records.add(tmp_path / name, {"caption": "é"})

    [reported] = lines_of(tmp_path / "new.jsonl")
    assert reported["image"].endswith(name) and reported["caption"] == "é"
    with records_at(tmp_path / "new.jsonl") as records:
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
