"""Word alignments of given sentence pairs: by forced decoding, and of two directions.

Links are pairs of a source word and a target word, counted from 0, as in the files of
Pharaoh: `0-0 1-2`. Words are separated by spaces.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.tokenizer import END
from keras_attention_apps.nmt.attention_weights import alignment_of, merge_weights
from keras_attention_apps.nmt.data.dataset import read_lines
from keras_attention_apps.nmt.subwords import clean
from keras_attention_apps.nmt.translations import SORTED_BATCHES, chunks

Links = set[tuple[int, int]]
# Steps from a link to its neighbours, diagonal ones included.
NEIGHBOURS = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
METHODS = ("intersection", "union", "grow-diag-final-and")
# A link of a reference: sure with "-", and only possible with "?" or "p".
_LINK = re.compile(r"(\d+)([-?p])(\d+)")


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The attention of a model that reads a sentence and its given translation.

    Attributes:
        source_words, words: The words of both sentences.
        weights: Attention `(len(words), len(source_words))`.
        end_weights: Attention to the end of the sentence, `(len(words),)`.
        cut: Whether a sentence was too long; words after the cut have no weights.
    """

    source_words: list[str]
    words: list[str]
    weights: np.ndarray
    end_weights: np.ndarray
    cut: bool = False

    @property
    def links(self) -> Links:
        """Each target word with the source word of its largest weight."""
        return set(alignment_of(self.weights, self.end_weights))

    def with_reverse(self, reverse: "Alignment") -> "Alignment":
        """Return the mean of both attentions; `reverse` has source and target swapped.

        Each is normalised over the other side, as the links of its direction are.
        """
        weights = (self.weights + reverse.weights.T) / 2
        return dataclasses.replace(self, weights=weights, cut=self.cut or reverse.cut)


def align(
    translator, pairs: Sequence[tuple[str, str]], batch_size: int = 64
) -> Iterator[Alignment]:
    """Yield the `Alignment` of each pair of a source and its translation, in order.

    Args:
        translator: A `Translator` on Keras, with attention.
        pairs: Sources and targets.
        batch_size: Batch size, in pairs.
    """
    if not translator.attends:
        raise UserError("an alignment needs a model with attention")
    tokenizers = translator.tokenizer, translator.tokenizer.target
    for chunk in chunks(pairs, batch_size * SORTED_BATCHES):
        encoded = [
            [
                _encoded(subwords, text, translator.max_length)
                for subwords, text in zip(tokenizers, pair, strict=True)
            ]
            for pair in chunk
        ]
        aligned: list[Alignment | None] = [None] * len(chunk)
        order = sorted(range(len(chunk)), key=lambda i: [len(x) for x in encoded[i]])
        for batch in chunks(order, batch_size):
            sources, targets = zip(*(encoded[i] for i in batch), strict=True)
            if translator.copying:
                targets = tuple(map(translator.copying.extend, sources, targets))
            forced = translator.forced_hypotheses(sources, targets)
            for i, hypothesis in zip(batch, forced, strict=True):
                aligned[i] = _alignment(translator, chunk[i], encoded[i], hypothesis)
        yield from filter(None, aligned)


def _encoded(subwords, text, max_length):
    """Return the token ids of a sentence, at most as many as the model reads."""
    return [*subwords.encode(text)[:-1][: max_length - 1], END]


def _alignment(translator, pair, encoded, hypothesis):
    """Return the alignment of the words of a pair, from that of its subwords."""
    source_words, words = (clean(text).split() for text in pair)
    sources, targets = map(translator.tokenizer.word_indices, encoded)
    weights = hypothesis.weights
    if translator.copying:
        _, origins = translator.copying.expand(hypothesis.token_ids, encoded[0])
        weights = weights[origins]
    # The end token is one more word.
    merged = merge_weights(weights, [*sources, len(source_words)], targets)
    full = np.zeros((len(words), len(source_words) + 1))
    full[: len(merged), : merged.shape[1]] = merged[: len(words)]
    word_counts = [
        len(set(word_indices.tolist())) for word_indices in (sources, targets)
    ]
    return Alignment(
        source_words,
        words,
        full[:, :-1],
        full[:, -1],
        cut=word_counts != [len(source_words), len(words)],
    )


def symmetrized(forward: Links, reverse: Links, method: str) -> Links:
    """Return the links of both directions as those of one of the `METHODS`.

    Args:
        forward, reverse: Links of a source and a target word by the model of either
            direction.
        method: `"intersection"`, `"union"` or `"grow-diag-final-and"`: from the
            intersection, links of the union that are next to a link and align a word
            that has none are added; finally, links of two words without any.

    Reference:
        [Koehn et al., 2005](https://aclanthology.org/2005.iwslt-1.8), section 3.
    """
    if method == "intersection":
        return forward & reverse
    union = forward | reverse
    if method == "union":
        return union
    links = forward & reverse
    sources, targets = ({link[side] for link in links} for side in (0, 1))

    def add(link):
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grows = True
    while grows:
        grows = False
        for source, target in sorted(links):
            for i, j in NEIGHBOURS:
                link = source + i, target + j
                is_new = link[0] not in sources or link[1] not in targets
                if is_new and link in union and link not in links:
                    add(link)
                    grows = True
    for direction in (forward, reverse):
        for link in sorted(direction):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return links


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Return links as a line of a file of alignments.

    >>> pharaoh({(1, 2), (0, 0)})
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def read_references(path: Path) -> list[tuple[Links, Links]]:
    """Return the sure and the possible links of each line; sure ones are possible."""
    references = []
    for number, line in enumerate(read_lines(path), start=1):
        sure: Links = set()
        possible: Links = set()
        for word in line.split():
            match = _LINK.fullmatch(word)
            if match is None:
                raise UserError(
                    f"{path}, line {number}: expected links such as 0-1, and 0?1 for "
                    f"those that are only possible. Received: {word!r:.60}"
                )
            link = int(match[1]), int(match[3])
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        references.append((sure, possible))
    return references


def alignment_error_rate(
    alignments: Sequence[Links], references: Sequence[tuple[Links, Links]]
) -> float:
    """Return 1 - (|A and S| + |A and P|) / (|A| + |S|) over a whole corpus.

    `A` are the links of the alignments, `S` the sure and `P` the possible links of the
    references. Zero is best. `keras_attention.AlignmentErrorRate` is the same for
    attention of one direction.

    Reference:
        [Och and Ney, 2003](https://aclanthology.org/J03-1002), section 5.

    >>> rate = alignment_error_rate([{(0, 0), (1, 0)}], [({(0, 0)}, {(0, 0), (1, 1)})])
    >>> round(rate, 3)
    0.333
    """
    matched = total = 0
    for links, (sure, possible) in zip(alignments, references, strict=True):
        matched += len(links & sure) + len(links & possible)
        total += len(links) + len(sure)
    return 1 - matched / total if total else 0.0
