"""Cache of the keys and values of earlier steps, for causal self-attention.

Shapes: B batch, T steps, L slots of the cache, N heads, D depth of a head.
"""

from keras import ops

from keras_attention.ops.masks import combine_masks
from keras_attention.ops.precision import at_most
from keras_attention.sizes import at_least_one, index_range, is_one
from keras_attention.validation import check_positive_integer, may_be_equal, shapes_of


def check_cache(layer, cache, query, value):
    """Raise `ValueError` for a cache that does not fit a `SelfAttention`, or a call."""
    if not layer.causal or value is not None:
        raise ValueError(
            "A cache is for causal self-attention: causal must be True and value "
            f"None. Received: causal={layer.causal}, value "
            f"{None if value is None else tuple(value.shape)}"
        )
    if layer.axes is not None:
        raise ValueError(
            "A layer with attention_axes takes no cache. "
            f"Received: a cache, attention_axes={layer.axes.axes}"
        )
    found = shapes_of(cache)
    keys = found.get("keys") if isinstance(found, dict) else None
    slots = keys[2] if isinstance(keys, tuple) and len(keys) == 4 else None
    expected = _shapes(layer.memory, query.shape[0], slots)
    # Rows of the same length may share it.
    shared = {**expected, "length": ()}
    if not (_has_shapes(found, expected) or _has_shapes(found, shared)):
        expected = ", ".join(f"{name!r} {shape}" for name, shape in expected.items())
        raise ValueError(
            "cache must be the dict of get_initial_cache or of the previous step, for "
            f"the heads of the layer and the batch size of the query: {expected}. "
            f"Received: {found}"
        )
    steps = query.shape[1] if len(query.shape) > 2 else 1
    if None not in (steps, slots) and steps > slots:
        raise ValueError(
            "The cache must have a slot for every step. Received: "
            f"{steps} steps, max_length={slots}"
        )


def initial_cache(memory, batch_size, max_length):
    """Return a cache of `max_length` slots, all free, for a `MultiHeadMemory`."""
    max_length = check_positive_integer("max_length", max_length)
    shapes = _shapes(memory, batch_size, max_length)
    dtypes = {"length": "int32"}
    return {
        name: ops.zeros(shape, dtypes.get(name, memory.compute_dtype))
        for name, shape in shapes.items()
    }


def _shapes(memory, batch_size, max_length):
    """Return the shapes of the tensors of a cache for a `MultiHeadMemory`."""
    slots = (batch_size, memory.num_heads, max_length)
    return {
        "keys": (*slots, memory.key_dim),
        "values": (*slots, memory.value_dim),
        "length": (batch_size,),
    }


def _has_shapes(found, expected):
    """Return whether a dict has these names, each with a shape that may be equal."""
    return isinstance(found, dict) and all(
        isinstance(found.get(name), tuple) and may_be_equal(found[name], shape)
        for name, shape in expected.items()
    )


def update_cache(cache, memory, attention_mask):
    """Write the keys and values of new steps into the next free slots of a cache.

    If the cache has one length for all rows, `()`, a single step without mask is
    written as a slice, which is faster than a slot for each row. Beyond the last slot,
    it replaces that.

    Args:
        cache: Dict as `initial_cache` returns it.
        memory: Dict that the `MultiHeadMemory` returned for the steps.
        attention_mask: Boolean, broadcastable to `(B, N, T, L)`, or `None`.

    Returns:
        The cache, the memory of its slots, and the mask of those that a step may see.
    """
    slots = index_range(cache["keys"].shape[2])
    length, longest = cache["length"], cache["keys"].shape[2]
    if len(length.shape) == 0 and _is_unmasked_step(memory):
        memory = {
            name: ops.slice_update(
                cache[name],
                (0, 0, at_most(length, longest - 1), 0),
                ops.cast(memory[name], cache[name].dtype),
            )
            for name in ("keys", "values")
        }
        updated = {**memory, "length": at_most(length + 1, longest)}
        mask = ops.reshape(slots <= length, (1, 1, 1, -1))
        return updated, memory, combine_masks(attention_mask, mask)
    length = ops.reshape(length, (-1,))
    batch, _, steps, _ = ops.shape(memory["keys"])
    kept = memory.get("mask", ops.ones((batch, steps), "bool"))
    counted = ops.cast(ops.cumsum(ops.cast(kept, "int32"), axis=1), "int32")
    last = length[:, None] + counted - 1
    added = ops.sum(ops.cast(kept, "int32"), axis=1)
    length = at_most(length + added, longest)
    updated = {"length": length}
    write = _write_step if memory["keys"].shape[2] == 1 else _write_steps
    for name in ("keys", "values"):
        new = ops.cast(memory[name], cache[name].dtype)
        updated[name] = write(cache[name], new, last, kept)
    memory = {"keys": updated["keys"], "values": updated["values"]}
    step_mask = slots <= last[:, None, :, None]
    return updated, memory, combine_masks(attention_mask, step_mask)


def _is_unmasked_step(memory):
    """Return whether a memory has a single step, which no row masks."""
    return is_one(memory["keys"].shape[2]) and "mask" not in memory


def _write_steps(cache, new, slots, kept):
    """Write new steps `(B, N, T, D)` to the slots `(B, T)` where `kept` `(B, T)`."""
    # A slice cannot be written, because the slots differ from row to row.
    written = index_range(cache.shape[2]) == slots[..., None]
    written = ops.logical_and(written, kept[..., None])
    written, new = at_least_one(written, axis=1), at_least_one(new, axis=2)
    writer = ops.argmax(ops.cast(written, "int32"), axis=1)[:, None, :, None]
    written = ops.any(written, axis=1)[:, None, :, None]
    return ops.where(written, ops.take_along_axis(new, writer, axis=2), cache)


def _write_step(cache, new, slots, kept):
    """Write one step like `_write_steps`, without touching other slots."""
    batch, heads, length, depth = ops.shape(cache)
    kept = ops.logical_and(kept, slots < length)
    slots = ops.where(kept, slots, 0)
    rows = length * ops.reshape(index_range(batch * heads), (-1, heads))
    rows = ops.reshape(rows + slots, (-1,))
    flat = ops.reshape(cache, (-1, depth))
    old = ops.reshape(ops.take(flat, rows, axis=0), ops.shape(new))
    new = ops.where(kept[..., None, None], new, old)
    flat = ops.scatter_update(flat, rows[:, None], ops.reshape(new, (-1, depth)))
    return ops.reshape(flat, ops.shape(cache))
