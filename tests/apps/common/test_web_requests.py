"""Requests of strangers to a page: paths, values, connections, and slow events.

The page has the components, events and endpoints of both programs, without a model.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_testing.servers import started
from keras_attention_apps.common.options import ServerConfig
from keras_attention_apps.common.web import guard

from .conftest import in_thread

pytestmark = pytest.mark.browser

SECRET = "the content of another file"


def build(read):
    """Return a page whose endpoint and event return what `read` returns of uploads."""
    import gradio as gr

    from keras_attention_apps.common.web import page as frame

    with frame.page("test", "A page of the tests.") as blocks:
        image = frame.ImageUpload(label="Image")
        options = frame.beam_options({"beam_size": 5, "length_penalty": 1.0}, ())
        output = gr.JSON()
        reading = frame.event(lambda path, *_: [read(path)], [image, *options], output)
        frame.in_turn(image.input, reading)
        defaults = {"beam_size": 5, "length_penalty": 1.0}
        frame.endpoint(lambda path, *_: [read(path)], image, defaults, name="read")
    return blocks


class Client:
    """A client of the page, in this process.

    Args:
        http: The `TestClient`.
        folder: Folder of the uploads.
    """

    def __init__(self, http, folder):
        self.http = http
        self.folder = folder

    def upload(self, content=b"upload"):
        files = {"files": ("name.txt", content)}
        return self.http.post("/gradio_api/upload", files=files).json()[0]

    def call(self, *values):
        """Return what the endpoint answers, as text."""
        joined = self.http.post("/gradio_api/call/read", json={"data": values})
        event = joined.json()["event_id"]
        return self.http.get(f"/gradio_api/call/read/{event}").text

    def trigger(self, number, *values):
        """Return what an event of the page answers, as text."""
        # The first event of every page loads its script.
        body = {"fn_index": number + 1, "data": values, "session_hash": "session"}
        self.http.post("/gradio_api/queue/join", json=body)
        options = {"session_hash": "session"}
        return self.http.get("/gradio_api/queue/data", params=options).text


@contextlib.contextmanager
def client_of(read):
    pytest.importorskip("gradio")
    testclient = pytest.importorskip("fastapi.testclient")
    from keras_attention_apps.common.web import page

    with guard.upload_folder("test") as folder:
        application = page.application_of(build(read), ServerConfig(), folder)
        address = "http://127.0.0.1"
        with testclient.TestClient(application, base_url=address) as http:
            yield Client(http, folder)


@pytest.fixture(scope="module")
def client():
    from keras_attention_apps.common.web.guard import read_upload

    with client_of(lambda path: read_upload(path, 1000).decode()) as client:
        yield client


@pytest.fixture(params=["file", "link", "parent", "pipe", "folder", "device", "URL"])
def path(request, client, tmp_path):
    """A path that is no upload."""
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    inside = client.folder / request.node.name
    if request.param == "link":
        inside.symlink_to(secret)
    elif request.param == "folder":
        inside.mkdir()
    elif request.param == "pipe":
        os.mkfifo(inside)
    parent = str(client.folder / os.path.relpath(secret, client.folder))
    others = {"file": str(secret), "device": "/dev/zero", "URL": secret.as_uri()}
    return {**others, "parent": parent}.get(request.param, str(inside))


@pytest.mark.parametrize("meta", [{}, {"meta": {"_type": "gradio.FileData"}}])
def test_nothing_but_uploads_is_read(client, path, meta):
    file = {"path": path, **meta}
    answers = (
        client.call(file, 1, 5, 1.0),
        client.trigger(0, file, 5, 1.0),
        client.http.get(f"/gradio_api/file={path}").text,
    )

    for answer in answers:
        assert "expected an uploaded file. Received: " in answer
        assert SECRET not in answer


def test_an_upload_is_read_until_it_is_removed(client):
    file = {"path": client.upload(), "meta": {"_type": "gradio.FileData"}}

    assert '"upload"' in client.call(file, 1, 5, 1.0)
    assert '"upload"' in client.trigger(0, file, 5, 1.0)
    assert client.http.get(f"/gradio_api/file={file['path']}").text == "upload"
    os.remove(file["path"])
    assert "choose it again" in client.call(file, 1, 5, 1.0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((None, None, 5, 1.0), "Number of results: input should be .* number.*None"),
        ((None, 2.5, 5, 1.0), "Number of results: input should be .* of 1.*2.5"),
        ((None, True, 5, 1.0), "Number of results: input should be .* number.*True"),
        ((None, 1, 21, 1.0), "Beam width: input should be .* equal to 20.*21"),
        ((None, 1, 5, "x"), "Length penalty: input should be a valid number.*x"),
        ((3, 1, 5, 1.0), "expected an uploaded file.*3"),
        (({"url": "file:///etc/passwd"}, 1, 5, 1.0), "expected an uploaded file"),
        (({"path": {"path": "/"}}, 1, 5, 1.0), "expected an uploaded file.*{'path': {"),
        (([], 1, 5, 1.0), r"expected an uploaded file.*\[\]"),
        ((None, 1, 5), "expected 4 values.*3"),
        ((None, 1, 5, 1.0, 1), "expected 4 values.*5"),
    ],
)
def test_a_wrong_value_is_answered_with_the_reason(client, capfd, values, reason):
    answer = client.call(*values)

    assert "event: error" in answer
    assert re.search(reason, answer)
    event = client.trigger(0, None, 4, 1.0)
    assert "Beam width: input should be 1, 3, 5 or 10. Received: 4" in event
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("program", ["captioner", "nmt"])
def test_every_value_of_a_client_is_checked(program):
    pytest.importorskip("gradio")
    from keras_attention_apps.common.errors import UserError
    from keras_attention_apps.common.web.page import checked_values

    web, config = (
        importlib.import_module(f"keras_attention_apps.{program}.{x}")
        for x in ("web", "config")
    )
    page = web.build(config.WebConfig())
    functions = [x for x in page.fns.values() if x.fn and x.inputs]
    inputs = {x for function in functions for x in function.inputs if not x.stateful}
    for component in inputs:
        function = SimpleNamespace(fn=len, inputs=[component])
        # No component takes an object that is no upload.
        with pytest.raises(UserError, match=r"(expected|input should) .* Received: {}"):
            checked_values(function, [{}], "/")
    assert len(inputs) > 3


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("call/unknown", '{"data": []}'),
        ("call/v2/read", "{}"),
        ("call/v2/unknown", "{}"),
        ("call/read", "null"),
        ("call/read", "[" * 10_000),
        ("call/read", json.dumps({"data": [], "session_hash": "x" * 1000})),
        ("queue/join", '{"data": [], "fn_index": 99, "session_hash": "x"}'),
        ("upload", "no form"),
    ],
)
def test_a_malformed_request_is_answered_with_the_reason(client, path, content, capfd):
    kind = "multipart/form-data" if path == "upload" else "application/json"
    headers = {"content-type": kind}
    answer = client.http.post(f"/gradio_api/{path}", content=content, headers=headers)

    assert answer.status_code == 400
    assert len(answer.text) > 20
    assert "Traceback" not in capfd.readouterr().err


def test_an_unknown_session_is_no_error_of_the_server(client):
    options = {"session_hash": "unknown"}
    assert "Not Found" in client.http.get("/gradio_api/queue/data", params=options).text


def test_the_description_names_the_host_of_each_request(client):
    for host, other in (("127.0.0.1:1", "localhost:2"), ("localhost:2", "127.0.0.1:1")):
        description = client.http.get("/gradio_api/info", headers={"host": host}).text
        assert f"http://{host}/" in description
        assert f"http://{other}/" not in description


def test_others_are_answered_while_one_upload_takes_long():
    goes_on, begun = threading.Event(), threading.Event()

    def read(path):
        if Path(path).read_text() == "slow":
            begun.set()
            goes_on.wait(60)
        return "read"

    with client_of(read) as client:
        slow, quick = client.upload(b"slow"), client.upload(b"quick")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.call, {"path": slow}, 1, 5, 1.0)
            assert begun.wait(60)
            try:
                assert '"read"' in client.call({"path": quick}, 1, 5, 1.0)
                assert not waiting.done()
            finally:
                goes_on.set()
        assert '"read"' in waiting.result()


# Serves the page with an event that never ends.
PROGRAM = f"""
import sys
import time
from keras_attention_apps.common.cli import run
from keras_attention_apps.common.options import ServerConfig
from keras_attention_apps.common.web.page import serve
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.apps.common.test_web_requests import build

def read(path):
    print("begun", flush=True)
    time.sleep(3600)

config = ServerConfig(port=0)
sys.exit(run("test", lambda: serve("test", lambda: build(read), config)))
"""


def test_the_program_ends_on_sigterm_while_an_event_runs(tmp_path):
    pytest.importorskip("gradio")
    httpx = pytest.importorskip("httpx")
    with started(PROGRAM, TMPDIR=str(tmp_path)) as (process, address):
        httpx.post(f"{address}/gradio_api/call/read", json={"data": [None, 1, 5, 1.0]})
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 143
        assert list(tmp_path.iterdir()) == []


async def answer(scope, receive, send):
    """An application that reads a request and answers, or lasts as a stream does."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    is_stream = "heartbeat" in scope["path"]
    body = {"type": "http.response.body", "body": b"x", "more_body": is_stream}
    await send(body)
    if is_stream:
        await receive()


@pytest.fixture
def port(monkeypatch, tmp_path):
    """Port of a server with small limits."""
    uvicorn = pytest.importorskip("uvicorn")
    from keras_attention_apps.common.web import server as limits

    monkeypatch.setattr(guard, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(guard, "UPLOAD_SECONDS", 1)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 5)
    application = guard.Guard(answer, config=ServerConfig(), folder=tmp_path)
    options = {"http": limits.Connection, "lifespan": "off", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(application, **options))
    with in_thread(server) as port:
        yield port
        server.force_exit = True


def opened(port, content):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(content)
    return connection


def received(connection):
    """Return what the server sends until it closes the connection."""
    with connection, contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(1000), b""))
    return b""


JOIN = (
    b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"
)
ROBOTS = b"GET /robots.txt HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX", b""),
        (ROBOTS + b"GET / HT", b"HTTP/1.1 200"),
        (JOIN, b"HTTP/1.1 408"),
        (JOIN.replace(b"queue/join", b"upload"), b""),
    ],
    ids=["nothing", "line", "header", "second", "body", "upload"],
)
def test_a_half_sent_request_ends(port, content, status):
    assert received(opened(port, content)).startswith(status)


@pytest.mark.parametrize("path", [b"", b"GET /gradio_api/heartbeat/a HTTP/1.1\r\n"])
def test_a_page_is_reachable_beyond_the_connections(port, path):
    content = path and path + b"Host: a\r\n\r\n"
    connections = [opened(port, content) for _ in range(20)]

    assert received(opened(port, ROBOTS)).startswith(b"HTTP/1.1 200")
    for connection in connections:
        connection.close()


def test_one_message_is_logged_once(caplog):
    pytest.importorskip("uvicorn")
    from keras_attention_apps.common.web.server import Reported

    logger = logging.getLogger("test")
    logger.addFilter(Reported())
    for _ in range(3):
        logger.error("Invalid HTTP request received.")
        logger.error("Cancel 3 running task(s)")

    assert caplog.messages == ["Invalid HTTP request received."]
