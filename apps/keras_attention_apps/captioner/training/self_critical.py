"""Self-critical training on sampled captions, and its rewards."""

import collections
import functools
import math
import operator

import numpy as np

from keras_attention_apps.captioner.vocabulary import SPECIAL, tokenize
from keras_attention_apps.common.network.decoder_network import shape_multiple
from keras_attention_apps.common.training.data_sets import Mixture
from keras_attention_apps.common.training.self_critical import SelfCritical

MAX_N = 4
# Standard deviation of CIDEr-D's Gaussian length penalty.
SIGMA = 6.0
_END = SPECIAL[2]


class SelfCriticalCaptions(SelfCritical):
    """Trains a captioner, whose network is compiled, on the reward of its samples.

    `features` are arrays `(images, S, D)`; every step draws one for each image. The
    `reward` is a function of the words of a caption and the index of its image. Every
    epoch is drawn from the `mixture`; each image once if it is omitted.
    """

    def __init__(
        self, captioner, features, reward, *, mixture=None, batch_images, **options
    ):
        super().__init__(
            captioner.network,
            "captions",
            banned=captioner.tokenizer.banned,
            multiple=shape_multiple(batch_images),
            **options,
        )
        self.captioner = captioner
        self.features = features
        self.reward = reward
        self.mixture = mixture or Mixture([len(features[0])])
        self.batch_images = batch_images

    def __len__(self):
        return -(-len(self.mixture) // self.batch_images)

    def plan(self, epoch):
        random = np.random.default_rng((self.seed, epoch))
        order = self.mixture.draw(random)
        for begin in range(0, len(order), self.batch_images):
            yield order[begin : begin + self.batch_images]

    def inputs(self, items, random):
        drawn = random.integers(len(self.features), size=len(items))
        pairs = zip(drawn, items, strict=True)
        return {"features": np.stack([self.features[view][i] for view, i in pairs])}

    def max_length(self, inputs):
        return self.captioner.max_length

    def padded_length(self, longest):
        return self.captioner.max_length

    def reward_of(self, item, token_ids):
        return self.reward(self.captioner.words_of(token_ids), item)


class CiderReward:
    """CIDEr-D of single captions, with the document frequencies of all references.

    `references` are the captions of each image. END counts as a word, so that a caption
    that breaks off after "with a" has a lower reward than a complete one.

    Reference:
        [Vedantam et al., 2015](https://arxiv.org/abs/1411.5726); the end token as in
        [Rennie et al., 2017](https://arxiv.org/abs/1612.00563).
    """

    def __init__(self, references):
        counts = [[_count([*tokenize(x), _END]) for x in texts] for texts in references]
        documents: collections.Counter[tuple] = collections.Counter()
        for image in counts:
            documents.update(set().union(*image))
        log_documents = self._log_documents = math.log(max(len(counts), 2))
        self._idf = {
            ngram: log_documents - math.log(n) for ngram, n in documents.items()
        }
        self._references = [list(map(self._vector, image)) for image in counts]

    def __call__(self, words, image):
        """Return CIDEr-D, from 0 to 10, of a complete caption of an image."""
        caption = self._vector(_count([*words, _END]))
        references = self._references[image]
        return 10 * sum(_similarity(caption, r) for r in references) / len(references)

    def _vector(self, counts):
        """Return TF-IDF weights of n-grams, their norm for each n, and the length."""
        idf, log_documents = self._idf, self._log_documents
        weights = {x: count * idf.get(x, log_documents) for x, count in counts.items()}
        squares = np.zeros(MAX_N)
        for ngram, weight in weights.items():
            squares[len(ngram) - 1] += weight**2
        length = sum(count for ngram, count in counts.items() if len(ngram) == 2)
        return weights, np.sqrt(squares), length


class BleuReward:
    """BLEU-4 of single captions; `references` are the captions of each image.

    Add-one smoothing for n >= 2: otherwise the reward of a caption without a correct
    4-gram would be zero.

    Reference:
        [Papineni et al., 2002](https://aclanthology.org/P02-1040), smoothed as in
        [Lin and Och, 2004](https://aclanthology.org/C04-1072).
    """

    def __init__(self, references):
        words = [list(map(tokenize, texts)) for texts in references]
        self._lengths = [sorted(map(len, captions)) for captions in words]
        # The union of counters has the maximum of each count.
        counts = [map(_count, captions) for captions in words]
        self._max_counts = [functools.reduce(operator.or_, image) for image in counts]

    def __call__(self, words, image):
        """Return BLEU-4, from 0 to 1, of a complete caption of an image."""
        counts, max_counts = _count(words), self._max_counts[image]
        matches, totals = [0, 1, 1, 1], [0, 1, 1, 1]
        for ngram, count in counts.items():
            matches[len(ngram) - 1] += min(count, max_counts[ngram])
            totals[len(ngram) - 1] += count
        if not matches[0]:
            return 0.0
        pairs = zip(matches, totals, strict=True)
        precisions = [match / total for match, total in pairs]
        # The closest reference length; of two equally close ones, the shorter.
        closest = min(self._lengths[image], key=lambda x: abs(x - len(words)))
        brevity = math.exp(min(0.0, 1 - closest / len(words)))
        return brevity * math.prod(precisions) ** (1 / MAX_N)


def _count(words):
    """Count the n-grams of one to four words."""
    words = tuple(words)
    return collections.Counter(
        words[i : i + n] for n in range(1, MAX_N + 1) for i in range(len(words) - n + 1)
    )


def _similarity(caption, reference):
    weights, norms, length = caption
    other_weights, other_norms, other_length = reference
    products = [0.0] * MAX_N
    for ngram, weight in weights.items():
        other = other_weights.get(ngram)
        if other is not None:
            # Clipping: repetitions beyond those of the reference do not count.
            products[len(ngram) - 1] += min(weight, other) * other
    cosine = products / np.maximum(norms * other_norms, 1e-12)
    return cosine.mean() * math.exp(-((length - other_length) ** 2) / (2 * SIGMA**2))
