"""The loop of searches whose hypotheses are independent of each other."""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_attention.ops.log_probs import IMPOSSIBLE, is_possible
from keras_attention.ops.masks import where_rows
from keras_attention.search.nested_tensors import batch_of, write
from keras_attention.typing import Nested, Shape, Tensor, Tensors


def search_independently(
    extend: Callable[..., Any],
    state: Nested,
    shape: Shape,
    *,
    start: int,
    end: int,
    max_length: int,
    limit: Any,
) -> Tensors:
    """Extend the hypotheses of every row, independently, until all have ended.

    Args:
        extend: Function `(token_ids, state, t) -> (extension, state)` that chooses the
            next tokens. `extension` is a dict: `"token_ids"` `(B, K)`, the chosen
            tokens; `"log_probs"` `(B, K)`, their log-probabilities; `"weights"`
            `(B, K, S)`; and `"finite"` `(B, K)`, whether all log-probabilities were
            finite or minus infinity.
        state: Nested tensors `(B, K, ...)`.
        shape: Shape `(B, K, S)` of the attention weights, as of `ops.shape`.
        start, end, max_length: As for `beam_search`.
        limit: As `checked_limit` returns it.

    Returns:
        Dict of tensors, as of `beam_search`, in the order of the hypotheses.
    """
    # Integers of NumPy would have 64 bits.
    start, end = int(start), int(end)
    batch, size = batch_of(state), shape[1]

    def proceed(t: Any, alive: Nested, history: Nested) -> Tensor:
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(alive["done"])))

    def body(t: Any, alive: Nested, history: Nested) -> tuple[Tensor, Nested, Nested]:
        extension, state = extend(alive["token_ids"], alive["state"], t)
        alive, entry = _extended(alive, extension, end)
        if not isinstance(limit, int):
            alive["done"] |= t + 1 >= ops.reshape(limit, (-1, 1))
        return t + 1, {**alive, "state": state}, write(history, t, entry)

    alive = {
        "token_ids": ops.full((batch, size), start, dtype="int32"),
        "state": state,
        "done": ops.zeros((batch, size), dtype="bool"),
        "exists": ops.ones((batch, size), dtype="bool"),
        "finite": ops.ones((batch,), dtype="bool"),
    }
    history = {
        "token_ids": ops.full((max_length, batch, size), end, dtype="int32"),
        "log_probs": ops.zeros((max_length, batch, size), dtype="float32"),
        "weights": ops.zeros((max_length, *shape), dtype="float32"),
        "exists": ops.zeros((max_length, batch, size), dtype="int32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    _, alive, history = ops.while_loop(
        proceed, body, (t, alive, history), maximum_iterations=max_length
    )
    return _result(alive, history, end)


def _extended(alive: Nested, extension: Nested, end: int) -> tuple[Nested, Nested]:
    """Return the hypotheses with one more token, and the entry of the history."""
    token_ids, token_log_probs = extension["token_ids"], extension["log_probs"]
    running = ops.logical_not(alive["done"])
    exists = ops.logical_and(running, is_possible(token_log_probs))
    token_ids = ops.where(exists, token_ids, end)
    weights = ops.cast(extension["weights"], "float32")
    entry = {
        "token_ids": token_ids,
        "log_probs": ops.where(exists, token_log_probs, 0.0),
        "weights": ops.where(exists[..., None], weights, 0.0),
        "exists": ops.cast(exists, "int32"),
    }
    alive = {
        "token_ids": token_ids,
        "done": token_ids == end,
        "exists": ops.logical_or(alive["done"], exists) & alive["exists"],
        "finite": alive["finite"] & ops.all(extension["finite"] | ~running, axis=1),
    }
    return alive, entry


def _result(alive: Nested, history: Nested, end: int) -> Tensors:
    """Return the result of a search; hypotheses that do not exist are empty."""
    exists = alive["exists"]
    total = ops.where(exists, ops.sum(history["log_probs"], axis=0), IMPOSSIBLE)

    def existing(x: Tensor, otherwise: Tensor) -> Tensor:
        return where_rows(exists, ops.moveaxis(x, 0, 2), otherwise)

    return {
        "token_ids": existing(history["token_ids"], end),
        "lengths": ops.where(exists, ops.sum(history["exists"], axis=0), 0),
        "scores": total,
        "log_probs": total,
        "token_log_probs": existing(history["log_probs"], 0.0),
        "weights": existing(history["weights"], 0.0),
        "finite": alive["finite"],
    }
