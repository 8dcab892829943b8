"""The commands and the code of the pages on the programs, and on training at scale.

Every command is parsed as the program parses it. Those of inference run, with the
default models, on a photograph and some sentences.
"""

import json
import re
import shlex
import shutil

import pytest
from PIL import Image, ImageOps

from attention_testing.repository import ROOT, blocks, read

pytest.importorskip("ai_edge_litert")

PAGES = {
    name: read(f"docs/{name}.md")
    for name in ("captioner", "nmt", "markup", "small-corpus", "scale")
}
SHELLS = ("", "bash", "sh")


def commands_of(page):
    """Return the program and the arguments of every command of a page, in order."""
    text = PAGES[page]
    code = [x for language in SHELLS for x in blocks(text, language)]
    code += [line[4:] for line in re.findall(r"^    (?:captioner|nmt) .*", text, re.M)]
    commands = []
    for line in "\n".join(code).replace("\\\n", " ").splitlines():
        # A pipe, variables before the command, or `srun`.
        match = re.search(r"(?:^|\| |^srun |^(?:\w+=\S+ )+)(captioner|nmt) (.*)", line)
        if match:
            arguments = shlex.split(match[2].partition(" > ")[0], comments=True)
            commands.append((match[1], arguments))
    return commands


def main_of(program):
    if program == "captioner":
        from keras_attention_apps.captioner import main
    else:
        from keras_attention_apps.nmt import main
    return main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with what the pages name."""
    # The model is sure of its caption for the photograph upside down, wrong as it is.
    with Image.open(ROOT / "docs/photographer.jpg") as photograph:
        flipped = ImageOps.flip(photograph)
    for path in ("dog.jpg", "holiday/a.jpg", "album/b.jpg", "docs/photographer.jpg"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        flipped.save(tmp_path / path)
    (tmp_path / "text.en").write_text("A dog runs.\nTwo dogs play.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_the_options_of_its_program(
    page, folder, monkeypatch, capsys
):
    """A renamed option or command would be an error of the parser."""
    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.nmt.config import PRESETS
    from keras_attention_apps.nmt.inference import Translator

    # Fine-tuning reads the options of its preset.
    shutil.copytree(PRESETS / "multi30k-en-de-luong", folder / "my-model/model")
    parsed = []
    for program, task in (("captioner", Captioner), ("nmt", Translator)):
        monkeypatch.setattr(main_of(program), "call", parsed.append)
        monkeypatch.setattr(task, "average", parsed.append)
    commands = commands_of(page)

    for program, arguments in commands:
        code = main_of(program).main(arguments)
        assert code == 0, (program, arguments, capsys.readouterr().err)

    completions = sum("--print-completion" in x for _, x in commands)
    assert len(parsed) == len(commands) - completions
    assert len(commands) >= 5


def test_commands_that_caption(folder, capsys):
    commands = [x for _, x in commands_of("captioner") if x[0] == "caption"]
    # The others run on Keras, which other tests do.
    needs_keras = {"--model", "--beam-groups", "flickr8k/Images"}
    light = [x for x in commands if not needs_keras & set(x)]
    assert len(light) == 6

    for arguments in light:
        assert main_of("captioner").main(arguments) == 0, arguments
    written = ("dog-attention.png", "maps/a.png", "captions.jsonl", "captions.csv")
    assert all((folder / x).stat().st_size > 50 for x in written)
    assert (folder / "holiday/a.jpg.xmp").is_file()
    *_, line = [x for x in capsys.readouterr().out.splitlines() if x[:1] == "{"]
    assert len(json.loads(line)["captions"]) == 3


def test_commands_that_translate(folder, capsys):
    commands = [x for _, x in commands_of("nmt") if x[0] == "translate"]
    light = [x for x in commands if "--model" not in x]
    assert len(light) == 3

    for arguments in light:
        assert main_of("nmt").main(arguments) == 0, arguments
    assert (folder / "alignment.png").is_file() and (folder / "table.csv").is_file()
    printed = capsys.readouterr().out
    assert "Ein Hund" in printed and "14:30" in printed and "\U0001f436" in printed


def test_commands_of_the_page_on_formats(folder, capsys):
    sources = {
        "page.html": blocks(PAGES["markup"], "html")[0],
        "film.srt": next(x for x in blocks(PAGES["markup"], "") if x.startswith("1\n")),
        "dogs.md": blocks(PAGES["markup"], "markdown")[0],
        "app.po": blocks(PAGES["markup"], "po")[0],
    }
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")
    for _, arguments in commands_of("markup"):
        assert main_of("nmt").main(arguments) == 0, arguments

    page = (folder / "seite.html").read_text(encoding="utf-8")
    assert "<code>dog.run()</code>" in page and "<b>" in page and "Hund" in page
    assert "-->" in (folder / "film.de.srt").read_text(encoding="utf-8")
    assert "](bird.md)" in (folder / "hunde.md").read_text(encoding="utf-8")
    assert "%s" in (folder / "app.de.po").read_text(encoding="utf-8").split("msgstr")[1]
    assert capsys.readouterr().out.startswith("WEBVTT")


@pytest.mark.parametrize("page", PAGES)
def test_code_in_python_has_no_syntax_error(page):
    for code in blocks(PAGES[page]):
        compile(code, page, "exec")


def test_code_of_the_page_on_captions(folder):
    """The block that needs no server."""
    caption, _ = blocks(PAGES["captioner"])
    names = {}
    exec(compile(caption, "captioner.md", "exec"), names)
    assert names["caption"].words and names["caption"].weights.ndim == 3


def test_code_of_the_page_on_formats():
    names = {
        "page": '<p lang="en">A dog.</p>',
        "subtitles": "1\n00:00:01,000 --> 00:00:03,000\nA dog runs.\n",
        "readme": "# A dog\n",
    }
    (code,) = blocks(PAGES["markup"])
    exec(compile(code, "markup.md", "exec"), names)
    assert names["translator"].max_length > 10
