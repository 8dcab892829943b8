"""Dimensions of the tests of losses, and losses as NumPy arrays."""

from keras import ops

from keras_attention import sequence_crossentropy

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, POSITIONS, WORDS = 2, 3, 5, 7


def numpy(function, *arrays, **options):
    """The value of a function of tensors, with arrays in and out."""
    tensors = [None if x is None else ops.convert_to_tensor(x) for x in arrays]
    return ops.convert_to_numpy(function(*tensors, **options))


def loss_of(token_ids, logits, **options):
    tensors = [ops.convert_to_tensor(x) for x in (token_ids, logits)]
    return ops.convert_to_numpy(sequence_crossentropy(*tensors, **options))
