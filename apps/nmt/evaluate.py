"""How good translations are, in the numbers that papers print."""

import dataclasses
import re
import sys

import numpy as np
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.files import atomic_path, check_file
from keras_attention_apps.common.scripts import HAN, KANA, UNSPACED
from keras_attention_apps.nmt.data import check_files, find_files, read_parallel

# Chinese has at most so many kana for each Han character, and Japanese more.
FEW_KANA = 0.1


def tokenizer_for(texts):
    """The tokenizer of sacrebleu that finds the words of a language.

    Args:
        texts: List of strings, all of this language.

    Returns:
        `"zh"` if most letters are Han, and few of them kana: every Han character is a
        word. `"char"` if most are of other scripts without blanks between words, such
        as those of Japanese or Thai: every character is one. Else `"13a"`.
    """
    letters = "".join(filter(str.isalpha, "".join(texts)))
    unspaced, han, kana = (
        len(re.findall(script, letters)) for script in (UNSPACED, HAN, KANA)
    )
    if unspaced <= len(letters) / 2:
        return "13a"
    is_chinese = han > len(letters) / 2 and kana <= FEW_KANA * han
    return "zh" if is_chinese else "char"


def has_four_words(references):
    """Whether a sentence is long enough for BLEU, which counts four words in a row."""
    from sacrebleu.metrics import BLEU

    split = BLEU(tokenize=tokenizer_for(references)).tokenizer
    return any(len(split(reference).split()) >= 4 for reference in references)


def translation_scores(translations, references):
    """Corpus scores of translations, one reference for each.

    Args:
        translations, references: Lists of plain strings, not split into tokens.

    Returns:
        Dict of figures in percent, `"bleu"`, `"bleu-lc"`, `"chrf"` and `"chrf-lc"`
        (lower-cased), and dict of the signatures of sacrebleu under the same names.
    """
    from sacrebleu.metrics import BLEU, CHRF

    tokenizer = tokenizer_for(references)
    metrics = {
        "bleu": BLEU(tokenize=tokenizer),
        "bleu-lc": BLEU(lowercase=True, tokenize=tokenizer),
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
        List of tuples: the lengths of the shortest and the longest source of this part,
        see `lengths_of`; the number of its sentences; and their BLEU in percent.
    """
    from sacrebleu.metrics import BLEU

    _, lengths = lengths_of(sources)
    bleu = BLEU(lowercase=True, tokenize=tokenizer_for(references))
    shares = np.arange(1, parts + 1) / parts
    edges = np.unique(np.quantile(lengths, shares, method="lower"))
    found = []
    for part in range(len(edges)):
        # Every edge is the length of a sentence: no part is empty.
        chosen = np.flatnonzero(np.searchsorted(edges, lengths) == part)
        texts = [[side[i] for i in chosen] for side in (translations, references)]
        score = bleu.corpus_score(texts[0], texts[1:]).score
        ends = int(lengths[chosen].min()), int(lengths[chosen].max())
        found.append((ends, len(chosen), score))
    return found


def lengths_of(texts):
    """How long texts are, in words if there are blanks between them.

    Returns:
        `"words"` or `"characters"`, and an integer array.
    """
    if tokenizer_for(texts) == "13a":
        return "words", np.array([len(text.split()) for text in texts])
    return "characters", np.array([len("".join(text.split())) for text in texts])


def evaluate(config):
    """Print the scores that an `EvaluateConfig` asks for; returns them as a dict."""
    from keras_attention_apps.nmt.inference import Translator

    if config.output is not None:
        check_file(config.output)
    source, target = _files(config)
    _check_not_read(config.output, source, target)
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
    unit, _ = lengths_of(sources)
    for lengths, count, score in bleu_by_length(sources, translations, references):
        about = f"{count} sentences of {lengths[0]} to {lengths[1]} {unit}"
        print(f"bleu-lc  {score:6.2f}  {about}")
    if config.output is not None:
        with atomic_path(config.output) as temporary:
            temporary.write_text("\n".join([*translations, ""]), encoding="utf-8")
    return scores


def _check_not_read(output, *inputs):
    """Raise a `UserError` where what is written would replace what is read."""
    for file in inputs:
        if output is not None and output.resolve() == file.resolve():
            raise UserError(
                "expected the name of another file than those that are read. "
                f"Received: {str(output)!r}"
            )


def _files(config):
    """The files of sentences and of references."""
    files = config.source, config.target
    check_files(files, config.data, pair=config.pair, split=config.split)
    if config.data is None:
        return files
    return find_files(config.data, config.pair, (config.split or "val",))
