"""An output that is an input, under whatever name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from keras_attention_apps.captioner.main import main as captioner
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import Inputs
from keras_attention_apps.nmt.main import main as nmt


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


NAMES = ("data/in/a.txt", "soft", "linked/in/../in/a.txt", "./data//in/a.txt")


def refuses(inputs, *outputs, **options):
    with pytest.raises(UserError, match="expected an output that is not an input"):
        inputs.check(*outputs, **options)


@pytest.mark.parametrize("read", NAMES)
@pytest.mark.parametrize("written", NAMES)
def test_a_file_that_is_read(folder, read, written):
    refuses(Inputs("other.txt", Path(read)), "new.txt", Path(written))


@pytest.mark.parametrize("read", ["data", "linked", "data/in"])
@pytest.mark.parametrize("written", NAMES)
def test_a_file_in_a_folder_that_is_read(folder, read, written):
    refuses(Inputs(Path(read)), Path(written))


@pytest.mark.parametrize("written", ["data", "linked", "data/../data"])
def test_a_folder_that_contains_an_input(folder, written):
    refuses(Inputs("data/in/a.txt"), Path(written))
    Inputs("data/in/a.txt").check(Path(written), whole=False)
    refuses(Inputs("data"), Path(written), whole=False)


def test_other_files_are_no_inputs(folder):
    inputs = Inputs("data/in/a.txt", "missing", None)
    inputs.check("other.txt", "new.txt", "data/in/b.txt", "new/folder", None)
    # A new file in a folder that is read replaces none of it.
    Inputs("data").check("data/new.txt", "data/new")


def test_a_missing_input_is_compared_by_its_name(folder):
    refuses(Inputs("missing"), Path("data/../missing"))


def test_a_device_may_be_input_and_output(folder):
    Inputs(os.devnull).check(Path(os.devnull))


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="no such name here")
@pytest.mark.parametrize("written", NAMES)
def test_a_file_on_the_standard_input(folder, written):
    code = (
        "from keras_attention_apps.common.files import Inputs; import sys; "
        "Inputs('-').check('other.txt', sys.argv[1])"
    )
    with open("soft") as file:
        command = [sys.executable, "-c", code, written]
        ended = subprocess.run(command, stdin=file, capture_output=True, text=True)
    expected = f"an output that is not an input. Received: {str(Path(written))!r}"
    assert expected in ended.stderr


MODEL_FILES = ("config.json", "model.weights.npz", "vocabulary.json", "subwords.model")


@pytest.mark.parametrize(
    "command",
    [
        "captioner caption soft --overlay soft.png",
        "captioner evaluate --data linked --output data/in/a.txt",
        "captioner evaluate --data data --model model --output model/config.json",
        "captioner train --data data --output linked",
        "captioner train --data data --output out --cache data",
        "captioner average model model other",
        "nmt average out/../model model other",
        "nmt train --data data --pair a-b --output data/in/..",
        "nmt translate --input soft --output linked/in/a.txt",
        "nmt translate Hello --output x.png --plot x.png",
        "nmt translate Hello --model model --output model/subwords.model",
        "nmt evaluate --source soft --target other.txt --output linked/in/a.txt",
    ],
)
def test_every_command_keeps_its_inputs(folder, command, capsys):
    (folder / "soft.png").symlink_to(folder / "soft")
    (folder / "model").mkdir()
    for name in MODEL_FILES:
        (folder / "model" / name).write_text("{}")
    program, *arguments = command.split()
    main = {"captioner": captioner, "nmt": nmt}[program]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert "expected an output that is not an input" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("data/in/a.txt", "expected the name of a new file"),
        ("model/vocabulary.json", "--output must end in .csv, .tsv, .txt or .jsonl"),
    ],
)
def test_captions_never_replace_a_file(folder, output, message, capsys):
    assert captioner(["caption", "soft", "--output", output]) == 2
    assert message in capsys.readouterr().err
