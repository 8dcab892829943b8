"""Shortlists: the few subwords among which a search chooses, for each sentence.

The output layer is the largest product of a small translator, and most subwords of the
vocabulary have nothing to do with a sentence.

Shapes: N vocabulary size, M likely translations of a subword, C candidates, E depth of
an embedding, B pairs, T target tokens, S source tokens.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END, PAD, START, UNKNOWN
from keras_attention_apps.nmt.network.alignment_head import posteriors
from keras_attention_apps.nmt.subwords import pad

# Number of candidates C, and of likely translations of a subword.
SIZE, WIDTH = 512, 24
# Score of a subword of the source itself, which may be copied.
OWN_SCORE = 1.0
# Prior score of tokens that are no candidates, or are always.
NEVER = -1e9
# Maximum number of pairs that are read, and of subwords of a sentence.
MAX_PAIRS, MAX_LENGTH = 400_000, 60
# Pairs of a batch, and target tokens to which the logit of all other subwords is
# fitted.
BATCH, FITTED_TOKENS = 32, 6000


def rank_scores(width: int) -> np.ndarray:
    """Return the scores of the translations of a subword, from the most likely on."""
    return 1 / (1 + np.arange(width) / 8)


@dataclasses.dataclass(frozen=True)
class Shortlist:
    """The likely translations of the subwords, from which shortlists are made.

    Attributes:
        table: Likely translations of each subword, `(N, M)`, the most likely first,
            padded with PAD.
        prior: Score of each subword in every sentence, `(N,)`, by its frequency;
            `NEVER` for those that are no candidates, or are always.
        rest: Vector of `E + 1` numbers: the product of the first E with the hidden
            vector, plus the last, is the logit of all subwords outside of a shortlist.
        fixed: Tokens that are always candidates: PAD, START, END, UNKNOWN, symbols.
        size: Number of candidates C of a sentence.
    """

    table: np.ndarray
    prior: np.ndarray
    rest: np.ndarray
    fixed: tuple[int, ...]
    size: int

    def candidates(self, source: Sequence[int]) -> np.ndarray:
        """Return the candidates of a sentence, `(C,)`, the fixed first."""
        scores = self.prior.astype("float32")
        ranks = rank_scores(self.table.shape[1]).astype("float32")
        for token in source:
            np.add.at(scores, self.table[token], ranks)
            scores[token] += OWN_SCORE
        best = np.argsort(-scores, kind="stable")[: self.size - len(self.fixed)]
        return np.concatenate([self.fixed, best])


def learn_shortlist(
    translator, pairs, *, size: int = SIZE, width: int = WIDTH
) -> Shortlist:
    """Learn the likely translations of subwords from sentence pairs.

    They are those with the largest expected counts of IBM Model 1, in which each target
    subword translates one source subword, or none:

        count[s, n] = sum over the pairs of p(n translates s)

    Reference:
        [Brown et al., 1993](https://aclanthology.org/J93-2003), section 4.
    """
    network, tokenizer = translator.network, translator.tokenizer
    translator.check_single("a shortlist")
    if network.pointer_generator:
        raise UserError("a translator with copying cannot have a shortlist")
    vocabulary = len(tokenizer)
    sources, targets = _token_ids(tokenizer, pairs)
    frequency = np.bincount(np.concatenate(targets), minlength=vocabulary)
    prior = np.log1p(frequency) / np.log1p(frequency.max())
    fixed = (PAD, START, END, UNKNOWN, *tokenizer.symbols.values())
    prior[[*fixed, *tokenizer.banned]] = NEVER
    size = min(size, len(fixed) + int((prior > NEVER).sum()))
    shortlist = Shortlist(
        likely_translations(sources, targets, vocabulary, width),
        prior.astype("float32"),
        np.zeros(network.embedding.output_dim + 1, "float32"),
        fixed,
        size,
    )
    rest = _fitted_rest(network, sources, targets, shortlist)
    return dataclasses.replace(shortlist, rest=rest)


def _token_ids(tokenizer, pairs):
    """Return the token ids of both sides of pairs, without END."""
    step = -(-len(pairs) // MAX_PAIRS)
    sides = (
        [ids[:-1] for ids in model.encode_all(side[::step])]
        for model, side in ((tokenizer, pairs.source), (tokenizer.target, pairs.target))
    )
    lengths = range(1, MAX_LENGTH + 1)
    complete = [
        pair
        for pair in zip(*sides, strict=True)
        if all(len(ids) in lengths for ids in pair)
    ]
    if not complete:
        raise UserError(
            f"a shortlist needs pairs of at most {MAX_LENGTH} subwords. Received: none"
        )
    sources, targets = zip(*complete, strict=True)
    return sources, targets


def likely_translations(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    vocabulary: int,
    width: int,
) -> np.ndarray:
    """Return the table of a `Shortlist`, `(N, M)`, from the token ids of pairs."""
    # The empty source subword translates to what no other does.
    empty = vocabulary
    pairs = [*zip(sources, targets, strict=True)]
    conditions = np.concatenate(
        [np.tile([empty, *source], len(target)) for source, target in pairs]
    )
    predicted = np.concatenate(
        [np.repeat(target, len(source) + 1) for source, target in pairs]
    )
    # The number of the target subword of each pair of subwords.
    sizes = [len(source) + 1 for source, target in pairs for _ in target]
    expected = posteriors(
        conditions, predicted, np.repeat(np.arange(len(sizes)), sizes)
    )
    keys, key_indices = np.unique(
        conditions.astype("int64") * vocabulary + predicted, return_inverse=True
    )
    conditions, predicted = keys // vocabulary, keys % vocabulary
    # The largest counts of each source subword first.
    order = np.lexsort((-np.bincount(key_indices, expected), conditions))
    conditions, predicted = conditions[order], predicted[order]
    ranks = np.arange(len(conditions)) - np.searchsorted(conditions, conditions)
    listed = (ranks < width) & (conditions != empty)
    dtype = "int16" if vocabulary <= np.iinfo("int16").max else "int32"
    table = np.full((vocabulary, width), PAD, dtype)
    table[conditions[listed], ranks[listed]] = predicted[listed]
    return table


def _fitted_rest(network, sources, targets, shortlist):
    """Return the vector of the logit of all subwords outside of a shortlist.

    It is fitted by least squares to the logarithm of the sum of their exponentials,
    where the network reads some of the pairs.
    """
    step = max(sum(map(len, targets)) // FITTED_TOKENS, 1)
    sources, targets = sources[::step], targets[::step]
    inputs, outputs = [], []
    for begin in range(0, len(sources), BATCH):
        part = slice(begin, begin + BATCH)
        source = pad([[*ids, END] for ids in sources[part]])
        begun = pad([[START, *ids] for ids in targets[part]])
        memory = network.encode(ops.convert_to_tensor(source))
        hidden, _ = network.decode(
            ops.convert_to_tensor(begun), memory, return_weights=True
        )
        logits = np.array(ops.convert_to_numpy(network.logits(hidden)))
        for row, ids in zip(logits, source, strict=True):
            row[:, shortlist.candidates(ids[ids != PAD])[1:]] = NEVER
        largest = logits.max(axis=-1)
        sums = np.log(np.exp(logits - largest[..., None]).sum(axis=-1)) + largest
        # Without other subwords, there is nothing to fit.
        is_fitted = (begun != PAD) & (largest > NEVER)
        inputs.append(ops.convert_to_numpy(hidden)[is_fitted])
        outputs.append(sums[is_fitted])
    hidden, sums = np.concatenate(inputs), np.concatenate(outputs)
    if not len(sums):
        return np.append(np.zeros(hidden.shape[1]), NEVER).astype("float32")
    hidden = np.append(hidden, np.ones((len(hidden), 1)), axis=1)
    rest, *_ = np.linalg.lstsq(hidden, sums, rcond=None)
    return rest.astype("float32")
