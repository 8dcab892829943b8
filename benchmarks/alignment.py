"""Accuracy of alignments by attention, on an artificial language.

The artificial language translates each word of another one by one word, in another
order: verbs come last, adjectives after their nouns and in reverse order, prepositions
after their phrase, and the second of two clauses first. No word occurs twice in a
sentence, so the source of every word is known. A translator of each kind is trained on
10,000 pairs and tested on 500 new sentences. Frequent words are one subword, rare ones
several. Prints

- exact: share of correct translations, and BLEU;
- aligned: share of the words that attention, as printed by `nmt translate
  --alignments`, aligns with their source. Words that translate no word of the source
  count as wrong;
- AER: alignment error rate of the same alignments;
- given: alignment error rate of `nmt align`, which aligns the sentences with their
  right translations (forced decoding).

eflomal and fast_align, as packaged by SYSTRAN, learn from the same pairs, the tested
ones included, and align the latter; eflomal in the direction of the translators,
fast_align in both, symmetrised. They need an environment with both.

With `imported`, a `MarianMTModel` of Transformers is trained on the same pairs, by the
cross-entropy of the translations alone: no head learns alignments. `nmt import` then
reads it, and chooses its head by 1,000 of the pairs, which have no alignments. The
error rate of that head (given) is printed beside those of the others, and of links to
random words. It needs transformers and torch.

    python benchmarks/alignment.py
    python benchmarks/alignment.py bahdanau --epochs 12
    python -m pip install transformers torch
    python benchmarks/alignment.py imported
    python -m venv aligners && aligners/bin/pip install eflomal systran-align
    python benchmarks/alignment.py --aligners aligners/bin/python
"""

import dataclasses
import json
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import marian_models
import numpy as np
import trainings
import workers

TRAINING, VALIDATION, TEST = 10_000, 200, 500
# Words of each kind.
KINDS = {
    "noun": 60,
    "adjective": 40,
    "verb": 40,
    "preposition": 8,
    "adverb": 12,
    "conjunction": 4,
}
SMALL = {
    "vocabulary-size": 720,
    "batch-tokens": 1000,
    "ema-momentum": 0.99,
    "average": 0,
    "model.dropout": 0.1,
    "model.max-length": 50,
    "model.embedding-units": 64,
}
RECURRENT = {
    **SMALL,
    "epochs": 16,
    "learning-rate": 3e-3,
    "warm-up": 100,
    "model.units": 96,
    "model.encoder-units": 64,
    "model.context-dropout": 0.1,
    "model.output-dropout": 0.1,
}
TRANSLATORS = {
    "bahdanau": {**RECURRENT, "model.attention-units": 64},
    "luong": RECURRENT,
    "self-attention": {
        **SMALL,
        "epochs": 32,
        "learning-rate": 3e-3,
        "warm-up": 200,
        "model.units": 128,
    },
}


# The form of an imported model, and its training.
IMPORTED = "imported"
PUBLISHED = {"depth": 64, "units": 256, "heads": 4, "layers": 3, "dropout": 0.1}
PIECES, BATCH_SIZE, EPOCHS = 300, 64, 20
# Pairs by which `nmt import` chooses a head.
CHOOSING = 1000


# Programs from pairs of sentences, the last of which are tested, to their links.
ALIGNERS = {
    "eflomal": """
import json, sys, tempfile
import eflomal
sources, targets, count = json.load(sys.stdin)
with tempfile.NamedTemporaryFile("r") as links:
    eflomal.Aligner().align(sources, targets, links_filename_fwd=links.name)
    lines = links.read().splitlines()[-count:]
print(json.dumps([[x.split("-") for x in line.split()] for line in lines]))
""",
    "fast_align": """
import json, os, sys, tempfile
import systran_align
sources, targets, count = json.load(sys.stdin)
with tempfile.TemporaryDirectory() as folder:
    text, forward, backward = (os.path.join(folder, x) for x in "tfb")
    with open(text, "w") as file:
        file.writelines(f"{x} ||| {y}\\n" for x, y in zip(sources, targets))
    systran_align.generate_alignment_probabilities(text, forward, backward)
    aligner = systran_align.Aligner(forward, backward)
    words = ([x.split() for x in side[-count:]] for side in (sources, targets))
    print(json.dumps([x["alignments"] for x in aligner.align_batch(*words)]))
""",
}


class Language:
    """Words, their translations, and sentences of both.

    Attributes:
        origin: Dict from a word's translation to the word.
    """

    def __init__(self, seed=0):
        self.random = random.Random(seed)
        count = sum(KINDS.values())
        words, translations = self._words("aeo", count), self._words("iuy", count)
        self.origin = dict(zip(translations, words, strict=True))
        self.translation = dict(zip(words, translations, strict=True))
        self.kinds, words = {}, iter(words)
        for kind, size in KINDS.items():
            self.kinds[kind] = [next(words) for _ in range(size)]

    def _words(self, vowels, count):
        """Return `count` different words of one to four syllables."""
        draw, words = self.random.choice, {}
        while len(words) < count:
            syllables = self.random.choices((1, 2, 3, 4), (1, 4, 3, 1))[0]
            words[
                "".join(draw("bdfgklmnprstvz") + draw(vowels) for _ in range(syllables))
            ] = None
        return self.random.sample(list(words), count)

    def pair(self):
        """Return a sentence and its translation."""
        left = {kind: list(words) for kind, words in self.kinds.items()}

        def draw(kind):
            # As in texts, the first words are the frequent ones.
            words = left[kind]
            frequencies = [1 / (rank + 3) for rank in range(len(words))]
            (word,) = self.random.choices(words, frequencies)
            words.remove(word)
            return word

        def noun_phrase():
            adjectives = [
                draw("adjective") for _ in range(self.random.choice((0, 0, 1, 1, 2)))
            ]
            noun = draw("noun")
            return [*adjectives, noun], [noun, *reversed(adjectives)]

        def clause():
            (subject, first), (thing, second) = noun_phrase(), noun_phrase()
            verb = [draw("verb")]
            adverb = [draw("adverb")] if self.random.random() < 0.3 else []
            source = [*subject, *verb, *adverb, *thing]
            target = [*first, *second, *adverb, *verb]
            if self.random.random() < 0.5:
                preposition, (location, third) = [draw("preposition")], noun_phrase()
                source += preposition + location
                target = third + preposition + target
            return source, target

        source, target = clause()
        if self.random.random() < 0.3:
            conjunction, (second, other) = [draw("conjunction")], clause()
            source = source + conjunction + second
            target = other + conjunction + target
        return " ".join(source), " ".join(self.translation[word] for word in target)

    def pairs(self, count):
        """Return `count` pairs of different sentences."""
        targets = {}
        while len(targets) < count:
            source, target = self.pair()
            targets[source] = target
        return list(targets.items())


def score(translator, pairs, origin):
    """Return the shares of right translations and links, BLEU, and the error rate."""
    import sacrebleu

    from keras_attention import AlignmentErrorRate

    sources, targets = zip(*pairs, strict=True)
    translations = translator.translate(list(sources))
    error_rate, right = AlignmentErrorRate(), []
    for translation in translations:
        words = translation.source_words
        truth = np.array(
            [
                [origin.get(word) == other for other in words]
                for word in translation.words
            ]
        )
        links = dict((target, source) for source, target in translation.alignment)
        right += [
            target in links and bool(row[links[target]])
            for target, row in enumerate(truth)
        ]
        error_rate.update_state(truth[None], translation.weights[None])
    texts = [translation.text for translation in translations]
    return {
        "exact": statistics.mean(map(str.__eq__, texts, targets)),
        "BLEU": sacrebleu.corpus_bleu(texts, [targets]).score,
        "aligned": statistics.mean(right),
        "AER": float(error_rate.result()),
    }


def error_rate(links, pairs, origin):
    """Return the alignment error rate of links of the words of pairs."""
    from keras_attention_apps.nmt.alignments import alignment_error_rate

    references = []
    for source, target in pairs:
        words = source.split()
        sure = {(words.index(origin[x]), j) for j, x in enumerate(target.split())}
        references.append((sure, sure))
    return alignment_error_rate(links, references)


def links_of(aligner, python, pairs):
    """Return the links of the last pairs, by an aligner that reads all of them."""
    ended = subprocess.run(
        [python, "-c", ALIGNERS[aligner]],
        input=json.dumps([*zip(*pairs, strict=True), TEST]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = json.loads(ended.stdout.splitlines()[-1])
    return [{tuple(map(int, link)) for link in line} for line in lines]


def imported_model(folder, pairs, epochs):
    """Write a trained Marian model to a folder, and return it as `nmt import` does."""
    from keras_attention_apps.nmt import Translator
    from keras_attention_apps.nmt.main import main as nmt

    sides = list(zip(*pairs, strict=True))
    pieces = marian_models.write_tokenizers(folder, sides, PIECES)
    vocabulary = marian_models.write_vocabulary(folder, pieces)
    model = marian_models.new_model(
        len(vocabulary), max_position_embeddings=64, **PUBLISHED
    )
    encoded = marian_models.encode(folder, vocabulary, pairs)
    marian_models.train(model, encoded, epochs=epochs, batch_size=BATCH_SIZE)
    model.save_pretrained(folder)
    trainings.write_pairs(pairs[:CHOOSING], folder, "choosing", ("from", "to"))
    output = folder / "imported"
    texts = {
        side: folder / f"choosing.{language}"
        for side, language in (("source", "from"), ("target", "to"))
    }
    options = {"output": output, "pair": "from-to", **texts}
    if nmt(["import", str(folder), *trainings.flags(options)]):
        raise SystemExit("the import failed")
    return Translator.from_preset(str(output))


def with_head(translator, layer, head):
    """Return a translator whose alignments are those of a head."""
    from keras_attention_apps.nmt import Translator
    from keras_attention_apps.nmt.network import build_network

    config = dataclasses.replace(
        translator.config, alignment_layer=layer, alignment_head=head
    )
    network = build_network(config, len(translator.tokenizer))
    network.set_weights(translator.network.get_weights())
    return Translator(config, translator.tokenizer, network)


def print_heads(pairs, test, origin, epochs):
    """Print the alignment error rates of the heads of an imported model."""
    from keras_attention_apps.nmt.alignments import align

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        translator = imported_model(Path(folder), pairs, epochs)
        seconds = time.perf_counter() - start
    scores = score(translator, test, origin)
    print(
        f"Trained for {seconds:.0f} s: {scores['exact']:.1%} of the translations are "
        f"right, BLEU {scores['BLEU']:.1f}"
    )

    def rate(alignments):
        return error_rate([x.links for x in alignments], test, origin)

    config = translator.config
    heads = {
        (layer, head): list(align(with_head(translator, layer, head), test))
        for layer in range(config.decoder_layers)
        for head in range(config.heads)
    }
    means = [
        dataclasses.replace(
            of_pair[0],
            weights=np.mean([x.weights for x in of_pair], axis=0),
            end_weights=np.mean([x.end_weights for x in of_pair], axis=0),
        )
        for of_pair in zip(*heads.values(), strict=True)
    ]
    rates = {head: rate(alignments) for head, alignments in heads.items()}
    chosen = config.alignment_layer, config.alignment_head
    draw = random.Random(0).randrange
    by_chance = [
        {(draw(len(x.split())), j) for j in range(len(y.split()))} for x, y in test
    ]
    print("| alignments | AER |")
    print("|---|---:|")
    for name, value in (
        (f"head {chosen[1]} of layer {chosen[0]}, which was chosen", rates[chosen]),
        ("best head", min(rates.values())),
        ("median of the heads", statistics.median(rates.values())),
        ("worst head", max(rates.values())),
        ("mean of the attention of all heads", rate(means)),
        ("first head of the last layer, without pairs", rates[max(rates)[0], 0]),
        ("random words", error_rate(by_chance, test, origin)),
    ):
        print(f"| {name} | {value:.4f} |", flush=True)


def main():
    parser = workers.command_line(__doc__)
    names = [*TRANSLATORS, IMPORTED]
    parser.add_argument("attention", nargs="*", help=" ".join(names))
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--aligners", metavar="PYTHON", help="Python that has eflomal and systran-align"
    )
    parser.add_argument("--output", type=Path, help="folder to keep the models in")
    arguments = parser.parse_args()
    workers.check_names(parser, arguments.attention, names)
    from keras_attention_apps.nmt.alignments import align

    language = Language()
    pairs = language.pairs(TRAINING + VALIDATION + TEST)
    parts = {
        "train": pairs[:TRAINING],
        "val": pairs[TRAINING:-TEST],
    }
    test = pairs[-TEST:]
    if IMPORTED in arguments.attention:
        arguments.attention.remove(IMPORTED)
        print_heads(parts["train"], test, language.origin, arguments.epochs or EPOCHS)
        if not arguments.attention:
            return
    with trainings.folder_of(arguments.output) as folder:
        for name, part in parts.items():
            trainings.write_pairs(part, folder, name, ("from", "to"))
        print(
            "| attention | trained | exact | BLEU | aligned | AER | given "
            "| subwords a word |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for attention in arguments.attention or TRANSLATORS:
            options = {"attention": attention, "pair": "from-to"}
            options |= TRANSLATORS[attention]
            if arguments.epochs:
                options["epochs"] = arguments.epochs
            trained = trainings.train_translator(attention, options, folder)
            translator, seconds = trained
            scores = score(translator, test, language.origin)
            encode = translator.tokenizer.encode
            links = [alignment.links for alignment in align(translator, test)]
            forced = error_rate(links, test, language.origin)
            tokens = sum(len(encode(source)) - 1 for source, _ in test)
            words = sum(len(source.split()) for source, _ in test)
            print(
                f"| {attention} | {seconds:.0f} s | {scores['exact']:.1%} "
                f"| {scores['BLEU']:.1f} | {scores['aligned']:.1%} "
                f"| {scores['AER']:.4f} | {forced:.4f} | {tokens / words:.2f} |",
                flush=True,
            )
    for aligner in ALIGNERS if arguments.aligners else ():
        links = links_of(aligner, arguments.aligners, pairs)
        rate = error_rate(links, test, language.origin)
        print(f"| {aligner} | | | | | | {rate:.4f} | |", flush=True)


if __name__ == "__main__":
    main()
