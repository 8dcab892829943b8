"""The page of the captioner under load: clients that ask for captions all at once.

    python benchmarks/pages.py --clients 20 --seconds 60

Every client has an image of its own, of which it knows caption and score, and uploads
it again for each request. The clock starts when all clients are connected. The figures
are the answers, those that differ from what the client knows (mixed up), and the
requests that were refused because the queue was full. Late requests took a client
longer than `--patience` seconds in one step. Further figures are other errors, the time
of a request, the memory of the program, the load of the machine, and the uploads on its
disk `--wait` seconds after the last request. `--max-queue` is that of the program: with
less than the number of clients, requests are refused.
"""

import argparse
import collections
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import photographs
import workers

# Seconds that a client waits after a refusal.
REST = 1


def ask(client, path, expected, end, counts, times):
    """Ask for the caption of an image until a time."""
    from gradio_client import handle_file
    from gradio_client.utils import QueueError
    from httpx import TimeoutException

    while time.monotonic() < end:
        start = time.monotonic()
        try:
            (captions,) = client.predict(image=handle_file(path), api_name="/caption")
        except QueueError:
            counts["refused"] += 1
            time.sleep(REST)
        except TimeoutException:
            counts["timed out"] += 1
        except Exception:
            traceback.print_exc()
            counts["errors"] += 1
        else:
            times.append(time.monotonic() - start)
            counts["answers"] += 1
            counts["mixed up"] += answer(captions) != expected


def answer(details):
    """Return caption and score, which identify the image."""
    return details["caption"], round(details["score"], 3)


@contextlib.contextmanager
def served(folder, max_queue):
    """Yield the process of the page and its address."""
    process = subprocess.Popen(
        workers.program("captioner", "web", "--port", 0, "--max-queue", max_queue),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    try:
        yield process, process.stdout.readline().split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def memory(process):
    """Return the resident memory of a process in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000


def load(process, clients, paths, expected, seconds):
    """Let all clients ask at once; return counts, times, memory, and the duration."""
    counts, times, sizes = collections.Counter(), [], [memory(process)]
    start = time.monotonic()
    end = start + seconds
    threads = [
        threading.Thread(target=ask, args=(*asked, end, counts, times))
        for asked in zip(clients, paths, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        sizes.append(memory(process))
    return counts, times, sizes, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--wait", type=float, default=210, help="seconds until uploads are counted"
    )
    parser.add_argument(
        "--patience", type=float, default=300, help="timeout of a client in seconds"
    )
    parser.add_argument("--max-queue", type=int, default=64)
    options = parser.parse_args()
    from gradio_client import Client

    from keras_attention_apps.captioner import LiteCaptioner

    with tempfile.TemporaryDirectory() as folder:
        folder, uploads = Path(folder), Path(folder) / "uploads"
        uploads.mkdir()
        paths = photographs.write_crops(options.clients, folder)
        captioner = LiteCaptioner.from_preset("flickr8k-coco-ensemble")
        expected = [answer(captioner.caption(path).details()) for path in paths]
        with served(uploads, options.max_queue) as (process, address):
            timeout = {"timeout": options.patience}
            clients = [
                Client(address, verbose=False, httpx_kwargs=timeout) for _ in paths
            ]
            counts, times, sizes, duration = load(
                process, clients, paths, expected, options.seconds
            )
            busy = os.getloadavg()[0]
            time.sleep(options.wait)
            left = sum(path.is_file() for path in uploads.rglob("*"))
    kinds = ("answers", "mixed up", "refused", "timed out", "errors")
    median, slow = np.percentile(times, [50, 99])
    print(f"{options.clients} clients, {len(set(expected))} different answers")
    print(", ".join(f"{counts[kind]} {kind}" for kind in kinds))
    print(
        f"{counts['answers'] / duration:.1f} answers a second for {duration:.0f} s, "
        f"median {median:.2f} s, 99th percentile {slow:.2f} s; load average {busy:.1f}"
    )
    print(
        f"memory {sizes[0]:.0f} MB before, {sizes[len(sizes) // 2]:.0f} MB after half, "
        f"{sizes[-1]:.0f} MB after all; {left} uploads left"
    )


if __name__ == "__main__":
    main()
