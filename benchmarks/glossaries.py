"""Test sets of glossaries: sentences of Multi30k in which one entry occurs.

Writes OUTPUT/val.en and val.de, 200 sentences, and OUTPUT/terms.tsv, half of the
entries below, both drawn at random. Every German term differs from the word that
translators usually say. In each sentence, one word has an entry. The scores are from

    python benchmarks/glossaries.py multi30k glossary-1 --seed 1
    nmt evaluate --data glossary-1 --pair en-de --glossary glossary-1/terms.tsv
"""

import random
import re
from pathlib import Path

import tyro
from tyro.conf import Positional

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


def glossaries(
    data: Positional[Path], output: Positional[Path], *, seed: int = 1, count: int = 200
):
    """Write a test set of a glossary.

    Args:
        data: Folder with val.en and val.de.
        output: Folder of the test set.
        seed: Seed of the sentences and the entries.
        count: Number of sentences.
    """
    entries = [pair.split() for pair in ENTRIES.split(",")]
    rng = random.Random(seed)
    entries = sorted(rng.sample(entries, len(entries) // 2))
    words = {word for word, _ in entries}
    sides = [
        (data / f"val.{language}").read_text("utf-8").splitlines()
        for language in ("en", "de")
    ]
    chosen = [
        i
        for i, sentence in enumerate(sides[0])
        if sum(word in words for word in re.findall(r"\w+", sentence.lower())) == 1
    ]
    chosen = sorted(rng.sample(chosen, count))
    output.mkdir(parents=True, exist_ok=True)
    for language, side in zip(("en", "de"), sides, strict=True):
        text = "".join(f"{side[i]}\n" for i in chosen)
        (output / f"val.{language}").write_text(text, "utf-8")
    text = "".join(f"{word}\t{term}\n" for word, term in entries)
    (output / "terms.tsv").write_text(text, "utf-8")


if __name__ == "__main__":
    tyro.cli(glossaries)
