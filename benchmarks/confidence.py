"""How well a translator marks its wrong translations of everyday sentences.

The files `everyday/en-de.tsv` and `everyday/de-en.tsv` have 84 sentences each, written
for this benchmark, from shops, mails, travel, office, health and IT. Columns are the
domain, the sentence, a translation of the default model, and whether a reader judged it
usable. A usable translation has the complete and right meaning, small slips of grammar
aside. The sentences are translated again. A translation that differs from the judged
one does not count.

    python benchmarks/confidence.py en-de
    python benchmarks/confidence.py en-de --model my-model --write judged.tsv

With `--write`, the translations go to a file in which they can be judged anew, and
`--judged` reads it.
"""

import argparse
import collections
import csv
from pathlib import Path

HERE = Path(__file__).parent / "everyday"
MODELS = {"en-de": "tatoeba-multi30k-en-de", "de-en": "tatoeba-multi30k-de-en"}
COLUMNS = ("domain", "source", "translation", "usable")
# Domains of whose kind the training text has next to nothing.
OTHER_DOMAINS = ("office", "health", "IT")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pair", choices=MODELS, help="Language pair.")
    parser.add_argument("--model", help="Name or folder of the translator.")
    parser.add_argument("--judged", type=Path, help="File of judged translations.")
    parser.add_argument("--write", type=Path, help="Output file of translations.")
    arguments = parser.parse_args()
    judged = arguments.judged or HERE / f"{arguments.pair}.tsv"
    confidence(arguments.model or MODELS[arguments.pair], judged, arguments.write)


def confidence(model, judged, output=None):
    """Translate the sentences of a file, and print how well they are marked."""
    from keras_attention_apps.common.options import RuntimeConfig
    from keras_attention_apps.nmt.runtimes import RUNTIMES

    with judged.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    translator = RUNTIMES.load(model, RuntimeConfig(), search={})
    translations = translator.translate([row["source"] for row in rows])
    if output:
        with output.open("w", encoding="utf-8") as file:
            print(*COLUMNS, sep="\t", file=file)
            for row, translation in zip(rows, translations, strict=True):
                is_same = row["translation"] == translation.text
                usable = row["usable"] if is_same else ""
                columns = row["domain"], row["source"], translation.text, usable
                print(*columns, sep="\t", file=file)
        print(f"Wrote {output}")
    report(rows, translations)


def report(rows, translations):
    """Print AUC and marks, for all sentences, for halves, and for each domain."""
    from keras_attention_apps.common.calibration import Figures

    groups = collections.defaultdict(list)
    changed = 0
    for row, translation in zip(rows, translations, strict=True):
        if row["translation"] != translation.text or not row["usable"]:
            changed += 1
            continue
        is_other = row["domain"] in OTHER_DOMAINS
        half = "domains without" if is_other else "domains with"
        entry = translation, row["usable"] == "yes"
        for group in ("all", f"{half} training text", row["domain"]):
            groups[group].append(entry)
    if changed:
        print(f"{changed} of {len(rows)} translations were not judged")
    for group, entries in groups.items():
        # What is sure of itself has no mark; a model may have no confidence.
        scores = [
            (x.mean_log_probability if x.confidence is None else x.confidence)
            - 1000 * bool(x.unsure)
            for x, _ in entries
        ]
        figures = Figures.measured(scores, [usable for _, usable in entries], -500)
        print(f"{group:30} {figures}")


if __name__ == "__main__":
    main()
