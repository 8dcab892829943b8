import atexit
import dataclasses
import gc
import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_attention_apps.common.cli import main, run
from keras_attention_apps.common.errors import UserError, listed, printable, reason
from keras_attention_apps.common.output import note, progress_bar, shows_bars


def fail_with(error):
    def fail(*args):
        raise error

    return fail


def test_a_package_that_is_not_installed_is_one_line(capsys):
    missing = ModuleNotFoundError("No module", name="sentencepiece.sub")
    assert run("nmt", fail_with(missing)) == 2
    assert capsys.readouterr().err == (
        "nmt: error: the package sentencepiece.sub is not installed: "
        'python -m pip install . "./apps[train]"\n'
    )
    ours = ModuleNotFoundError("No module", name="keras_attention_apps.gone")
    with pytest.raises(ModuleNotFoundError):
        run("nmt", fail_with(ours))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(2, "No such file", "a  b.jpg"), "No such file: 'a  b.jpg'"),
        (OSError("[WinError 5] Access is denied: 'a'"), "Access is denied: 'a'"),
        (OSError(" two\n  lines\n"), "two lines"),
        (OSError(), "OSError"),
    ],
)
def test_an_error_of_the_system_is_one_line_without_its_number(error, message, capsys):
    assert reason(error) == message
    assert run("nmt", fail_with(error)) == 2
    assert capsys.readouterr().err == f"nmt: error: {message}\n"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run("captioner", lambda: 1 / 0)


def test_sigterm_ends_a_program_as_ctrl_c_does(capsys):
    before = signal.getsignal(signal.SIGTERM)
    cleaned = []

    def main():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(True)

    assert run("captioner", main) == 143
    assert capsys.readouterr().err == "captioner: terminated\n"
    assert cleaned and signal.getsignal(signal.SIGTERM) is before


def test_control_characters_in_file_names_are_escaped(capsys):
    assert run("captioner", fail_with(UserError("no \x1b[2Jphoto\x9b\n.jpg"))) == 2
    assert capsys.readouterr().err == (
        "captioner: error: no \\x1b[2Jphoto\\x9b\\n.jpg\n"
    )
    assert printable("gpj.\u202eexe \u200f") == r"gpj.\u202eexe \u200f"
    assert printable("größe 犬\udce9") == "größe 犬\udce9"
    # These stand for no byte, and cannot be encoded.
    assert printable("\ud800 \udfff") == r"\ud800 \udfff"


def program(argv, call=lambda config: None):
    """Run a program that trains and reads, and return its exit code."""
    commands = {"train": TrainConfig, "read": ReadConfig}
    names = {"presets": Path("nowhere"), "load_task": None, "argv": argv}
    return main("program", "Trains and reads.", commands, call, **names)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Train."""

    resumes = True


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """Read."""


def test_an_interrupted_command_says_whether_it_resumes(capsys):
    for command, more in (("train", ": the same command resumes"), ("read", "")):
        assert program([command], fail_with(KeyboardInterrupt())) == 130
        assert capsys.readouterr().err == f"program: interrupted{more}\n"


def test_of_many_names_the_nearest_are_listed():
    assert listed("x", ["b", "a"]) == "a, b"
    assert listed("x", []) == "none"
    names = [f"{word}-{size}" for word in ("dog", "cat") for size in range(5)]
    assert listed("cat", names).endswith(" and 5 others")
    assert listed("cat", names).count("cat-") == 5


def test_an_unknown_command_has_the_nearest_one(capsys):
    assert program(["trian"]) == 2
    assert capsys.readouterr().err == (
        "program: error: expected a command: train, read, average. Received: 'trian'. "
        "Did you mean 'train'?\n"
    )


def test_the_version_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"1.2 of {name}")
    assert program(["--version"]) == 0
    assert capsys.readouterr().out == "program 1.2 of keras-attention-apps\n"


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_terminals_show_bars_unless_quiet(quiet, is_terminal, capsys, monkeypatch):
    def call(config):
        for stream in (sys.stdout, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
        with progress_bar(total=2) as bar:
            bar.update(2)
        note("done")
        print(shows_bars())

    # The option may stand anywhere.
    assert program(["--quiet", "read"] if quiet else ["read"], call) == 0
    out, err = capsys.readouterr()
    assert ("2/2" in err) == (is_terminal and not quiet)
    assert ("done" in err) == (not quiet)
    assert out == f"{is_terminal and not quiet}\n"


def test_a_closed_pipe_has_exit_code_141():
    program = """
import sys
from keras_attention_apps.common.cli import run
def main():
    while True:
        print("line", flush=True)
sys.exit(run("nmt", main))
"""
    command = [sys.executable, "-c", program]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipe) as process:
        assert process.stdout.readline() == b"line" + os.linesep.encode()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


RESULT = """
import sys
from keras_attention_apps.common.cli import run
sys.exit(run("nmt", lambda: print("result")))
"""


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("output", "message"),
    [
        (">&-", "nmt: error: the standard output is closed\n"),
        pytest.param(
            ">/dev/full",
            "nmt: error: No space left on device\n",
            marks=pytest.mark.skipif(
                not os.path.exists("/dev/full"), reason="needs /dev/full"
            ),
        ),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(output, message):
    command = ["sh", "-c", f'"$1" -c "$2" {output}', "sh", sys.executable, RESULT]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (2, message)


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_no_file_gets_the_number_of_a_closed_output(tmp_path):
    program = f"""
import os, sys
from keras_attention_apps.common.cli import run
def main():
    with open({str(tmp_path / "file")!r}, "w"):
        os.write(1, b"of a library in C")
sys.exit(run("nmt", main))
"""
    command = ["sh", "-c", '"$1" -c "$2" >&-', "sh", sys.executable, program]
    assert subprocess.run(command, capture_output=True).returncode == 2
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("closed", [1, 2])
def test_an_error_is_an_error_with_a_closed_stream(tmp_path, closed):
    program = """
import sys
from keras_attention_apps.common.cli import UserError, run
def main():
    sys.stdout.write("out\\n")
    sys.stderr.write("err\\n")
    raise UserError("wrong")
sys.exit(run("nmt", main))
"""
    written = tmp_path / "written"
    command = f'"$1" -c "$2" >"$3" 2>&1 {closed}>&-'
    names = [sys.executable, program, str(written)]
    assert subprocess.run(["sh", "-c", command, "sh", *names]).returncode == 2
    expected = {1: "err\nnmt: error: wrong\n", 2: "out\n"}
    assert written.read_text() == expected[closed]


def test_text_is_utf_8_in_any_locale_and_names_of_files_are_as_they_are():
    program = r"""
import sys
from keras_attention_apps.common.cli import run
run("nmt", lambda: print("Größe \u0159\udce9"))
"""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, env=environment)

    assert (done.stdout.strip(), done.stderr) == ("Größe ř".encode() + b"\xe9", b"")


def test_messages_of_native_code_are_hidden_and_those_of_python_shown():
    program = """
import os, sys
from keras_attention_apps.common.cli import quiet_tensorflow
quiet_tensorflow()
os.write(2, b"native chatter")
print("an error", file=sys.stderr)
"""
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment
    )

    assert done.returncode == 0
    assert done.stderr.split() == [b"an", b"error"]


@pytest.mark.parametrize("argv", [None, ["--version"]])
def test_only_a_process_of_its_own_collects_rarely(argv, monkeypatch):
    from keras_attention_apps.captioner.main import main

    before, ends = gc.get_threshold(), []
    monkeypatch.setattr(sys, "argv", ["captioner", "--version"])
    monkeypatch.setattr(atexit, "register", ends.append)
    try:
        assert main(argv) == 0
        rarely = gc.get_threshold()[0] > before[0]
    finally:
        gc.set_threshold(*before)
    assert (rarely, ends) == ((True, [gc.freeze]) if argv is None else (False, []))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("program rea", ["read"]),
        ("program read --ki", ["--kind"]),
        ("program read --kind s", ["soft", "slow"]),
    ],
)
def test_a_shell_completes_commands_options_and_values(line, expected, tmp_path):
    script = """
import dataclasses, sys
from pathlib import Path
from typing import Literal
from keras_attention_apps.common.cli import main
from keras_attention_apps.common.options import option
@dataclasses.dataclass(frozen=True)
class ReadConfig:
    "Read."
    kind: Literal["soft", "slow", "hard"] = option("soft", "Kind.", rare=True)
names = {"presets": Path("nowhere"), "load_task": None, "argv": sys.argv[1:]}
sys.exit(main("program", "Reads.", {"read": ReadConfig}, print, **names))
"""
    path = tmp_path / "found"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(path),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=environment).returncode == 0
    words = path.read_text().replace("\x0b", "\n").split()
    assert words == expected


def test_the_code_of_a_shell_for_completion_is_printed(capsys):
    assert program(["--print-completion", "bash"]) == 0
    assert "program" in capsys.readouterr().out
    assert program(["--print-completion", "ksh"]) == 2
    assert "bash, fish, powershell, tcsh, zsh. Received: ksh" in capsys.readouterr().err
