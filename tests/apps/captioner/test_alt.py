"""Alternative texts of pages: what is written, what is left, what is listed."""

import shutil
import types

import numpy as np
import pytest

from attention_testing.programs import error_of
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.commands import alt
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common.errors import UserError

RED = ' alt="A red square."'


class Model:
    """A captioner whose caption is the colour in the name of a picture.

    It is unsure of blue ones. `paths` has what it captioned.
    """

    noun = "captioner"

    def __init__(self):
        self.paths = []

    def each(self, images, **options):
        for image in images:
            self.paths.append(image)
            colour = image.stem.partition("-")[0]
            if colour == "broken":
                yield UserError(f"Cannot read {image.name!r}: no picture")
                continue
            text, ones = f"a {colour} square", np.ones((3, 2, 2))
            unsure = {"unsure": True, "reason": "odd"} if colour == "blue" else {}
            yield [
                Caption(text, text.split(), -1.0, -2.0, -0.7, [0.5] * 3, ones, **unsure)
            ]


@pytest.fixture
def model(monkeypatch):
    model = Model()
    runtimes = types.SimpleNamespace(
        load_for=lambda *arguments, **options: model, files=lambda model: []
    )
    monkeypatch.setattr(alt, "RUNTIMES", runtimes)
    return model


@pytest.fixture
def site(squares, tmp_path, monkeypatch):
    """A folder with pictures, which is the working folder."""
    (tmp_path / "pictures").mkdir()
    for name in ("red-0.png", "blue-0.png"):
        shutil.copy(squares / "Images" / name, tmp_path / "pictures" / name)
    shutil.copy(squares / "Images/red-0.png", tmp_path / "red- & small.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(site, page, *options):
    """Return the exit code and the page that the command writes."""
    (site / "page.html").write_bytes(page)
    code = main(["alt", "page.html", "--output", "new.html", *options])
    return code, (site / "new.html").read_bytes()


@pytest.mark.parametrize(
    "tag",
    [
        '<img{} src="pictures/red-0.png">',
        "<IMG{} SRC=pictures/red-0.png>",
        "<img{}\r\n\tsrc='pictures/red-0.png' title='a > b'/>",
        '<img{} src=" ./pictures//red-0.png?v=2#top ">',
        '<img{} src="pictures/../red-%20&amp;%20small.png">',
        '<base href="pictures/"><img{} src="red-0.png">',
        '<p><!-- <img src="a.png"> --><img{} src=pictures/red-0.png>',
        "<noscript><p\n><img{} src=pictures/red-0.png>&amp;</noscript>",
        '<script>"<img src=pictures/red-0.png>"</script><img{} src=pictures/red-0.png>',
        '<!doctype html><html lang=de>\xe4<img{} src="pictures/red-0.png">',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "windows-1252", "utf-16"])
def test_a_picture_gets_a_text_and_every_other_byte_stays(
    model, site, tag, encoding, capsys
):
    page = f"{tag}\r\n<i>\x0c</b>"

    code, new = completed(site, page.format("").encode(encoding))

    assert (code, new) == (0, page.format(RED).encode(encoding))
    assert capsys.readouterr().err == (
        "captioner: wrote 1 alternative text to new.html\n"
    )


def test_pictures_of_xhtml_get_a_text(model, site, capsys):
    page = (
        '<?xml version="1.0"?><h:html xmlns:h="http://www.w3.org/1999/xhtml">'
        '<![CDATA[<img src="a.png"/>]]><h:img{} src="pictures/red-0.png"/></h:html>'
    )
    assert completed(site, page.format("").encode()) == (0, page.format(RED).encode())


@pytest.mark.parametrize(
    ("tag", "code", "reason"),
    [
        ("<img src=pictures/blue-0.png>", 0, "unsure of 'A blue square.': odd"),
        ("<img src=nowhere.png>", 2, "'nowhere.png': there is no such file"),
        ("<img src=broken.png>", 2, "error: page.html, line 2: 'broken.png': Cannot"),
        ("<img src=https://a.org/red-0.png>", 0, "is not on this computer"),
        ("<img src=//a.org/red-0.png>", 0, "is not on this computer"),
        ("<base href=//a.org><img src=red-0.png>", 0, "is not on this computer"),
        ("<img src='data:image/png;base64,AA'>", 0, "is embedded in the page"),
        ("<img src='{{ picture }}'>", 0, "has an address that a template fills in"),
        ("<img src=/pictures/red-0.png>", 0, "with a slash; --root is missing"),
        ("<img src='http://[a'>", 0, "has an address that is not valid"),
        ("<img src='#top'>", 0, "'#top': has an address without a file"),
        ("<img src='a%00.png'>", 0, "has an address without a file"),
        ("<img data-src=pictures/red-0.png>", 0, "a picture: has no src"),
        ("<img src=red-0.png role=presentation>", 0, "is hidden from screen readers"),
        ("<img src=red-0.png aria-hidden=TRUE>", 0, "is hidden from screen readers"),
        ("<img src=red-0.png aria-label=red>", 0, "has a label of its own"),
    ],
)
def test_a_picture_without_a_text_is_listed(model, site, tag, code, reason, capsys):
    (site / "broken.png").write_text("no picture")
    page = f"<p>\n{tag}".encode()

    assert completed(site, page) == (code, page)

    warning, wrote = capsys.readouterr().err.splitlines()
    assert reason in warning and "page.html, line 2: " in warning
    assert warning.startswith("captioner: error: " if code else "captioner: warning: ")
    assert wrote.endswith(
        "wrote 0 alternative texts to new.html; 1 picture without one"
    )


def test_existing_texts_stay(model, site, capsys):
    page = b"<img alt src=pictures/red-0.png><img ALT='' src=x><svg><image href=a.png>"
    assert completed(site, page) == (0, page)
    assert model.paths == []


def test_all_pages_of_a_site_are_completed_in_place(model, site, capsys):
    (site / "blog").mkdir()
    pages = {
        site / "index.html": '<img{} src="/pictures/red-0.png">',
        site / "blog/post.HTM": "<img{0} src=../pictures/red-0.png>" * 2,
        site / "blog/empty.xhtml": "<p>none",
        site / "blog/notes.txt": "<img src=../pictures/red-0.png>",
    }
    for path, text in pages.items():
        path.write_text(text.format(""))
    before = (site / "blog/empty.xhtml").stat().st_mtime_ns

    assert main(["alt", ".", "--root", ".", "--in-place"]) == 0

    for path, text in pages.items():
        assert path.read_text() == text.format(RED)
    assert (site / "blog/empty.xhtml").stat().st_mtime_ns == before
    # Each picture is captioned once.
    assert len(model.paths) == 1
    assert not [x for x in site.rglob(".*")]


def test_the_standard_output_has_the_page(model, site, capfdbinary):
    (site / "page.html").write_bytes(b"<img src=pictures/red-0.png>\xff")
    assert main(["alt", "page.html"]) == 0
    assert capfdbinary.readouterr().out == b"<img%s src=pictures/red-0.png>\xff" % (
        RED.encode()
    )


TABLE = (
    "\ufeffimage{0}caption{0}unsure{0}error\r\n"
    'pictures/red-0.png{0}"A ""red"" & small square."{0}no{0}\r\n'
    "pictures/blue-0.png{0}a blue square{0}yes{0}\r\n"
    "./red- & small.png{0}{0}{0}\r\n"
    "broken.png{0}{0}{0}Cannot read it\r\n"
)
LINES = (
    '{"image": "pictures/red-0.png", "captions": [{"caption": "A \\"red\\" & small '
    'square."}, {"caption": "a worse one"}]}\n'
    '{"image": "pictures/blue-0.png", "caption": "a blue square", "unsure": true}\n'
    '{"image": "red- & small.png", "caption": ""}\n'
    '{"image": "broken.png", "error": "Cannot read it"}\n'
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", TABLE.format(",")),
        ("captions.csv", TABLE.format(";")),
        ("captions.tsv", TABLE.format("\t")),
        ("captions.jsonl", LINES),
    ],
)
def test_corrected_captions_are_written(model, site, name, content, capsys):
    (site / name).write_bytes(content.encode())
    tags = [
        "<img{} src=pictures/red-0.png>",
        "<img{} src='red- &amp; small.png'>",
        "<img{} src=pictures/blue-0.png>",
        "<img{} src=broken.png>",
        "<img{} src=other.png>",
    ]
    alts = [' alt="A &quot;red&quot; &amp; small square."', ' alt=""', "", "", ""]

    code, new = completed(
        site, "".join(tags).format(*[""] * 5).encode(), "--captions", name
    )

    assert new == "".join(tags).format(*alts).encode()
    assert code == 2 and model.paths == []
    *listed, _ = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in listed] == [
        "the model is unsure of 'A blue square.'".rpartition(": ")[2],
        "Cannot read it",
        "is not in the captions",
    ]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("a.html b.html", "expected --in-place for 2 pages"),
        ("a.html --in-place --output c.html", "--output or --in-place, not both"),
        ("a.html --output a.html", "an output that is not an input"),
        ("- --in-place", "--in-place needs pages that are files. Received: '-'"),
        ("nowhere.html", "nowhere.html"),
        ("pictures --in-place", "or a folder inside it. Received: none"),
        ("a.html --root a.html", "--root must be a folder. Received: 'a.html'"),
        (
            "a.html --captions b.html",
            "expected the columns image and caption. Received",
        ),
        ("a.html --captions a.jsonl", "a.jsonl, line 1: expected a line of captioner"),
    ],
)
def test_a_wrong_command_gets_one_clear_line(model, site, command, problem, capsys):
    for name in ("a.html", "b.html"):
        (site / name).write_text("<img src=pictures/red-0.png>")
    (site / "a.jsonl").write_text('{"image": 3}')

    assert problem in error_of(main, ["alt", *command.split()], capsys)
    assert (site / "a.html").read_text() == "<img src=pictures/red-0.png>"
