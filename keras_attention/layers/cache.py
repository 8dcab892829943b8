"""Cache of the keys and values of earlier steps, for causal self-attention.

Shapes: B batch, T steps, L places of the cache, N heads, D depth of a head.
"""

from keras import ops

from keras_attention.lengths import at_least_one
from keras_attention.validation import check_positive_integer


def check_cache(cache, query, value, causal, attention_axes):
    """Raise `ValueError` for a cache that is too small, or in a call that uses none."""
    if not causal or value is not None:
        raise ValueError(
            "A cache is for causal self-attention: causal must be True and value "
            f"None. Received: causal={causal}, value "
            f"{None if value is None else tuple(value.shape)}"
        )
    if attention_axes is not None:
        raise ValueError(
            "A layer with attention_axes takes no cache. "
            f"Received: a cache, attention_axes={attention_axes}"
        )
    steps = query.shape[1] if len(query.shape) > 2 else 1
    places = cache["keys"].shape[2]
    if steps is not None and steps > places:
        raise ValueError(
            "The cache must have a place for every step. Received: "
            f"{steps} steps, max_length={places}"
        )


def empty_cache(memory, batch_size, max_length):
    """Return a cache of `max_length` places, all free, for a `MultiHeadMemory`."""
    check_positive_integer("max_length", max_length)
    shape = (batch_size, memory.num_heads, max_length)
    return {
        "keys": ops.zeros((*shape, memory.key_dim), memory.compute_dtype),
        "values": ops.zeros((*shape, memory.value_dim), memory.compute_dtype),
        "length": ops.zeros((batch_size,), "int32"),
    }


def remember(cache, memory):
    """Write the keys and values of new steps into the next free places of a cache.

    Returns:
        The cache, and the mask of the places that each step may see, `(B, T, L)`.
    """
    batch, _, steps, _ = ops.shape(memory["keys"])
    kept = memory.get("mask", ops.ones((batch, steps), "bool"))
    counted = ops.cast(ops.cumsum(ops.cast(kept, "int32"), axis=1), "int32")
    last = cache["length"][:, None] + counted - 1
    added = ops.sum(ops.cast(kept, "int32"), axis=1)
    length = ops.clip(cache["length"] + added, 0, cache["keys"].shape[2])
    remembered = {"length": length}
    write = _write_step if memory["keys"].shape[2] == 1 else _write_steps
    for name in ("keys", "values"):
        new = ops.cast(memory[name], cache[name].dtype)
        remembered[name] = write(cache[name], new, last, kept)
    places = ops.arange(cache["keys"].shape[2], dtype="int32")
    return remembered, places <= last[..., None]


def _write_steps(cache, new, places, kept):
    """Write new steps `(B, N, T, D)` to the places `(B, T)` where `kept` `(B, T)`."""
    # A slice cannot be written, because the places differ from row to row.
    written = ops.arange(cache.shape[2], dtype="int32") == places[..., None]
    written = ops.logical_and(written, kept[..., None])
    written, new = at_least_one(written, axis=1), at_least_one(new, axis=2)
    writer = ops.argmax(ops.cast(written, "int32"), axis=1)[:, None, :, None]
    written = ops.any(written, axis=1)[:, None, :, None]
    return ops.where(written, ops.take_along_axis(new, writer, axis=2), cache)


def _write_step(cache, new, places, kept):
    """Write one step like `_write_steps`, without touching other places."""
    batch, heads, length, depth = ops.shape(cache)
    kept = ops.logical_and(kept, places < length)
    places = ops.where(kept, places, 0)
    rows = length * ops.reshape(ops.arange(batch * heads, dtype="int32"), (-1, heads))
    rows = ops.reshape(rows + places, (-1,))
    flat = ops.reshape(cache, (-1, depth))
    old = ops.reshape(ops.take(flat, rows, axis=0), ops.shape(new))
    new = ops.where(kept[..., None, None], new, old)
    flat = ops.scatter_update(flat, rows[:, None], ops.reshape(new, (-1, depth)))
    return ops.reshape(flat, ops.shape(cache))
