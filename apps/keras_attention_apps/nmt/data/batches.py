"""Training batches of sentences of similar length."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable

import keras
import numpy as np

from keras_attention_apps.common.distribution import rows_of_host
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import rounded_up
from keras_attention_apps.common.tokenizer import END, START, UNKNOWN
from keras_attention_apps.nmt.data.augmentation import Augmentation
from keras_attention_apps.nmt.data.dataset import Pairs
from keras_attention_apps.nmt.subwords import Copying, Subwords, pad

# Sentences are sorted by length within buckets of this many batches.
BUCKET_BATCHES = 100
# The tag before a back-translated source (Caswell et al., 2019). Unknown characters are
# split into bytes, so no text has this token.
TAG = UNKNOWN
# Maximum number of tokens that the augmentation adds to a sentence.
ADDED = 16
# Smallest length of a batch for a backend that compiles every shape.
SHORTEST = 16


@dataclasses.dataclass(eq=False)
class SentenceBatches(keras.utils.PyDataset):
    """Shuffled batches of sentence pairs with about as many tokens each.

    The batches depend on the seed and the epoch alone, so an interrupted training
    continues with the same batches. A batch has at most `batch_tokens` tokens on either
    side, padding included. It has slightly more if an epoch would otherwise have more
    batches than the first, and fewer where an epoch of few pairs would not have about
    `min_batches`. A longer sentence is a batch of its own. Pairs with more than
    `max_length` tokens on one side are left out. A back-translated source begins with
    `TAG`. The batches of the next epoch are prepared in a thread.

    With a `Copying`, words of the target are extended ids. With `augment`, a function
    from sources and targets to an `Augmentation`, each epoch has varied pairs; a pair
    that would exceed `max_length` stays as it is.

    Attributes:
        subword_dropout: BPE-dropout of the source; see `Subwords.encode_all`. A text
            that would exceed `max_length` is split without it.
        epoch: First epoch.
        few_shapes: Whether to pad batches to few shapes, for a backend that compiles
            every shape: both sides to the same power of two, and the rows so that a
            batch has `batch_tokens` tokens.
        devices: Rows are padded to a multiple of this.

    Raises:
        UserError: If all pairs are left out.

    Reference:
        [Caswell et al., 2019](https://arxiv.org/abs/1906.06442), section 3: the tag.
    """

    pairs: Pairs
    subwords: Subwords
    _: dataclasses.KW_ONLY
    batch_tokens: int
    max_length: int
    min_batches: int = 1
    subword_dropout: float = 0.0
    seed: int = 0
    epoch: int = 0
    copying: Copying | None = None
    augment: Callable[[list, list], Augmentation] | None = None
    few_shapes: bool = False
    devices: int = 1

    def __post_init__(self):
        super().__init__()
        # Pairs are left out by their length without BPE-dropout, so that all epochs
        # have the same pairs.
        pairs, subwords = self.pairs, self.subwords
        plain = [
            subwords.encode_all(pairs.source),
            subwords.target.encode_all(pairs.target),
        ]
        lengths = np.array([list(map(len, ids)) for ids in plain]).T
        if pairs.back_translated:
            lengths[:, 0] += pairs.back_translated
        longest = lengths.max(axis=1)
        short = np.flatnonzero(longest <= self.max_length)
        if not len(short):
            raise UserError(
                "every pair has a side of more subwords than max_length, "
                f"{self.max_length}"
            )
        self.pairs = pairs.chosen(short)
        self._plain = [[ids[i] for i in short] for ids in plain]
        self.too_long_count = len(pairs) - len(short)
        weights = self.pairs.weights or np.ones(len(short))
        self._weights = np.asarray(weights, "float64")
        self._augmentation = None
        if self.augment:
            self._augmentation = self.augment(self.pairs.source, self.pairs.target)
            self._weights = self._weights * self._augmentation.weights
        columns = [self.padded_length(length) for length in longest[short]]
        tokens = int(np.dot(columns, self._weights))
        self.batch_tokens = min(self.batch_tokens, max(tokens // self.min_batches, 1))
        # Keras asks for the number of batches once, and BPE-dropout splits words
        # differently in each epoch. So all epochs have as many batches as the first.
        self._count = None
        self._batches = self.plan(0)
        self._count = len(self._batches)
        # If there is only one batch, Keras assumes its size for all epochs.
        self._only_sizes = self._worst_case_sizes() if self._count == 1 else None
        if self.epoch:
            self._batches = self.plan(self.epoch)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._next = self._thread.submit(self.plan, self.epoch + 1)

    def __len__(self):
        return len(self._batches)

    def on_epoch_end(self):
        self.epoch += 1
        self._batches = self._next.result()
        self._next = self._thread.submit(self.plan, self.epoch + 1)

    def plan(self, epoch):
        """Return the batches of an epoch: lists of pairs of token ids."""
        random = np.random.default_rng((self.seed, epoch))
        encoded = self._encoded(random)
        if self.copying:
            encoded[1] = list(map(self.copying.extend, *encoded))
        lengths = np.array([list(map(len, side)) for side in encoded]).T
        if self.few_shapes:
            longest = lengths.max(axis=1, keepdims=True)
            lengths = np.vectorize(self.padded_length)(longest)
        pairs = list(zip(*encoded, strict=True))
        order = np.arange(len(pairs))
        if self.pairs.weights or self._augmentation:
            # How often the epoch has each pair: a fraction is rounded at random.
            counts = np.floor(self._weights + random.random(len(pairs))).astype(int)
            order = np.repeat(order, counts)
        order = random.permutation(order)
        mean = max(lengths[order].max(axis=1).mean(), 1)
        bucket = max(int(BUCKET_BATCHES * self.batch_tokens / mean), 1)
        batches = []
        for begin in range(0, len(order), bucket):
            chosen = order[begin : begin + bucket]
            chosen = chosen[np.lexsort((lengths[chosen, 0], lengths[chosen, -1]))]
            batches += cut_batches(chosen, lengths, self.batch_tokens)
        batches = to_count(batches, self._count or len(batches))
        batches = [batches[i] for i in random.permutation(len(batches))]
        return [[pairs[i] for i in batch] for batch in batches]

    def _encoded(self, random):
        """Return token ids of all sources and of all targets of an epoch."""
        pairs, plain = self.pairs, self._plain
        source, targets = pairs.source, plain[1]
        seed = int(random.integers(1 << 31))
        if self._augmentation:
            varied = [self._augmentation(i, random) for i in range(len(pairs))]
            source, target = map(list, zip(*varied, strict=True))
            targets = self.subwords.target.encode_all(target)
        sources = plain[0]
        if self._augmentation or self.subword_dropout:
            sources = self.subwords.encode_all(
                source, dropout=self.subword_dropout, seed=seed
            )
        plain_sources = plain[0]
        if pairs.back_translated:
            sources, plain_sources = map(self._tagged, (sources, plain_sources))
        # A pair that became too long is replaced as a whole.
        sides = (sources, plain_sources), (targets, plain[1])
        is_short = [
            max(map(len, pair)) <= self.max_length
            for pair in zip(sources, targets, strict=True)
        ]
        return [
            [x if short else y for x, y, short in zip(*side, is_short, strict=True)]
            for side in sides
        ]

    def _tagged(self, sources):
        """Return token ids of all sources, with the tag of back-translations."""
        tags = ([TAG] if x else [] for x in self.pairs.back_translated or ())
        return [[*tag, *ids] for tag, ids in zip(tags, sources, strict=True)]

    def __getitem__(self, index):
        batch = self._batches[index]
        minimum_sizes = self._only_sizes or [0, 0, 0]
        if index == 0 and len(self) > 1 and not self.few_shapes:
            # If the first two batches have the same size, Keras assumes it for all
            # batches.
            minimum_sizes = [size + 1 for size in self._sizes(self._batches[1])]
        rows, *columns = map(max, self._sizes(batch), minimum_sizes)
        source, target = ([pair[side] for pair in batch] for side in (0, 1))
        target = [[START, *token_ids] for token_ids in target]
        if not self.few_shapes:
            rows = len(batch)
        rows = rounded_up(rows, self.devices)
        inputs = {
            "source": pad(source, rows, columns[0]),
            "target": pad(target, rows, columns[1]),
        }
        of_host = rows_of_host(rows)
        return ({name: array[of_host] for name, array in inputs.items()},)

    def _worst_case_sizes(self):
        """Return the sizes of a batch of all pairs, however their words are split."""
        # The number of subwords is largest when every merge is skipped.
        dropout = math.ceil(self.subword_dropout)
        sources = self.subwords.encode_all(self.pairs.source, dropout=dropout)
        if self.pairs.back_translated:
            sources = self._tagged(sources)
        longest = [sources, self._plain[1]]
        if self._augmentation:
            # Symbols that are added to a sentence, with marks.
            more = [END] * ADDED
            longest = [[[*ids, *more] for ids in side] for side in longest]
        cut = [[ids[: self.max_length] for ids in side] for side in longest]
        _, *columns = self._sizes(list(zip(*cut, strict=True)))
        return [int(np.ceil(self._weights).sum()), *columns]

    def _sizes(self, batch):
        """Return the rows, and the columns of source and target with START."""
        source, target = (max(len(pair[side]) for pair in batch) for side in (0, 1))
        if not self.few_shapes:
            return [len(batch), source, target + 1]
        column = self.padded_length(max(source, target))
        # START has a column of its own.
        return [max(len(batch), self.batch_tokens // column), column, column + 1]

    def padded_length(self, length):
        """Return the number of columns for texts of at most `length` tokens."""
        if not self.few_shapes:
            return length
        return max(1 << (int(length) - 1).bit_length(), SHORTEST)


def cut_batches(chosen, lengths, batch_tokens):
    """Yield batches, lists of indices of sentences, of at most `batch_tokens` each.

    Padding counts; `lengths` is an array `(sentences, sides)`.
    """
    batch: list[int] = []
    longest = 0
    for index in chosen:
        longest = max(longest, lengths[index].max())
        if batch and (len(batch) + 1) * longest > batch_tokens:
            yield batch
            batch, longest = [], lengths[index].max()
        batch.append(int(index))
    if batch:
        yield batch


def to_count(batches, count):
    """Return the same sentences in exactly `count` batches.

    The largest are cut in two if there are too few batches, and the smallest are joined
    if there are too many.
    """
    batches = sorted(batches, key=len)
    while len(batches) < count:
        largest = batches.pop()
        half = len(largest) // 2
        batches = sorted([*batches, largest[:half], largest[half:]], key=len)
    while len(batches) > count:
        batches = sorted([*batches[2:], batches[0] + batches[1]], key=len)
    return batches
