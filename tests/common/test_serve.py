"""The REST server without a model: limits, keys, metrics, batches, and its end."""

import contextlib
import json
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
import uvicorn
from fastapi import Request
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import RestConfig
from keras_attention_apps.common.web import guard, rest
from keras_attention_apps.common.web.server import Connection
from pydantic import BaseModel
from servers import error_of, metric, sends_sigterm, started, until

from .conftest import in_thread

KEY, OTHER_KEY = "the key of the first client", "the key of another client"


class Echo(BaseModel):
    """The values of a request of the tests."""

    text: str = ""
    api_key: str = ""


def add_echo(service, call=lambda texts: texts):
    """Add a route that answers with what `call` returns of texts."""
    batches = rest.Batches(call, 64, service.batch_sizes.labels("echo").observe)

    async def echo(request: Request):
        """Return the text of a request."""
        values = await service.values(request, Echo)
        (found,) = await service.in_thread(batches, [values.text])
        return {"text": found}

    service.route("POST", "/echo", echo, dict)


@contextlib.contextmanager
def serving(call=lambda texts: texts, *, keys=None, **options):
    """Yield the address of a server in a thread of this process."""
    service = rest.Service("test", RestConfig(**options), keys)
    add_echo(service, call)
    options = {"http": Connection, "log_level": "critical"}
    config = uvicorn.Config(service.application(), **options)
    with in_thread(service.server(config)) as port:
        yield f"http://127.0.0.1:{port}"


def echo(address, text="a", **options):
    return requests.post(f"{address}/echo", data={"text": text}, **options)


@pytest.fixture(autouse=True)
def quick_end(monkeypatch):
    monkeypatch.setattr(rest, "ENDING_SECONDS", 0)


@pytest.fixture(scope="module")
def address():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest, "ENDING_SECONDS", 0)
        with serving(max_megabytes=1) as address:
            yield address


def keys_of(folder, content):
    (folder / "keys").write_text(content)
    return rest.read_keys(folder / "keys")


@pytest.mark.parametrize("content", ["", "# no key\n\n", f"{KEY}\nshort\n"])
def test_a_file_of_keys_has_long_keys(tmp_path, content):
    with pytest.raises(UserError, match="an API key of at least 16 characters"):
        keys_of(tmp_path, content)


@pytest.mark.parametrize("place", ["header", "query", "form", "JSON"])
def test_a_request_needs_one_of_the_keys(tmp_path, place):
    def send(key):
        values = {"text": "a", "api_key": key}
        return {
            "header": {"headers": {"authorization": f"Bearer {key}"}},
            "query": {"params": values},
            "form": {"data": values},
            "JSON": {"json": values},
        }[place]

    keys = keys_of(tmp_path, f"# clients\n{KEY}\n\n  {OTHER_KEY}\r\n")
    with serving(keys=keys) as address:
        for key in (KEY, OTHER_KEY):
            assert requests.post(f"{address}/echo", **send(key)).ok
        for key in ("the key of nobody", "# clients", f"{KEY} "):
            if key.strip() == KEY and place == "header":
                continue
            answer = requests.post(f"{address}/echo", **send(key))
            assert error_of(answer, 403) == "invalid API key"
        answer = echo(address)
        assert "expected an API key" in error_of(answer, 403)


def test_metrics_need_a_key_and_health_does_not(tmp_path):
    with serving(keys=keys_of(tmp_path, KEY)) as address:
        error_of(requests.get(f"{address}/metrics"), 403)
        headers = {"authorization": f"Bearer {KEY}"}
        assert requests.get(f"{address}/metrics", headers=headers).ok
        assert requests.get(f"{address}/health").json() == {"status": "ok"}


def test_a_client_has_a_number_of_requests_a_minute(tmp_path):
    keys = keys_of(tmp_path, f"{KEY}\n{OTHER_KEY}\n")
    with serving(keys=keys, requests_per_minute=3) as address:

        def send(key):
            return requests.post(f"{address}/echo", data={"api_key": key})

        assert [send(KEY).status_code for _ in range(5)] == [200] * 3 + [429] * 2
        refused = send(KEY)
        assert "at most 3 requests a minute" in error_of(refused, 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert send(OTHER_KEY).ok


def test_the_allowance_of_a_client_grows_with_time(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(rest.time, "monotonic", lambda: now)
    service = rest.Service("test", RestConfig(requests_per_minute=2))

    def is_refused():
        try:
            service._count("client")
        except guard.Refusal as refusal:
            return int(refusal.headers["retry-after"])
        return 0

    assert [is_refused() for _ in range(3)] == [0, 0, 30]
    now += 29
    assert is_refused() == 1
    now += 1
    assert [is_refused(), is_refused()] == [0, 30]
    now += 3600
    assert [is_refused() for _ in range(3)] == [0, 0, 30]


def test_requests_beyond_the_queue_are_refused_and_the_others_answered():
    goes_on = threading.Event()

    def call(texts):
        goes_on.wait(60)
        return texts

    with serving(call, max_queue=3) as address, ThreadPoolExecutor(3) as pool:
        try:
            waiting = [pool.submit(echo, address, str(i)) for i in range(3)]
            until(lambda: waiting_at(address) == 3)
            refused = echo(address)
            assert "at most 3 requests at a time" in error_of(refused, 503)
            assert refused.headers["retry-after"] == "1"
            assert requests.get(f"{address}/health").ok
        finally:
            goes_on.set()
        assert [future.result().json()["text"] for future in waiting] == ["0", "1", "2"]
        assert echo(address).ok
        assert waiting_at(address) == 0


def waiting_at(address):
    """Return the number of requests that wait at a server."""
    return metric(requests.get(f"{address}/metrics").text, "test_waiting_requests")


def post(address, content, kind="application/json"):
    headers = {"content-type": kind}
    return requests.post(f"{address}/echo", data=content, headers=headers)


@pytest.mark.parametrize(
    ("content", "kind", "status", "error"),
    [
        (b"{", "application/json", 400, "expected a JSON object"),
        (b"[" * 100_000, "application/json", 400, "expected a JSON object"),
        (b"[1]", "application/json", 400, "expected a JSON object"),
        (b"\xff\xfe", "application/json", 400, "expected a JSON object"),
        (b'{"text": 3}', "application/json", 400, "text: input should be a valid str"),
        (b'{"text": {"a": 1}}', "application/json", 400, "text: .*Received: {'a': 1}"),
        (b"a", "text/plain", 415, "a form or application/json. Received: text/plain"),
        (b"a", "", 415, "a form or application/json"),
        (b"a", "multipart/form-data", 400, "boundary"),
        (b"a", "multipart/form-data; boundary=x", 400, "."),
        (b"--x\r\n\r\n\r\n--x--", "multipart/form-data; boundary=x", 400, "."),
        (b"a", "multipart/form-data; boundary=x; charset=none", 400, "."),
        (b"{}" + b" " * 1_000_000, "application/json", 413, "at most 1,000,000 bytes"),
    ],
)
def test_a_bad_body_is_answered_with_one_line(address, content, kind, status, error):
    assert re.search(error, error_of(post(address, content, kind), status))


def test_a_body_without_a_length_is_bounded(address):
    def chunks(count):
        yield b'{"text": "'
        for _ in range(count):
            yield b"a" * 1000
        yield b'"}'

    assert len(post(address, chunks(900)).json()["text"]) == 900_000
    error_of(post(address, chunks(1000)), 413)


def test_all_bodies_together_are_bounded(address, monkeypatch):
    monkeypatch.setattr(rest, "MAX_IN_MEMORY", 500)

    assert post(address, b'{"text": "a"}').ok
    refused = post(address, json.dumps({"text": "a" * 600}))
    assert "too many uploads" in error_of(refused, 503)
    assert post(address, b'{"text": "a"}').ok


HEAD = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def test_a_half_sent_request_ends(address, monkeypatch):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.2)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(HEAD % b"/echo" + b"Content-Length: 9\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_unknown_paths_methods_files_and_hosts_are_errors(address):
    error_of(requests.get(f"{address}/../../etc/passwd"), 404)
    error_of(requests.post(f"{address}/nothing", data={"text": "a"}), 404)
    error_of(requests.delete(f"{address}/echo"), 405)
    answer = requests.post(f"{address}/echo", files={"text": ("/etc/passwd", b"a")})
    assert error_of(answer, 400).endswith("Received: a file")
    headers = {"host": "example.org"}
    assert requests.get(f"{address}/health", headers=headers).status_code == 400


def test_requests_of_web_pages_need_an_option(address):
    def ask(address, origin):
        return echo(address, headers={"origin": origin})

    page = "https://example.org"
    assert "--allow-origin" in error_of(ask(address, page), 403)
    assert ask(address, address).ok

    with serving(allow_origin=(page,)) as other:
        assert ask(other, page).headers["access-control-allow-origin"] == page
        error_of(ask(other, "https://example.com"), 403)
        preflight = {"origin": page, "access-control-request-method": "POST"}
        assert requests.options(f"{other}/echo", headers=preflight).ok


def test_a_failure_of_the_server_is_no_traceback():
    def call(texts):
        raise RuntimeError(f"a secret of {texts}")

    with serving(call) as address:
        answer = echo(address)
        assert error_of(answer, 500) == "the server failed: see its log"
        assert requests.get(f"{address}/health").ok


@pytest.fixture
def gathered():
    """A function that computes inputs, of which all but the first wait for it."""

    def compute(call, size, first, others):
        goes_on, begun, sizes = threading.Event(), threading.Event(), []

        def call_later(inputs):
            begun.set()
            assert goes_on.wait(60)
            return call(inputs)

        batches = rest.Batches(call_later, size, sizes.append)
        with ThreadPoolExecutor(len(others) + 1) as pool:
            found = [pool.submit(batches, [first])]
            try:
                assert begun.wait(60)
                found += [pool.submit(batches, [one]) for one in others]
                until(lambda: batches._waiting.qsize() == len(others))
            finally:
                goes_on.set()
        return found, sizes

    return compute


def test_inputs_that_wait_are_computed_together(gathered):
    found, sizes = gathered(lambda xs: [x.upper() for x in xs], 4, "a", "bcdefghijk")
    assert [x.result() for x in found] == [[x] for x in "ABCDEFGHIJK"]
    assert sizes == [1, 4, 4, 2]


def test_an_input_that_fails_does_not_fail_others(gathered):
    found, _ = gathered(lambda xs: [1 / x for x in xs], 8, 1, [2, 0, 4, 5])
    assert [found[i].result() for i in (0, 1, 3, 4)] == [[1], [0.5], [0.25], [0.2]]
    with pytest.raises(ZeroDivisionError):
        found[2].result()


def test_metrics_count_requests_and_batches():
    with serving() as address:
        for _ in range(3):
            echo(address)
        requests.post(f"{address}/echo", json=[])
        requests.get(f"{address}/unknown/{'x' * 50}")
        text = requests.get(f"{address}/metrics").text

    assert 'test_requests_total{path="/echo",status="200"} 3.0' in text
    assert 'test_requests_total{path="/echo",status="400"} 1.0' in text
    assert 'test_requests_total{path="other",status="404"} 1.0' in text
    assert metric(text, "test_request_seconds_count") == 5
    assert metric(text, "test_batch_size_sum") == 3


def test_the_description_has_routes_and_errors(address):
    found = requests.get(f"{address}/spec").json()

    assert found["openapi"].startswith("3.")
    assert {"/echo", "/health", "/metrics"} <= set(found["paths"])
    post = found["paths"]["/echo"]["post"]
    assert post["summary"] == "Return the text of a request."
    assert {"400", "403", "429", "503"} <= set(post["responses"])


# Serves an echo that takes a tenth of a second for each batch.
PROGRAM = f"""
import sys, time
from keras_attention_apps.common import cli
from keras_attention_apps.common.options import RestConfig
from keras_attention_apps.common.web import rest, server
server.FIRST_SECONDS = 10
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from common.test_serve import add_echo

def call(texts):
    time.sleep(0.1)
    return texts

config = RestConfig(port=0, max_queue=64)
add_routes = lambda service: add_echo(service, call)
sys.exit(cli.run("test", lambda: rest.serve("test", config, add_routes)))
"""


@sends_sigterm
def test_the_end_loses_no_request():
    with started(PROGRAM) as (process, address), ThreadPoolExecutor(50) as pool:
        errors, ends = [], threading.Event()
        host, port = address.removeprefix("http://").split(":")

        def ask(client):
            """Send requests, each with a connection of its own, until one fails."""
            for text in (f"{client}, {number}" for number in range(1000)):
                try:
                    answer = echo(address, text, timeout=60)
                except requests.ConnectionError as error:
                    errors.append(repr(error))
                    return ends.is_set() and "refused" in repr(error).lower()
                if answer.status_code != 200 or answer.json()["text"] != text:
                    return False
            return False

        found = [pool.submit(ask, client) for client in range(40)]
        until(lambda: waiting_at(address) > 30)
        # A connection whose request comes after the port is closed.
        late = socket.create_connection((host, int(port)), timeout=60)
        ends.set()
        process.send_signal(signal.SIGTERM)
        assert all(future.result() for future in found), set(errors)
        late.sendall(HEAD % b"/echo?text=late" + b"Content-Length: 0\r\n\r\n")
        with late:
            received = b"".join(iter(lambda: late.recv(1000), b""))
        assert received.startswith(b"HTTP/1.1 200") and b'"late"' in received
        assert process.wait(60) == 143


@sends_sigterm
def test_health_tells_that_the_server_ends():
    with started(PROGRAM) as (process, address):
        assert requests.get(f"{address}/health").ok
        process.send_signal(signal.SIGTERM)
        until(lambda: not requests.get(f"{address}/health").ok)
        for _ in range(3):
            time.sleep(0.1)
            answer = requests.get(f"{address}/health")
            assert error_of(answer, 503) == "the server ends"
            assert answer.headers["connection"] == "close"
