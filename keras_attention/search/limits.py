"""Maximum number of tokens for each row of a search."""

from typing import Any

import numpy as np
from keras import ops

from keras_attention.search.nested_tensors import check_rows
from keras_attention.typing import Tensor
from keras_attention.validation import values_of


def check_limit(limit: Any) -> None:
    """Raise `ValueError` if a known limit is not a positive integer."""
    values = values_of(limit)
    try:
        valid = values is None or bool(np.all((values >= 1) & (values % 1 == 0)))
    except TypeError:
        # It holds something other than numbers, such as strings.
        valid = False
    if not valid:
        raise ValueError(f"limit must be a positive integer. Received: {limit!r}")


def checked_limit(limit: Any, max_length: int, batch_size: int) -> Tensor:
    """Return a limit as int32, `()` or `(B,)`; `max_length` if it is `None`.

    Raises:
        ValueError: If it is neither a positive integer nor one positive integer for
            every row.
    """
    if limit is None:
        return max_length
    check_limit(limit)
    # In a graph, the value is not known and cannot be checked.
    values = values_of(limit)
    if values is not None:
        # Larger numbers than those of int32 would become negative.
        limit = np.minimum(values, max_length)
    limit = ops.clip(ops.cast(limit, "int32"), 1, max_length)
    if len(limit.shape) > 1:
        raise ValueError(
            "limit must be an integer, or one for every row, (batch,). Received: "
            f"shape {tuple(limit.shape)}"
        )
    if len(limit.shape):
        check_rows("limit", limit, batch_size)
    return limit
