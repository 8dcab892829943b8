"""Hostile clients of the REST servers, beside ten honest ones.

    python benchmarks/hostile_clients.py nmt captioner

Honest clients send one short sentence, or one small photograph, after the other; each
has an API key, and knows the answers. In each case they are alone, and then beside:

- full requests: one client with a key that always sends as much as a request may have
- half requests: 80 connections without a key that send one byte of a body
- wrong keys: 20 clients with wrong keys or none, in headers and in bodies
- odd items: 50 clients with a key and odd texts or files, among ordinary ones
- leaving: 10 clients with a key that send full requests, and leave at once
- slow bytes: bodies in tiny chunks, endless heads, and clients that read nothing
- floods: 100 connections of one client that send as fast as they can

Then all of them come at once for three minutes, and SIGTERM ends the server among
them. Prints the answers of the honest clients, the median of their times alone and
beside, the growth (its mark is 3), the answers of the hostile ones by status, and the
faults: an honest request without the right answer, an answer that is no JSON or has
another status than it should, a line in the log, a server that does not end. Faults are
listed below. The server listens on 127.0.0.1; the clients use the same processors.
"""

import collections
import contextlib
import http.client
import io
import json
import os
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import workers
from photographs import PHOTO

HONEST = 10
# Seconds until a request of an honest client counts as one without an answer.
LONGEST = 120
# Seconds after which a client makes a new connection; the server closes it after five.
IDLE = 2
PROGRAMS = ("nmt", "captioner")
SENTENCES = [
    f"{who} {what} in the {where}."
    for who in ("A man", "Two dogs", "A young woman", "The children")
    for what in ("run", "play", "sit")
    for where in ("snow", "park", "kitchen")
]
ODD_TEXTS = (
    "",
    "\0\1\x7f",
    "\ud800",
    "\u202egnol\u202c",
    "e\u0301" * 500,
    "x" * 5000,
    "\U0001f600" * 1000,
    "(((((" * 900,
    "a b " * 1200,
    "\n" * 5000,
    "1 2 3. " * 700,
    "<b><i>" * 800,
    "&#0;&#xd800;&#1114112;",
    "Ein Satz. Noch einer! 我喜欢狗。",
    None,
    5,
    [],
    {"q": "x"},
)
ODD_BODIES = (b"", b"{", b"[1]", b"\xff\xfe", b"null", b'{"q": NaN}', b"[" * 100_000)


class Server:
    """A server of a program, in a process of its own, and the keys of its clients."""

    def __init__(self, program, folder):
        self.program, self.log = program, Path(folder, f"{program}.log")
        self.keys = [secrets.token_urlsafe() for _ in range(2 * HONEST)]
        file = Path(folder, "keys.txt")
        file.write_text("\n".join(self.keys))
        command = workers.program(program, "serve", "--port", 0, "--api-keys", file)
        # With this variable, messages of TensorFlow would be in the log.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "TF_CPP_MIN_LOG_LEVEL"
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.is_ending = False
        line = self.process.stdout.readline()
        self.host, port = re.search("//(.*):([0-9]+)", line).groups()
        self.port = int(port)

    def memory(self, name="VmRSS"):
        """Return the memory of the process in megabytes; `VmHWM` is the peak."""
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/status").read_text()
            return int(re.search(rf"{name}:\s+(\d+)", text)[1]) // 1000
        return 0

    def connect(self, seconds=LONGEST):
        return http.client.HTTPConnection(self.host, self.port, timeout=seconds)

    def socket(self, seconds=30):
        return socket.create_connection((self.host, self.port), timeout=seconds)


class Case:
    """Clients that send requests until a time, and what came of it."""

    def __init__(self, server, work):
        self.server, self.work = server, work
        self.ends, self._lock = threading.Event(), threading.Lock()
        self.seconds, self.statuses = [], collections.Counter()
        self.faults = collections.Counter()

    def run(self, seconds, *groups):
        """Run groups of clients, pairs of a number and a function of this and one."""
        threads = [
            threading.Thread(target=self._client, args=(function, i), daemon=True)
            for count, function in groups
            for i in range(count)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self.ends.set()
        for thread in threads:
            thread.join(2 * LONGEST)
            if thread.is_alive():
                self.fault("a client without an answer")

    def _client(self, function, number):
        while not self.ends.is_set():
            try:
                function(self, number)
            except (OSError, http.client.HTTPException):
                # The server closes connections of hostile clients.
                time.sleep(0.05)

    def fault(self, text):
        with self._lock:
            self.faults[text] += 1

    def answered(self, response, expected, content=None):
        """Count the answer to a hostile request, whose status should be expected."""
        content = response.read() if content is None else content
        with self._lock:
            self.statuses[response.status] += 1
        try:
            values = json.loads(content)
        except ValueError:
            self.fault(f"no JSON: {content[:60]!r}")
            return None
        if response.status not in expected:
            self.fault(f"status {response.status}: {str(values)[:80]}")
        return values


def honest(case, number):
    """Send ordinary requests over one connection, and check the answers."""
    server, work = case.server, case.work
    connection = server.connect()
    turn, last = number, time.perf_counter()
    while not case.ends.is_set():
        headers, body, expected = work.ordinary[turn % len(work.ordinary)]
        headers = {**headers, "authorization": f"Bearer {server.keys[number]}"}
        turn += 1
        begin = time.perf_counter()
        if begin > last + IDLE:
            connection.close()
        try:
            connection.request("POST", work.path, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            if server.is_ending and isinstance(error, ConnectionRefusedError):
                return
            case.fault(f"honest: {type(error).__name__}")
            continue
        if response.status != 200 or work.result(answer) != expected:
            case.fault(f"honest: {response.status} {str(answer)[:80]}")
        last = time.perf_counter()
        case.seconds.append(last - begin)


def post(case, key, headers, body, expected, path=None):
    """Send one request of a hostile client over a connection of its own."""
    connection = case.server.connect()
    headers = {**headers, **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        connection.request("POST", path or case.work.path, body, headers)
        return case.answered(connection.getresponse(), expected)
    finally:
        connection.close()


def full(case, number):
    """Send a request, and wait for the answer, or for the end of the case."""
    with case.server.socket() as connection:
        request = head(case, case.server.keys[HONEST], *case.work.full)
        connection.sendall(request)
        if has_answer(case, connection):
            connection.settimeout(LONGEST)
            response = http.client.HTTPResponse(connection)
            response.begin()
            case.answered(response, (200, 503))


def has_answer(case, connection):
    """Wait for an answer, and return whether one came before the end of the case."""
    connection.settimeout(0.5)
    while not case.ends.is_set():
        with contextlib.suppress(TimeoutError):
            return bool(connection.recv(1, socket.MSG_PEEK))
    return False


def head(case, key, headers, body):
    """Return the bytes of a request."""
    headers = {"Host": "127.0.0.1", "Content-Length": len(body), **headers}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {case.work.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def half(case, number):
    headers, body = case.work.full
    with case.server.socket() as connection:
        # The key may come in the body.
        form = {"Content-Type": "application/json"}
        request = head(case, None, {**headers, **form}, body)
        connection.sendall(request[: len(request) - len(body) + 1])
        has_answer(case, connection)


def keys(case, number):
    headers, body = case.work.full
    form = {"content-type": "application/json"}
    wrong = json.dumps({"api_key": "x" * (number + 16), "q": "x"})
    for key, kind, content in (
        ("x" * 20, headers, body),
        (None, headers, body),
        (None, form, wrong),
        ("\u00e4" * 20, form, b"{}"),
        (None, form, b'{"q": "a"}'),
    ):
        if key:
            key = key.encode().decode("latin-1")
        post(case, key, kind, content, (403,))


def odd(case, number):
    key = case.server.keys[HONEST + 1 + number % 5]
    for headers, body, check in case.work.odd(number):
        answer = post(case, key, headers, body, (200, 400, 413, 415, 503))
        if answer and "error" not in answer and not check(answer):
            case.fault(f"odd: {str(answer)[:80]}")
        if case.ends.is_set():
            return


def leaving(case, number):
    key = case.server.keys[HONEST + 6]
    with case.server.socket() as connection:
        connection.sendall(head(case, key, *case.work.full))
        time.sleep(0.05 * (number % 5))


def slow(case, number):
    start = f"POST {case.work.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    key = case.server.keys[HONEST + 7]
    if number % 3 == 0:
        content = start + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 40_000
    elif number % 3 == 1:
        content = start + b"A: b\r\n" * 50_000
    else:
        headers, body, _ = case.work.ordinary[0]
        content = head(case, key, headers, body) * 500
    with case.server.socket() as connection:
        connection.settimeout(5)
        with contextlib.suppress(TimeoutError):
            connection.sendall(content)
        case.ends.wait(2)


def flood(case, number):
    headers, body, _ = case.work.ordinary[number % len(case.work.ordinary)]
    key = case.server.keys[HONEST + 8]
    answer = post(case, key, headers, body, (200, 503))
    if answer and "error" in answer:
        time.sleep(0.2)


# Cases with the numbers and the functions of their clients.
CASES = {
    "full requests": [(1, full)],
    "half requests": [(80, half)],
    "wrong keys": [(20, keys)],
    "odd items": [(50, odd)],
    "leaving": [(10, leaving)],
    "slow bytes": [(9, slow)],
    "floods": [(100, flood)],
}
ALL = [
    *[(1, full), (40, half), (5, keys), (10, odd)],
    *[(3, leaving), (3, slow), (20, flood)],
]


class Translations:
    """Requests to `nmt serve`."""

    path = "/translate"

    def __init__(self):
        self._json = {"content-type": "application/json"}
        self.ordinary = [(self._json, self._body(x), None) for x in SENTENCES]
        sentence = "A man with a red hat reads a book about {} dogs in a large park. "
        text = "".join(sentence.format(i) for i in range(100))[:5000]
        texts = [f"{i} {text}"[:5000] for i in range(60)]
        self.full = self._json, self._body(texts)

    def _body(self, q, **values):
        values = {"source": "en", "target": "de", "q": q, **values}
        return json.dumps(values).encode()

    def result(self, values):
        return values.get("translatedText")

    def odd(self, number):
        for i, text in enumerate(ODD_TEXTS):
            ordinary = SENTENCES[(number + i) % len(SENTENCES)]
            kind = ("text", "html")[(number + i) % 2]
            body = self._body([ordinary, text, ordinary], format=kind)

            def check(answer, ordinary=ordinary):
                first, _, last = answer["translatedText"]
                expected = self.expected(ordinary)
                return first == last == expected

            yield self._json, body, check
        for body in ODD_BODIES:
            yield self._json, body, lambda answer: False

    def expected(self, sentence):
        return self.ordinary[SENTENCES.index(sentence)][2]


class Captions:
    """Requests to `captioner serve`."""

    path = "/caption"

    def __init__(self):
        from PIL import Image

        photo = Image.open(PHOTO).convert("RGB")
        step = photo.width // 16
        crops = [photo.crop((i * step, 0, (i + 8) * step, 300)) for i in range(8)]
        self.ordinary = [(self._type("jpeg"), _encoded(x), None) for x in crops]
        # 49 megapixels.
        large = _encoded(photo.resize((7000, 7000)), quality=97)
        self.full = self._type("jpeg"), large
        small = photo.resize((30, 20))
        self._odd = [
            *(
                _encoded(photo.resize((w, h)))
                for w, h in ((1, 1), (3000, 1), (1, 3000))
            ),
            *(_encoded(small, name) for name in ("png", "gif", "webp", "bmp", "tiff")),
            *(
                _encoded(small.convert(mode), "tiff")
                for mode in ("1", "L", "CMYK", "I")
            ),
            _encoded(photo)[:3000],
            _encoded(photo)[:-200],
            b"This is a text.",
            bytes(100_000),
            *ODD_BODIES,
        ]

    def _type(self, name):
        return {"content-type": f"image/{name}"}

    def result(self, values):
        return values.get("caption")

    def odd(self, number):
        for i, body in enumerate(self._odd):
            headers, content, expected = self.ordinary[(number + i) % 8]
            yield self._type("jpeg"), body, lambda answer: isinstance(answer, dict)
            yield (
                headers,
                content,
                lambda answer, expected=expected: answer["caption"] == expected,
            )


def _encoded(image, kind="jpeg", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def learn(server, work):
    """Ask for the results of the ordinary requests, one after the other."""
    connection = server.connect()
    for i, (headers, body, _) in enumerate(work.ordinary):
        with_key = {**headers, "authorization": f"Bearer {server.keys[0]}"}
        connection.request("POST", work.path, body, with_key)
        result = work.result(json.loads(connection.getresponse().read()))
        assert isinstance(result, str), result
        work.ordinary[i] = headers, body, result


def end(server, case, seconds):
    """Send SIGTERM, and return the seconds until the server has ended."""
    begin = time.perf_counter()
    server.is_ending = True
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(seconds)
        if code != 143:
            case.fault(f"exit code {code}")
    except subprocess.TimeoutExpired:
        server.process.kill()
        case.fault("the server did not end")
    return time.perf_counter() - begin


def row(program, name, alone, beside):
    medians = [1000 * statistics.median(x) if x else 0 for x in (alone, beside.seconds)]
    growth = f"{medians[1] / medians[0]:.1f}" if all(medians) else ""
    statuses = ", ".join(f"{x}: {n}" for x, n in sorted(beside.statuses.items()))
    faults = sum(beside.faults.values())
    cells = [program, name, len(beside.seconds), *(f"{x:.0f} ms" for x in medians)]
    print(f"| {' | '.join(map(str, [*cells, growth, statuses, faults]))} |", flush=True)
    for text, count in beside.faults.items():
        print(f"  fault, {count} times: {text}", file=sys.stderr)
    return faults


def run(program, arguments):
    """Run all cases of a program, and return the number of faults."""
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        server = Server(program, folder)
        try:
            work = {"nmt": Translations, "captioner": Captions}[program]()
            learn(server, work)
            for name in arguments.cases:
                alone, beside = [], Case(server, work)
                for _ in range(arguments.rounds):
                    first, second = Case(server, work), Case(server, work)
                    first.run(arguments.seconds, (HONEST, honest))
                    second.run(arguments.seconds, (HONEST, honest), *CASES[name])
                    alone += first.seconds
                    beside.seconds += second.seconds
                    beside.statuses += second.statuses
                    beside.faults += first.faults + second.faults
                faults += row(program, name, alone, beside)
            case = Case(server, work)
            memory = [server.memory()]

            def watch(case, number):
                case.ends.wait(arguments.memory_seconds / 10)
                memory.append(server.memory())

            clients = ((HONEST, honest), *ALL, (1, watch))
            thread = threading.Thread(
                target=case.run, args=(arguments.memory_seconds + 5, *clients)
            )
            thread.start()
            time.sleep(arguments.memory_seconds)
            peak, taken = server.memory("VmHWM"), end(server, case, 100)
            thread.join()
            if text := re.sub(f"{program}: terminated\n", "", server.log.read_text()):
                case.fault(f"log: {text[:2000]}")
            faults += row(program, "all, then SIGTERM", [], case)
            middle = memory[len(memory) // 2]
            print(
                f"{program}: {memory[0]} MB before {arguments.memory_seconds} s with "
                f"all, {middle} MB in the middle, {memory[-1]} MB at the end, peak "
                f"{peak} MB; ended {taken:.0f} s after SIGTERM"
            )
        finally:
            server.process.kill()
            server.process.wait()
    return faults


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("programs", nargs="+", choices=PROGRAMS)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2, help="turns of alone, beside")
    parser.add_argument("--seconds", type=float, default=15, help="seconds of a turn")
    parser.add_argument("--memory-seconds", type=float, default=180)
    arguments = parser.parse_args()
    print("| | beside | answers | alone | beside | growth | hostile answers | faults |")
    print("|---|---|---:|---:|---:|---:|---|---:|")
    if sum(run(program, arguments) for program in arguments.programs):
        sys.exit(1)


if __name__ == "__main__":
    main()
