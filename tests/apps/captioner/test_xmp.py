"""XMP side files, read by a parser of trees."""

import dataclasses
import re
import types
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from attention_testing.programs import error_of
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.commands import caption
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.xmp import side_file, with_text, write_side_file
from keras_attention_apps.common.errors import UserError

TEXT = "a dog & a <cat> – “both” run"
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
ALTERNATIVE = "{http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/}AltTextAccessibility"

# As a photo manager writes it: other properties, as attributes and as elements.
MANAGED = """\
<?xml version="1.0" encoding="UTF-8"?>
<!-- written by a program -->
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="A > B">
 <r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <r:Description r:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4">
   <d:subject xmlns:d="http://purl.org/dc/elements/1.1/"><r:Bag><r:li>Hund</r:li>
   </r:Bag></d:subject>{}
  </r:Description>
 </r:RDF>
</x:xmpmeta>
"""
OLD = (
    '<q:description xmlns:q="http://purl.org/dc/elements/1.1/"><r:Alt>'
    '<r:li xml:lang="x-default">{}</r:li></r:Alt></q:description>'
)


def texts(content):
    """Return the text of both properties."""
    root = ElementTree.fromstring(content)
    return [
        root.findtext(f"{RDF}RDF/{RDF}Description/{name}/{RDF}Alt/{RDF}li")
        for name in (DESCRIPTION, ALTERNATIVE)
    ]


def test_a_new_file_has_both_properties(tmp_path):
    path = tmp_path / "photo.jpg.xmp"

    assert write_side_file(path, TEXT)

    assert texts(path.read_bytes()) == [TEXT, TEXT]
    assert not write_side_file(path, "another text")
    assert write_side_file(path, "another text", overwrite=True)
    assert texts(path.read_bytes()) == ["another text"] * 2


def test_names_of_side_files(tmp_path):
    assert side_file(tmp_path / "a.b.jpg").name == "a.b.jpg.xmp"
    assert side_file(tmp_path / "a.b.jpg", replace_suffix=True).name == "a.b.xmp"


@pytest.mark.parametrize("overwrite", [False, True])
def test_everything_else_in_a_file_stays(overwrite):
    old = MANAGED.format(OLD.format("mine")).replace("\n", "\r\n").encode()

    new = with_text(old, TEXT, "a.xmp", overwrite=overwrite)

    assert texts(new) == [TEXT if overwrite else "mine", TEXT]
    both = rb"<(\w+):(description|AltTextAccessibility)\b.*?</\1:\2>"
    rest = [re.sub(both, b"", content, flags=re.DOTALL) for content in (old, new)]
    assert rest[1].replace(b" \n  </r:Desc", b"</r:Desc") == rest[0]
    assert with_text(new, TEXT, "a.xmp") == new


def test_an_empty_property_gets_a_text():
    old = MANAGED.format(OLD.format(" ")).encode()

    assert texts(with_text(old, TEXT, "a.xmp")) == [TEXT, TEXT]


@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_an_element_without_content_gets_an_end_tag(space):
    start, _, rest = MANAGED.partition("   <d:subject")
    _, _, end = rest.partition("  </r:Description>\n")
    start = start.rstrip().removesuffix(">") + space + "/>\n"

    new = with_text((start + end).encode(), TEXT, "a.xmp")

    assert texts(new) == [TEXT, TEXT]
    assert b'xmp:Rating="4"' in new and new.endswith(end.encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not XML", "a.xmp is not an XMP file in UTF-8: syntax error"),
        (b"<a/>", "a.xmp is not an XMP file: it has no rdf:Description"),
        (MANAGED.format("").encode("utf-16"), "a.xmp is not an XMP file in UTF-8"),
        (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a/>", "a document type is refused"),
        (b"", "a.xmp is not an XMP file in UTF-8: no element found"),
    ],
)
def test_other_files_are_refused_and_stay(tmp_path, content, message):
    path = tmp_path / "a.xmp"
    path.write_bytes(content)

    with pytest.raises(UserError, match=message):
        write_side_file(path, TEXT)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


class Model:
    """A captioner whose caption is the colour in the name of the image."""

    noun = "captioner"

    def search_options(self, **options):
        return {"beam_size": 5, **options}

    def each(self, images, **options):
        for image in images:
            word = Path(image.name).stem.partition("-")[0]
            caption = Caption(word, [word], -1.0, -2.0, -0.7, [0.5], np.ones((1, 2, 2)))
            yield [dataclasses.replace(caption, unsure=word == "blue")]


@pytest.fixture
def model(monkeypatch):
    runtimes = types.SimpleNamespace(
        load_for=lambda *arguments, **options: Model(), files=lambda model: []
    )
    monkeypatch.setattr(caption, "RUNTIMES", runtimes)


def test_captions_are_written_beside_images_but_not_unsure_ones(
    model, photographs, capsys
):
    assert main(["caption", str(photographs), "--xmp"]) == 0

    assert "unsure of the caption 'blue'" in capsys.readouterr().err
    (path,) = photographs.glob("*.xmp")
    assert path.name == "red-0.png.xmp"
    assert texts(path.read_bytes()) == ["red", "red"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_resumed_command_writes_what_is_missing(model, photographs, overwrite):
    command = ["caption", str(photographs), "--output", str(photographs / "a.jsonl")]
    assert main(command) == 0
    path = photographs / "red-0.png.xmp"
    path.write_text(MANAGED.format(OLD.format("mine")))
    (photographs / "blue-0.png").rename(photographs / "red-1.png")

    assert main([*command, "--xmp", *["--xmp-overwrite"] * overwrite]) == 0

    # The image whose caption and side file are there is not captioned again.
    assert texts(path.read_bytes()) == ["mine", None]
    assert texts((photographs / "red-1.png.xmp").read_bytes()) == ["red", "red"]
    command = ["caption", str(path.with_suffix("")), "--xmp"]
    assert main([*command, *["--xmp-overwrite"] * overwrite]) == 0
    assert texts(path.read_bytes()) == ["red" if overwrite else "mine", "red"]


def test_names_of_side_files_are_checked_before_the_model_runs(photographs, capsys):
    (photographs / "red-0.jpg").write_bytes((photographs / "red-0.png").read_bytes())

    for options, message in (
        ([str(photographs), "--xmp", "--xmp-replace-suffix"], "have the same XMP side"),
        (["-", "--xmp"], "--xmp needs images that are files. Received: '-'"),
        ([str(photographs), "--xmp", "--engine", "ray"], "--xmp cannot be used"),
    ):
        assert message in error_of(main, ["caption", *options], capsys)
    assert not list(photographs.glob("*.xmp"))
