"""Sentence pairs in one file."""

import csv
import gzip
import zipfile

import pytest

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.nmt.data import dataset

EN, DE = ["A dog runs.", "Two cats."], ["Ein Hund läuft.", "Zwei Katzen."]
TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="EN-us"><seg>A <bpt i="1">&lt;b&gt;</bpt>dog<ept
 i="1">&lt;/b&gt;</ept> runs.</seg></tuv>
<tuv xml:lang="de"><seg>Ein Hund läuft.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>Deux</seg></tuv><tuv xml:lang="de-AT"><seg>Zwei
 <hi>Katzen</hi><ph>&lt;x alt="<sub>!</sub>"/&gt;</ph>.</seg></tuv>
<tuv lang="en"><seg>Two cats<ph/>.</seg></tuv></tu>
</body></tmx>
"""
PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "A dog runs."
msgstr "Ein Hund läuft."

#, fuzzy
msgid "Doubtful"
msgstr "Fraglich"

msgid "Untranslated"
msgstr ""

msgid "A cat"
msgid_plural "%d cats"
msgstr[0] "Eine Katze"
msgstr[1] "%d Katzen"

#~ msgid "Old"
#~ msgstr "Alt"
"""


def tables():
    rows = list(zip(EN, DE, strict=True))
    yield "two.tsv", "".join(f"{en}\t{de}\n" for en, de in rows), {}
    yield "attributed.tsv", "".join(f"{en}\t{de}\tCC-BY 2\r\n" for en, de in rows), {}
    yield "tatoeba.tsv", "".join(f"12\t{en}\t7\t{de}\n" for en, de in rows), {}
    named = "id\tde\tnote\ten\n" + "".join(f"1\t{de}\t-\t{en}\n" for en, de in rows)
    yield "named.tsv", named, {}
    yield "chosen.tsv", named.replace("\ten", "\tX"), {"columns": ("X", "de")}
    yield "numbers.tsv", named.split("\n", 1)[1], {"columns": ("4", "2")}
    quoted = "".join(f'"{de}","{en}, yes"\n' for en, de in rows)
    yield "quoted.csv", f"Target,Source\n{quoted}", {"ending": ", yes"}
    yield "semicolons.csv", "de;en\n" + "".join(f"{de};{en}\n" for en, de in rows), {}
    yield "lines.csv", f'en,de\n"A\ndog runs.",{DE[0]}\nTwo cats.,{DE[1]}\n', {}


TABLES = {name: (text, options) for name, text, options in tables()}


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_columns_of_tables(name, compress, tmp_path):
    text, options = TABLES[name]
    path = tmp_path / (f"{name}.gz" if compress else name)
    content = text.encode()
    path.write_bytes(gzip.compress(content) if compress else content)
    ending = options.get("ending", "")
    pairs = dataset.read_split(path, "en-de", ("train",), options.get("columns", ()))
    assert pairs.source == [f"{text}{ending}" for text in EN]
    assert pairs.target == DE


@pytest.mark.parametrize("text", ["en,de\nA,B\n", "en,de\n" + 200_000 * "a" + ",B\n"])
def test_a_table_leaves_the_limit_of_other_tables(text, tmp_path):
    path, limit = tmp_path / "pairs.csv", csv.field_size_limit()
    path.write_text(text)
    pairs = dataset.read_split(path, "en-de", ("train",), ())
    assert len(pairs.source) == 1
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_segments_of_translation_memories(encoding, tmp_path):
    path = tmp_path / "memory.tmx"
    path.write_bytes(TMX.format(encoding=encoding).encode(encoding))
    pairs = dataset.read_split(path, "en-de", ("train",))
    assert pairs.source == EN
    assert pairs.target == [DE[0], "Zwei Katzen!."]
    with pytest.raises(UserError, match=r"no unit in en and it.*EN-us, de, en, fr"):
        dataset.read_split(path, "en-it", ("train",))


@pytest.mark.parametrize(
    "declaration",
    ['<!ENTITY a "aaaa">', '<!ENTITY a SYSTEM "/etc/passwd">', '<!ENTITY % a "b">'],
)
def test_entities_are_refused(declaration, tmp_path):
    path = tmp_path / "memory.tmx"
    body = "<tmx><tu><tuv lang='en'><seg>&a;</seg></tuv></tu></tmx>"
    path.write_text(f"<!DOCTYPE tmx [{declaration}]>{body}")
    with pytest.raises(UserError, match="must not declare entities"):
        dataset.read_split(path, "en-de", ("train",))


def test_messages_that_are_translated(tmp_path):
    path = tmp_path / "de.po"
    path.write_text(PO)
    pairs = dataset.read_split(path, None, ("train",))
    assert pairs.source == ["A dog runs.", "A cat", "%d cats"]
    assert pairs.target == ["Ein Hund läuft.", "Eine Katze", "%d Katzen"]


def write_archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "terms")
        for name, lines in members.items():
            archive.writestr(name.replace("_", "."), "".join(f"{x}\n" for x in lines))
    return path


def test_texts_in_archives(tmp_path):
    path = write_archive(tmp_path / "moses.zip", Books_de=DE, Books_en=EN)
    assert dataset.read_split(path, "en-de", ("train",)).target == DE
    files = {"train_de": DE, "train_en": EN, "val_de": DE[:1], "val_en": EN[:1]}
    path = write_archive(path, **files)
    assert dataset.read_split(path, "en-de", ("val",)).source == EN[:1]
    with pytest.raises(UserError, match=r"expected two files .* README, train\.de"):
        dataset.read_split(path, "en-de", ("other",))
    path = write_archive(path, a_de=DE, a_en=EN[:1])
    with pytest.raises(UserError, match="Received: 1 and 2"):
        dataset.read_split(path, "en-de", ("train",))


def test_archives_are_bounded(tmp_path):
    path = write_archive(tmp_path / "bomb.zip", a_de=["a" * 100_000], a_en=EN)
    assert path.stat().st_size < 2000
    with files.at_most(50_000), pytest.raises(files.SizeLimitError):
        dataset.read_split(path, "de-en", ("train",))
    # The size that an archive declares may be wrong.
    content = path.read_bytes()
    path.write_bytes(content.replace((100_001).to_bytes(4, "little"), b"\1\0\0\0"))
    with pytest.raises(UserError):
        dataset.read_split(path, "de-en", ("train",))


@pytest.mark.parametrize(
    ("name", "content", "pair", "columns", "fault"),
    [
        ("a.tsv", "a\tb\nc\n", None, (), "row 2, has 1 columns. Expected at least 2"),
        ("a.tsv", "a\tb\n", None, ("x", "b"), "expected columns of .*: a, b. Received"),
        ("a.tsv", "a\tb\n", None, ("1",), "--columns takes two"),
        ("a.tsv", "\t\n", None, (), "no pair with text on both sides"),
        ("a.tsv", "a\t\xff\n", None, (), "line 1, is not UTF-8"),
        ("a.po", "msgid", None, ("1", "2"), "--columns needs a table"),
        ("a.po", "nonsense", None, (), "expected a .po file"),
        ("a.tmx", "<tmx>", "en-de", (), "is not XML"),
        ("a.tmx", "<tmx/>", None, (), "needs --pair"),
        ("a.zip", "PK", "en-de", (), "is damaged"),
        ("a.doc", "a", "en-de", (), r"expected a folder .*\.tsv, \.csv, \.tmx"),
    ],
)
def test_problems_are_one_line(name, content, pair, columns, fault, tmp_path):
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=fault):
        dataset.read_split(path, pair, ("train",), columns)
