"""Requests of strangers to the pages of both programs: paths, values, routes, bytes.

A request is a tuple: name of the program, how it is sent, and what is sent. Marks such
as `{secret}` stand for paths that are known when the pages run.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

import workers
from photographs import PHOTO

# Seconds until a request without an answer is a hang; a half-sent one ends after 40.
LONGEST = 50
SECRET = "A stranger must not read this sentence."
# Beginnings of files that no answer may have.
STARTS = (SECRET[:12], "root:x:0")
PROGRAMS = ("captioner", "nmt")
META = {"meta": {"_type": "gradio.FileData"}}

# Paths of which none is an upload. `{folder}` is that of the uploads.
PATHS = (
    "{secret}",
    "{photo}",
    "/etc/passwd",
    "/dev/zero",
    "/proc/self/environ",
    "{folder}",
    "{folder}/link",
    "{folder}/photo-link",
    "{folder}/pipe",
    "{folder}/zero",
    "{folder}/../../../../../../../../{secret}",
    "{upload}/../../../../../../../../{secret}",
    "{folder}/\0",
    "{folder}/\ud800",
    "{folder}/" + "x" * 5000,
    "{folder}-other/file",
    "//{secret}",
    "file://{secret}",
    "http://127.0.0.1:{port}/config",
    "~/.bashrc",
    "",
)
NUMBERS = (True, -1, 0, 2.5, 10**30, float("nan"), float("inf"))
TEXTS = ("", "x", "\0", "{secret}", "x" * 100_000)
NESTED = {"path": {"path": "{secret}"}}
OBJECTS = ([], {}, [[]], {"path": None}, NESTED, ["{secret}"], {"a": [NESTED]})
VALUES = (None, *NUMBERS, *TEXTS, *OBJECTS)
ROUTES = (
    *("openapi.json", "docs", "redoc", "monitoring", "login", "pwa_icon/9999"),
    *("static/../{secret}", "static/%2e%2e/%2e%2e/{secret}", "assets//{secret}"),
    *("svelte/..%2f..%2f{secret}", "file={secret}", "config?deep_link=../x"),
)
API = (
    *("openapi.json", "file={secret}", "file={folder}/link", "file={folder}/pipe"),
    *("file/{secret}", "file=http://127.0.0.1/", "proxy=http://127.0.0.1/", "runs"),
    *("component_server", "run/caption", "api/translate", "stream/x", "deep_link"),
    *("custom_component/a/client/b/c", "process_recording", "vibe-edit", "call/x/y"),
    *("queue/data?session_hash=x", "upload_progress?upload_id=x", "call/caption"),
    "heartbeat/" + "x" * 5000,
)
NO_CALLS = ("", "null", "[]", "3", "{", "\0", "[" * 100_000, '{"data": null}')
BODIES = (
    *NO_CALLS,
    '{"data": [NaN]}',
    '{"data": [' + "1," * 10_000 + "1]}",
    '{"data": [], "data": 3}',
    json.dumps({"data": [], "session_hash": "x" * 100_000}),
    json.dumps({"data": [], "fn_index": 10**6, "session_hash": "x"}),
    json.dumps({"data": [], "fn_index": -1, "session_hash": "x"}),
    json.dumps({"data": [], "fn_index": 0, "batched": True, "session_hash": "x"}),
    json.dumps({"data": [], "fn_index": 0, "trigger_id": 10**6, "session_hash": "x"}),
)
ACCEPTING = (
    "call/caption",
    "call/v2/translate",
    "queue/join",
    "cancel",
    "upload",
    "reset",
)
HEADERS = (
    {},
    {"origin": "https://example.com"},
    {"origin": "null"},
    {"host": "example.com"},
    {"content-type": "multipart/form-data"},
    {"content-type": "multipart/form-data; boundary=x; charset=none"},
    {"content-type": "application/json; charset=none"},
    {
        "x-forwarded-host": "example.com",
        "x-gradio-server": "http://[",
        "range": "bytes=-",
    },
)
NAMES = (
    "../../x",
    "..",
    ".",
    "a\0b",
    "/etc/passwd",
    "link",
    "x" * 300,
    "\u202egpj",
    "x\n",
)
HEAD = b" HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BYTES = (
    b"",
    b"\0\xff" * 1000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /" + HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET /" + HEAD + b"X",
    b"POST /gradio_api/queue/join" + HEAD + b"Content-Length: 9\r\n\r\n{",
    b"POST /gradio_api/upload" + HEAD + b"Content-Length: -1\r\n\r\n",
    b"GET /" + HEAD + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
)


def requests(random):
    """Yield descriptions and requests."""

    def chosen(values):
        return values[random.integers(len(values))]

    while True:
        program = chosen(PROGRAMS)
        path = chosen(PATHS)
        file = {"path": path, **chosen(({}, META, {"url": "{secret}", **META}))}
        values = [chosen((file, *VALUES)) for _ in range(int(random.integers(6)))]
        form = {"content-type": "multipart/form-data; boundary=x"}
        how, what = chosen(
            (
                ("file", file),
                ("file", [file, file]),
                ("event", (int(random.integers(25)), values)),
                ("call", values),
                ("get", (chosen(ROUTES), chosen(HEADERS))),
                ("get", (f"gradio_api/{chosen(API)}", chosen(HEADERS))),
                ("post", (chosen(ACCEPTING), chosen(BODIES), chosen(HEADERS))),
                ("post", ("upload", _form(random, chosen), form)),
                ("bytes", chosen(BYTES) if random.random() < 0.1 else BYTES[1]),
            )
        )
        yield f"{program}, {how}: {str(what)[:100]!r}", (program, how, what)


def _form(random, chosen):
    """Return a form with a file, of which a part may be missing."""
    part = f'Content-Disposition: form-data; name="files"; filename="{chosen(NAMES)}"'
    text = f"--x\r\n{part}\r\n\r\ncontent\r\n--x--\r\n"
    return text[: random.integers(len(text))] if random.random() < 0.5 else text


class FileWasRead(Exception):
    """A file that is no upload was read."""


class NoAnswer(Exception):
    """A request had no answer in time."""


class Pages:
    """The pages of both programs, and their answers."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        secret = self._folder / "secret.txt"
        secret.write_text(SECRET)
        self._marks = {"secret": str(secret), "photo": str(PHOTO)}
        self._pages = {x: self._stack.enter_context(self._page(x)) for x in PROGRAMS}

    def close(self):
        self._stack.close()

    @contextlib.contextmanager
    def _page(self, program):
        """Yield the process of a page, its address, marks and events."""
        import httpx

        log = self._folder / f"{program}.log"
        folder = self._folder / program
        folder.mkdir()
        with log.open("w") as errors:
            process = subprocess.Popen(
                workers.program(program, "web", "--port", 0),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "TMPDIR": str(folder)},
            )
        try:
            address = process.stdout.readline().split()[1]
            client = httpx.Client(base_url=address, timeout=LONGEST)
            files = {"files": ("photo.jpg", PHOTO.read_bytes())}
            (upload,) = client.post("/gradio_api/upload", files=files).json()
            uploads = Path(upload).parents[1]
            for name, target in (
                ("link", self._marks["secret"]),
                ("photo-link", PHOTO.resolve()),
                ("zero", "/dev/zero"),
            ):
                (uploads / name).symlink_to(target)
            os.mkfifo(uploads / "pipe")
            port = address.rpartition(":")[2]
            marks = {"upload": upload, "folder": str(uploads), "port": port}
            config = client.get("/config").json()
            yield process, client, {**self._marks, **marks}, config, log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(LONGEST)

    def memory(self):
        """Return the peak memory of the larger page in kilobytes."""
        texts = [
            Path(f"/proc/{process.pid}/status").read_text()
            for process, *_ in self._pages.values()
        ]
        return max(int(re.search(r"VmHWM:\s+(\d+)", text)[1]) for text in texts)

    def answer(self, request):
        """Return the status of an answer, and its text.

        Raises:
            FileWasRead: If the text has the content of another file.
            NoAnswer: If there is none in time.
            AssertionError: If the program logs a traceback, or gives no reason.
        """
        import httpx

        program, how, what = request
        _, client, marks, config, log = self._pages[program]
        send = getattr(self, f"_{how}")
        try:
            answers = send(program, client, config, _filled(what, marks))
        except (httpx.TimeoutException, TimeoutError) as error:
            raise NoAnswer(str(error)) from error
        except (httpx.InvalidURL, httpx.LocalProtocolError) as error:
            return 400, str(error)
        for status, text in answers:
            was_read = how == "file" and status < 400
            if was_read or any(start in text for start in STARTS):
                raise FileWasRead(text[:1000])
            assert '"error": null' not in text and '"error":null' not in text, text
        assert "Traceback" not in log.read_text(), log.read_text()
        return answers[-1]

    def _file(self, program, client, config, file):
        """Send a file to every event and endpoint that takes one, and to a route."""
        kinds = {
            component["id"]: component["type"] for component in config["components"]
        }
        answers = []
        for event in config["dependencies"]:
            inputs = [kinds[x] for x in event["inputs"]]
            if any(kind in ("image", "file") for kind in inputs):
                values = [file if x in ("image", "file") else 1 for x in inputs]
                what = event["id"], values
                answers += self._event(program, client, config, what)
        path = file[0]["path"] if isinstance(file, list) else file["path"]
        what = f"gradio_api/file={path}", {}
        # Some paths cannot be sent.
        with contextlib.suppress(ValueError):
            answers += self._get(program, client, config, what)
        return answers or [(400, "no event takes a file")]

    def _event(self, program, client, config, what):
        number, values = what
        session = uuid.uuid4().hex
        body = {"fn_index": number, "data": values, "session_hash": session}
        joined = _posted(client, "queue/join", json.dumps(body), {})
        if joined.status_code != 200:
            return [(joined.status_code, joined.text)]
        options = {"session_hash": session}
        return [_result(client.get("/gradio_api/queue/data", params=options).text)]

    def _call(self, program, client, config, values):
        # Only the captioner has this endpoint.
        route = "call/caption"
        joined = _posted(client, route, json.dumps({"data": values}), {})
        if joined.status_code != 200:
            return [(joined.status_code, joined.text)]
        result = client.get(f"/gradio_api/{route}/{joined.json()['event_id']}")
        return [_result(result.text)]

    def _get(self, program, client, config, what):
        path, headers = what
        # A stream of events need not end.
        with client.stream("GET", f"/{path}", headers=headers) as answer:
            if "event-stream" not in answer.headers.get("content-type", ""):
                answer.read()
                return [(answer.status_code, answer.text)]
            return [(answer.status_code, next(answer.iter_text(), ""))]

    def _post(self, program, client, config, what):
        answer = _posted(client, *what)
        return [(answer.status_code, answer.text)]

    def _bytes(self, program, client, config, content):
        address = client.base_url.host, client.base_url.port
        with socket.create_connection(address, timeout=LONGEST) as connection:
            connection.sendall(content)
            text = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(100_000):
                    text += part
        text = text.decode("latin-1")
        status = re.match(r"HTTP/1.1 (\d+)", text)
        return [(int(status[1]) if status else 400, text)]


def _posted(client, route, body, headers):
    """Return the response to a request, which is JSON unless the headers differ."""
    headers = {"content-type": "application/json", **headers}
    content = body.encode("utf-8", "replace")
    return client.post(f"/gradio_api/{route}", content=content, headers=headers)


def _filled(value, marks):
    """Return a value with paths instead of marks."""
    if isinstance(value, dict):
        return {key: _filled(x, marks) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(x, marks) for x in value]
    if isinstance(value, str):
        for name, path in marks.items():
            value = value.replace(f"{{{name}}}", path)
    return value


def _result(text):
    """Return the status of a stream of events, and its text."""
    failed = "event: error" in text or '"success":false' in text
    return (400 if failed else 200), text
