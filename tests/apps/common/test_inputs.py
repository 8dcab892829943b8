"""An output that is an input, under whatever name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_testing.programs import error_of
from keras_attention_apps.captioner.main import main as captioner
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import check_distinct
from keras_attention_apps.nmt.main import main as nmt

NAMES = ("data/in/a.txt", "soft", "linked/in/../in/a.txt", "./data//in/a.txt")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file that has several names, in which the test runs."""
    (tmp_path / "data" / "in").mkdir(parents=True)
    file = tmp_path / "data" / "in" / "a.txt"
    file.write_text("text")
    (tmp_path / "soft").symlink_to(file)
    (tmp_path / "linked").symlink_to(tmp_path / "data")
    (tmp_path / "other.txt").write_text("other")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuses(inputs, *outputs, **options):
    with pytest.raises(UserError, match="expected an output that is not an input"):
        check_distinct(inputs, *outputs, **options)


@pytest.mark.parametrize("written", NAMES)
def test_a_file_that_is_read_or_is_in_a_folder_that_is_read(folder, written):
    for read in (*NAMES, "data", "linked", "data/in"):
        refuses(["other.txt", Path(read)], "new.txt", Path(written))


@pytest.mark.parametrize("written", ["data", "linked", "data/../data"])
def test_a_folder_that_contains_an_input(folder, written):
    refuses(["data/in/a.txt"], Path(written))
    check_distinct(["data/in/a.txt"], Path(written), whole=False)
    refuses(["data"], Path(written), whole=False)


def test_other_files_are_no_inputs(folder):
    inputs = ["data/in/a.txt", "missing", None]
    outputs = ["other.txt", "new.txt", "data/in/b.txt", "new/folder", None]
    check_distinct(inputs, *outputs)
    refuses(inputs, Path("data/../missing"))
    # A new file in a folder that is read replaces none of it.
    check_distinct(["data"], "data/new.txt", "data/new")
    check_distinct([os.devnull], Path(os.devnull))


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="no such name here")
def test_a_file_on_the_standard_input(folder):
    code = (
        "from keras_attention_apps.common.files import check_distinct; import sys; "
        "check_distinct(['-'], 'other.txt', sys.argv[1])"
    )
    with open("soft") as file:
        command = [sys.executable, "-c", code, NAMES[2]]
        ended = subprocess.run(command, stdin=file, capture_output=True, text=True)
    expected = f"an output that is not an input. Received: {str(Path(NAMES[2]))!r}"
    assert expected in ended.stderr


MODEL_FILES = ("config.json", "model.weights.npz", "vocabulary.json", "subwords.model")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        *(
            (command, "expected an output that is not an input")
            for command in (
                "captioner caption soft --overlay soft.png",
                "captioner evaluate --data linked --output data/in/a.txt",
                "captioner evaluate --data data --model model --output "
                "model/config.json",
                "captioner train --data data --output linked",
                "captioner train --data data --output out --cache data",
                "captioner average model model other",
                "nmt average out/../model model other",
                "nmt train --data data --pair a-b --output data/in/..",
                "nmt translate --input soft --output linked/in/a.txt",
                "nmt translate Hello --output x.png --plot x.png",
                "nmt translate Hello --model model --output model/subwords.model",
            )
        ),
        (
            "captioner caption soft --output model/vocabulary.json",
            "--output must end in .jsonl",
        ),
    ],
)
def test_every_command_keeps_its_inputs(folder, command, message, capsys):
    (folder / "soft.png").symlink_to(folder / "soft")
    (folder / "model").mkdir()
    for name in MODEL_FILES:
        (folder / "model" / name).write_text("{}")
    program, *arguments = command.split()
    main = {"captioner": captioner, "nmt": nmt}[program]
    assert message in error_of(main, arguments, capsys)
