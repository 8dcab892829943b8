"""The steps of docs/small-corpus.md, from 5,000 pairs to a usable translator.

Reads folders of a data set in the layout of `nmt train --data`. Draws `--pairs` pairs
of the first one, and target sentences of other pairs as monolingual text; the second
one is the other parallel text. Runs the commands of the page in the folder OUTPUT, and
prints BLEU and chrF2 on the validation set of the first data set after every step, and
the minutes that it took. Steps that were completed there are not run again.

    python benchmarks/small_corpus.py tatoeba multi30k small --pair en-de
"""

import contextlib
import random
import shlex
import time
from pathlib import Path

import trainings
import tyro
from tyro.conf import Positional

CORPORA = "--data corpus --data other --data-weights 4 1"
SYNTHETIC = "--monolingual mono.txt --reverse-model reverse/model"
# The name of a step is that of its output folder.
STEPS = {
    "first": "--data corpus --vocabulary-size 4000",
    "reverse": f"{CORPORA} --vocabulary-size 8000",
    "joined": f"{CORPORA} --vocabulary-size 8000",
    "forward": f"{CORPORA} {SYNTHETIC}",
    "second": f"{CORPORA} {SYNTHETIC} --seed 1",
    "student": f"{CORPORA} --data distilled {SYNTHETIC}",
}
DISTIL = (
    "translate --model forward/model+second/model --no-split-sentences "
    "--input distilled/train.{source} --output distilled/train.{target}"
)


def write_data(first, second, folder, languages, pairs, monolingual):
    """Write corpus/, other/, distilled/ and mono.txt, with links to no other file."""
    texts = {}
    for data, split in ((first, "train"), (second, "train"), (first, "val")):
        sides = [(data / f"{split}.{x}").read_text("utf-8") for x in languages]
        texts[data, split] = list(zip(*map(str.splitlines, sides), strict=True))
    train = texts[first, "train"]
    random.Random(0).shuffle(train)
    chosen, rest = train[:pairs], train[pairs:]
    known = {target for _, target in chosen}
    mono = list(dict.fromkeys(x for _, x in rest if x not in known))[:monolingual]
    for name, split, content in (
        ("corpus", "train", chosen),
        ("corpus", "val", texts[first, "val"]),
        ("other", "train", texts[second, "train"]),
    ):
        (folder / name).mkdir(exist_ok=True)
        trainings.write_pairs(content, folder / name, split, languages)
    (folder / "distilled").mkdir(exist_ok=True)
    sources = [source for source, _ in (*chosen, *texts[second, "train"])]
    (folder / f"distilled/train.{languages[0]}").write_text(
        "".join(f"{x}\n" for x in sources), encoding="utf-8"
    )
    (folder / "mono.txt").write_text("".join(f"{x}\n" for x in mono), encoding="utf-8")


def small_corpus(
    first: Positional[Path],
    second: Positional[Path],
    output: Positional[Path],
    *,
    pair: str = "en-de",
    pairs: int = 5000,
    monolingual: int = 30_000,
    options: str = "",
):
    """Run the steps, and print the quality of each model.

    Args:
        first: Folder of the data set from which the pairs are drawn.
        second: Folder of the other parallel text.
        output: Folder to which everything is written.
        pair: Language pair.
        pairs: Number of pairs.
        monolingual: Number of monolingual target sentences.
        options: Further options of every training, such as
            "--precision mixed_bfloat16".
    """
    from keras_attention_apps.nmt import Translator
    from keras_attention_apps.nmt.main import main as nmt
    from keras_attention_apps.nmt.metrics import translation_scores

    languages = pair.split("-")
    output.mkdir(parents=True, exist_ok=True)
    if not (output / "corpus").exists():
        write_data(first, second, output, languages, pairs, monolingual)
    with contextlib.chdir(output):
        for name, step in STEPS.items():
            direction = languages[::-1] if name == "reverse" else languages
            source, target = direction
            start = time.perf_counter()
            if name == "student" and not Path(f"distilled/train.{target}").exists():
                nmt(shlex.split(DISTIL.format(source=source, target=target)))
            command = f"train {step} --pair {source}-{target} --output {name} {options}"
            if not Path(name, "report.html").exists() and nmt(shlex.split(command)):
                raise SystemExit(f"the training of {name} failed")
            minutes = (time.perf_counter() - start) / 60
            texts = [
                Path(f"corpus/val.{x}").read_text("utf-8").splitlines()
                for x in direction
            ]
            translator = Translator.from_preset(f"{name}/model")
            found = [x.text for x in translator.translate(texts[0])]
            scores, _ = translation_scores(found, texts[1])
            print(
                f"{name:8} {source}-{target}  BLEU {scores['bleu']:5.1f}  "
                f"chrF2 {scores['chrf']:5.1f}  {minutes:5.1f} minutes",
                flush=True,
            )


if __name__ == "__main__":
    tyro.cli(small_corpus)
