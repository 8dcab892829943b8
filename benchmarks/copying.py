"""Translation of names and numbers that are not in the training text, by copying.

A parallel text, English to German, is made from templates with names and numbers. Each
language has an order of its own, so the position does not tell which name is meant. The
training text has 400 names, the frequent ones more often, as in real text. The names
and numbers of the test are new, made up of other syllables. The same translator is
trained without and with `--copy`. Prints

- names, numbers: share of the names and numbers of the test that the translations have,
  each as often as the reference;
- exact: share of translations that equal the reference;
- seen: share of the names and numbers of training sentences that are right.

    python benchmarks/copying.py
    python benchmarks/copying.py luong self-attention --epochs 12
"""

import collections
import random
import re
from pathlib import Path

import trainings
import workers

TRAINING, VALIDATION, TEST, SEEN = 4000, 64, 300, 200
NAMES = 400
ATTENTIONS = ("bahdanau", "luong", "self-attention")

# {a}, {b}: people; {p}, {q}: places; {n}: a number. Lists are chosen from in parallel.
TEMPLATES = [
    ("{a} lives in {p} now.", "{a} wohnt jetzt in {p}."),
    ("Yesterday {a} met {b} in {p}.", "Gestern traf {a} in {p} {b}."),
    ("{a} bought {n} {things} for {b}.", "Für {b} hat {a} {n} {things} gekauft."),
    ("The train from {p} to {q} is late.", "Nach {q} fährt der Zug aus {p} zu spät."),
    ("Does {a} know that {b} is ill?", "Weiß {a}, dass {b} krank ist?"),
    ("{n} people live in {p}.", "In {p} leben {n} Menschen."),
    ("Mr. {a}, please call {b}!", "Bitte rufen Sie {b} an, Herr {a}!"),
    ("{a} sold {n} {things} in {p}.", "In {p} verkaufte {a} {n} {things}."),
    ("The {job} of {p} is called {a}.", "{a} heißt der {job} von {p}."),
    ("{a} and {b} went to {p}.", "Nach {p} sind {a} und {b} gegangen."),
    ("When did the {job} write to {a}?", "Wann hat der {job} an {a} geschrieben?"),
    ("{a} is {n} years older than {b}.", "Um {n} Jahre ist {a} älter als {b}."),
    ("The {job} saw {n} {things}.", "Der {job} sah {n} {things}."),
    ("{things} are cheap in {q}.", "In {q} sind {things} billig."),
]
THINGS = {
    "books": "Bücher",
    "horses": "Pferde",
    "apples": "Äpfel",
    "chairs": "Stühle",
    "letters": "Briefe",
    "clocks": "Uhren",
    "bicycles": "Fahrräder",
    "houses": "Häuser",
}
JOBS = {
    "mayor": "Bürgermeister",
    "doctor": "Arzt",
    "teacher": "Lehrer",
    "baker": "Bäcker",
    "judge": "Richter",
    "neighbour": "Nachbar",
}
# Syllables of the names for training, and of those for the test. As in real text, no
# letter is new, but the combinations are.
SYLLABLES = {
    "training": ("bdfghjklmnprstvwxz", "aeiou", ("", "n", "l", "r", "s", "y")),
    "test": ("bdfghjklmnprstvwxz", "aeiouyöü", ("", "n", "l", "k", "x", "th", "sz")),
}
SMALL = {
    "vocabulary-size": 500,
    "batch-tokens": 1000,
    "warm-up": 200,
    "average": 0,
    "ema-momentum": 0.99,
    "model.dropout": 0.1,
    "model.max-length": 64,
    "model.embedding-units": 64,
}
RECURRENT = {
    **SMALL,
    "model.units": 96,
    "model.encoder-units": 64,
    "model.context-dropout": 0.1,
    "model.output-dropout": 0.1,
}
OPTIONS = {
    "bahdanau": {**RECURRENT, "model.attention-units": 64},
    "luong": RECURRENT,
    "self-attention": {**SMALL, "model.units": 128},
}


class Text:
    """Sentences from templates, with names and numbers."""

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.names = self._names(NAMES, "training")

    def _names(self, count, kind, excluded=()):
        """Return different names of two to four syllables that are not excluded."""
        begins, vowels, ends = SYLLABLES[kind]
        draw, names = self.random.choice, {}
        while len(names) < count:
            name = "".join(
                draw(begins) + draw(vowels) + draw(ends)
                for _ in range(draw((2, 2, 3, 4)))
            ).capitalize()
            if name not in excluded:
                names[name] = None
        return list(names)

    def pair(self, kind):
        """Return a sentence, its translation, its names and its numbers."""
        draw = self.random.choice
        if kind == "training":
            weights = [1 / (rank + 10) for rank in range(NAMES)]
            names = self.random.choices(self.names, weights, k=4)
            number = draw((draw(range(2, 100)), draw(range(100, 3000))))
        else:
            names = self._names(4, kind, excluded=self.names)
            number = self.random.randrange(3000, 1_000_000)
        (source, target) = draw(TEMPLATES)
        thing, job = draw(list(THINGS)), draw(list(JOBS))
        values = dict(zip("abpq", names, strict=True), n=str(number))
        slots = re.findall(r"{(\w)}", source)
        return (
            source.format(**values, things=thing, job=job),
            target.format(**values, things=THINGS[thing], job=JOBS[job]),
            [values[slot] for slot in slots if slot != "n"],
            [values[slot] for slot in slots if slot == "n"],
        )

    def pairs(self, count, kind):
        return [self.pair(kind) for _ in range(count)]


def shares(translator, pairs):
    """Return the shares of right names, right numbers and exact translations."""
    translations = translator.translate([source for source, *_ in pairs])
    right, total, exact = [0, 0], [0, 0], 0
    for translation, (_, target, *expected) in zip(translations, pairs, strict=True):
        words = collections.Counter(re.findall(r"\w+", translation.text))
        exact += translation.text == target
        for kind, values in enumerate(expected):
            wanted = collections.Counter(values)
            right[kind] += (wanted & words).total()
            total[kind] += wanted.total()
    return *(a / b for a, b in zip(right, total, strict=True)), exact / len(pairs)


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("attention", nargs="*", help=" ".join(ATTENTIONS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, help="folder to keep the models in")
    arguments = parser.parse_args()
    workers.check_names(parser, arguments.attention, ATTENTIONS)
    text = Text()
    training = text.pairs(TRAINING, "training")
    validation, test = text.pairs(VALIDATION, "training"), text.pairs(TEST, "test")
    parts = {"train": training, "val": validation, "test": test}
    with trainings.folder_of(arguments.output) as folder:
        for name, part in parts.items():
            trainings.write_pairs(part, folder, name, ("en", "de"))
        print("| attention | copying | trained | names | numbers | exact | seen |")
        print("|---|---|---:|---:|---:|---:|---:|", flush=True)
        for attention in arguments.attention or ATTENTIONS[:1]:
            for copy in (False, True):
                options = {"attention": attention, "pair": "en-de"}
                options |= {**OPTIONS[attention], "epochs": arguments.epochs}
                options |= {"copy": None} if copy else {}
                name = f"{attention}{'-copy' * copy}"
                trained = trainings.train_translator(name, options, folder)
                translator, seconds = trained
                names, numbers, exact = shares(translator, test)
                seen, *_ = shares(translator, training[:SEEN])
                print(
                    f"| {attention} | {'yes' if copy else 'no'} | {seconds:.0f} s "
                    f"| {names:.1%} | {numbers:.1%} | {exact:.1%} | {seen:.1%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
