"""Fixtures that build, serve and load the page and the library of apps/browser."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from attention_testing.web_pages import opened

ROOT = Path(__file__).parents[3]
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


def run_typescript(script, argument, folder):
    """Return what a script prints, in JSON; it reads an argument in JSON.

    In the script, `SOURCE` is the folder of the library. The `folder` is for its files.
    """
    esbuild = SOURCE / "node_modules" / "esbuild" / "bin" / "esbuild"
    if not esbuild.exists():
        pytest.skip("needs npm ci in apps/browser")
    written, built = folder / "script.ts", folder / "script.mjs"
    library = SOURCE / "src" / "library"
    written.write_text(script.replace("SOURCE", str(library)), "utf-8")
    options = ["--bundle", "--platform=node", "--format=esm", f"--outfile={built}"]
    subprocess.run([esbuild, written, *options], check=True, capture_output=True)
    ran = subprocess.run(
        ["node", built],
        input=json.dumps(argument),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


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
