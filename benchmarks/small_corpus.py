"""The steps of docs/small-corpus.md, from 5,000 pairs to a usable translator.

Reads two folders of data sets in the layout of `nmt train --data`. Draws pairs and
monolingual target sentences of the first one, and other parallel text of the second
one, all different. Writes them to the folder OUTPUT, and runs steps 1 to 3 of the page
there, with the same weight for both corpora. After every step it prints the minutes
that the training took, and what `nmt evaluate` prints for the validation set of the
first data set. Finished steps are not run again, and an interrupted one is resumed.

    python benchmarks/small_corpus.py tatoeba multi30k small
"""

import argparse
import random
import subprocess
import time
from pathlib import Path

import trainings
import workers

JOINED = "--data corpus --data other --vocabulary-size 6000"
# The name of a step is that of its output folder.
STEPS = {
    "first": "--data corpus --vocabulary-size 4000",
    "reverse": JOINED,
    "joined": JOINED,
    "forward": f"{JOINED} --monolingual mono.txt --reverse-model reverse/model",
}


def read_pairs(folder, split, languages):
    """Return the pairs of a data set in another, always the same, order."""
    sides = [(folder / f"{split}.{x}").read_text("utf-8") for x in languages]
    pairs = list(dict.fromkeys(zip(*map(str.splitlines, sides), strict=True)))
    random.Random(0).shuffle(pairs)
    return pairs


def write_data(first, second, output, languages, counts):
    """Write corpus/, other/ and mono.txt."""
    pairs, others, sentences = counts
    train = read_pairs(first, "train", languages)
    parts = {
        ("corpus", "train"): train[:pairs],
        ("corpus", "val"): read_pairs(first, "val", languages)[:500],
        ("other", "train"): read_pairs(second, "train", languages)[:others],
    }
    for (name, split), content in parts.items():
        (output / name).mkdir(parents=True, exist_ok=True)
        trainings.write_pairs(content, output / name, split, languages)
    known = {target for _, target in train[:pairs]}
    targets = dict.fromkeys(x for _, x in train[pairs:] if x not in known)
    text = "".join(f"{x}\n" for x in list(targets)[:sentences])
    (output / "mono.txt").write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "Folder of the data set from which the pairs are drawn."
    parser.add_argument("first", type=Path, help=text)
    text = "Folder of the other parallel text."
    parser.add_argument("second", type=Path, help=text)
    text = "Folder to which everything is written."
    parser.add_argument("output", type=Path, help=text)
    text = "Source and target language."
    parser.add_argument("--languages", nargs=2, default=("en", "de"), help=text)
    for name, default, text in (
        ("pairs", 5000, "Number of pairs."),
        ("others", 5000, "Number of pairs of the other parallel text."),
        ("monolingual", 5000, "Number of monolingual target sentences."),
        ("epochs", 14, "Epochs of every training."),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    small_corpus(**vars(parser.parse_args()))


def small_corpus(
    first, second, output, *, languages, pairs, others, monolingual, epochs
):
    """Run the steps, and print the quality of each model."""
    if not output.exists():
        write_data(first, second, output, languages, (pairs, others, monolingual))
    for name, step in STEPS.items():
        source, target = languages[::-1] if name == "reverse" else languages
        common = ["--pair", f"{source}-{target}"]
        options = [*step.split(), "--epochs", str(epochs)]
        start = time.perf_counter()
        command = workers.program(
            "nmt", "train", *common, *options, "--output", name, "--quiet"
        )
        subprocess.run(command, cwd=output, check=True)
        minutes = (time.perf_counter() - start) / 60
        print(f"{name}, {source}-{target}, {minutes:.0f} minutes:", flush=True)
        command = workers.program(
            "nmt", "evaluate", *common, "--data", "corpus", "--split", "val"
        )
        subprocess.run([*command, "--model", f"{name}/model"], cwd=output, check=True)


if __name__ == "__main__":
    main()
