"""Pages of the manual that are outside of docs/, and links between all pages.

A link is written as GitHub reads it: relative to the file in the repository.
"""

import ast
import posixpath
import re
import shutil
from pathlib import Path

import notebooks
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

log = get_plugin_logger("pages")

ROOT = Path(__file__).parents[2]
# Tutorials and model cards, and their places in the manual.
NOTEBOOKS = {
    f"examples/{path.name}": f"tutorials/{path.stem}.md"
    for path in sorted(ROOT.glob("examples/*.ipynb"))
}
CARDS = {
    path.relative_to(ROOT).as_posix(): f"models/{path.parent.name}.md"
    for path in ROOT.glob("apps/keras_attention_apps/*/presets/*/README.md")
}
# All files of the repository that become pages.
OUTSIDE = {
    "apps/browser/README.md": "browser-library.md",
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "tutorials/index.md",
    **CARDS,
    **NOTEBOOKS,
}
PLACES = {place: path for path, place in OUTSIDE.items()}
# A link to a file, or code, in which brackets are no links.
LINK = re.compile(
    r"^(?P<fence>`{3,}).*?^(?P=fence)|`[^`\n]+`"
    r"|(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)",
    re.DOTALL | re.MULTILINE,
)
# Parts of a page in which a name does not become a link.
OPAQUE = re.compile(r"<(pre|h[1-6]|a|autoref)\b.*?</\1>", re.DOTALL)
NAME = re.compile(r"<code>([A-Za-z]\w*)(?=[(<])[^<]*</code>")


def public_names():
    """Return the names in `keras_attention.__all__`, without importing Keras."""
    source = (ROOT / "keras_attention/__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    raise ValueError("keras_attention/__init__.py has no __all__")


NAMES = public_names()
# The page of apps/browser. If it has been built, it takes the place of its picture on
# the home of the manual.
BROWSER = ROOT / "build/browser"
PICTURE = re.compile(r'<p><a href="browser.html"><img [^>]*></a></p>')
LIVE = (
    '<iframe class="live" src="browser/index.html" loading="lazy" '
    'allow="clipboard-read" title="Captions and translations in this browser"></iframe>'
)
# Addresses of other servers from which a page loads something.
LOADED = re.compile(r"""<(?!a\b)[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_config(config):
    """Add the tutorials to the navigation."""
    (tutorials,) = (entry for entry in config.nav if "Tutorials" in entry)
    tutorials["Tutorials"] += NOTEBOOKS.values()
    return config


def on_files(files, config):
    """Add the pages that are outside of docs/."""
    for path, place in OUTSIDE.items():
        if path in NOTEBOOKS:
            source = {"content": notebooks.as_markdown(ROOT / path)}
        else:
            source = {"abs_src_path": str(ROOT / path)}
        files.append(File.generated(config, place, **source))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn links between files of the repository into links between pages."""
    place = page.file.src_uri
    folder = posixpath.dirname(PLACES.get(place, f"docs/{place}"))

    def link(match):
        if match["path"] is None:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        target = OUTSIDE.get(path, path.removeprefix("docs/"))
        if path not in OUTSIDE and not path.startswith("docs/"):
            log.warning("%s links to %s, which is no page", place, path)
        return posixpath.relpath(target, posixpath.dirname(place) or ".")

    return LINK.sub(link, markdown)


def on_page_content(html, page, config, files):
    """Link every public name in the text to its place in the reference."""

    def link(match):
        if match[1] not in NAMES:
            return match[0]
        return f'<autoref identifier="keras_attention.{match[1]}">{match[0]}</autoref>'

    parts, start = [], 0
    for opaque in OPAQUE.finditer(html):
        parts += [NAME.sub(link, html[start : opaque.start()]), opaque[0]]
        start = opaque.end()
    return "".join([*parts, NAME.sub(link, html[start:])])


def on_post_page(output, page, config):
    """Show the page of the browser, and warn of what is loaded from another server.

    The manual works offline.
    """
    if BROWSER.is_dir():
        output = PICTURE.sub(LIVE, output)
    for address in LOADED.findall(output):
        log.warning("%s loads %s", page.file.src_uri, address)
    return output


def on_post_build(config):
    """Add the page of the browser, if it has been built."""
    if BROWSER.is_dir():
        shutil.copytree(BROWSER, Path(config.site_dir) / "browser", dirs_exist_ok=True)
