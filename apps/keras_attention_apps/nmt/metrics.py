"""Metrics of translations, as translation papers print them."""

import re

import numpy as np

from keras_attention_apps.common.characters import HAN, KANA, UNSPACED
from keras_attention_apps.common.comparison import compare_texts

# Maximum number of kana per Han character in Chinese text; Japanese has more.
FEW_KANA = 0.1


def tokenizer_for(texts):
    """Return the name of the sacrebleu tokenizer for a language.

    It is `"zh"` if most letters are Han and few are kana: every Han character is a
    word; `"char"` if most are of other scripts without spaces between words, such as
    those of Japanese or Thai: every character is a word; otherwise `"13a"`.
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
    """Return whether a reference has the four words that BLEU needs for a 4-gram."""
    from sacrebleu.metrics import BLEU

    split = BLEU(tokenize=tokenizer_for(references)).tokenizer
    return any(len(split(reference).split()) >= 4 for reference in references)


def translation_scores(translations, references):
    """Return corpus scores of translations with one reference each, in percent.

    The dict has `"bleu"`, `"bleu-lc"`, `"chrf"` and `"chrf-lc"` (lower-cased); another
    one has the signatures of sacrebleu under the same names.
    """
    metrics = _metrics(references)
    scores = {
        name: metric.corpus_score(translations, [references]).score
        for name, metric in metrics.items()
    }
    signatures = {name: str(x.get_signature()) for name, x in metrics.items()}
    return scores, signatures


def _metrics(references):
    """Return the metrics of sacrebleu for these references, by name."""
    from sacrebleu.metrics import BLEU, CHRF

    tokenizer = tokenizer_for(references)
    return {
        "bleu": BLEU(tokenize=tokenizer),
        "bleu-lc": BLEU(lowercase=True, tokenize=tokenizer),
        "chrf": CHRF(),
        "chrf-lc": CHRF(lowercase=True),
    }


def compared_scores(texts, references):
    """Return the scores of several models, a list of a `Score` of each by metric.

    `texts` are the translations of each model.
    """
    return {
        name: compare_texts(metric, texts, [references])
        for name, metric in _metrics(references).items()
    }


def bleu_by_length(sources, translations, references, parts=4):
    """Return lower-cased BLEU by the length of the source sentences.

    Each part is a tuple: the lengths of its shortest and longest source, see
    `lengths_of`; the number of its sentences; and their BLEU in percent.
    """
    from sacrebleu.metrics import BLEU

    _, lengths = lengths_of(sources)
    bleu = BLEU(lowercase=True, tokenize=tokenizer_for(references))
    shares = np.arange(1, parts + 1) / parts
    edges = np.unique(np.quantile(lengths, shares, method="lower"))
    scores_by_length = []
    for part in range(len(edges)):
        # Every edge is the length of a sentence, so no part is empty.
        chosen = np.flatnonzero(np.searchsorted(edges, lengths) == part)
        texts = [[side[i] for i in chosen] for side in (translations, references)]
        score = bleu.corpus_score(texts[0], texts[1:]).score
        ends = int(lengths[chosen].min()), int(lengths[chosen].max())
        scores_by_length.append((ends, len(chosen), score))
    return scores_by_length


def lengths_of(texts):
    """Return `"word"`, or `"character"` without spaces, and the lengths of texts."""
    if tokenizer_for(texts) == "13a":
        return "word", np.array([len(text.split()) for text in texts])
    return "character", np.array([len("".join(text.split())) for text in texts])
