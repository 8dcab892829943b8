"""Integers that stay integers on every backend and in every file format."""

from keras import ops


def at_most(x, largest):
    """Return the minimum of an int32 tensor and an integer or int32 tensor, in int32.

    On JAX with bfloat16 by default, `ops.minimum` of a tensor and a number is a float.
    LiteRT cannot run `ops.clip` of integers to 0 and 1, or to 0 and 6, which it takes
    for an activation.
    """
    return ops.minimum(x, ops.cast(largest, "int32"))
