"""The pages of the manual on the screen of a telephone, in Chromium."""

import os
import subprocess
import sys

import pytest

from attention_testing.repository import ROOT

pytestmark = pytest.mark.browser

# Width of a usual telephone in pixels.
WIDTH = 390
# Elements beyond the right edge of the screen, unless a box around them scrolls.
OUTSIDE = """() => {
    const width = document.documentElement.clientWidth;
    const isClipped = (element) => {
        for (let box = element.parentElement; box !== document.body; ) {
            if (getComputedStyle(box).overflowX !== "visible") return true;
            box = box.parentElement;
        }
        return false;
    };
    return [...document.querySelectorAll("article *")]
        .filter((x) => x.getBoundingClientRect().right > width + 1 && !isClipped(x))
        .map((x) => x.outerHTML.slice(0, 100));
}"""
# Boxes whose content is wider than they are, and can be scrolled.
SCROLLABLE = """() => [...document.querySelectorAll("article *")].filter(
    (x) => x.scrollWidth > x.clientWidth && getComputedStyle(x).overflowX === "auto"
).length"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The HTML files of the manual."""
    pytest.importorskip("mkdocs")
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", site],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return sorted(site.rglob("*.html"))


def test_no_page_scrolls_sideways(browser, pages):
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 844}, is_mobile=True, has_touch=True
    )
    page = context.new_page()
    wide, scrollable = {}, 0
    for path in pages:
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        scrollable += page.evaluate(SCROLLABLE)
        outside = page.evaluate(OUTSIDE)
        if outside or page.evaluate("document.documentElement.scrollWidth") > WIDTH:
            wide[path.name] = outside[:3]
    context.close()

    assert wide == {}
    # Code and tables that do not fit scroll in their boxes.
    assert len(pages) > 50 and scrollable > 100
