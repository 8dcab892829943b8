"""The REST server without a model: limits, keys, metrics, batches, and its end."""

import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
import uvicorn
from fastapi import Request
from pydantic import BaseModel

from attention_testing.servers import error_of, metric, sends_sigterm, started, until
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import RestConfig
from keras_attention_apps.common.web import bodies, fairness, guard, rest, server
from keras_attention_apps.common.web.server import Connection

from .conftest import in_thread

KEY, OTHER_KEY = "the key of the first client", "the key of another client"


class Echo(BaseModel):
    """The values of a request of the tests."""

    text: str = ""
    api_key: str = ""


def add_echo(service, call=lambda texts: texts):
    """Add a route that answers with what `call` returns of texts."""
    batches = fairness.Batches(call, 64, service.batch_sizes.labels("echo").observe)

    async def echo(request: Request):
        """Return the text of a request."""
        values = await service.values(request, Echo)
        size = len(values.text)
        (answer,) = await service.in_thread(request, batches, [values.text], size=size)
        return {"text": answer}

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
    with pytest.raises(UserError, match="an API key of 16 to 1000 bytes"):
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


def test_the_quota_of_a_client_grows_with_time(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(fairness.time, "monotonic", lambda: now)

    def uses(quota, amount):
        """Use an amount, and return the seconds to wait, or 0."""
        try:
            quota.check("client", amount)
        except guard.Refusal as refusal:
            assert refusal.status == 429
            return int(refusal.headers["retry-after"])
        quota.use("client", amount)
        return 0

    quota = fairness.Quota(2, "requests")
    assert [uses(quota, 1) for _ in range(3)] == [0, 0, 30]
    now += 29
    assert uses(quota, 1) == 1
    now += 1
    assert [uses(quota, 1), uses(quota, 1)] == [0, 30]
    now += 3600
    assert [uses(quota, 1) for _ in range(3)] == [0, 0, 30]

    # A request of more than the quota is answered once the quota is full.
    quota = fairness.Quota(600, "characters")
    assert [uses(quota, amount) for amount in (100, 700, 1500)] == [0, 10, 10]
    now += 10
    assert [uses(quota, 1500), uses(quota, 1)] == [0, 91]
    assert fairness.Quota(None, "requests").check("client", 10**9) is None


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


def test_a_client_with_less_work_gets_a_place_of_one_with_more(tmp_path):
    goes_on = threading.Event()

    def call(texts):
        goes_on.wait(60)
        return texts

    def ask(key, text):
        headers = {"authorization": f"Bearer {key}"}
        return echo(address, text, headers=headers)

    keys = keys_of(tmp_path, f"{KEY}\n{OTHER_KEY}\n")
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        serving(call, keys=keys, max_queue=3) as address,
        ThreadPoolExecutor(9) as pool,
    ):
        try:
            many = []
            for number in range(1, 4):
                many.append(pool.submit(ask, KEY, f"text {number}"))
                until(lambda: waiting_at(address, headers=headers) == number)  # noqa: B023
            error_of(ask(KEY, "text 4"), 503)
            error_of(
                ask(OTHER_KEY, "a text with more work than all of the others"), 503
            )
            other = pool.submit(ask, OTHER_KEY, "other")
            refused = many.pop().result(60)
            assert "at most 3 requests at a time" in error_of(refused, 503)
            error_of(ask(KEY, "text 5"), 503)
        finally:
            goes_on.set()
        answers = [future.result(60).json()["text"] for future in (*many, other)]
    assert answers == ["text 1", "text 2", "other"]


def test_the_work_of_a_client_that_has_left_is_dropped():
    begun, goes_on, computed = threading.Event(), threading.Event(), []

    def call(texts):
        begun.set()
        goes_on.wait(60)
        computed.extend(texts)
        return texts

    with serving(call) as address, ThreadPoolExecutor(2) as pool:
        host, port = address.removeprefix("http://").split(":")
        try:
            first = pool.submit(echo, address, "first")
            assert begun.wait(60)
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(
                    HEAD % b"/echo?text=gone" + b"Content-Length: 0\r\n\r\n"
                )
                until(lambda: waiting_at(address) == 2)
            until(lambda: waiting_at(address) == 1)
        finally:
            goes_on.set()
        assert first.result().ok and echo(address, "last").ok
        text = requests.get(f"{address}/metrics").text
    assert computed == ["first", "last"]
    assert 'test_requests_total{path="/echo",status="499"} 1.0' in text


def waiting_at(address, **options):
    """Return the number of requests that wait at a server."""
    text = requests.get(f"{address}/metrics", **options).text
    return metric(text, "test_waiting_requests")


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
        (b"{" + b'"":1,' * 100_001, "application/json", 413, "at most 100,000 of ':'"),
        (b"%" * 100_001, rest.URLENCODED, 413, "at most 100,000 of '%'"),
        (b"a&" * 1000, rest.URLENCODED, 400, "at most 1000 fields"),
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


def test_small_chunks_and_large_heads_are_refused(address):
    few, many = (
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * count + b"0\r\n\r\n"
        for count in (400, 5000)
    )
    host, port = address.removeprefix("http://").split(":")
    for head, answer in (
        # A body without a type.
        (few, b"HTTP/1.1 415"),
        (many, b"HTTP/1.1 400"),
        (b"A: b\r\n" * 40_000, b"HTTP/1.1 400"),
    ):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(HEAD % b"/echo" + head)
            assert connection.recv(1000).startswith(answer)


def test_a_form_has_letters_of_all_scripts_and_the_first_value(address):
    for body in ("text=Ä+%E4%BD%A0 好&text=b", "&&text=Ä%20%e4%bd%a0%20好&x=&y"):
        answer = post(address, body.encode(), rest.URLENCODED)
        assert answer.json()["text"] == "Ä 你 好"
    files = [("text", (None, "first")), ("text", (None, "second"))]
    assert requests.post(f"{address}/echo", files=files).json()["text"] == "first"


def test_all_bodies_together_are_bounded(address, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_IN_MEMORY", 500)

    assert post(address, b'{"text": "a"}').ok
    refused = post(address, json.dumps({"text": "a" * 600}))
    assert "too many uploads" in error_of(refused, 503)
    assert post(address, b'{"text": "a"}').ok


HEAD = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@contextlib.contextmanager
def half_sent(address, count=1, head=b""):
    """Yield connections that have sent the head and a byte of a request."""
    host, port = address.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=30)
            connections.append(stack.enter_context(connection))
            content = b"Content-Length: 9\r\n" + head + b"\r\n{"
            connection.sendall(HEAD % b"/echo" + content)
        yield connections


def answer_on(connection):
    """Return what a server sends until it closes the connection."""
    return b"".join(iter(lambda: connection.recv(1000), b""))


def test_a_half_sent_request_ends(address, monkeypatch):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.2)
    with half_sent(address) as (connection,):
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")


def test_half_sent_requests_take_no_place_and_the_oldest_gives_way():
    with serving(max_queue=3) as address, half_sent(address, 5) as connections:
        for connection in connections[:2]:
            answer = answer_on(connection)
            assert answer.startswith(b"HTTP/1.1 503") and b"incomplete" in answer
        assert waiting_at(address) == 0
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: echo(address, timeout=30), range(3)))
        assert [answer.status_code for answer in answers] == [200] * 3


def test_the_oldest_half_of_a_body_gives_way_to_others(monkeypatch):
    monkeypatch.setattr(bodies, "MAX_IN_MEMORY", 500)
    with serving() as address, half_sent(address) as (connection,):
        connection.sendall(b"x" * 7)
        assert post(address, json.dumps({"text": "a" * 485})).ok
        assert connection.recv(1000).startswith(b"HTTP/1.1 503")


def test_bodies_of_all_addresses_are_bounded():
    def scope(address):
        return {"client": (address, 1), "headers": []}

    async def read(waiting, address, messages):
        try:
            async with waiting.read(scope(address), messages) as content:
                return content
        except guard.Refusal as refusal:
            return refusal.status

    async def nothing():
        await asyncio.Event().wait()

    async def something():
        return {"type": "http.request", "body": b"x"}

    async def run():
        waiting = bodies.Bodies(1000, 2)
        tasks = []
        # One address has two of the eight places, and six others have one.
        for number in (1, 1, 2, 3, 4, 5, 6, 7):
            tasks.append(
                asyncio.ensure_future(read(waiting, f"192.0.2.{number}", nothing))
            )
            await asyncio.sleep(0)
        assert await read(waiting, "192.0.2.8", something) == b"x"
        assert await asyncio.wait_for(tasks[0], 30) == 503
        assert not any(task.done() for task in tasks[1:]) and waiting.size == 0
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def test_a_body_whose_time_ends_can_give_way(monkeypatch):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.01)

    async def nothing():
        await asyncio.Event().wait()

    async def read(waiting):
        async with waiting.read({"client": None, "headers": []}, nothing):
            pass

    async def run():
        waiting = bodies.Bodies(1000, 1)
        reading = asyncio.ensure_future(read(waiting))
        await asyncio.sleep(0)
        (body,) = waiting._incomplete
        while not body.limit.expired():
            await asyncio.sleep(0)
        waiting._make_place("")
        with pytest.raises(guard.Refusal):
            await asyncio.wait_for(reading, 30)
        assert not waiting._incomplete

    asyncio.run(run())


@pytest.mark.parametrize(
    ("head", "error"),
    [
        (b"Authorization: Bearer the key of nobody\r\n", "invalid API key"),
        (b"Content-Type: image/jpeg\r\n", "expected an API key. Received: none"),
    ],
)
def test_a_key_is_checked_before_the_body_comes(tmp_path, head, error):
    with serving(keys=keys_of(tmp_path, KEY)) as address:
        with half_sent(address, head=head) as (connection,):
            answer = answer_on(connection)
        assert answer.startswith(b"HTTP/1.1 403") and error.encode() in answer


def test_a_proxy_on_this_computer_names_its_clients():
    with serving(requests_per_minute=1) as address:
        clients = ("192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")
        answers = [echo(address, headers={"x-forwarded-for": x}) for x in clients]
    assert [answer.status_code for answer in answers] == [200, 429, 200, 200, 429]


def test_a_quota_is_checked_before_the_body_comes():
    with serving(requests_per_minute=1) as address:
        assert echo(address).ok
        with half_sent(address) as (connection,):
            assert connection.recv(1000).startswith(b"HTTP/1.1 429")


def test_a_key_may_have_any_letters(tmp_path):
    key = "ein Schl\xfcssel mit Umlauten"
    with serving(keys=keys_of(tmp_path, key)) as address:
        headers = {"authorization": f"Bearer {key}".encode()}
        assert echo(address, headers=headers).ok
        assert requests.post(f"{address}/echo", json={"api_key": key}).ok


def test_unknown_paths_methods_files_and_hosts_are_errors(address):
    error_of(requests.get(f"{address}/../../etc/passwd"), 404)
    error_of(requests.post(f"{address}/nothing", data={"text": "a"}), 404)
    error_of(requests.delete(f"{address}/echo"), 405)
    answer = requests.post(f"{address}/echo", files={"text": ("/etc/passwd", b"a")})
    assert error_of(answer, 400).endswith("Received: a file")
    headers = {"host": "example.org"}
    error_of(requests.get(f"{address}/health", headers=headers), 400)
    assert requests.post(f"{address}/echo/", data={"text": "a"}).json()["text"] == "a"


def test_bytes_that_are_no_request_are_answered_in_json(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"\0\xff\r\n\r\n")
        answer = answer_on(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/json" in head
    assert list(json.loads(body)) == ["error"]


def test_a_client_that_does_not_read_loses_its_connection(monkeypatch):
    monkeypatch.setattr(server, "READ_SECONDS", 0.2)
    with serving() as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect((host, int(port)))
            body = json.dumps({"text": "a" * 15_000_000}).encode()
            head = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(HEAD % b"/echo" + head % len(body) + body)
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
            time.sleep(1)
            with pytest.raises(ConnectionError):
                while connection.recv(1_000_000):
                    pass
                raise ConnectionError


def test_a_full_server_closes_a_connection_of_who_has_most():
    class Opened(server.Connection):
        def __init__(self, address, opened, state):
            self.client, self._opened, self.aborted = (address, 1), opened, False
            self.transport = SimpleNamespace(is_closing=lambda: False, abort=self.abort)
            complete = state == "answered"
            self.cycle = state and SimpleNamespace(
                response_complete=complete, more_body=state == "half"
            )

        def abort(self):
            self.aborted = True

    opened = [
        Opened("192.0.2.1", 1, "waits"),
        Opened("192.0.2.2", 2, "half"),
        Opened("192.0.2.3", 3, "half"),
        Opened("192.0.2.3", 4, "half"),
        Opened("192.0.2.3", 5, "waits"),
        Opened("2001:db8::1", 6, None),
        Opened("2001:db8::2", 7, "answered"),
        Opened("2001:db9::1", 0, None),
    ]
    new = Opened("192.0.2.4", 8, None)
    new.connections = {*opened, new}
    order = []
    while new.connections > {new}:
        new._close_another()
        (closed,) = (x for x in new.connections if x.aborted)
        new.connections.remove(closed)
        order.append(closed._opened)
    assert order == [6, 0, 7, 3, 4, 2, 1, 5]


def test_forms_of_clients_write_nothing_into_the_log(capfd):
    content = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\na\r\n--x--'
    with started(PROGRAM) as (_, address):
        for i in range(3):
            for kind, body in (
                ("multipart/form-data; boundary=x", content + b"junk" * i),
                ("multipart/form-data; boundary=x", b"junk" * i + content),
                ("application/x-www-form-urlencoded", b"&&;a=b&%zz=&=&" * i),
            ):
                post(address, body, kind)
        post(address, b"a", "multipart/form-data; boundary=x; charset=none")
    # What the end of the program writes.
    assert capfd.readouterr().err in ("", "test: terminated\n")


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
        preflight["origin"] = "https://example.com"
        error_of(requests.options(f"{other}/echo", headers=preflight), 400)


def test_a_failure_of_the_server_is_no_traceback():
    def call(texts):
        raise RuntimeError(f"a secret of {texts}")

    with serving(call) as address:
        answer = echo(address)
        assert error_of(answer, 500) == "the server failed: see its log"
        assert requests.get(f"{address}/health").ok


def test_a_failure_outside_of_the_routes_is_json(monkeypatch):
    def fails(*_):
        raise RuntimeError("a fault")

    monkeypatch.setattr(rest.Service, "_check_head", fails)
    with serving() as address:
        assert error_of(echo(address), 500) == "the server failed: see its log"


def waiting_inputs(batches):
    """Return the number of inputs that wait, each of a job of its own."""
    jobs = batches._waiting._clients.members.get(None)
    return len(jobs.members) if jobs else 0


@pytest.fixture
def gathered():
    """A function that computes inputs, of which all but the first wait for it."""

    def compute(call, size, first, others):
        goes_on, begun, sizes = threading.Event(), threading.Event(), []

        def call_later(inputs):
            begun.set()
            assert goes_on.wait(60)
            return call(inputs)

        batches = fairness.Batches(call_later, size, sizes.append)
        with ThreadPoolExecutor(len(others) + 1) as pool:
            futures = [pool.submit(batches, [first])]
            try:
                assert begun.wait(60)
                futures += [pool.submit(batches, [item]) for item in others]
                until(lambda: waiting_inputs(batches) == len(others))
            finally:
                goes_on.set()
        return futures, sizes

    return compute


def test_inputs_that_wait_are_computed_together(gathered):
    results, sizes = gathered(lambda xs: [x.upper() for x in xs], 4, "a", "bcdefghijk")
    assert [x.result() for x in results] == [[x] for x in "ABCDEFGHIJK"]
    assert sizes == [1, 4, 4, 2]


def test_an_input_that_fails_does_not_fail_others(gathered):
    results, _ = gathered(lambda xs: [1 / x for x in xs], 8, 1, [2, 0, 4, 5])
    assert [results[i].result() for i in (0, 1, 3, 4)] == [[1], [0.5], [0.25], [0.2]]
    with pytest.raises(ZeroDivisionError):
        results[2].result()


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
    description = requests.get(f"{address}/spec").json()

    assert description["openapi"].startswith("3.")
    assert {"/echo", "/health", "/metrics"} <= set(description["paths"])
    post = description["paths"]["/echo"]["post"]
    assert post["summary"] == "Return the text of a request."
    assert {"400", "403", "429", "503"} <= set(post["responses"])


# Serves an echo that takes a tenth of a second for each batch.
PROGRAM = f"""
import sys, time
from keras_attention_apps.common import cli
from keras_attention_apps.common.options import RestConfig
from keras_attention_apps.common.web import rest, server
server.FIRST_SECONDS = 10
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.apps.common.test_serve import add_echo

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

        futures = [pool.submit(ask, client) for client in range(40)]
        until(lambda: waiting_at(address) > 30)
        # A connection whose request comes after the port is closed.
        late = socket.create_connection((host, int(port)), timeout=60)
        ends.set()
        process.send_signal(signal.SIGTERM)
        assert all(future.result() for future in futures), set(errors)
        late.sendall(HEAD % b"/echo?text=late" + b"Content-Length: 0\r\n\r\n")
        with late:
            received = answer_on(late)
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


# Has large images in threads that do not end, and prints the bytes that are left.
ALLOCATES = """
import threading
from PIL import Image
from keras_attention_apps.common.web.server import return_large_blocks

def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def work():
    for _ in range(3):
        image = Image.new("RGB", (4000, 4000), 1).copy()
        image = image.resize((3000, 3000))
        del image
    worked.wait()
    goes_on.wait()

return_large_blocks()
before, goes_on, worked = used(), threading.Event(), threading.Barrier(5)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
worked.wait()
print(used() - before)
goes_on.set()
"""


@pytest.mark.skipif(
    "glibc" not in platform.libc_ver()[0], reason="other libraries keep nothing"
)
def test_threads_keep_no_memory_of_large_images():
    path = os.pathsep.join(filter(None, sys.path))
    left = subprocess.run(
        [sys.executable, "-c", ALLOCATES],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert int(left) < 20_000_000
