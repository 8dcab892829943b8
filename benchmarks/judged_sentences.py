"""How hard the everyday sentences are whose translations a reader has judged.

There are two sets: the 60 sentences in the model card of a default translator, and the
84 of `everyday/en-de.tsv` or `everyday/de-en.tsv`. For each, the script prints the
number of usable translations, the mean length of a sentence, and how many sentences
have a rare word. A rare word occurs fewer than `--rare` times in the training texts
`train.en` or `train.de` of the given folders. It also prints how many sentences are
near a training pair of `everyday`: at least half of all words of both are in both.

    python benchmarks/judged_sentences.py en-de tatoeba multi30k
"""

import argparse
import collections
import csv
import re
from pathlib import Path

EVERYDAY = Path(__file__).parent / "everyday"
PRESETS = Path(__file__).parents[1] / "apps/keras_attention_apps/nmt/presets"
WORD = re.compile(r"\w+")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", choices=("en-de", "de-en"), help="Language pair.")
    parser.add_argument("data", nargs="+", type=Path, help="Folders of training texts.")
    parser.add_argument("--rare", type=int, default=20, help="Occurrences of a word.")
    arguments = parser.parse_args()
    language = arguments.pair.split("-")[0]
    frequency = collections.Counter(
        word
        for folder in arguments.data
        for word in words(read(folder / f"train.{language}"))
    )
    pairs = [set(words(x)) for x in read(EVERYDAY / f"train.{language}").splitlines()]
    sets = {
        "model card": card_sentences(PRESETS / f"tatoeba-multi30k-{arguments.pair}"),
        "everyday": judged_sentences(EVERYDAY / f"{arguments.pair}.tsv"),
    }
    print(
        "| sentences | usable | mean words | with a rare word "
        "| usable of these | usable of the others | near a training pair |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, sentences in sets.items():
        rare, others = [], []
        for sentence, usable in sentences:
            # Numbers do not go through the model.
            spelled = [x for x in words(sentence) if not x.isdigit()]
            is_rare = any(frequency[x] < arguments.rare for x in spelled)
            (rare if is_rare else others).append(usable)
        lengths = [len(sentence.split()) for sentence, _ in sentences]
        near = sum(is_near(set(words(x)), pairs) for x, _ in sentences)
        print(
            f"| {name} | {shown(rare + others)} | {sum(lengths) / len(lengths):.1f} "
            f"| {len(rare) / len(sentences):.0%} | {shown(rare)} | {shown(others)} "
            f"| {near} |"
        )


def read(path):
    return path.read_text(encoding="utf-8")


def words(text):
    return WORD.findall(text.lower())


def card_sentences(preset):
    """Return the sentences in a model card, each with whether it is usable."""
    rows = re.findall(
        r"^\| (.+) \| .+ \| (yes|no) \|$", read(preset / "README.md"), re.M
    )
    return [(sentence, usable == "yes") for sentence, usable in rows]


def judged_sentences(path):
    """Return the sentences of a table, each with whether it is usable."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["source"], row["usable"] == "yes") for row in rows]


def is_near(sentence, pairs):
    """Return whether a set of words has at least half in common with one of others."""
    return any(2 * len(sentence & pair) >= len(sentence | pair) for pair in pairs)


def shown(usable):
    return f"{sum(usable)} of {len(usable)}"


if __name__ == "__main__":
    main()
