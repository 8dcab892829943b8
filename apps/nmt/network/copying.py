"""Extended ids of a source as tensors; see `keras_attention_apps.nmt.data.copying`.

Shapes: B sentences, S source tokens, N vocabulary size.
"""

from keras import ops
from keras_attention_apps.nmt.data.copying import NONE, OUTSIDE, boundaries


def word_numbers(source, kinds):
    """Return the numbers of words of several subwords, and where these words begin.

    Args:
        source: Token ids `(B, S)`.
        kinds: Kinds of all subwords, `(N,)`.

    Returns:
        numbers: Integers `(B, S)`, `NONE` for a subword outside of such words.
        begins: Boolean `(B, S)`.
    """
    kinds = ops.take(ops.convert_to_tensor(kinds, dtype="int32"), source, axis=0)
    before = ops.pad(kinds[:, :-1], [[0, 0], [1, 0]], constant_values=OUTSIDE)
    begins, continues = boundaries(kinds, before)
    after = ops.pad(ops.cast(continues, "int32")[:, 1:], [[0, 0], [0, 1]])
    begins = begins & (after > 0)
    numbers = ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1
    return ops.where(begins | continues, numbers, NONE), begins


def extended_ids(source, kinds):
    """Return the ids under which each position is copied, `(B, S)`.

    The first subword of a word of several subwords has the extended id of the word.
    """
    numbers, begins = word_numbers(source, kinds)
    return ops.where(begins, len(kinds) + numbers, source)
