"""How long a training takes to begin, and its first step.

A training of `captioner` with the first `--images` photographs of a data set, and one
of `nmt` with the first `--pairs` pairs of another, run in fresh processes until their
first step is over. Prints the medians of the seconds until the data are read, until the
first step begins, and until it is over.

    python benchmarks/first_step.py --captions flickr8k --text multi30k --pair en-de
"""

import itertools
import json
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import workers

from keras_attention_apps.captioner.data.dataset import read_dataset

# Lines that a training prints when the data are read, when the first step begins, and
# when it is over.
MARKS = "images with|pairs of sentences", "Epoch 1/", "The first step took"


def seconds_until(command):
    """Run a training until its first step is over; return the seconds until `MARKS`."""
    begin, waiting, seconds, lines = time.perf_counter(), list(MARKS), [], []
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **options) as training:
        for line in training.stdout:
            lines.append(line)
            while waiting and re.search(waiting[0], line):
                waiting.pop(0)
                seconds.append(time.perf_counter() - begin)
            if not waiting:
                training.terminate()
    if waiting:
        raise SystemExit(f"failed: {command}\n{''.join(lines[-5:])}")
    return seconds


def write_captions(folder, source, count):
    """Write a data set of the first photographs of another, with links to these."""
    lines = []
    for split, most in (("train", count), ("dev", count // 4)):
        for image in read_dataset(source, split)[:most]:
            path = Path(image.path).resolve()
            (folder / path.name).symlink_to(path)
            entry = {"file_name": path.name, "captions": image.captions, "split": split}
            lines.append(json.dumps(entry) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")


def write_pairs(folder, source, pair, count):
    """Write the first pairs of a data set, and all of its validation data."""
    for language in pair.split("-"):
        for split, most in (("train", count), ("val", None)):
            name = f"{split}.{language}"
            lines = (source / name).read_text(encoding="utf-8").splitlines()[:most]
            (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--captions", type=Path, help="data set of captioner train")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--backbone-weights", type=Path, help="of captioner train")
    parser.add_argument("--text", type=Path, help="data set of nmt train")
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--pairs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, commands = Path(temporary), {}
        if options.captions:
            data = folder / "captions"
            data.mkdir()
            write_captions(data, options.captions, options.images)
            command = ["train", "--data", data]
            if options.backbone_weights:
                command += ["--backbone-weights", options.backbone_weights.resolve()]
            commands[f"captioner train, {options.images:,} photographs"] = (
                "captioner",
                command,
            )
        if options.text:
            data = folder / "text"
            data.mkdir()
            write_pairs(data, options.text, options.pair, options.pairs)
            commands[f"nmt train, {options.pairs:,} pairs"] = (
                "nmt",
                ["train", "--data", data, "--pair", options.pair],
            )
        if not commands:
            parser.error("expected --captions, --text, or both")
        runs = {name: [] for name in commands}
        for i, (name, (program, command)) in itertools.product(
            range(options.rounds), commands.items()
        ):
            output = folder / f"{program}-{i}"
            command = workers.program(program, *command, "--output", output)
            runs[name].append(seconds_until(command))
    print("| seconds until | data are read | the first step begins | it is over |")
    print("|---|---:|---:|---:|")
    for name, rows in runs.items():
        medians = map(statistics.median, zip(*rows, strict=True))
        print(f"| `{name}` | {' | '.join(f'{x:.1f}' for x in medians)} |")


if __name__ == "__main__":
    main()
