"""Requests of many clients to `nmt serve`, beside one process of `nmt translate`.

Every client sends one sentence after the other, over a connection of its own. The
answers must be the translations that `nmt translate` writes for the same sentences;
others count as mixed up. `nmt translate` runs before and after the server, on the same
lines, and its start is not counted.

Prints the answers, mixed-up answers and errors, the requests per second, those relative
to the sentences per second of `nmt translate`, and the median and the 95th percentile
of the time of a request.

    python benchmarks/serving.py --text val.en
"""

import http.client
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import workers

# Up to this number of sentences, both programs run the same LiteRT file.
SENTENCES = 1000


def translated(path, options):
    """Return the translations of a file, and the seconds that they took."""
    seconds = []
    for lines in (1, None):
        input_file = path
        if lines:
            input_file = path.with_suffix(".start")
            input_file.write_text(
                path.read_text("utf-8").split("\n")[0] + "\n", "utf-8"
            )
        begin = time.perf_counter()
        command = workers.program("nmt", "translate", "--input", input_file, *options)
        process = subprocess.run(command, capture_output=True, check=True)
        seconds.append(time.perf_counter() - begin)
    return process.stdout.decode().split("\n")[:-1], seconds[1] - seconds[0]


class Clients:
    """Clients that send sentences until a time is over.

    Attributes:
        seconds: Seconds of each request.
        mixed_up: Number of answers that are not the translation of their sentence.
        errors: Errors, by their text.
    """

    def __init__(self, address, pairs):
        self._host = address.removeprefix("http://")
        self._pairs = itertools.cycle(pairs)
        self._lock = threading.Lock()
        self.seconds, self.mixed_up, self.errors = [], 0, {}

    def run(self, count, seconds):
        """Return the seconds until all clients have their last answer."""
        begin = time.perf_counter()
        arguments = (begin + seconds,)
        threads = [
            threading.Thread(target=self._ask, args=arguments) for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    def _ask(self, end):
        connection = http.client.HTTPConnection(self._host, timeout=120)
        headers = {"content-type": "application/json"}
        while (begin := time.perf_counter()) < end:
            with self._lock:
                sentence, expected = next(self._pairs)
            body = json.dumps({"q": sentence, "source": "en", "target": "de"})
            try:
                connection.request("POST", "/translate", body.encode(), headers)
                answer = connection.getresponse()
                content = json.loads(answer.read())
                error = content.get("error")
            except (OSError, http.client.HTTPException, ValueError) as failure:
                connection.close()
                error = type(failure).__name__
            taken = time.perf_counter() - begin
            with self._lock:
                if error:
                    self.errors[error] = self.errors.get(error, 0) + 1
                    continue
                self.seconds.append(taken)
                self.mixed_up += content["translatedText"] != expected


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--text", type=Path, required=True, help="English sentences")
    parser.add_argument("--clients", type=int, default=50, help="clients at a time")
    parser.add_argument("--seconds", type=float, default=60, help="seconds of requests")
    parser.add_argument("--model", help="model of both programs")
    arguments = parser.parse_args()
    options = ["--model", arguments.model] if arguments.model else []
    lines = arguments.text.read_text("utf-8").splitlines()
    lines = [line.strip() for line in lines if line.strip()][:SENTENCES]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text")
        path.write_text("\n".join(lines) + "\n", "utf-8")
        expected, first = translated(path, options)
        clients, taken = served(dict(zip(lines, expected, strict=True)), arguments)
        _, second = translated(path, options)
    rate, beside = len(clients.seconds) / taken, 2 * len(lines) / (first + second)
    milliseconds = [1000 * x for x in clients.seconds]
    print(f"{arguments.clients} clients, {taken:.1f} s")
    print(f"{len(clients.seconds):8,} answers")
    print(f"{clients.mixed_up:8,} mixed up")
    print(f"{sum(clients.errors.values()):8,} errors {clients.errors or ''}")
    print(f"{rate:8.1f} requests per second")
    print(f"{beside:8.1f} sentences per second of nmt translate")
    print(f"{rate / beside:8.2f} times as many")
    print(f"{statistics.median(milliseconds):8.0f} ms, median")
    print(f"{statistics.quantiles(milliseconds, n=20)[-1]:8.0f} ms, 95th percentile")
    if clients.mixed_up or clients.errors:
        sys.exit(1)


def served(pairs, arguments):
    """Return the `Clients` of a server, and the seconds of their requests."""
    options = ["--model", arguments.model] if arguments.model else []
    queue = ["--max-queue", 2 * arguments.clients]
    command = workers.program("nmt", "serve", "--port", 0, *queue, *options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[1]
        with urllib.request.urlopen(f"{address}/health", timeout=60):
            pass
        clients = Clients(address, pairs.items())
        # Each thread of the model has an interpreter, which it makes when first used.
        clients.run(arguments.clients, 1)
        clients = Clients(address, pairs.items())
        return clients, clients.run(arguments.clients, arguments.seconds)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
