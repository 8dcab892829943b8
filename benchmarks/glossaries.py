"""Terms of a glossary in translations: do they replace the right words?

Draws half of the entries below, and 200 sentences of the validation set of Multi30k in
which one of them occurs, at random. Every German term differs from the word that
translators usually say. Prints the share of the terms that their translations contain
once, without the word that they replace, and BLEU with and without the glossary.

    python benchmarks/glossaries.py multi30k --seed 1
"""

import argparse
import random
import re
from pathlib import Path

from keras_attention_apps.nmt import Translator
from keras_attention_apps.nmt.attention_weights import aligned_words
from keras_attention_apps.nmt.config import DEFAULT_MODEL
from keras_attention_apps.nmt.metrics import translation_scores

# Pairs of an English word and a German term.
ENTRIES = """
man Herr, woman Dame, boy Bub, girl Mädel, dog Vierbeiner, child Knirps, person Gestalt,
people Passanten, men Kerle, women Damen, children Kleinkinder, girls Mädels, boys
Buben, dogs Welpen, shirt Oberteil, water Nass, street Gasse, beach Ufer, hat Kappe,
wall Fassade, crowd Publikum, ball Kugel, hair Haarpracht, road Fahrbahn, camera
Fotoapparat, snow Pulverschnee, jacket Weste, game Match, building Bauwerk, table
Esstisch, sidewalk Fußweg, field Acker, boat Kahn, picture Gemälde, microphone Mikro,
hand Handfläche, face Antlitz, city Metropole, bike Drahtesel, park Grünanlage, stage
Podium, room Saal, bench Holzbank, tree Eiche, suit Smoking, guitar Klampfe, floor
Parkett, car Wagen, store Kaufhaus, race Wettlauf, player Sportler, mouth Maul, lady
Seniorin, jeans Hose, dress Gewand, coat Umhang, lake Teich, grass Wiese, baby Säugling,
pool Schwimmbecken, food Speise, bag Rucksack, train Eisenbahn, rock Felsbrocken,
restaurant Lokal, horse Hengst, helmet Schutzhelm, fountain Springbrunnen, chair Sessel,
bicycle Zweirad, toddler Racker, rope Strick, sweater Strickpullover, skirt Minirock,
skateboard Rollbrett, phone Mobiltelefon, mountain Gipfel, house Villa, hill Anhöhe, bus
Reisebus, book Roman, bed Liege, apron Küchenschürze
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="Folder with val.en and val.de.")
    text = "Preset or folder of a model."
    parser.add_argument("--model", default=DEFAULT_MODEL, help=text)
    text = "Seed of the sentences and the entries."
    parser.add_argument("--seed", type=int, default=1, help=text)
    parser.add_argument("--count", type=int, default=200, help="Number of sentences.")
    glossaries(**vars(parser.parse_args()))


def glossaries(data, model, seed, count):
    """Print how a model translates with a glossary."""
    entries = [pair.split() for pair in ENTRIES.split(",")]
    rng = random.Random(seed)
    glossary = dict(rng.sample(entries, len(entries) // 2))
    source, target = (
        (data / f"val.{language}").read_text("utf-8").splitlines()
        for language in ("en", "de")
    )
    chosen = [
        i
        for i, sentence in enumerate(source)
        if sum(word in glossary for word in words(sentence.lower())) == 1
    ]
    chosen = sorted(rng.sample(chosen, count))
    sentences, references = ([side[i] for i in chosen] for side in (source, target))
    translator = Translator.from_preset(model)
    plain = translator.translate(sentences, split=False)
    translated = translator.translate(sentences, split=False, glossary=glossary)
    replaced = sum(
        is_replaced(glossary, *pair) for pair in zip(plain, translated, strict=True)
    )
    print(f"{100 * replaced / count:.1f} % of the terms replace their word")
    for name, translations in (("without", plain), ("with", translated)):
        texts = [translation.text for translation in translations]
        scores, _ = translation_scores(texts, references)
        print(f"BLEU {scores['bleu-lc']:.2f} {name} the glossary, lower-cased")


def words(text):
    return re.findall(r"\w+", text)


def is_replaced(glossary, plain, translated):
    """Return whether a translation has its term once, in place of the model's own word.

    The own word is that of the plain translation which is aligned with the source of
    the term. It must occur less often than there.
    """
    ((word_index, term),) = [
        (word_index, glossary[word])
        for word_index, text in enumerate(plain.source_words)
        for word in words(text.lower())
        if word in glossary
    ]
    before, after = words(plain.text), words(translated.text)
    (aligned,) = aligned_words(plain.weights, {word_index})
    replaced = words(plain.words[aligned])
    is_gone = replaced == [term] or all(
        after.count(x) < before.count(x) for x in replaced
    )
    return after.count(term) == 1 and is_gone


if __name__ == "__main__":
    main()
