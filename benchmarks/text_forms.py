"""How well a translator copes with the form of a text: capitals, titles, brackets.

Translates the first sentences of a text as they are, and in other forms: in lower case,
in capital letters, as titles, without the final mark, in brackets and in quotation
marks. Prints BLEU, without case and punctuation, and the share of translations that are
marked unsure.

    python benchmarks/text_forms.py --source val.en --target val.de
"""

import re
from pathlib import Path

import sacrebleu
import workers

from keras_attention_apps.nmt import LiteTranslator

# Functions from a sentence to its form.
FORMS = {
    "as it is": str,
    "in lower case": str.lower,
    "IN CAPITAL LETTERS": str.upper,
    "As A Title": lambda text: re.sub(
        r"(?<![\w'\u2019])[^\W\d_]", lambda match: match[0].upper(), text
    ),
    "without a final mark": lambda text: text.rstrip(".!?"),
    "(in brackets)": lambda text: f"({text})",
    '"in quotation marks"': lambda text: f'"{text}"',
    "- after a bullet": lambda text: f"- {text}",
}


def words(text):
    """Return a text in lower case without punctuation."""
    return re.sub(r"[^\w' ]+", " ", text.lower().replace("\u2019", "'")).strip()


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--model", default="tatoeba-multi30k-en-de")
    parser.add_argument("--count", type=int, default=1000)
    options = parser.parse_args()
    sources, targets = (
        path.read_text(encoding="utf-8").splitlines()[: options.count]
        for path in (options.source, options.target)
    )
    translator = LiteTranslator.from_preset(options.model)
    references = [[*map(words, targets)]]
    print("| form | BLEU | unsure |")
    print("|---|---:|---:|")
    for name, form in FORMS.items():
        translations = translator.translate([*map(form, sources)])
        texts = [words(translation.text) for translation in translations]
        bleu = sacrebleu.corpus_bleu(texts, references).score
        unsure = sum(bool(x.unsure) for x in translations) / len(translations)
        print(f"| {name} | {bleu:.1f} | {unsure:.0%} |", flush=True)


if __name__ == "__main__":
    main()
