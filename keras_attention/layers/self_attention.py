"""Self-attention, and the cache of the keys and values of its earlier steps.

Shapes: B batch, T steps, S positions, L slots of the cache, N heads, D depth of a head.
"""

from typing import Any

import keras
from keras import ops

from keras_attention.backends import index_range
from keras_attention.layers.attention import AttentionInputs
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.ops.masks import combine_masks
from keras_attention.ops.precision import at_most
from keras_attention.sizes import at_least_one, is_one
from keras_attention.typing import Nested, Shape, Tensor, Tensors
from keras_attention.validation import check_positive_integer, may_be_equal, shapes_of


@keras.saving.register_keras_serializable(package="keras_attention")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself.

    `MultiHeadAttention` where the query is also the value and the key; see there for
    the equation and the arguments. Without position encodings, `positions`, a window or
    a causal mask, the layer is permutation equivariant.

    The mask of the query is also that of the value, unless there is a `value_mask`.

    Sliding window: with `window_size`, time and memory grow with the sequence times the
    window, not with its square. The exceptions are calls with an `attention_mask`, a
    `value_mask`, a `key_mask` or a `cache`, requests of the weights, and weightings
    with additional outputs, such as `HardWeighting`.

    Step by step: a causal layer handles a sequence one step at a time with a `cache`
    of the keys and values so far. The outputs are those of the full pass:

        cache = layer.get_initial_cache(batch_size, max_length)
        for t in range(max_length):
            output[:, t], cache = layer(x[:, t], cache=cache)

    All shapes are fixed and every tensor of the cache has the batch first, so the loop
    compiles, and a search can gather rows. Masked steps and steps beyond `max_length`
    are not stored, so each row may have its own length. The weights
    have one entry for each slot of the cache: `(batch, num_heads, max_length)`. Rows of
    the same length may share it, as a number, `"length"` of shape `()`. That is faster,
    but a step beyond `max_length` then replaces the last one.

    Call arguments:
        query: Tensor of shape `(batch, query_length, query_dim)`, or one step
            `(batch, query_dim)`.
        mask: Alias of `query_mask`. It wins, because Keras may fill `query_mask` with
            an implicit mask.
        cache: Dict that `get_initial_cache` or the previous step returned. The query
            then holds the next step, or several.

    The other arguments are those of `MultiHeadAttention`.

    Returns:
        output, weights: As `MultiHeadAttention` returns them.
        cache: Dict for the next step; only if there is a `cache`.

    Raises:
        ValueError: If an argument or a shape does not fit, or if there is a `cache` for
            a layer that is not causal.

    Example:

    >>> attention = SelfAttention(num_heads=8, key_dim=64)
    >>> words = np.zeros((2, 11, 512), "float32")
    >>> output, weights = attention(words, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 11))
    """

    takes_value = False

    def __init__(self, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(num_heads, key_dim, **kwargs)
        # A single query is the next step of a cache.
        self.ordered = False

    def call(  # type: ignore[override]  # There is no value.
        self,
        query: Tensor,
        *,
        mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        cache: Tensors | None = None,
        training: bool | None = None,
    ) -> Nested:
        self._check_sequence(query, use_causal_mask, return_details, cache)
        slots = None if cache is None else cache["keys"].shape[2]
        inputs = AttentionInputs(
            query,
            query_mask=query_mask if mask is None else mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
        )
        has_mask = not (inputs.query_mask is None and attention_mask is None)
        if has_mask or len(query.shape) != 3:
            inputs = self.standardize(inputs, slots or query.shape[1])
        outputs = self.attend(
            inputs,
            cache,
            causal=use_causal_mask,
            return_weights=return_attention_scores or return_details,
            training=training,
        )
        following = [] if cache is None else [outputs.pop("cache")]
        if len(query.shape) != 3:
            outputs = self.restore(outputs, query, query)
        results = [outputs if return_details else outputs["context"]]
        if return_attention_scores and not return_details:
            results.append(outputs["weights"])
        results += following
        return tuple(results) if len(results) > 1 else results[0]

    def attend(
        self,
        inputs: AttentionInputs,
        cache: Tensors | None = None,
        *,
        causal: bool,
        return_weights: bool,
        training: bool | None,
    ) -> Tensors:
        query, query_mask = inputs.query, inputs.query_mask
        # Whether positions have the mask of the queries.
        same_mask = inputs.value_mask is None and inputs.key_mask is None
        # Called without Keras' `__call__`, which has converted and cast all tensors.
        memory = self.memory.call(
            query,
            value_mask=query_mask if inputs.value_mask is None else inputs.value_mask,
            key_mask=inputs.key_mask,
            start=None if cache is None else ops.reshape(cache["length"], (-1,)),
        )
        query_positions, mask = memory.get("positions"), inputs.attention_mask
        sees_itself = False
        if cache is not None:
            sees_itself = same_mask and query_mask is None and mask is None
            cache, memory, mask = update_cache(cache, memory, mask)
        outputs, _ = self.step.call(
            query,
            memory,
            query_mask=query_mask,
            mask=mask,
            causal=(self.options.causal or causal) and cache is None,
            return_weights=return_weights,
            average_heads=False,
            query_positions=query_positions,
            same_sequence=same_mask and cache is None,
            sees_itself=sees_itself,
            training=training,
        )
        return outputs if cache is None else {**outputs, "cache": cache}

    def _check_sequence(
        self,
        query: Tensor,
        use_causal_mask: bool,
        return_details: bool,
        cache: Tensors | None,
    ) -> None:
        """Raise `ValueError` for a sequence or a cache that does not fit."""
        self.check_inputs(query, None, None, use_causal_mask, return_details)
        if cache is not None:
            check_cache(self, cache, query)
        elif len(query.shape) == 2:
            batch, size = (x if isinstance(x, int) else None for x in query.shape)
            raise ValueError(
                "query must have the shape (batch, positions, depth): without a cache, "
                "one step (batch, depth) has nothing but itself to attend to, with a "
                "weight of 1. For a table, whose columns are the positions: "
                f"keras.layers.Reshape(({size}, 1)). Received: {(batch, size)}"
            )

    def build(self, query_shape: Shape) -> None:  # type: ignore[override]
        value_shape = query_shape
        if len(query_shape) == 2:
            # The next step of a cache.
            value_shape = (query_shape[0], None, query_shape[1])
        super().build(query_shape, value_shape)

    def compute_output_spec(  # type: ignore[override]
        self,
        query: Tensor,
        *,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        cache: Tensors | None = None,
        **kwargs: Any,
    ) -> Any:
        self._check_sequence(query, use_causal_mask, return_details, cache)
        if return_details:
            options = {"use_causal_mask": use_causal_mask, "cache": cache, **kwargs}
            return keras.Operation.compute_output_spec(
                self, query, return_details=True, **options
            )
        shapes = [self.compute_output_shape(query.shape)]
        if return_attention_scores:
            value_shape = query.shape
            if cache is not None:
                value_shape = (query.shape[0], cache["keys"].shape[2], None)
            shapes.append(self.weights_shape(query.shape, value_shape))
        outputs = [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
        if cache is not None:
            outputs.append(
                {name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}
            )
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_initial_cache(self, batch_size: int, max_length: int) -> Tensors:
        """Return an empty cache for `batch_size` sequences of up to `max_length` steps.

        Returns:
            Dict with `"keys"` and `"values"` `(batch_size, num_key_value_heads,
            max_length, depth)`, in the compute dtype, and the integer `"length"`
            `(batch_size,)`, the number of steps that are stored.
        """
        return initial_cache(self, batch_size, max_length)


def check_cache(layer: keras.layers.Layer, cache: Any, query: Tensor) -> None:
    """Raise `ValueError` for a cache that does not fit a `SelfAttention`, or a call."""
    if not layer.options.causal:
        raise ValueError(
            "A cache is for causal self-attention: causal must be True. "
            f"Received: causal={layer.options.causal}"
        )
    if layer.axes is not None:
        raise ValueError(
            "A layer with attention_axes takes no cache. "
            f"Received: a cache, attention_axes={layer.axes.axes}"
        )
    shapes = shapes_of(cache)
    keys = shapes.get("keys") if isinstance(shapes, dict) else None
    slots = keys[2] if isinstance(keys, tuple) and len(keys) == 4 else None
    expected = _shapes(layer.options, query.shape[0], slots)
    # Rows of the same length may share it.
    shared = {**expected, "length": ()}
    if not (_has_shapes(shapes, expected) or _has_shapes(shapes, shared)):
        wanted = ", ".join(f"{name!r} {shape}" for name, shape in expected.items())
        raise ValueError(
            "cache must be the dict of get_initial_cache or of the previous step, for "
            f"the heads of the layer and the batch size of the query: {wanted}. "
            f"Received: {shapes}"
        )
    steps = query.shape[1] if len(query.shape) > 2 else 1
    if steps is not None and slots is not None and steps > slots:
        raise ValueError(
            "The cache must have a slot for every step. Received: "
            f"{steps} steps, max_length={slots}"
        )


def initial_cache(
    layer: keras.layers.Layer, batch_size: int, max_length: int
) -> Tensors:
    """Return a cache of `max_length` slots, all free, for a `SelfAttention`."""
    max_length = check_positive_integer("max_length", max_length)
    shapes = _shapes(layer.options, batch_size, max_length)
    dtypes = {"length": "int32"}
    return {
        name: ops.zeros(shape, dtypes.get(name, layer.compute_dtype))
        for name, shape in shapes.items()
    }


def _shapes(options: Any, batch_size: int, max_length: int | None) -> dict[str, Any]:
    """Return the shapes of the tensors of a cache, for `HeadOptions`."""
    slots = (batch_size, options.key_value_heads, max_length)
    return {
        "keys": (*slots, options.key_dim),
        "values": (*slots, options.value_depth),
        "length": (batch_size,),
    }


def _has_shapes(shapes: Any, expected: dict[str, Any]) -> bool:
    """Return whether a dict has these names, each with a shape that may be equal."""
    return isinstance(shapes, dict) and all(
        isinstance(shapes.get(name), tuple) and may_be_equal(shapes[name], shape)
        for name, shape in expected.items()
    )


def update_cache(
    cache: Tensors, memory: Tensors, attention_mask: Tensor
) -> tuple[Tensors, Tensors, Tensor]:
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
    valid = memory.get("mask", ops.ones((batch, steps), "bool"))
    counted = ops.cast(ops.cumsum(ops.cast(valid, "int32"), axis=1), "int32")
    last = length[:, None] + counted - 1
    added = ops.sum(ops.cast(valid, "int32"), axis=1)
    length = at_most(length + added, longest)
    updated = {"length": length}
    write = _write_step if memory["keys"].shape[2] == 1 else _write_steps
    for name in ("keys", "values"):
        new = ops.cast(memory[name], cache[name].dtype)
        updated[name] = write(cache[name], new, last, valid)
    memory = {"keys": updated["keys"], "values": updated["values"]}
    step_mask = slots <= last[:, None, :, None]
    return updated, memory, combine_masks(attention_mask, step_mask)


def _is_unmasked_step(memory: Tensors) -> bool:
    """Return whether a memory has a single step, which no row masks."""
    return is_one(memory["keys"].shape[2]) and "mask" not in memory


def _write_steps(cache: Tensor, new: Tensor, slots: Tensor, valid: Tensor) -> Tensor:
    """Write new steps `(B, N, T, D)` to the slots `(B, T)` where `valid` `(B, T)`."""
    # A slice cannot be written, because the slots differ from row to row.
    written = index_range(cache.shape[2]) == slots[..., None]
    written = ops.logical_and(written, valid[..., None])
    written, new = at_least_one(written, axis=1), at_least_one(new, axis=2)
    writer = ops.argmax(ops.cast(written, "int32"), axis=1)[:, None, :, None]
    written = ops.any(written, axis=1)[:, None, :, None]
    return ops.where(written, ops.take_along_axis(new, writer, axis=2), cache)


def _write_step(cache: Tensor, new: Tensor, slots: Tensor, valid: Tensor) -> Tensor:
    """Write one step like `_write_steps`, without touching other slots."""
    batch, heads, length, depth = ops.shape(cache)
    valid = ops.logical_and(valid, slots < length)
    slots = ops.where(valid, slots, 0)
    rows = length * ops.reshape(index_range(batch * heads), (-1, heads))
    rows = ops.reshape(rows + slots, (-1,))
    flat = ops.reshape(cache, (-1, depth))
    old = ops.reshape(ops.take(flat, rows, axis=0), ops.shape(new))
    new = ops.where(valid[..., None, None], new, old)
    flat = ops.scatter_update(flat, rows[:, None], ops.reshape(new, (-1, depth)))
    return ops.reshape(flat, ops.shape(cache))
