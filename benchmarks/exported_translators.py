"""Translations of exported models in CTranslate2 and Argos Translate, next to ours.

`nmt export` writes the model as a folder for CTranslate2 and as a package of Argos
Translate; both are used as their manuals say, without this project. Prints for each
engine BLEU (sacrebleu) on the first sentences of a text, that of Keras with the same
search, and how many translations are equal. Argos Translate has a beam width of four
and a length penalty of 0.2; other engines have no symbols for numbers. Sentences of one
line are given to all as one, but Argos Translate splits them with the rules of the
package.

    python -m pip install ctranslate2 onnx
    python benchmarks/exported_translators.py --source val.en --target val.de

Argos Translate needs another environment, without a connection to a network:

    python -m venv argos && argos/bin/pip install argostranslate
    python benchmarks/exported_translators.py --source val.en --target val.de \
        --argostranslate argos/bin/python
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import workers

CTRANSLATE2 = """
import json, sys
import ctranslate2, sentencepiece
folder, lines, beam_size, precision = json.load(sys.stdin)
subwords = sentencepiece.SentencePieceProcessor(f"{folder}/sentencepiece.model")
engine = ctranslate2.Translator(folder, compute_type=precision)
sources = subwords.encode(lines, out_type=str)
found = engine.translate_batch(sources, beam_size=beam_size, max_batch_size=32)
print(json.dumps([subwords.decode(x.hypotheses[0]) for x in found]))
"""

ARGOS = """
import json, sys
import argostranslate.package, argostranslate.translate
package, lines, source, target = json.load(sys.stdin)
argostranslate.package.install_from_path(package)
translate = argostranslate.translate.translate
print(json.dumps([translate(line, source, target) for line in lines]))
"""


def run(python, program, arguments, **environment):
    """Return what a program prints as JSON in its last line."""
    ended = subprocess.run(
        [python, "-c", program],
        input=json.dumps(arguments),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return json.loads(ended.stdout.splitlines()[-1])


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--model", default="tatoeba-multi30k-en-de")
    parser.add_argument("--pair", default="en-de")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument(
        "--argostranslate", metavar="PYTHON", help="Python that has Argos Translate"
    )
    arguments = parser.parse_args()
    import sacrebleu

    from keras_attention_apps.nmt import Translator
    from keras_attention_apps.nmt.ctranslate2_runtime import CTranslate2Translator
    from keras_attention_apps.nmt.main import main as nmt

    lines, references = (
        path.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
        for path in (arguments.source, arguments.target)
    )
    translator = Translator.from_preset(arguments.model)

    def ours(model=translator, **search):
        translations = model.translate(lines, split=False, **search)
        return [translation.text for translation in translations]

    def raw(**search):
        options = {**translator.search_options(), **search}
        ids = [translator.tokenizer.encode(line) for line in lines]
        texts = []
        for begin in range(0, len(ids), 32):
            batch = ids[begin : begin + 32]
            texts += [
                translator.tokenizer.decode(ranked[0].token_ids)
                for ranked in translator._search(batch, 32, 1, options)
            ]
        return texts

    with tempfile.TemporaryDirectory() as temporary:
        folder, package = f"{temporary}/model", f"{temporary}/model.argosmodel"
        chosen = ["--model", arguments.model]
        assert nmt(["export", folder, "--format", "ctranslate2", *chosen]) == 0
        inputs = folder, lines, 4
        expected = raw(beam_size=4)
        rows = {
            "CTranslate2, float32": (
                run(sys.executable, CTRANSLATE2, [*inputs, "float32"]),
                expected,
            ),
            "CTranslate2, int8": (
                run(sys.executable, CTRANSLATE2, [*inputs, "int8"]),
                expected,
            ),
        }
        if arguments.argostranslate:
            pair = ["--pair", arguments.pair]
            assert nmt(["export", package, *pair, *chosen]) == 0
            inputs = package, lines, *arguments.pair.split("-")
            folders = {
                name: f"{temporary}/{name}"
                for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
            }
            expected = raw(beam_size=4, length_penalty=0.2)
            # By default, it chooses the fastest precision of the processor.
            for precision in ("float32", "auto"):
                options = {**folders, "ARGOS_COMPUTE_TYPE": precision}
                texts = run(arguments.argostranslate, ARGOS, inputs, **options)
                rows[f"Argos Translate, {precision}"] = texts, expected
        expected = ours()
        fast = CTranslate2Translator.from_preset(arguments.model)
        rows["nmt --runtime ctranslate2"] = ours(fast), expected
    print("| engine | BLEU | Keras, the same search | same translations |")
    print("|---|---:|---:|---:|")
    for name, (texts, expected) in rows.items():
        bleu, ours_bleu = (
            sacrebleu.corpus_bleu(x, [references]).score for x in (texts, expected)
        )
        same = sum(map(str.__eq__, texts, expected))
        print(f"| {name} | {bleu:.2f} | {ours_bleu:.2f} | {same} of {len(lines)} |")


if __name__ == "__main__":
    main()
