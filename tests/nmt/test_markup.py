"""Tags, units and subtitles, with a translator whose alignment is known."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from keras_attention_apps.common.files import decoded
from keras_attention_apps.nmt import markup
from keras_attention_apps.nmt.main import main

pytestmark = pytest.mark.usefixtures("cached_models", "echoed")
DOCS = Path(__file__).parents[2] / "docs"


class Shouting:
    """Translates words into capitals, in the same order or reversed."""

    max_length = 40
    tokenizer = SimpleNamespace(encode=lambda text: [*text.split(), "</s>"])

    def __init__(self, reverse=False):
        self.reverse, self.sentences = reverse, []

    def translate(self, sentences, *, split):
        assert not split
        self.sentences += sentences
        return [self._one(sentence) for sentence in sentences]

    def _one(self, sentence):
        source = sentence.split()
        words = [re.match(r"(.*?)([.,!?]*)$", word).groups() for word in source]
        order = range(len(words))[:: -1 if self.reverse else 1]
        # The punctuation keeps its place.
        found = [words[i][0].upper() + words[j][1] for j, i in enumerate(order)]
        weights = 0.9 * np.eye(len(words))[list(order)] + 0.1 / len(words)
        values = {"source_words": source, "words": found, "weights": weights}
        return SimpleNamespace(text=" ".join(found), cut=False, **values)


def html(text, reverse=False, **options):
    return markup.translate_html(Shouting(reverse), text, **options)


@pytest.mark.parametrize(
    ("text", "expected", "reverse"),
    [
        ("A <b>red</b> dog.", "A <b>RED</b> DOG.", "DOG <b>RED</b> A."),
        ("a <b>red</b>, dog", "A <b>RED</b>, DOG", "DOG <b>RED</b>, A"),
        ("a <b>red,</b> dog", "A <b>RED,</b> DOG", "DOG <b>RED,</b> A"),
        ("a <b>(red)</b> dog", "A <b>(RED)</b> DOG", "DOG <b>(RED)</b> A"),
        ("<b>a dog.</b>", "<b>A DOG.</b>", "<b>DOG A.</b>"),
        (
            "<a href='x y?\u00e4&amp;b' >a <i>b</i></a> c",
            '<a href="x y?\u00e4&amp;b">A <i>B</i></a> C',
            'C <a href="x y?\u00e4&amp;b"><i>B</i> A</a>',
        ),
        ("<b>a</b> <i>b</i> c", "<b>A</b> <i>B</i> C", "C <i>B</i> <b>A</b>"),
        # Punctuation alone.
        ("wow<b>!</b> no", "WOW<b>!</b> NO", None),
        # Units.
        (
            "call <code>f(x)</code>, then",
            "CALL <code>f(x)</code>, THEN",
            "THEN <code>f(x)</code>, CALL",
        ),
        ("a b<br>c d", "A B<br> C D", None),
        ('<img src="a.png"> a b', '<img src="a.png"> A B', '<img src="a.png"> B A'),
        (
            "a <span class='x notranslate'>b c</span> d",
            'A <span class="x notranslate">b c</span> D',
            'D <span class="x notranslate">b c</span> A',
        ),
        ('<p translate="no">a <b>b</b></p>', '<p translate="no">a <b>b</b></p>', None),
        ("<pre>a\n  b</pre>\n c ", "<pre>a\n  b</pre>\n C ", None),
        ("<script>a < b</script> <!-- a --> c", None, None),
        # Blocks.
        (
            "<p>a b<p>c d</p><ul><li>e f</ul>g h",
            "<p>A B</p><p>C D</p><ul><li>E F</li></ul>G H",
            "<p>B A</p><p>D C</p><ul><li>F E</li></ul>H G",
        ),
        ("a &lt; b &amp; c\u00a0", "A &lt; B &amp; C\u00a0", None),
        (
            "One two. <i>Is it?</i> Yes, sir.",
            "ONE TWO. <i>IS IT?</i> YES, SIR.",
            "TWO ONE. <i>IT IS?</i> SIR, YES.",
        ),
        ("12 <b>345</b>", "12 <b>345</b>", "12 <b>345</b>"),
        (" ", " ", " "),
        ("a</b> b", "A B", None),
    ],
)
def test_tags_enclose_the_words_that_are_aligned(text, expected, reverse):
    if expected is None:
        expected = text.replace("c", "C").replace("sCript", "script")
    # The parser writes a non-breaking space as an entity.
    assert html(text).replace("&#160;", "\u00a0") == expected
    if reverse is not None:
        assert html(text, reverse=True) == reverse


def test_a_page_keeps_all_but_its_language_and_text():
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>My page</title><style>p { color: red }</style></head>"
        '<body class="x"><h1 id="top" title="stays">A head</h1></body></html>'
    )
    found = html(page, language="de")

    expected = page.replace('lang="en"', 'lang="de"')
    expected = expected.replace("My page", "MY PAGE").replace("A head", "A HEAD")
    assert found == expected
    assert html(page) == expected.replace('lang="de"', 'lang="en"')


def test_sentences_are_split_and_long_ones_divided():
    translator = Shouting()
    long = " ".join(f"w{i}" for i in range(100))
    found = markup.translate_html(translator, f"<p>One two. Three {long}.</p>")

    assert found == f"<p>One two. Three {long}.</p>".upper().replace("P>", "p>")
    assert translator.sentences[0] == "One two."
    assert all(len(x.split()) < translator.max_length for x in translator.sentences)
    assert len(translator.sentences) == 1 + 4


def test_models_without_attention_keep_the_order():
    class Blind(Shouting):
        def _one(self, sentence):
            found = super()._one(sentence)
            found.weights[:] = 0
            return found

    assert markup.translate_html(Blind(), "a <b>b</b> c") == "A <b>B</b> C"


SUBTITLES = """1
00:00:01,000 --> 00:00:02,000
This is <i>the first</i> part of a sentence
that goes

2
00:00:02,000 --> 00:00:04,500 align:start
{\\an8}on here.

NOTE a b

3
00:01.000 --> 00:02.000
- One two.
- <b>Three</b> four?
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_subtitles_keep_all_but_their_text(newline):
    text = SUBTITLES.replace("\n", newline)
    translator = Shouting()
    found = markup.translate_subtitles(translator, text).replace(newline, "\n")

    assert translator.sentences == [
        "This is the first part of a sentence that goes on here.",
        "One two.",
        "Three four?",
    ]
    expected = SUBTITLES
    for line in (
        "This is <i>the first</i> part of a sentence\nthat goes",
        "on here.",
        "One two.",
        "<b>Three</b> four?",
    ):
        shouted = re.sub("<.*?>", lambda x: x[0].lower(), line.upper())
        expected = expected.replace(line, shouted)
    even = "THIS IS <i>THE FIRST</i> PART\nOF A SENTENCE THAT GOES"
    before = "THIS IS <i>THE FIRST</i> PART OF A SENTENCE\nTHAT GOES"
    assert found == expected.replace(before, even)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("one two", ["one two"]),
        ("x" * 50, ["x" * 50]),
        ("one two " * 2 + "\nthree", ["one two one two three"]),
        ("abcd " * 8 + "\nabcd abcd", [" ".join(["abcd"] * 5)] * 2),
        # As many lines as the source, and as long.
        ("abcd " * 8 + "\n" + "abcd " * 8 + "\nabcd abcd", ["abcd " * 5 + "abcd"] * 3),
        ("abcd " * 9 + "abcd", [" ".join(["abcd"] * 10)]),
    ],
)
def test_lines_are_even(words, expected):
    text = f"00:01.000 --> 00:02.000\n{words}\n"
    found = markup.translate_subtitles(Shouting(), text)
    assert found.lower().splitlines()[1:] == expected


@pytest.mark.parametrize(
    ("data", "is_html", "expected"),
    [
        ("<p>\u00e4".encode(), True, ("<p>\u00e4", "utf-8")),
        ("\u00e4".encode("utf-16"), False, ("\u00e4", "utf-8")),
        (b"<meta charset='iso-8859-2'>\xb1", True, (None, "iso-8859-2")),
        (b"<meta charset=nonsense>\xe4", True, (None, "windows-1252")),
        (b"<meta charset=idna>\xe4", True, (None, "windows-1252")),
        (b"\xe4 charset=iso-8859-2", False, (None, "windows-1252")),
    ],
)
def test_encodings_are_kept(data, is_html, expected):
    text, encoding = decoded(data, "file", is_html=is_html)

    assert encoding == expected[1] and expected[0] in (None, text)
    again = markup.encoded(text, encoding, is_html=is_html)
    assert again == (data if expected[0] is None else text.encode())
    other = markup.encoded("\u4e00", encoding, is_html=is_html).decode()
    assert other == ("&#19968;" if expected[0] is None and is_html else "\u4e00")


def test_the_command_translates_a_page(model_folder, tmp_path, capsys):
    page, out = tmp_path / "page.html", tmp_path / "out.html"
    page.write_text("<p>the <b>red</b> dog</p>", encoding="utf-8")
    model = ["--model", str(model_folder)]
    arguments = ["translate", "--format", "html", str(page), *model]
    assert main([*arguments, "--output", str(out)]) == 0
    for file in (out, page):
        assert file.read_text(encoding="utf-8") == "<p>the <b>red</b> dog</p>"

    for extra, message in (
        (["--output", str(page)], "page.html"),
        (["--n-best", "2"], "Received: --n-best"),
        (["--no-split-sentences"], "Received: --no-split-sentences"),
        (["--engine", "ray"], "Received: html"),
    ):
        assert main([*arguments, *extra]) == 2
        assert message in capsys.readouterr().err
    assert main([*arguments[:4], str(page), *model]) == 2
    assert "takes one file. Received: 2" in capsys.readouterr().err
    subtitles = tmp_path / "a.srt"
    subtitles.write_text("1\n00:00:01,000 --> 00:00:02,000\nthe dog\n")
    assert main(["translate", "--format", "srt", str(subtitles), *model]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1", "00:00:01,000 --> 00:00:02,000"] and len(lines) >= 3


def test_the_commands_of_the_manual_run(model_folder, tmp_path, monkeypatch):
    text = (DOCS / "markup.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"^`(\S+)`:\n\n```\w*\n(.*?)```", text, re.M | re.S)
    for name, content in files:
        (tmp_path / name).write_text(content, encoding="utf-8")
    commands = re.findall(r"^nmt (.*)$", text, re.M)
    assert len(commands) >= 3
    for command in commands:
        assert main([*command.split(), "--model", str(model_folder)]) == 0
    assert (tmp_path / "seite.html").exists() and (tmp_path / "film.de.srt").exists()
