"""How often `nmt serve` detects the language of a sentence.

Reads the files FOLDER/val.en, FOLDER/val.de and so on. Prints the percentage of their
sentences whose language is detected among these languages.

    python benchmarks/languages.py tatoeba en de
"""

import argparse
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="Folder of a data set.")
    text = "Languages, at least two: the suffixes of the files."
    parser.add_argument("codes", nargs="+", help=text)
    arguments = parser.parse_args()
    languages(arguments.folder, arguments.codes)


def languages(folder, codes):
    """Print the percentage for each language and for all."""
    from keras_attention_apps.nmt.serve import Detector

    detect = Detector(codes)
    correct, count = 0, 0
    for code in codes:
        sentences = (folder / f"val.{code}").read_text("utf-8").splitlines()
        detected = sum(detect(x)[0]["language"] == code for x in sentences)
        print(f"{code}: {100 * detected / len(sentences):.1f} % of {len(sentences)}")
        correct += detected
        count += len(sentences)
    print(f"all: {100 * correct / count:.2f} % of {count}")


if __name__ == "__main__":
    main()
