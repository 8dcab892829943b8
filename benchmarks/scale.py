"""Bulk captioning with Ray: throughput, memory, and the cost of many images.

Captions the same crops of the photograph with `captioner caption` in one
process, and with `--engine ray` with one and two actors, each in a process of its own,
in turn. Prints medians of the wall time, images a second without the start, and the
peak memory of the process and its descendants. The start is the time of a run
with one image. One process uses all cores, an actor one: on two cores, the rate of two
actors beside that of one process is the overhead of the engine. Then follows what a
million and a hundred million images cost at the rate of one actor.

    python benchmarks/scale.py --images 600 --rounds 3
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import photographs
import workers

WAYS = {
    "one process": ["--runtime", "litert"],
    "Ray, 1 actor": ["--engine", "ray", "--actors", "1"],
    "Ray, 2 actors": ["--engine", "ray", "--actors", "2"],
}
LARGE = (1_000_000, 100_000_000)


def run(folder, output, options):
    """Caption a folder; return the seconds and the peak memory in bytes."""
    started = time.monotonic()
    process = subprocess.Popen(
        workers.program("captioner", "caption", folder, "--output", output, *options),
        # Ray lowers the priority of its workers; a comparison needs equal priorities.
        env={**os.environ, "RAY_worker_niceness": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = [0]
    watching = threading.Thread(target=watch, args=(process, peak), daemon=True)
    watching.start()
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(errors)
    return time.monotonic() - started, peak[0]


def watch(process, peak):
    """Record the peak memory of a process and its descendants."""
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(memory, descendants(process.pid))))
        time.sleep(0.5)


def descendants(root):
    """Return a process and its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    processes = {root}
    while (
        more := {x for x, parent in parents.items() if parent in processes} - processes
    ):
        processes |= more
    return processes


def memory(process):
    """Return the proportional set size (PSS) of a process in bytes."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    line = next((x for x in text.splitlines() if x.startswith("Pss:")), "Pss: 0 kB")
    return int(line.split()[1]) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times = {(way, size): [] for way in WAYS for size in ("one", "all")}
    peaks = dict.fromkeys(WAYS, 0)
    with tempfile.TemporaryDirectory() as root:
        folders = {"one": Path(root) / "one", "all": Path(root) / "all"}
        for size, count in (("one", 1), ("all", options.images)):
            folders[size].mkdir()
            photographs.write_crops(count, folders[size])
        for number in range(options.rounds):
            for way, size in times:
                output = Path(root) / f"{way}-{size}-{number}.jsonl"
                seconds, peak = run(folders[size], output, WAYS[way])
                times[way, size].append(seconds)
                peaks[way] = max(peaks[way], peak)
    print(
        f"{options.images} images, medians of {options.rounds}, {os.cpu_count()} cores"
    )
    print(f"{'':16}{'start s':>9}{'whole s':>9}{'images/s':>10}{'peak MB':>9}")
    rates = {}
    for way in WAYS:
        start, whole = (statistics.median(times[way, x]) for x in ("one", "all"))
        rates[way] = (options.images - 1) / (whole - start)
        row = f"{start:9.1f}{whole:9.1f}{rates[way]:10.1f}{peaks[way] / 1e6:9.0f}"
        print(f"{way:16}{row}")
    both, single, double = rates.values()
    print(f"two actors beside one: {double / single:.2f} times as fast")
    print(
        f"two actors beside one process: overhead of the engine {1 - double / both:.0%}"
    )
    for images in LARGE:
        hours = images / single / 3600
        print(
            f"{images:,} images: {hours:,.0f} hours of one core; "
            f"{hours / 64:,.1f} hours on 64 cores"
        )


if __name__ == "__main__":
    main()
