"""Alternative texts in pages of HTML."""

import base64
import html.parser
import random
import re
import shutil
import time
from types import SimpleNamespace

import pytest
from keras_attention_apps.captioner import pages
from keras_attention_apps.captioner.captions import Caption
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.pages import Page, start_tags
from keras_attention_apps.common.models import Runtimes

pytestmark = pytest.mark.usefixtures("cached_models")

PAGE = """<!DOCTYPE html>
<HTML lang=en><head><title>My <img src=red.png></title>
<script>document.write('<img src="red.png">')</script></head>
<body class='a > b'><!-- <img src=red.png> --><?php echo "<img src=blue.png>" ?>
<IMG src="red.png" width=3>  <img
 src='a%20blue.png?v=2#top'/><img alt='' src=red.png>
<img ALT="A red square" src=red.png><p title="<img src=red.png>">&nbsp;\xe9 \u4e2d</p>
<img src="https://example.org/red.png"><img src=//example.org/red.png>
<img src="../red.png"><img src="lost.png"><img><img alt src=red.png>
<img role=presentation src=red.png><img src="{data}"><img src="{broken}">
<textarea><img src=red.png></textarea></body></html>
<img src="red.png" """


@pytest.fixture
def site(squares, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(squares / "Images/red-0.png", folder / "red.png")
    shutil.copy(squares / "Images/blue-0.png", folder / "a blue.png")
    shutil.copy(squares / "Images/red-0.png", tmp_path / "red.png")
    return folder


def written(site, content, *options, name="page.html"):
    """Write a page, complete it, and return the exit code and the new bytes."""
    path, output = site / name, site.parent / "new.html"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    # An untrained model often gives empty captions: prefer long ones.
    command = ["caption", "--format=html", str(path), "--length-penalty=2"]
    code = main([*command, f"--output={output}", *options])
    return code, output.read_bytes()


def test_pictures_without_a_text_get_one(site, model_folder, capsys):
    picture = base64.b64encode((site / "red.png").read_bytes()).decode()
    page = PAGE.format(
        data=f"data:image/png;base64,{picture}", broken="data:image/png,nothing"
    ).encode()
    code, new = written(site, page, f"--model={model_folder}")

    assert code == 2
    err = capsys.readouterr().err
    assert "page.html: Cannot read the given bytes" in err
    assert err.endswith(
        "page.html: 3 alternative texts written; pictures left as they are: "
        "3 decorative, 1 with a text, 2 on other servers, 1 outside of the folder, "
        "2 without a file, 1 unreadable\n"
    )
    alts = re.findall(rb' alt="([A-Z][a-z \']+\.)"', new)
    assert len(alts) == 3 and alts[0] == alts[2]
    assert re.sub(rb' alt="[A-Z][^"]*\."', b"", new) == page
    for tag in (b"<IMG alt=", b"<img alt=", b"\n src='a%20blue.png?v=2#top'/>"):
        assert tag in new

    assert main(["caption", str(site / "red.png"), f"--model={model_folder}"]) == 0
    assert main(["caption", "--format=html", str(site / "page.html")]) == 2
    assert capsys.readouterr().out.count(' alt="A') == 3


@pytest.mark.parametrize("encoding", ["utf-8-sig", "windows-1252", "shift_jis"])
def test_bytes_of_any_encoding_stay(site, model_folder, encoding):
    name = {"windows-1252": "r\xe9d.png", "shift_jis": "\u8d64.png"}.get(
        encoding, "\xe9"
    )
    (site / "red.png").rename(site / name)
    text = f'<meta charset={encoding[:12]}><p>\x81</p><img src="{name}">'
    page = text.replace("\x81", "").encode(encoding) + b"\r\n"
    code, new = written(site, page, f"--model={model_folder}")

    assert code == 0
    assert new.count(b"<img alt=") == 1
    assert re.sub(rb' alt="[A-Z][^"]*\."', b"", new) == page


def test_a_page_in_utf_16_becomes_utf_8(site, model_folder):
    page = '<img src="red.png">\u4e2d'
    code, new = written(site, page.encode("utf-16"), f"--model={model_folder}")
    assert code == 0
    assert re.sub(' alt="[A-Z][^"]*"', "", new.decode("utf-8-sig")) == page


def test_pictures_of_a_website_are_found(site, model_folder, capsys):
    page = b'<img src="/red.png"><img src="../red.png"><img src="../../red.png">'
    model = f"--model={model_folder}"
    code, new = written(site, page, model, name="blog/post.html")
    assert (code, new) == (0, page)
    assert ": 1 without a file, 2 outside of the folder\n" in capsys.readouterr().err

    site_option = f"--site={site}"
    code, new = written(site, page, model, site_option, name="blog/post.html")
    assert code == 0
    assert new.count(b" alt=") == 2
    assert new.endswith(b'<img src="../../red.png">')

    code, new = written(site, b'<base href="../">' + page, model, site_option)
    assert new.count(b" alt=") == 1


def test_a_link_does_not_lead_out_of_the_folder(site, model_folder, capsys):
    (site / "link.png").symlink_to(site.parent / "red.png")
    for source in ("link.png", "%2e%2e/red.png", "a/../../red.png", "..\\red.png"):
        page = f'<img src="{source}">'.encode()
        assert written(site, page, f"--model={model_folder}") == (0, page)
        assert "1 outside of the folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "base", ["https://example.org/", "//example.org", "http://[", "file:///tmp/"]
)
def test_a_base_on_another_server_is_not_read(site, base, capsys):
    page = f'<base href="{base}"><base href="."><img src="red.png">'.encode()
    assert written(site, page) == (0, page)
    assert "1 on other servers" in capsys.readouterr().err


def test_unsure_texts_are_marked(site):
    page = Page(b'<img src="red.png"><img src="a blue.png">', "page", site, site)
    red, blue = (source for _, source in page.pictures)
    texts = {red: ('A "red" <b> & \u4e2d.', True), blue: ("Blue.", False)}
    assert page.completed(texts) == (
        b'<img alt="A &quot;red&quot; &lt;b&gt; &amp; &#20013;." data-alt="unsure" '
        b'src="red.png"><img alt="Blue." src="a blue.png">'
    )
    assert page.completed({}) == b'<img src="red.png"><img src="a blue.png">'


@pytest.mark.parametrize(("least", "is_kept"), [("-0.8", True), ("-0.7999", False)])
def test_scores_have_the_digits_of_the_output(site, monkeypatch, least, is_kept):
    found = Caption("a dog", ["a", "dog"], -2.0, -2.0, -0.80004, [], None)
    captioner = SimpleNamespace(caption_each=lambda x, **_: [(x[0], [found])])
    monkeypatch.setattr(Runtimes, "load", lambda *_, **__: captioner)
    _, new = written(site, b'<img src="red.png">', f"--min-score={least}")
    assert (b'alt="A dog."' in new) == is_kept


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best=2"], "takes no --n-best"),
        (["--json"], "takes no --json"),
        (["--overlay=a.png"], "takes no --overlay"),
        (["--output={site}/page.html"], "expected an output that is not an input"),
        (["--output={site}/red.png"], "expected an output that is not an input"),
        (["--format=images", "--site={site}"], "--site needs --format html"),
    ],
)
def test_options_that_do_not_fit_are_errors(site, options, message, capsys):
    path = site / "page.html"
    path.write_text('<img src="red.png">')
    before = {x: x.read_bytes() for x in site.iterdir()}
    options = [x.format(site=site) for x in options]

    assert main(["caption", str(path), "--format=html", *options]) == 2

    assert message in capsys.readouterr().err
    assert {x: x.read_bytes() for x in site.iterdir()} == before


class Reference(html.parser.HTMLParser):
    """The start tags that Python's own parser finds."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        first = {}
        for name, value in attributes:
            first.setdefault(name, value or "")
        self.found.append((tag, first))


def test_tags_are_those_of_another_parser():
    text = PAGE.format(data="data:,a", broken="data:,b")
    # Its end within a tag, and the contents of these elements, differ by version.
    text = re.sub("<title>.*?</title>|<textarea>.*?</textarea>|<img [^>]*$", "", text)
    found = [(name, attributes) for _, name, attributes in start_tags(text)]
    assert found == Reference(text).found
    assert len(found) == 18


def test_mutated_pages_are_no_crash(site, monkeypatch):
    generator = random.Random(3)
    pieces = [*"<>/=\"'!-&?\0 \n", "<img ", "src=", "<!--", "-->", "</", "<script>"]
    pieces += [
        "<base href=",
        "data:,",
        "base64,",
        "&#x110000;",
        "%00",
        "\xff",
        "http://[",
    ]
    pieces += ["charset=idna", "charset=undefined", "charset=utf-7"]
    template = PAGE.format(data="data:image/png;base64,iVBORw==", broken="data:,")
    for _ in range(600):
        characters = list(template)
        for _ in range(generator.randrange(1, 12)):
            place = generator.randrange(len(characters))
            length = generator.choice((0, 0, 1, 5, 60))
            characters[place : place + length] = generator.choice(pieces)
        data = "".join(characters).encode("latin-1", "replace")
        data = data[: generator.randrange(1, 2 * len(data))]
        page = Page(data, "page", site, site)
        assert page.completed({}) == data
        for place, source in page.pictures:
            assert data[:place].lower().endswith(b"<img")
            assert isinstance(source, bytes) or source.parent == site.resolve()
        texts = {source: ("A.", False) for _, source in page.pictures}
        new = page.completed(texts)
        assert len(new) == len(data) + len(page.pictures) * len(' alt="A."')
        # What has a text now keeps it.
        assert Page(new, "page", site, site).pictures == []


@pytest.mark.parametrize(
    "piece",
    ["<", "<!--", "<img ", "<img a='", "<a =", "</", "<script>", "<img/", "<?", "="],
)
def test_time_grows_with_the_length_alone(piece):
    begin = time.process_time()
    for text in (piece * 100_000, "<img " + piece * 100_000, "<img" + " " * 300_000):
        list(pages.start_tags(text))
    assert time.process_time() - begin < 5
