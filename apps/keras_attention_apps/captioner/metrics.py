"""Metrics of captions, as captioning papers print them, and of their attention."""

import contextlib
import io
import shutil
import statistics

import numpy as np

from keras_attention_apps.captioner.vocabulary import tokenize
from keras_attention_apps.common.comparison import compare_means, compare_texts


def caption_scores(captions, references, *, meteor=False):
    """Score captions against all their references, in percent, as papers print them.

    The scores are `"bleu-1"` to `"bleu-4"`, `"cider"`, `"rouge-l"` and, if requested
    and Java is installed, `"meteor"`. Captions and references are lower-cased, without
    punctuation. BLEU is the corpus score with brevity penalty. CIDEr is left out for a
    single image, where it is 0: so is the IDF of every n-gram.
    """
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    plain = {i: [_plain(text)] for i, text in enumerate(captions)}
    truth = {i: [_plain(text) for text in texts] for i, texts in enumerate(references)}
    # The scorers print their lengths.
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, _ = Bleu(4).compute_score(truth, plain, verbose=0)
        rouge, _ = Rouge().compute_score(truth, plain)
    scores = {f"bleu-{n}": 100 * score for n, score in enumerate(bleu, start=1)}
    if len(captions) > 1:
        cider, _ = Cider().compute_score(truth, plain)
        scores["cider"] = 100 * float(cider)
    scores["rouge-l"] = 100 * float(rouge)
    if meteor and shutil.which("java"):
        from pycocoevalcap.meteor.meteor import Meteor

        score, _ = Meteor().compute_score(truth, plain)
        scores["meteor"] = 100 * score
    return scores


def cider_of_each(captions, references):
    """Score each caption by CIDEr in percent, with document frequencies of all."""
    from pycocoevalcap.cider.cider import Cider

    plain = {i: [_plain(text)] for i, text in enumerate(captions)}
    truth = {i: [_plain(text) for text in texts] for i, texts in enumerate(references)}
    _, scores = Cider().compute_score(truth, plain)
    return 100 * np.asarray(scores)


def compared_scores(texts, references):
    """Return the scores of several models, a list of a `Score` of each by metric.

    `texts` are the captions of each model. BLEU-4 is that of the corpus; CIDEr and
    ROUGE-L are means over the images.
    """
    from pycocoevalcap.rouge.rouge import Rouge
    from sacrebleu.metrics import BLEU

    plain = [[_plain(text) for text in captions] for captions in texts]
    truth = [[_plain(text) for text in texts] for texts in references]
    reference_count = max(map(len, truth))
    streams = [
        [x[i] if i < len(x) else None for x in truth] for i in range(reference_count)
    ]
    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    compared = {"bleu-4": compare_texts(bleu, plain, streams)}
    if len(references) > 1:
        ciders = [cider_of_each(captions, references) for captions in texts]
        compared["cider"] = compare_means(ciders)
    rouges = [
        [100 * Rouge().calc_score([x], y) for x, y in zip(captions, truth, strict=True)]
        for captions in plain
    ]
    compared["rouge-l"] = compare_means([np.array(scores) for scores in rouges])
    return compared


def cider_of_probable(captions, references, log_probabilities, shares):
    """Score the most probable captions, for several shares of them.

    Returns, for each share, the lowest mean log-probability of the captions that are
    kept, and their mean CIDEr in percent. The document frequencies are the same for all
    shares.
    """
    scores = cider_of_each(captions, references) / 100
    order = np.argsort(log_probabilities)[::-1]
    scores_by_share = []
    for share in shares:
        chosen = order[: max(round(share * len(order)), 1)]
        lowest = float(log_probabilities[chosen[-1]])
        scores_by_share.append((lowest, 100 * float(np.mean(scores[chosen]))))
    return scores_by_share


def attention_figures(maps):
    """Measure maps `(words, ...)`, one for each caption.

    `"changes"` is the percentage of words whose region with the largest weight differs
    from that of the word before; `"entropy"` the mean entropy of the weights of a word,
    in nats; `"cosine"` the mean cosine similarity between the weights of two words of a
    caption.
    """
    changes, entropies, cosines = [], [], []
    for weights in maps:
        weights = weights.reshape(len(weights), np.prod(weights.shape[1:], dtype=int))
        changes += (np.diff(weights.argmax(axis=-1)) != 0).tolist()
        logarithms = np.log(np.where(weights > 0, weights, 1.0))
        entropies += (-weights * logarithms).sum(axis=-1).tolist()
        norms = np.linalg.norm(weights, axis=-1, keepdims=True)
        directions = weights / np.maximum(norms, 1e-12)
        pairs = np.triu_indices(len(weights), k=1)
        cosines += (directions @ directions.T)[pairs].tolist()
    return {
        "changes": 100 * statistics.mean(changes or [0]),
        "entropy": statistics.mean(entropies or [0]),
        "cosine": statistics.mean(cosines or [0]),
    }


def coverage(boxes, rows, columns):
    """Return the share of every region that boxes cover, `(rows * columns,)`."""
    covered = np.zeros((rows, columns))
    for left, top, right, bottom in boxes:
        down = _overlaps(top, bottom, rows)
        across = _overlaps(left, right, columns)
        covered = np.maximum(covered, down[:, None] * across)
    return covered.reshape(-1)


def _overlaps(begin, end, count):
    """Return the share of each of `count` equal parts that an interval covers."""
    ends = np.minimum(end * count, np.arange(1, count + 1))
    return np.clip(ends - np.maximum(begin * count, np.arange(count)), 0, 1)


def pointing(captions, boxes):
    """Count the words whose largest weight is on their object, and all with an object.

    A region is on the object if the share of it that the object covers is at least half
    the largest share of any region.
    """
    hits = count = 0
    for caption, named in zip(captions, boxes, strict=True):
        for word, weights in zip(caption.words, caption.weights, strict=True):
            if word in named:
                covered = coverage(named[word], *weights.shape)
                hits += bool(covered[weights.argmax()] >= covered.max() / 2)
                count += 1
    return hits, count


def _plain(text):
    return " ".join(tokenize(text))
