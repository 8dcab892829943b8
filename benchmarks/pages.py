"""The page of the captioner under load: clients that ask for captions all at once.

    python benchmarks/pages.py --clients 20 --seconds 60

Every client has an image of its own, of which it knows the caption, and uploads it
again for each request. The columns are the answers, those that differ from what the
client knows (a mixed-up answer), the errors, the requests a second, the median and the
99th percentile of their time, the memory of the program before and after, and the
uploads that are on its disk `--wait` seconds after the last request.
"""

import argparse
import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from PIL import Image

PHOTO = Path(__file__).parents[1] / "docs" / "photographer.jpg"
COMMAND = (
    "import sys; from keras_attention_apps.captioner.main import main; "
    "sys.exit(main(['web', '--port', '0']))"
)


def parts(count, folder):
    """Write as many parts of the photograph, and return their paths."""
    image = Image.open(PHOTO)
    paths = []
    for i in range(count):
        side = image.width // 2 + 7 * i % (image.width // 2)
        left = 11 * i % (image.width - side + 1)
        paths.append(folder / f"{i}.png")
        image.crop((left, left, left + side, left + side)).save(paths[-1])
    return paths


def ask(address, path, expected, end, counts, times):
    """Ask for the caption of an image until a time."""
    from gradio_client import Client, handle_file

    client = Client(address, verbose=False, httpx_kwargs={"timeout": 60})
    while time.monotonic() < end:
        start = time.monotonic()
        try:
            (found,) = client.predict(image=handle_file(path), api_name="/caption")
        except Exception:
            traceback.print_exc()
            counts["errors"] += 1
            continue
        times.append(time.monotonic() - start)
        counts["answers"] += 1
        counts["mixed up"] += found["caption"] != expected


def memory(process):
    """Return the resident memory of a process in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--wait", type=float, default=90)
    options = parser.parse_args()
    from keras_attention_apps.captioner import LiteCaptioner

    with tempfile.TemporaryDirectory() as folder:
        folder, uploads = Path(folder), Path(folder) / "uploads"
        uploads.mkdir()
        paths = parts(options.clients, folder)
        captioner = LiteCaptioner.from_preset("flickr8k-soft")
        expected = [captioner.caption(path).text for path in paths]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(uploads)},
        )
        address = process.stdout.readline().split()[1]
        before = memory(process)
        counts, times = collections.Counter(), []
        end = time.monotonic() + options.seconds
        threads = [
            threading.Thread(target=ask, args=(address, path, text, end, counts, times))
            for path, text in zip(paths, expected, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = memory(process)
        time.sleep(options.wait)
        left = sum(path.is_file() for path in uploads.rglob("*"))
        process.send_signal(signal.SIGINT)
        process.wait()
    median, slow = np.percentile(times, [50, 99])
    print(f"{options.clients} clients, {len(set(expected))} different captions")
    print(
        f"{counts['answers']} answers, {counts['mixed up']} mixed up, "
        f"{counts['errors']} errors, {counts['answers'] / options.seconds:.1f} a second"
    )
    print(f"median {median:.2f} s, 99th percentile {slow:.2f} s")
    print(f"memory {before:.0f} MB before, {after:.0f} MB after; {left} uploads left")


if __name__ == "__main__":
    main()
