"""How good translations are, in the numbers that papers print."""

import dataclasses
import sys

import numpy as np
from keras_attention_apps.common.files import atomic_path, check_file
from keras_attention_apps.nmt.data import check_files, find_files, read_parallel


def translation_scores(translations, references):
    """Corpus scores of translations, one reference for each.

    Args:
        translations, references: Lists of plain strings, not split into tokens.

    Returns:
        Dict of figures in percent, `"bleu"`, `"bleu-lc"`, `"chrf"` and `"chrf-lc"`
        (lower-cased), and dict of the signatures of sacrebleu under the same names.
    """
    from sacrebleu.metrics import BLEU, CHRF

    metrics = {
        "bleu": BLEU(),
        "bleu-lc": BLEU(lowercase=True),
        "chrf": CHRF(),
        "chrf-lc": CHRF(lowercase=True),
    }
    scores = {
        name: metric.corpus_score(translations, [references]).score
        for name, metric in metrics.items()
    }
    signatures = {name: str(x.get_signature()) for name, x in metrics.items()}
    return scores, signatures


def bleu_by_length(sources, translations, references, parts=4):
    """Lower-cased BLEU of short sentences, of long ones, and of those between.

    Args:
        sources, translations, references: Lists of plain strings.
        parts: Number of parts, about equally large.

    Returns:
        List of tuples: the largest number of words in a source of this part, the number
        of its sentences, and their BLEU in percent.
    """
    from sacrebleu.metrics import BLEU

    lengths = np.array([len(source.split()) for source in sources])
    shares = np.arange(1, parts + 1) / parts
    edges = np.unique(np.quantile(lengths, shares, method="lower"))
    found = []
    for part, longest in enumerate(edges):
        # Every edge is the length of a sentence: no part is empty.
        chosen = np.flatnonzero(np.searchsorted(edges, lengths) == part)
        texts = [[side[i] for i in chosen] for side in (translations, references)]
        score = BLEU(lowercase=True).corpus_score(texts[0], texts[1:]).score
        found.append((int(longest), len(chosen), score))
    return found


def evaluate(config):
    """Print the scores that an `EvaluateConfig` asks for; returns them as a dict."""
    from keras_attention_apps.nmt.inference import Translator

    if config.output is not None:
        check_file(config.output)
    source, target = _files(config)
    sources, references = read_parallel(source, target)
    chosen = config.translator
    translator = Translator.from_preset(chosen.model, precision=chosen.precision)
    search = config.search
    found = translator.translate(sources, **dataclasses.asdict(search))
    translations = [translation.text for translation in found]
    cut = sum(translation.cut for translation in found)
    if cut:
        print(
            f"nmt: warning: {cut} of {len(sources)} sentences were longer than the "
            "model reads, and cut",
            file=sys.stderr,
        )
    scores, signatures = translation_scores(translations, references)
    print(
        f"{chosen.model} on {len(sources)} sentences of {source}, "
        f"beam {search.beam_size}, length penalty {search.length_penalty}"
    )
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}  {signatures[name]}")
    for longest, count, score in bleu_by_length(sources, translations, references):
        print(f"bleu-lc  {score:6.2f}  {count} sentences of at most {longest} words")
    if config.output is not None:
        with atomic_path(config.output) as temporary:
            temporary.write_text("\n".join([*translations, ""]), encoding="utf-8")
    return scores


def _files(config):
    """The files of sentences and of references."""
    files = config.source, config.target
    check_files(files, config.data, pair=config.pair, split=config.split)
    if config.data is None:
        return files
    return find_files(config.data, config.pair or "", (config.split or "val",))
