"""Groups of sentences, and their token ids as arrays."""

import itertools

import numpy as np
from keras_attention_apps.common.tokens import PAD


def pad(token_ids, rows=None, columns=None):
    """Return lists of token ids as one array, padded with PAD."""
    rows = len(token_ids) if rows is None else rows
    columns = max(map(len, token_ids)) if columns is None else columns
    padded = np.full((rows, columns), PAD, "int32")
    for row, ids in zip(padded, token_ids, strict=False):
        row[: len(ids)] = ids
    return padded


def chunks(items, size):
    """Yield lists of `size` successive items; the last may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk
