"""Choice of the head of a Transformer that aligns words best.

A statistical model of the pairs alone says which subwords translate each other: IBM
Model 1, in both directions. The head whose attention agrees with it most is chosen.

Shapes: B pairs, N heads, T target tokens, S source tokens.
"""

import numpy as np
from keras import ops

from keras_attention_apps.common.tokenizer import START
from keras_attention_apps.nmt.subwords import pad

# Iterations of expectation maximisation; more change little.
ITERATIONS = 5
# Pairs whose attention is computed at once.
BATCH = 32


def alignment_posteriors(sources, targets):
    """Return for each pair how probably its tokens translate each other, `(T, S)`.

    It is the product of the posteriors of IBM Model 1 in both directions. `sources` and
    `targets` are lists of token ids.

    Reference:
        [Brown et al., 1993](https://aclanthology.org/J93-2003), section 4; the product
        of both directions: [Liang et al., 2006](https://aclanthology.org/N06-1014).
    """
    lengths = [
        (len(target), len(source))
        for source, target in zip(sources, targets, strict=True)
    ]
    sizes = [rows * columns for rows, columns in lengths]
    grids = [
        np.meshgrid(target, source, indexing="ij")
        for source, target in zip(sources, targets, strict=True)
    ]
    target_ids, source_ids = (
        np.concatenate([grid[side].ravel() for grid in grids]) for side in (0, 1)
    )
    forward = posteriors(source_ids, target_ids, _rows(lengths, by_target=True))
    backward = posteriors(target_ids, source_ids, _rows(lengths, by_target=False))
    product = np.split(forward * backward, np.cumsum(sizes)[:-1])
    return [x.reshape(shape) for x, shape in zip(product, lengths, strict=True)]


def _rows(lengths, *, by_target):
    """Return for each cell of all grids the number of its row, or of its column."""
    cells, first = [], 0
    for rows, columns in lengths:
        shape = (rows, 1) if by_target else (1, columns)
        numbers = np.arange(rows if by_target else columns).reshape(shape)
        cells.append(np.broadcast_to(numbers + first, (rows, columns)).ravel())
        first += rows if by_target else columns
    return np.concatenate(cells)


def posteriors(conditions, predicted, groups):
    """Return the posterior of each cell among those of its group, by IBM Model 1.

    Args:
        conditions, predicted: Token ids of all cells; a model predicts the second from
            the first.
        groups: Number of the group of each cell, which sums to one.
    """
    base = max(conditions.max(), predicted.max()) + 1
    pairs, cells = np.unique(
        conditions.astype("int64") * base + predicted, return_inverse=True
    )
    translation = np.ones(len(pairs))
    for _ in range(ITERATIONS):
        posterior = _normalized(translation[cells], groups)
        translation = _normalized(np.bincount(cells, posterior), pairs // base)
    return _normalized(translation[cells], groups)


def _normalized(values, groups):
    """Return values divided by the sum of their group."""
    return values / np.bincount(groups, values)[groups]


def head_scores(network, sources, targets):
    """Return the agreement of each head with the alignments, `(layers, heads)`.

    It is the mean share of the attention of a target token that agrees with
    `alignment_posteriors`. `sources` and `targets` are token ids, ending with END.
    """
    alignments = alignment_posteriors(
        *([ids[:-1] for ids in side] for side in (sources, targets))
    )
    totals, count = 0.0, 0
    for begin in range(0, len(sources), BATCH):
        part = slice(begin, begin + BATCH)
        weights = head_weights(network, sources[part], targets[part])
        for row, posterior in enumerate(alignments[part]):
            rows, columns = posterior.shape
            shares = posterior / posterior.sum(axis=1, keepdims=True)
            attention = weights[row, :, :, :rows, :columns]
            totals = totals + (attention * shares).sum(axis=(2, 3))
            count += rows
    return totals / max(count, 1)


def head_weights(network, sources, targets):
    """Return the attention of all heads, `(B, layers, N, T, S)`.

    Row t is that of the step that predicts target token t.
    """
    memory = network.encode(ops.convert_to_tensor(pad(sources)))
    x = network.embed(ops.convert_to_tensor(pad([[START, *x[:-1]] for x in targets])))
    weights = []
    for layer in network.transformer.layers:
        x, attention = layer(
            x,
            memory["values"],
            value_mask=memory["mask"],
            return_attention_scores=True,
        )
        weights.append(ops.convert_to_numpy(attention))
    return np.stack(weights, axis=1)


def best_head(network, sources, targets):
    """Return the layer and the head that align best, and their score."""
    scores = head_scores(network, sources, targets)
    layer, head = np.unravel_index(scores.argmax(), scores.shape)
    return int(layer), int(head), float(scores[layer, head])
