"""The manual: its reference is complete, and its hooks do what they say."""

import configparser
import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import types

import pytest
from keras import tree
from PIL import Image, ImageOps

import keras_attention
from attention_testing.repository import ROOT, blocks, module_of, read
from attention_testing.servers import served

DOCS = ROOT / "docs"


def hook(name):
    """Import a hook of the manual, which needs the packages of the extra `docs`."""
    for package in ("griffe", "latex2mathml", "mkdocs"):
        pytest.importorskip(package)
    # MkDocs, too, lets a hook import its neighbours.
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "hooks")
        return module_of(f"docs/hooks/{name}.py")


def test_every_public_name_is_in_the_reference_once():
    pages = "\n".join(read(page) for page in (DOCS / "api").glob("*.md"))
    entries = re.findall(r"^::: keras_attention\.(\S+)$", pages, re.M)

    # The module's docstring describes the step functions of all searches.
    entries.remove("search")
    assert sorted(entries) == sorted(keras_attention.__all__)


def test_sections_of_docstrings_become_markdown():
    text = hook("docstrings").as_markdown(
        """Return the sum.

        Args:
            x, y: Numbers,
                of any kind.

        Returns:
            A number: the sum.

        Example:

        >>> add(1, 2)
        3
        """
    )

    assert text.split("\n") == [
        "Return the sum.",
        "",
        "**Arguments**",
        "",
        "",
        "`x`, `y`",
        ":   Numbers,",
        "    of any kind.",
        "",
        "**Returns**",
        "",
        "A number: the sum.",
        "",
        "**Example**",
        "",
        "",
        "```pycon",
        ">>> add(1, 2)",
        "3",
        "```",
    ]


def test_notebooks_become_pages(tmp_path):
    cells = [
        {
            "cell_type": "markdown",
            "source": ["# Sum\n", "where $a_1*b$, `$a$`:$$\\exp c$$"],
        },
        {
            "cell_type": "code",
            "source": ["print(3)"],
            "outputs": [
                {"output_type": "stream", "text": ["3\n"]},
                {"output_type": "display_data", "data": {"image/png": "QUJD\n"}},
                {"output_type": "execute_result", "data": {"text/html": ["<p>a</p>"]}},
            ],
        },
    ]
    path = tmp_path / "sum.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")

    text = hook("notebooks").as_markdown(path)

    assert text.startswith("# Sum\nwhere <span><math ") and "`$a$`:" in text
    inline, block = re.findall("<math .*?</math>", text)
    assert "*" not in inline and "<msub><mi>a</mi><mn>1</mn></msub>" in inline
    assert 'display="block"' in block and "<mi>exp</mi><mspace " in block
    assert "````python\nprint(3)\n````" in text
    assert "````{ .text .output }\n3\n````" in text
    assert 'src="data:image/png;base64,QUJD">' in text
    assert text.endswith("\n\n<p>a</p>")


class Page:
    """A page of the manual, as far as the hooks look at it."""

    def __init__(self, path):
        self.file = self
        self.src_uri = path


def without_code(page):
    """Return the text of a page without its blocks of code."""
    return re.sub(r"(?ms)^(`{3,}).*?^\1", "", read(page))


def test_links_lead_to_files_of_the_repository():
    """As on GitHub; `mkdocs build --strict` checks the links of the manual."""
    pages = [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        # Not the packages of apps/browser/node_modules.
        *(ROOT / "apps").glob("*.md"),
        *(ROOT / "apps").glob("browser/*.md"),
        *(ROOT / "apps/keras_attention_apps").glob("*/presets/*/*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "examples").glob("*.md"),
    ]
    links = [
        (page.relative_to(ROOT), link)
        for page in pages
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", without_code(page))
    ]

    assert len(links) > 60
    assert [x for x in links if not (ROOT / x[0].parent / x[1]).exists()] == []


@pytest.mark.parametrize(
    ("place", "link", "expected"),
    [
        ("index.md", "../benchmarks/README.md", "benchmarks.md"),
        ("contributing.md", "docs/architecture.md", "architecture.md"),
        ("benchmarks.md", "../docs/captioner.md#train", "captioner.md#train"),
        ("api/layers.md", "../layers.md", "../layers.md"),
        (
            "models/flickr8k-coco-soft.md",
            "../flickr8k-coco-hard/README.md",
            "flickr8k-coco-hard.md",
        ),
        ("index.md", "https://keras.io/README.md", "https://keras.io/README.md"),
    ],
)
def test_links_between_files_become_links_between_pages(place, link, expected):
    text = f"a [link]({link})"

    markdown = hook("pages").on_page_markdown(text, Page(place), None, None)

    assert markdown == f"a [link]({expected})"


@pytest.mark.parametrize("code", ["```python\n{}\n```", "````\n```\n{}\n````", "`{}`"])
def test_brackets_in_code_are_no_links(code):
    code = code.format("self.norms[0](x)")
    text = f"{code} [page](../benchmarks/README.md)"

    markdown = hook("pages").on_page_markdown(text, Page("index.md"), None, None)

    assert markdown == f"{code} [page](benchmarks.md)"


def test_public_names_in_the_text_link_to_the_reference():
    html = (
        "<h2><code>DotScore</code></h2><p><code>DotScore(True)</code>, "
        "<code>layer.DotScore</code>, <code>DotScores</code></p>"
        "<pre><code>DotScore</code></pre>"
    )

    linked = hook("pages").on_page_content(html, None, None, None)

    reference = '<autoref identifier="keras_attention.DotScore">'
    assert linked == html.replace(
        "<code>DotScore(True)</code>",
        f"{reference}<code>DotScore(True)</code></autoref>",
    )


@pytest.mark.parametrize(
    ("html", "warned"),
    [
        ('<script src="https://example.org/a.js"></script>', True),
        ('<link rel="stylesheet" href="//example.org/a.css">', True),
        ('<img alt="" src=http://example.org/a.png>', True),
        ('<a href="https://example.org">example</a><img src="a.png">', False),
    ],
)
def test_pages_that_load_from_other_servers_are_warned_of(html, warned, caplog):
    hook("pages").on_post_page(html, Page("index.md"), None)

    assert ("example.org" in caplog.text) is warned


def test_the_page_of_the_browser_takes_the_place_of_its_picture(tmp_path, monkeypatch):
    pages = hook("pages")
    picture = '<p><a href="browser.html"><img alt="A page" src="browser.png" /></a></p>'
    html = f"<h1>Home</h1>{picture}<p>More</p>"
    monkeypatch.setattr(pages, "BROWSER", tmp_path / "browser")
    config = types.SimpleNamespace(site_dir=str(tmp_path / "site"))

    assert pages.on_post_page(html, Page("index.md"), None) == html
    pages.on_post_build(config)
    assert not (tmp_path / "site").exists()

    (tmp_path / "browser" / "models").mkdir(parents=True)
    (tmp_path / "browser" / "index.html").write_text("the page")
    page = pages.on_post_page(html, Page("index.md"), None)
    assert page == f"<h1>Home</h1>{pages.LIVE}<p>More</p>"
    pages.on_post_build(config)
    assert (tmp_path / "site" / "browser" / "index.html").read_text() == "the page"


def test_workflows_run_what_a_contributor_runs():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(read(".github/workflows/checks.yml"))
    _, test_command = re.findall(r"^python -m pip install .*", read("README.md"), re.M)

    commands = {
        name: [step.get("run", "") for step in job["steps"]]
        for name, job in workflow["jobs"].items()
    }

    assert ".ci/run" in commands["linux"]
    assert test_command in commands["other-systems"]
    assert any("mkdocs build --strict" in command for command in commands["manual"])


ALTERNATIVE_TEXT = read("docs/alternative-text.md")


@pytest.fixture
def captioner(tmp_path, monkeypatch):
    """The command, in an empty folder."""
    pytest.importorskip("ai_edge_litert")
    from keras_attention_apps.captioner.main import main

    monkeypatch.chdir(tmp_path)
    return main


def commands_of(text, program):
    """Return the arguments of all commands of a program in blocks of a page."""
    lines = "\n".join(blocks(text, "")).replace("\\\n", " ").splitlines()
    return [
        shlex.split(line, comments=True)[1:]
        for line in lines
        if line.startswith(f"{program} ")
    ]


def test_page_on_alternative_text_completes_a_website(captioner, tmp_path, capsys):
    one_page, table, overlay, website = commands_of(ALTERNATIVE_TEXT, "captioner")
    (python,) = blocks(ALTERNATIVE_TEXT)
    (tmp_path / "pictures/2024").mkdir(parents=True)
    # The model is sure of its caption for the photograph upside down, wrong as it is.
    with Image.open(DOCS / "photographer.jpg") as photograph:
        flipped = ImageOps.flip(photograph)
    for name in ("team.jpg", "2024/a man.jpg"):
        flipped.save(tmp_path / "pictures" / name)
    (tmp_path / "pictures/broken.jpg").write_text("no picture")
    (tmp_path / "blog").mkdir()
    index, post = tmp_path / "index.html", tmp_path / "blog/post.html"
    index.write_text('<IMG src=pictures/team.jpg> <img src="b.jpg">')
    post.write_text(
        "<img class='x' src='/pictures/2024/a%20man.jpg?v=2'>"
        '<img src="../pictures/2024/a%20man.jpg" alt="">'
    )

    assert captioner(one_page) == 2
    new = (tmp_path / "new.html").read_text()
    assert re.fullmatch(
        r'<IMG alt="A [a-z ]+\." src=pictures/team.jpg> <img src="b.jpg">', new
    )
    assert "'b.jpg': there is no such file" in capsys.readouterr().err
    (tmp_path / "new.html").unlink()

    assert captioner(table) == 2
    with open("captions.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["error"] != "" for row in rows] == [False, True, False]
    rows[0]["caption"] = 'A man with a "Bolex" & a tripod.'
    with open("captions.csv", "w", encoding="utf-8-sig", newline="") as file:
        corrected = csv.DictWriter(file, rows[0])
        corrected.writeheader()
        corrected.writerows(rows)
    assert captioner(overlay) == 0 and (tmp_path / "team-attention.png").is_file()

    assert captioner(website) == 0
    assert index.read_text() == new
    alt = 'alt="A man with a &quot;Bolex&quot; &amp; a tripod."'
    expected = post.read_text()
    assert expected == (
        f"<img {alt} class='x' src='/pictures/2024/a%20man.jpg?v=2'>"
        '<img src="../pictures/2024/a%20man.jpg" alt="">'
    )
    assert "index.html, line 1: 'b.jpg': is not in the cap" in capsys.readouterr().err
    post.write_text(expected.replace(f" {alt}", ""))
    exec(compile(python, "alternative-text.md", "exec"), {})
    assert post.read_text() == expected


def same(actual, expected):
    """Whether two values of JSON are the same, with numbers that are nearly so."""

    def nearly(x):
        return pytest.approx(x, abs=0.5) if isinstance(x, float) else x

    tree.assert_same_structure(actual, expected)
    return tree.flatten(actual) == [nearly(x) for x in tree.flatten(expected)]


@pytest.mark.skipif(
    os.name == "nt" or not shutil.which("curl"),
    reason="the commands are those of a POSIX shell, with curl",
)
def test_commands_of_the_page_on_rest_servers_answer_as_it_says():
    text = read("docs/rest.md")
    with_answer = r"(?s)^```sh\n(.*?)^```(?:\n\n```json\n(.*?)^```)?"
    commands, clients = re.findall(with_answer, text, re.MULTILINE), blocks(text)

    with served("nmt") as (_, nmt), served("captioner") as (_, captioner):

        def at_servers(text):
            for port, address in ((5000, nmt), (5001, captioner)):
                text = text.replace(f"http://127.0.0.1:{port}", address)
            return text

        for command, expected in commands:
            command = at_servers(command).replace("curl ", "curl --silent ", 1)
            finished = subprocess.run(
                command, shell=True, cwd=ROOT, capture_output=True, check=True
            )
            answer = json.loads(finished.stdout)
            assert "error" not in answer
            assert not expected or same(answer, json.loads(expected)), answer
        names = {}
        for client in clients:
            exec(compile(at_servers(client), "rest.md", "exec"), names)

    assert len(commands) >= 5 and len(clients) == 2
    assert names["translation"] == "Zwei Hunde spielen."
    assert names["translations"][0] == names["translation"]


def test_release_files_have_the_version_of_the_package():
    version, citation = keras_attention.__version__, read("CITATION.cff")

    released = re.search(r"^date-released: (\S+)$", citation, re.M)[1]
    assert f"\nversion: {version}\n" in citation
    assert f"\n## {version} ({released})\n" in read("CHANGELOG.md")


def test_container_is_built_of_the_versions_of_the_tests():
    """The versions of all packages that the programs and their extras name."""
    setup = configparser.ConfigParser()
    setup.read([ROOT / "apps/setup.cfg"], encoding="utf-8")
    options = setup["options.extras_require"]
    extras = [setup["options"]["install_requires"], *options.values()]
    named = {
        re.match(r"[\w-]+", line)[0].lower()
        for line in "\n".join(extras).splitlines()
        if line and not line.startswith("keras-attention-")
    }
    lines = read("constraints.txt").splitlines()
    pinned = [re.fullmatch(r"([\w.-]+)==[\w.+]+", x) for x in lines if x[:1] != "#"]

    assert named - {match[1].lower().replace("_", "-") for match in pinned} == set()
    assert "-c constraints.txt" in read("Dockerfile")
    assert "PIP_CONSTRAINT=$PWD/constraints.txt" in read(".ci/run")
