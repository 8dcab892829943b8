"""Dtypes: of sums, which half precision would round too much, and of integers."""

import keras
from keras import ops

from keras_attention.typing import Dtype, Tensor


def accumulation_dtype(dtype: Dtype) -> str:
    """Return the dtype of sums and states: float64 for float64, otherwise float32."""
    return (
        "float64" if keras.backend.standardize_dtype(dtype) == "float64" else "float32"
    )


def log_floor(dtype: Dtype) -> float:
    """Return the smallest weight in a dtype whose logarithm has a finite gradient."""
    return 1e-4 if keras.backend.standardize_dtype(dtype) == "float16" else 1e-30


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it has that dtype."""
    if not hasattr(x, "dtype"):
        x = ops.convert_to_tensor(x)
    return ops.cast(x, accumulation_dtype(x.dtype))


def at_most(x: Tensor, largest: Tensor) -> Tensor:
    """Return the minimum of an int32 tensor and an integer or int32 tensor, in int32.

    On JAX with bfloat16 by default, `ops.minimum` of a tensor and a number is a float.
    LiteRT cannot run `ops.clip` of integers to 0 and 1, or to 0 and 6, which it takes
    for an activation.
    """
    return ops.minimum(x, ops.cast(largest, "int32"))
