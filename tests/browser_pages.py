"""Fixtures that build, serve and load the page and the library of apps/browser."""

import functools
import http.server
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from web_pages import opened

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "apps" / "browser"


@pytest.fixture(scope="session")
def built():
    """The folder of the page and the library, built from the sources."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Node.js is not installed")
    for command in (["ci"], ["run", "build"]):
        subprocess.run([npm, *command], cwd=SOURCE, check=True)
    return ROOT / "build" / "browser"


class Handler(http.server.SimpleHTTPRequestHandler):
    headers_of_all = ()

    def end_headers(self):
        for name in self.headers_of_all:
            self.send_header(*name)
        super().end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def serve():
    """A function that serves a folder, and returns the address."""
    servers = []

    def start(folder, handler=Handler):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(handler, directory=folder)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def library(browser, built, serve):
    """A function that runs a statement with the library, and returns its result."""
    with opened(browser, serve(built)) as (page, _):
        page.evaluate(
            """async () => {
                globalThis.library = await import("/keras-attention.js");
                globalThis.models = {};
                globalThis.model = async (kind) => models[kind] ??=
                    await library.load(`/models/${kind}.tflite`);
            }"""
        )
        yield lambda code, argument=None: page.evaluate(code, argument)
