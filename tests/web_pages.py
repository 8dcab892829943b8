"""Serving the pages of the programs, and opening them in Chromium, for tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "docs" / "photographer.jpg"

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def served(program, temporary, *options):
    """Yield the address of a page that runs in a process of its own.

    Args:
        program: `"captioner"` or `"nmt"`.
        temporary: Folder in which the program makes its temporary folder.
        *options: Further arguments of the command.
    """
    pytest.importorskip("gradio")
    code = (
        f"import sys; from keras_attention_apps.{program}.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "web", "--port", "0", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**_environment(), "TMPDIR": str(temporary)},
    )
    try:
        line = process.stdout.readline()
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _environment():
    # The tests' own modules are found by pytest, and the program by Python.
    path = os.pathsep.join(x for x in sys.path if x)
    return {**os.environ, "PYTHONPATH": path}


@contextlib.contextmanager
def chromium():
    """Yield Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with playwright.sync_playwright() as driver:
        # Containers run tests as root, which Chromium's sandbox refuses.
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, address, *, width=1200, dark=False):
    """Yield a page, and a list of its requests to other addresses."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    page = context.new_page()
    elsewhere = []

    def watch(request):
        if not request.url.startswith((address, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", watch)
    page.goto(address)
    yield page, elsewhere
    context.close()
