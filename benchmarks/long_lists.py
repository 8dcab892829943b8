"""From how many sentences on CTranslate2 translates faster than LiteRT.

Whole processes of `nmt translate` translate the first lines of a text, `--first` and
`--count` of them, on each runtime in turn. Prints the shortest times of `--rounds` for
both numbers of sentences, in wall-clock seconds and in processor seconds, and the
further sentences in a second. Also prints from how many sentences on the runtime that
starts later is faster. On a busy machine, only processor seconds mean something. `nmt
translate --runtime auto` chooses by such numbers.

    python benchmarks/long_lists.py val.en
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np
import workers
from cold_start import process

RUNTIMES = ("litert", "ctranslate2", "keras")
KINDS = ("seconds", "processor seconds")


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("text", type=Path, help="one sentence on each line")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtimes", nargs="+", default=RUNTIMES[:2], choices=RUNTIMES)
    parser.add_argument("--model", default="tatoeba-multi30k-en-de")
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()[: options.count]
    counts, runs = (options.first, len(lines)), {}
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            text = "\n".join(lines[:count]) + "\n"
            Path(folder, f"{count}.txt").write_text(text, encoding="utf-8")
        for _, runtime, count in itertools.product(
            range(options.rounds), options.runtimes, counts
        ):
            command = [
                "--input",
                f"{folder}/{count}.txt",
                "--output",
                f"{folder}/out.txt",
            ]
            command += ["--model", options.model, "--runtime", runtime]
            measured = process("nmt", "translate", *command)[: len(KINDS)]
            runs.setdefault((runtime, count), []).append(measured)
    sizes = " | ".join(f"{count:,} sentences" for count in counts)
    print(f"| runtime | | {sizes} | further ones a second |")
    print("|---|---|---:|---:|---:|")
    starts, each = {}, {}
    for runtime in options.runtimes:
        start, whole = (np.min(runs[runtime, count], axis=0) for count in counts)
        starts[runtime], each[runtime] = (
            start,
            (whole - start) / (counts[1] - counts[0]),
        )
        for i, kind in enumerate(KINDS):
            print(
                f"| {runtime} | {kind} | {start[i]:.2f} | {whole[i]:.2f} "
                f"| {1 / each[runtime][i]:.1f} |"
            )
    first, *others = options.runtimes
    for other, (i, kind) in itertools.product(others, enumerate(KINDS)):
        if each[other][i] < each[first][i]:
            even = (starts[other] - starts[first]) / (each[first] - each[other])
            even = max(even[i], 0) + counts[0]
            print(f"In {kind}, {other} is faster from {even:,.0f} sentences on.")


if __name__ == "__main__":
    main()
