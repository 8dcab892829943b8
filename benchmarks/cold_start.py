"""Cold start: one image or one sentence in a fresh process, on each runtime.

Prints medians of wall-clock time, processor time and peak memory, and the speed-up of
LiteRT; then the time of a warm call in one process, and the throughput of many inputs.
If Keras is faster for an input of many, a last line prints the number of inputs from
which it is faster, its start included.

    python benchmarks/cold_start.py docs/photographer.jpg --image-folder photographs \
        --text val.en
"""

import functools
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import workers

SENTENCE = "A man in a blue shirt is standing on a ladder cleaning a window."
RUNTIMES = ("litert", "keras")


def process(program, *arguments):
    """Return wall seconds, processor seconds and megabytes of a fresh process."""
    command = workers.program(program, *arguments)
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    if status:
        sys.exit(f"failed: {command}")
    # Linux counts kilobytes, macOS bytes.
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / unit


def cold(program, verb, inputs, model, rounds):
    """Print a row for each runtime; return the median seconds of each."""
    runs = {name: [] for name in RUNTIMES}
    for _, name in itertools.product(range(rounds), RUNTIMES):
        options = ["--model", model, "--runtime", name]
        runs[name].append(process(program, verb, inputs, *options))
    medians = {
        name: list(map(statistics.median, zip(*figures, strict=True)))
        for name, figures in runs.items()
    }
    for name, figures in medians.items():
        wall, processor, memory = figures
        columns = f"{wall:.2f} | {processor:.2f} | {memory:.0f}"
        print(f"| {program} {verb}, {name} | {columns} |")
    litert, keras = medians["litert"], medians["keras"]
    ratios = " | ".join(f"{b / a:.1f}" for a, b in zip(litert, keras, strict=True))
    print(f"| times as fast, as small | {ratios} |")
    return {name: figures[0] for name, figures in medians.items()}


def models(program, model):
    """Return a model on each runtime, in this process."""
    if program == "captioner":
        from keras_attention_apps.captioner import Captioner as OnKeras
        from keras_attention_apps.captioner import LiteCaptioner as OnLiteRT
    else:
        from keras_attention_apps.nmt import LiteTranslator as OnLiteRT
        from keras_attention_apps.nmt import Translator as OnKeras
    return {
        "litert": OnLiteRT.from_preset(model),
        "keras": OnKeras.from_preset(model),
    }


def warm(program, model, single, many, starts, rounds):
    """Print the time of one input and the throughput of many, for each runtime."""
    verb = {"captioner": "caption", "nmt": "translate"}[program]
    calls = {
        name: getattr(loaded, verb) for name, loaded in models(program, model).items()
    }
    single_times, several_times = ({name: [] for name in RUNTIMES} for _ in range(2))
    for call in calls.values():
        call(single)
        call(many)
    for _, name in itertools.product(range(rounds), RUNTIMES):
        run = functools.partial(calls[name], single)
        single_times[name] += [workers.timed(run) for _ in range(5)]
        several_times[name].append(workers.timed(functools.partial(calls[name], many)))
    each = {}
    for name in RUNTIMES:
        milliseconds = 1000 * statistics.median(single_times[name])
        each[name] = statistics.median(several_times[name]) / len(many)
        print(
            f"| {program}, {name} | {milliseconds:.1f} ms | {1 / each[name]:.1f} a "
            "second |"
        )
    if each["litert"] > each["keras"]:
        even = (starts["keras"] - starts["litert"]) / (each["litert"] - each["keras"])
        print(f"{program}: Keras is faster from {even:.0f} inputs on")


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("photo")
    parser.add_argument("--image-folder", type=Path, help="images for the throughput")
    parser.add_argument("--text", type=Path, help="sentences for the throughput")
    parser.add_argument("--count", type=int, default=128, help="of these, at most")
    parser.add_argument("--captioner", default="flickr8k-coco-ensemble")
    parser.add_argument("--translator", default="tatoeba-multi30k-en-de")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    images, lines = [options.photo] * options.count, [SENTENCE] * options.count
    if options.image_folder:
        images = sorted(options.image_folder.glob("*.jpg"))[: options.count]
    if options.text:
        lines = options.text.read_text(encoding="utf-8").splitlines()[: options.count]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tasks = (
        ("captioner", "caption", options.captioner, options.photo, images),
        ("nmt", "translate", options.translator, SENTENCE, lines),
    )
    print(f"| cold, medians of {options.rounds} | seconds | of processors | MB |")
    print("|---|---:|---:|---:|")
    starts = [
        cold(program, verb, single, model, options.rounds)
        for program, verb, model, single, _ in tasks
    ]
    print(f"\n| warm, medians of {options.rounds} | one | {options.count} |")
    print("|---|---:|---:|")
    for (program, _, model, single, many), start in zip(tasks, starts, strict=True):
        warm(program, model, single, list(map(str, many)), start, options.rounds)


if __name__ == "__main__":
    main()
