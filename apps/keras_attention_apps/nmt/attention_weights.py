"""Attention weights of words, and the alignments of words that follow from them."""

from collections.abc import Iterable, Sequence

import numpy as np

# Attention that every word may have to every other one, and iterations of `symmetric`.
_SMALL, ITERATIONS = 1e-3, 5


def merge_weights(
    weights: np.ndarray,
    source_word_indices: Iterable[int],
    target_word_indices: Iterable[int],
) -> np.ndarray:
    """Merge attention weights of subwords into attention weights of words.

    The weight of a source word is the sum over its subwords; that of a target word the
    mean over its subwords. The indices are those of the word of each subword; the array
    `(T, S)` over subwords may have further rows and columns of padding.

    >>> weights = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    >>> merge_weights(weights, [0, 0, 1], [0, 0]).round(2).tolist()
    [[0.5, 0.5]]
    """
    sources = np.asarray(source_word_indices, "int32")
    targets = np.asarray(target_word_indices, "int32")
    merged = np.zeros((1 + targets.max(initial=-1), 1 + sources.max(initial=-1)))
    rows = np.asarray(weights, "float64")[: len(targets), : len(sources)]
    np.add.at(merged, (targets[:, None], sources[None, : rows.shape[1]]), rows)
    counts = np.bincount(targets, minlength=len(merged))
    # In half precision, the sum of a row may slightly exceed one.
    return np.minimum(merged / np.maximum(counts, 1)[:, None], 1.0)


def alignment_of(
    weights: np.ndarray, end_weights: np.ndarray | float = 0.0
) -> list[tuple[int, int]]:
    """Align each target word with the source word of largest weight.

    Returns pairs (source, target). A target word has no pair if all its weights are
    zero or NaN, or if its weight of the end token is larger than those of all words.

    >>> alignment_of(np.array([[0.1, 0.6], [0.2, 0.1], [0.8, 0.2]]), [0.3, 0.7, 0.0])
    [(1, 0), (0, 2)]
    """
    if not weights.size:
        return []
    largest = weights.max(axis=1)
    (targets,) = np.nonzero((largest > 0) & (largest >= end_weights))
    best = weights[targets].argmax(axis=1)
    return list(zip(best.tolist(), targets.tolist(), strict=True))


def block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Return one array of the weights of several sentences, zero between them."""
    weights = np.zeros(
        np.sum([x.shape for x in blocks], axis=0, dtype=int).tolist() or (0, 0)
    )
    row = column = 0
    for block in blocks:
        rows, columns = block.shape
        weights[row : row + rows, column : column + columns] = block
        row, column = row + rows, column + columns
    return weights


def symmetric(weights: np.ndarray) -> np.ndarray:
    """Return attention `(targets, sources)` as alignment weights of both directions.

    The columns and the rows are normalised in turn (Sinkhorn's algorithm). So an
    article that attends to its noun gives way to the noun, which has no other word to
    attend to. A slight preference for the diagonal separates equal words, such as
    several articles.
    """
    targets, sources = np.shape(weights)
    positions = np.arange(targets)[:, None] / targets, np.arange(sources) / sources
    alignment = (np.asarray(weights, "float64") + _SMALL) * np.exp(
        -abs(positions[0] - positions[1])
    )
    for _ in range(ITERATIONS):
        alignment = alignment / alignment.sum(axis=0)
        alignment = alignment / alignment.sum(axis=1, keepdims=True)
    # Weights that are nearly equal are no evidence.
    return alignment**2


def aligned_words(weights: np.ndarray, source_words: Iterable[int]) -> range:
    """Return the target words that translate some words of the source, a range.

    They are the word with the largest weights in both directions, see `symmetric`. If
    there are several source words, adjacent words whose largest weight is on one of
    them are aligned, too. There are at most as many words as the source has, and none
    if no weight is positive.

    >>> weights = np.array([[0.3, 0.1, 0.6], [0.9, 0.1, 0.0], [0.1, 0.8, 0.1]])
    >>> aligned_words(weights, {0}), aligned_words(weights, {0, 1})
    (range(1, 2), range(1, 3))
    """
    chosen = [word for word in source_words if word < weights.shape[1]]
    if not weights.size or not weights[:, chosen].any():
        return range(0)
    weights = symmetric(weights)
    sums = weights[:, chosen].sum(axis=1)
    begin = int(sums.argmax())
    end = begin + 1
    belongs = np.isin(weights.argmax(axis=1), chosen)
    while end - begin < len(chosen):
        # The neighbour with the larger weight comes first.
        before = sums[begin - 1] if begin and belongs[begin - 1] else 0
        after = sums[end] if end < len(sums) and belongs[end] else 0
        if not max(before, after):
            break
        begin, end = (begin - 1, end) if before > after else (begin, end + 1)
    return range(begin, end)
