"""Multi-head attention: scaled dot products, in several heads.

Shapes: B batch, T queries, S positions, L slots of a cache, N heads, G groups of heads
that share keys and values, Q query depth, V value depth, D depth of a head.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import project_rows, traces_for_litert
from keras_attention.layers import base
from keras_attention.layers.attention import BaseAttention
from keras_attention.layers.attention_axes import AttentionAxes
from keras_attention.layers.base import BaseMemory, BaseStep, WeightDropout, Weighting
from keras_attention.layers.cache import check_cache, initial_cache, update_cache
from keras_attention.layers.positions import (
    RelativePositions,
    get_positions,
    positions_of_steps,
)
from keras_attention.layers.projections import serialize_options, take_options
from keras_attention.layers.weightings import get_weighting, is_plain_softmax
from keras_attention.ops import sliding_windows
from keras_attention.ops.heads import (
    biased_softmax,
    causal_mask,
    fused_heads,
    head_scores,
    join_heads,
    project_heads,
    read_heads,
    sees_a_key,
)
from keras_attention.ops.masks import clear_masked, combine_masks
from keras_attention.ops.precision import at_least_float32
from keras_attention.serialization import config_of
from keras_attention.sizes import is_symbol, is_zero
from keras_attention.typing import Config, Nested, Seed, Shape, Tensor, Tensors
from keras_attention.validation import (
    check_boolean,
    check_choice,
    check_mask,
    check_number,
    check_positive_integer,
)

# Normalisations of queries and keys.
_NORMS = {
    "rms": keras.layers.RMSNormalization,
    "layer": keras.layers.LayerNormalization,
}


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadAttention(BaseAttention):
    """Multi-head attention of the queries of one sequence to another sequence.

    Each head n projects queries, keys and values, and scores queries against keys by
    the scaled dot product. The contexts are concatenated and projected:

        scores[n, t, s] = scale * (W_query[n] query[t]) . (W_key[n] key[s])
        weights[n, t]   = softmax(scores[n, t]) over s
        head[n, t]      = sum over s of weights[n, t, s] * (W_value[n] value[s])
        output[t]       = W_output [head[1, t]; ...; head[N, t]]

    Every projection has a bias if `use_bias`. `SelfAttention` is the same layer over
    one sequence.

    Positions: `positions` lets the scores depend on the offset s - t, see
    `RotaryPositions`, `AlibiPositions`, `T5Positions` and `ShawPositions`. Masked steps
    do not count, so padding on either side changes nothing. Both sequences are counted
    from zero.

    Grouped heads: with `num_key_value_heads`, G, the N heads of queries share G heads
    of keys and values: counted from 0, head n reads head `floor(n G / N)`. The cache
    is smaller by a factor of N / G. G = 1 is multi-query attention.

    Sliding window: with `window_size`, W, query t sees the positions s with
    `|s - t| < W` only: up to W of them if `causal`, else up to 2 W - 1. The window
    counts valid steps; `keras.layers.GroupQueryAttention` counts masked ones, too. The
    results differ if a masked step lies between valid ones.

    Masking: `True` means attend. Positions where `value_mask`, `key_mask` or
    `attention_mask` is `False` get a weight of exactly zero, whatever is stored at
    positions that `value_mask` or `key_mask` excludes. A masked query and a query with
    no valid position give zero weights and a zero **output**, even where the output
    projection has a bias. Implicit Keras masks are used where no explicit one is given;
    the query's mask is passed on.

    If neither weights nor dropout are needed, JAX and PyTorch compute softmax attention
    by `keras.ops.dot_product_attention`, which on a GPU may be flash attention. Flash
    attention has no second derivative on PyTorch (for a penalty on gradients, for
    example): request the weights there.

    Step by step, project the other sequence once:
    `memory = layer.memory(value, value_mask=...)`, then `outputs, _ = layer.step(query,
    memory)` as often as needed: `outputs["context"]` equals `layer(query, value,
    value_mask=...)`. With `positions` or a window, the step needs `query_positions`,
    the position of each query in its sequence, int32 `(batch, queries)`.

    Args:
        num_heads: Positive integer, number of heads.
        key_dim: Positive integer, depth of queries and keys in one head.
        value_dim: Positive integer, depth of values in one head; `key_dim` if `None`.
        output_dim: Positive integer, depth of the output; that of the query if `None`.
        use_output_projection: Whether the joined heads are projected. Without it, the
            depth of the output is `num_heads * value_dim`.
        causal: Whether query t sees the positions up to and including t only.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, or a `Weighting` such as `HardWeighting()`. Each head has weights,
            choices and, if it is learned, a temperature of its own. Monotonic attention
            has one head, hence it is not available.
        dropout: Rate at which weights are dropped in training; the others are scaled
            up. Zero with hard attention.
        scale: Number that multiplies the scores; `1 / sqrt(key_dim)` if `None`.
        use_bias: Whether the projections have a bias.
        kernel_initializer, kernel_regularizer, kernel_constraint: For the projections.
        bias_initializer, bias_regularizer, bias_constraint: For their biases.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.
        positions: Relative positions: `"rotary"`, `"alibi"`, `"t5"`, `"shaw"`, or a
            layer such as `RotaryPositions(fraction=0.5)`.
        num_key_value_heads: Positive integer that divides `num_heads`, number of heads
            of the keys and values; `num_heads` if `None`.
        window_size: Positive integer, size of the sliding window; unlimited if `None`.
        attention_axes: Integers: for inputs of more than three axes, those over which
            attention runs, such as `(1, 2)` for a grid `(batch, height, width, depth)`.
            They are one sequence in row-major order. The other axes are further axes of
            the batch, with the same sizes in query, value and key. Unlike in
            `keras.layers.MultiHeadAttention`, `None` is for three axes only.
        query_key_norm: `"rms"` or `"layer"`: queries and keys are normalised in each
            head before positions and scale, with a gain (and a bias, for `"layer"`) of
            `key_dim` numbers each, shared by all heads; `None` for no normalisation.
        use_gate: Whether the joined heads are multiplied by
            `sigmoid(W_gate query[t])` before the output projection.

    Call arguments:
        query: Tensor of shape `(batch, query_length, query_dim)`, or one query
            `(batch, query_dim)`.
        value: Tensor of shape `(batch, value_length, value_depth)`.
        key: Tensor of shape `(batch, value_length, key_depth)`; `value` if omitted.
        query_mask: Boolean `(batch, query_length)`; `(batch,)` for one query.
        value_mask, key_mask: Boolean `(batch, value_length)`.
        attention_mask: Boolean `(batch, query_length, value_length)`, or
            `(query_length, value_length)` for all sequences; `(batch, value_length)`
            for one query. A mask per head has another axis `num_heads` after the batch.
            An axis of size 1 is broadcast.
        use_causal_mask: Whether this call is causal, even if the layer is not.
        return_attention_scores: Whether to return the weights that were used, too:
            in training, after dropout.
        return_details: Whether to return a dict instead of the output (not with
            `attention_axes`): `"context"`, the output; `"weights"`; and the additional
            outputs of the weighting, such as the `"log_probability"`
            `(batch, num_heads, query_length)` of a hard choice.
        cache: Of `SelfAttention` only; see there.

    Returns:
        output: Tensor of shape `(batch, query_length, output_dim)`, or
            `(batch, output_dim)` for one query.
        weights: Tensor of shape `(batch, num_heads, query_length, value_length)`, or
            `(batch, num_heads, value_length)` for one query; with `attention_axes`,
            `(batch, other axes, num_heads, query axes, value axes)`. Only if
            `return_attention_scores` is `True`.

    Raises:
        ValueError: If an argument or a shape does not fit.

    Example:

    >>> attention = MultiHeadAttention(num_heads=8, key_dim=64)
    >>> words, regions = np.zeros((2, 11, 512)), np.zeros((2, 49, 1280))
    >>> output, weights = attention(words, regions, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 49))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.2.1 to
        3.2.3; grouped heads:
        [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245); sliding windows:
        [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 3.1;
        normalisation: [Dehghani et al., 2023](https://arxiv.org/abs/2302.05442),
        section 2; gate: [Qiu et al., 2025](https://arxiv.org/abs/2505.06708).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        value_dim: int | None = None,
        output_dim: int | None = None,
        use_output_projection: bool = True,
        causal: bool = False,
        weighting: str | Weighting = "softmax",
        dropout: float = 0.0,
        scale: float | None = None,
        use_bias: bool = True,
        seed: Seed = None,
        positions: str | RelativePositions | None = None,
        num_key_value_heads: int | None = None,
        window_size: int | None = None,
        attention_axes: Sequence[int] | None = None,
        query_key_norm: str | None = None,
        use_gate: bool = False,
        **kwargs: Any,
    ) -> None:
        options = take_options(kwargs, kernel="glorot_uniform", bias="zeros")
        super().__init__(**kwargs)
        self.num_heads = check_positive_integer("num_heads", num_heads)
        self.key_dim = check_positive_integer("key_dim", key_dim)
        self.value_dim = check_positive_integer("value_dim", value_dim, optional=True)
        self.output_dim = check_positive_integer(
            "output_dim", output_dim, optional=True
        )
        self.num_key_value_heads = check_positive_integer(
            "num_key_value_heads", num_key_value_heads, optional=True
        )
        self.window_size = check_positive_integer(
            "window_size", window_size, optional=True
        )
        if num_key_value_heads is not None and num_heads % num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide num_heads={num_heads}. "
                f"Received: {num_key_value_heads}"
            )
        if output_dim is not None and not use_output_projection:
            raise ValueError(
                "output_dim must be None without an output projection. "
                f"Received: {output_dim!r}"
            )
        if query_key_norm is not None:
            check_choice("query_key_norm", query_key_norm, _NORMS)
        if scale is not None:
            check_number("scale", scale, "a finite number or None", math.isfinite)
        check_boolean("causal", causal)
        check_boolean("use_output_projection", use_output_projection)
        check_boolean("use_bias", use_bias)
        check_boolean("use_gate", use_gate)
        self.use_output_projection = use_output_projection
        self.causal = causal
        self.scale = scale
        self.positions = get_positions(positions, causal, self.dtype_policy)
        self.axes: Any = None
        if attention_axes is not None:
            self.axes = AttentionAxes(attention_axes, self.num_heads)
        self.query_key_norm = query_key_norm
        self.use_gate = use_gate
        # From a configuration, every projection makes an initializer of its own: two
        # that share one would start with the same weights.
        self.dense_options = {"use_bias": use_bias, **serialize_options(options)}
        common = {
            "dense_options": self.dense_options,
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
            "positions": self.positions,
            "window_size": self.window_size,
            "query_key_norm": self.query_key_norm,
        }
        self.memory = MultiHeadMemory(
            self.num_key_value_heads or self.num_heads,
            self.key_dim,
            self.value_dim or self.key_dim,
            name="memory",
            **common,
        )
        self.step = MultiHeadStep(
            self.num_heads,
            self.key_dim,
            self.output_dim,
            self.use_output_projection,
            self.key_dim**-0.5 if self.scale is None else self.scale,
            weighting,
            dropout,
            seed,
            use_gate=self.use_gate,
            name="step",
            **common,
        )

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
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
        # Without a value, the query attends to its own sequence, as in `SelfAttention`.
        self._check_call(query, value, key, use_causal_mask, return_details, cache)
        if query_mask is not None:
            check_mask("query_mask", query_mask, query.shape[:-1])
        given = query, query if value is None else value
        if len(query.shape) > 3:
            tensors, masks, attention_mask = self.axes.fold_inputs(
                (query, value, key), (query_mask, value_mask, key_mask), attention_mask
            )
            (query, value, key), (query_mask, value_mask, key_mask) = tensors, masks
        if attention_mask is not None:
            attention_mask = base.standardize_attention_mask(
                attention_mask,
                query.shape,
                self._length(query, value, cache),
                self.num_heads,
            )
        if len(query.shape) == 2:
            query, query_mask = base.as_queries(query, query_mask)
        is_self = value is None
        in_blocks = is_self and value_mask is None and key_mask is None
        if is_self:
            value = query
            value_mask = query_mask if value_mask is None else value_mask
        # Called without Keras' `__call__`, which has converted and cast all tensors.
        memory = self.memory.call(
            value,
            key,
            value_mask=value_mask,
            key_mask=key_mask,
            start=None if cache is None else ops.reshape(cache["length"], (-1,)),
        )
        query_positions = memory.get("positions") if is_self else None
        is_step = in_blocks and cache is not None
        sees_itself = is_step and query_mask is None and attention_mask is None
        if cache is not None:
            cache, memory, attention_mask = update_cache(cache, memory, attention_mask)
        results, _ = self.step.call(
            query,
            memory,
            query_mask=query_mask,
            mask=attention_mask,
            causal=(self.causal or use_causal_mask) and cache is None,
            return_weights=return_attention_scores or return_details,
            average_heads=False,
            query_positions=query_positions,
            same_sequence=in_blocks and cache is None,
            sees_itself=sees_itself,
            training=training,
        )
        if len(given[0].shape) == 2:
            results = {
                name: ops.squeeze(x, axis=1 if name == "context" else 2)
                for name, x in results.items()
            }
        elif len(given[0].shape) > 3:
            results = self.axes.unfold(results, *given)
        outputs = [results if return_details else results["context"]]
        if return_attention_scores and not return_details:
            outputs.append(results["weights"])
        outputs += [] if cache is None else [cache]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        shapes: Any = query_shape, value_shape, key_shape
        if self.axes is not None:
            shapes = self.axes.fold_shapes(*shapes)
        super().build(*shapes)

    def _check_call(
        self, query, value, key, use_causal_mask, return_details, cache=None
    ):
        """Raise `ValueError` for arguments of a call that do not fit."""
        query_shape = tuple(query.shape)
        value_shape = None if value is None else tuple(value.shape)
        key_shape = None if key is None else tuple(key.shape)
        if value is None and key is not None:
            raise ValueError(
                "key needs a value with the same number of positions. Received: key "
                f"{key_shape}, value None"
            )
        if cache is not None:
            check_cache(self, cache, query, value)
        if self.axes is not None:
            query_shape, value_shape, key_shape = self.axes.fold_shapes(
                query_shape, value_shape, key_shape
            )
            if return_details and len(query.shape) > 3:
                raise ValueError(
                    "With attention_axes, return_details must be False. Received: "
                    f"return_details={return_details}, attention_axes={self.axes.axes}"
                )
        # Without a value, a single query is a sequence of length one, or the next step
        # of a cache.
        ordered = value is not None and (
            self.causal or use_causal_mask or self.step.needs_positions
        )
        base.check_shapes(
            query_shape, value_shape or (None,) * 3, key_shape, ordered=ordered
        )

    def _length(self, query, value, cache):
        """Return the number of positions, or of slots of the cache."""
        if cache is not None:
            return cache["keys"].shape[2]
        if value is not None:
            return value.shape[1]
        return query.shape[1] if len(query.shape) > 2 else 1

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Any:
        memory_shapes = {"values": (self.memory.value_dim,)}
        depth = self.step.context_depth(query_shape[-1], memory_shapes)
        return (*query_shape[:-1], depth)

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        *,
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        cache: Tensors | None = None,
        **kwargs: Any,
    ) -> Any:
        self._check_call(query, value, key, use_causal_mask, return_details, cache)
        if return_details:
            options = {"use_causal_mask": use_causal_mask, "cache": cache, **kwargs}
            return keras.Operation.compute_output_spec(
                self, query, value, key, return_details=True, **options
            )
        if len(query.shape) > 3:
            other = query if value is None else value
            shape = self.axes.weights_shape(query.shape, other.shape)
        else:
            batch, *queries = query.shape[:-1]
            positions = self._length(query, value, cache)
            shape = (batch, self.num_heads, *queries, positions)
        shapes = [self.compute_output_shape(query.shape)]
        shapes += [shape] if return_attention_scores else []
        outputs = [keras.KerasTensor(shape, self.compute_dtype) for shape in shapes]
        if cache is not None:
            outputs.append(
                {name: keras.KerasTensor(x.shape, x.dtype) for name, x in cache.items()}
            )
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self) -> Config:
        own = config_of(
            self,
            "num_heads key_dim value_dim output_dim use_output_projection causal "
            "scale positions num_key_value_heads window_size query_key_norm "
            "use_gate",
        )
        return {
            **super().get_config(),
            **own,
            **config_of(self.step, "weighting"),
            **self.step.weight_dropout.config_for_owner(),
            "attention_axes": self.axes and self.axes.axes,
            **self.dense_options,
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a sequence to itself.

    `MultiHeadAttention` where the query is also the value and the key; see there for
    the equation and the arguments. Without position encodings, `positions`, a window or
    a causal mask, the layer is permutation equivariant.

    The mask of the query is also that of the value, unless there is a `value_mask`.

    Sliding window: with `window_size`, time and memory grow with the sequence times the
    window, not with its square, unless there is an `attention_mask`, a `value_mask`, a
    `key_mask` or a `cache`, the weights are requested, or the weighting has additional
    outputs, as `HardWeighting` does.

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
        value, key: Another sequence, as in `MultiHeadAttention`; for models that were
            saved when one layer did both.
        mask: Alias of `query_mask`. It wins, because Keras may fill `query_mask` with
            an implicit mask.
        cache: Dict that `get_initial_cache` or the previous step returned. The query
            then holds the next step, or several.

    The other arguments are those of `MultiHeadAttention`.

    Returns:
        output, weights: As `MultiHeadAttention` returns them.
        cache: Dict for the next step; only if there is a `cache`.

    Raises:
        ValueError: If an argument or a shape does not fit, if there is a `key` without
            a `value`, or a `cache` for a layer that is not causal or with a `value`.

    Example:

    >>> attention = SelfAttention(num_heads=8, key_dim=64)
    >>> words = np.zeros((2, 11, 512), "float32")
    >>> output, weights = attention(words, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 11))
    """

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
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
        return super().call(
            query,
            value,
            key,
            query_mask=query_mask if mask is None else mask,
            value_mask=value_mask,
            key_mask=key_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            return_attention_scores=return_attention_scores,
            return_details=return_details,
            cache=cache,
            training=training,
        )

    def get_initial_cache(self, batch_size: int, max_length: int) -> Tensors:
        """Return an empty cache for `batch_size` sequences of up to `max_length` steps.

        Returns:
            Dict with `"keys"` and `"values"` `(batch_size, num_key_value_heads,
            max_length, depth)`, in the compute dtype, and the integer `"length"`
            `(batch_size,)`, the number of steps that are stored.
        """
        return initial_cache(self.memory, batch_size, max_length)


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadMemory(BaseMemory):
    """Memory of multi-head attention; see `BaseMemory` for the call.

    Args:
        num_heads: Number G of heads of the keys and values.
        key_dim, value_dim: Depth of a key and of a value in one head.
        dense_options: Dict of `keras.layers.Dense` arguments, for both projections.
        positions: The `RelativePositions`, which may rotate the keys, or `None`.
        window_size: Number W as in `MultiHeadStep`, or `None`.
        query_key_norm: `"rms"` or `"layer"` to normalise each key, or `None`.

    Call arguments:
        start: Position of the first step of each row, int32 `(B,)`; zero if omitted.

    Returns:
        Dict with `"keys"` `(B, G, S, key_dim)`, `"values"` `(B, G, S, value_dim)`
        and, if there is a mask, the boolean `"mask"` `(B, S)`. With `positions` or a
        window, also the int32 `"positions"` `(B, S)`, unless they are 0 to S - 1 in
        every row.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim,
        dense_options,
        positions=None,
        window_size=None,
        query_key_norm=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dense_options = dense_options
        self.positions = positions
        self.window_size = window_size
        self.needs_positions = not (positions is None and window_size is None)
        self.query_key_norm = query_key_norm
        self.key_norm = _head_norm(self, "key_norm")
        self.key_projection = _head_projection(
            self, "key_projection", num_heads * key_dim
        )
        self.value_projection = _head_projection(
            self, "value_projection", num_heads * value_dim
        )

    def build(self, value_shape, key_shape=None):
        self.key_projection.build((None, (key_shape or value_shape)[-1]))
        self.value_projection.build((None, value_shape[-1]))
        if self.key_norm is not None:
            self.key_norm.build((None, None, None, self.key_dim))
        self.built = True

    def call(
        self,
        value,
        key=None,
        *,
        value_mask=None,
        key_mask=None,
        mask=None,
        start=None,
    ):
        if mask is None:
            mask = value_mask
        memory = {}
        if mask is not None or key_mask is not None:
            check_mask("value_mask", mask, value.shape[:2])
            check_mask("key_mask", key_mask, value.shape[:2])
            # Nothing that is stored there, NaN included, can reach a result.
            memory["mask"] = mask = combine_masks(mask, key_mask)
            value = clear_masked(value, mask)
            key = None if key is None else clear_masked(key, mask)
        key = value if key is None else key
        keys = project_heads(self.key_projection, key, self.num_heads)
        memory["keys"] = keys if self.key_norm is None else self.key_norm(keys)
        memory["values"] = project_heads(self.value_projection, value, self.num_heads)
        if not self.needs_positions:
            return memory
        positions = positions_of_steps(memory.get("mask"), ops.shape(value)[1], start)
        if self.positions is not None:
            memory["keys"] = self.positions.rotate(memory["keys"], positions)
        if "mask" in memory or start is not None:
            memory["positions"] = positions
        return memory

    def shapes(self, value_shape, key_shape=None):
        heads = (*value_shape[:1], self.num_heads, *value_shape[1:2])
        return {"values": (*heads, self.value_dim), "keys": (*heads, self.key_dim)}

    @classmethod
    def from_config(cls, config):
        return super().from_config(_with_new_names(config))

    def get_config(self):
        own = config_of(
            self,
            "num_heads key_dim value_dim positions window_size query_key_norm",
        )
        return {
            **super().get_config(),
            **own,
            "dense_options": dict(self.dense_options),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadStep(BaseStep):
    """Step of multi-head attention: project, attend, join the heads, project.

    If no weights are requested, the step may use the fused attention of the backend.
    See `BaseStep` for the call. The mask may also be one per head, `(B, N, T, S)`.

    Args:
        num_heads: Number of heads N.
        key_dim: Depth of a query in one head.
        output_dim: Depth of the output; `None` for the depth of the queries.
        use_output_projection: Whether the joined heads are projected.
        scale: Number that multiplies the scores.
        weighting: Name of a weighting, or a `Weighting`.
        dropout: Rate at which weights are dropped in training.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.
        dense_options: Dict of `keras.layers.Dense` arguments, for both projections.
        positions: The `RelativePositions`, or `None`.
        window_size: Number W, or `None`: a query sees positions at a distance below W.
        query_key_norm: `"rms"` or `"layer"` to normalise each query, or `None`.
        use_gate: Whether `sigmoid(W_gate query)` multiplies the joined heads.

    Call arguments:
        causal: Whether query t sees the positions up to t only.
        average_heads: Whether `"weights"` is the mean over the heads, `(B, T, S)`, and
            the additional outputs of the weighting are `(B, T, N, ...)`. Otherwise, the
            weights and these outputs are those of each head, `(B, N, T, ...)`.
        query_positions: Positions of the queries, int32 `(B, T)` or `(1, T)`; counted
            from zero, without masked queries, if omitted.
        same_sequence: Whether query t and position t are the same step with the same
            mask. Only then can a sliding window be computed in blocks.
        sees_itself: Whether every query sees its own position, whatever the mask. Then
            no output needs to be cleared.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        output_dim,
        use_output_projection,
        scale,
        weighting,
        dropout,
        seed,
        dense_options,
        positions=None,
        window_size=None,
        query_key_norm=None,
        use_gate=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.output_dim = output_dim
        self.use_output_projection = use_output_projection
        self.scale = scale
        self.weighting = get_weighting(weighting, self.dtype_policy)
        _check_for_heads(self.weighting, dropout)
        self.reports = self.weighting.reports
        self.dense_options = dense_options
        self.positions = positions
        self.window_size = window_size
        self.needs_positions = not (positions is None and window_size is None)
        self.query_key_norm = query_key_norm
        self.use_gate = use_gate
        self.query_norm = _head_norm(self, "query_norm")
        self.query_projection = _head_projection(
            self, "query_projection", num_heads * key_dim
        )
        self.weight_dropout = WeightDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )

    def draw(self, memory, steps, queries=1):
        batch, _, length, _ = ops.shape(memory["keys"])
        return self._draw_steps(self.num_heads, (steps, batch, queries, length))

    def build(self, query_shape, memory_shape):
        base.check_memory(memory_shape)
        self.query_projection.build((None, query_shape[-1]))
        if self.positions is not None:
            shapes = (None, self.num_heads, None, self.key_dim), memory_shape["values"]
            base.build_part(self.positions, *shapes)
        if self.query_norm is not None:
            self.query_norm.build((None, None, None, self.key_dim))
        joined = self.num_heads * memory_shape["values"][-1]
        if self.use_gate:
            self.gate_projection = _head_projection(self, "gate_projection", joined)
            self.gate_projection.build((None, query_shape[-1]))
        if self.use_output_projection:
            depth = self.context_depth(query_shape[-1], memory_shape)
            self.output_projection = _head_projection(self, "output_projection", depth)
            self.output_projection.build((None, joined))
        heads = [self.num_heads] if self.weighting.takes_heads else []
        base.build_part(self.weighting, (None, *heads, None, None))
        self.built = True

    def call(
        self,
        query,
        memory,
        state=None,
        *,
        causal=False,
        query_mask=None,
        mask=None,
        noise=None,
        average_heads=True,
        return_weights=True,
        training=None,
        query_positions=None,
        same_sequence=False,
        sees_itself=False,
    ):
        if not (isinstance(memory, dict) and {"values", "keys"} <= memory.keys()):
            base.check_memory(memory)
        if mask is not None and len(mask.shape) == 3:
            mask = mask[:, None]
        if noise is not None:
            noise = tree.map_structure(lambda x: ops.swapaxes(x, 1, 2), noise)
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        if query_positions is not None:
            query_positions = ops.cast(query_positions, "int32")
        elif self.needs_positions:
            query_positions = positions_of_steps(query_mask, ops.shape(query)[1])

        # 1. Queries of all heads, scaled before the product, which could overflow in
        # half precision.
        heads = project_heads(self.query_projection, query, self.num_heads)
        if self.query_norm is not None:
            heads = self.query_norm(heads)
        heads = heads * self.scale
        if self.positions is not None:
            heads = self.positions.rotate(heads, query_positions)

        # 2. Contexts of all heads.
        keys, values = memory["keys"], memory["values"]
        blocks = same_sequence and mask is None and not return_weights
        if blocks and self._blocks_save_time(heads.shape[2], causal):
            context = self._attend_in_blocks(heads, memory, causal, training)
            # Every valid step sees itself, so only masked queries have no key.
            outputs, has_key = {}, query_mask
        else:
            offsets, valid = None, memory.get("mask")
            if valid is not None:
                mask = combine_masks(mask, valid[:, None, None])
            if self.needs_positions:
                key_positions = memory.get("positions")
                if key_positions is None:
                    key_positions = positions_of_steps(valid, ops.shape(keys)[2])
                offsets = key_positions[:, None] - query_positions[:, :, None]
            if self.window_size is not None:
                in_window = sliding_windows.in_window(offsets, self.window_size)
                mask = combine_masks(mask, in_window[:, None])
            context, outputs, mask = self._attend(
                heads,
                keys,
                values,
                mask,
                offsets,
                causal=causal,
                query_mask=query_mask,
                noise=noise,
                return_weights=return_weights,
                training=training,
            )
            has_key = None if sees_itself else sees_a_key(mask, heads, keys)
            if query_mask is not None:
                has_key = combine_masks(has_key, query_mask)
        if average_heads:
            outputs = {name: ops.swapaxes(x, 1, 2) for name, x in outputs.items()}
            if return_weights:
                outputs["weights"] = ops.mean(outputs["weights"], axis=2)

        # 3. The heads side by side, gated and projected.
        output = join_heads(context)
        if self.use_gate:
            output = output * ops.sigmoid(project_rows(self.gate_projection, query))
        if self.use_output_projection:
            output = project_rows(self.output_projection, output)
        if has_key is not None and traces_for_litert():
            # LiteRT multiplies faster than it selects; the output is finite.
            output = output * ops.cast(has_key, output.dtype)[..., None]
        elif has_key is not None:
            output = clear_masked(output, has_key)
        # On PyTorch, Keras multiplies float64 in float32.
        outputs["context"] = ops.cast(output, self.compute_dtype)
        return outputs, {}

    def context_depth(self, query_depth, memory_shapes):
        if self.use_output_projection:
            return self.output_dim or query_depth
        return self.num_heads * memory_shapes["values"][-1]

    def _attend(
        self,
        query,
        keys,
        values,
        mask,
        offsets,
        *,
        causal=False,
        query_mask=None,
        noise=None,
        return_weights=False,
        training=None,
    ):
        """Return contexts `(B, N, T, V)`, a dict of other outputs, and the mask used.

        The outputs are those of the weighting, `(B, N, T, ...)`, with `"weights"` if
        they are requested. The mask is `None` if all positions are seen.
        """
        bias = None if self.positions is None else self.positions.bias(query, offsets)
        fused = not return_weights and self._can_fuse(keys, values, training)
        causal_only = fused and causal and mask is None and bias is None
        # JAX cannot export the backend's causal attention for an unknown length.
        causal_only = causal_only and not is_symbol(query.shape[2])
        if causal and not causal_only:
            mask = combine_masks(mask, causal_mask(query, keys))
        if fused:
            context = fused_heads(query, keys, values, mask, bias, causal_only)
            return context, {}, mask
        score_mask = mask
        if query_mask is not None:
            score_mask = combine_masks(mask, query_mask[:, None, :, None])
        scores = head_scores(query, keys)
        if bias is not None:
            scores = at_least_float32(scores) + at_least_float32(bias)
        if noise is None:
            noise = self._draw_for(scores) if training else {}
        outputs = self._weigh(scores, score_mask, noise.get("weighting"), training)
        weights = outputs.pop("weights")
        if "dropout" in noise:
            weights = self.weight_dropout.drop(weights, noise["dropout"])
        weights = ops.cast(weights, self.compute_dtype)
        context = read_heads(weights, values)
        if self.positions is not None:
            value_term = self.positions.value_term(weights, offsets)
            context = context if value_term is None else context + value_term
        if return_weights:
            outputs["weights"] = weights
        return context, outputs, mask

    def _weigh(self, scores, mask, noise, training):
        """Return the outputs of the weighting for all heads, tensors `(B, N, T, ...)`.

        Args:
            scores: Tensor of shape `(B, N, T, S)`.
            mask: Boolean, broadcastable to the scores, or `None`.
            noise: Dict of tensors `(B, N, T, ...)`; empty or `None` for no noise.
            training: Whether the layer trains.
        """
        is_masked_softmax = mask is not None and is_plain_softmax(self.weighting)
        if is_masked_softmax and traces_for_litert():
            return {"weights": biased_softmax(scores, mask)}
        weigh = self.weighting.call if self.weighting.casts_weights else self.weighting
        if self.weighting.takes_heads:
            return weigh(scores, mask, {}, noise, training=training)[0]
        batch, heads, queries, _ = shape = ops.shape(scores)

        def joined(x):
            return ops.reshape(x, (batch, heads * queries, *ops.shape(x)[3:]))

        if mask is not None:
            mask = joined(ops.broadcast_to(mask, shape))
        noise = noise and tree.map_structure(joined, noise)
        outputs, _ = weigh(joined(scores), mask, {}, noise, training=training)
        return tree.map_structure(
            lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[2:])),
            outputs,
        )

    def _draw_for(self, scores):
        """Return noise for scores `(B, N, T, S)`, tensors `(B, N, T, ...)`."""
        batch, heads, queries, length = ops.shape(scores)
        # `HardWeighting` draws one coin (soft or hard) per example for all heads of a
        # step. The queries of all heads take the place of heads here, so they share it.
        noise = self._draw_steps(heads * queries, (1, batch, 1, length))
        return tree.map_structure(
            lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[4:])), noise
        )

    def _draw_steps(self, heads, shape):
        """Return noise `(steps, B, T, heads, ...)` for a shape `(steps, B, T, S)`."""
        steps, *leading, length = shape

        def by_head(x):
            x = ops.reshape(x, (steps, heads, *ops.shape(x)[1:]))
            return ops.moveaxis(x, 1, 3)

        noise = self.weighting.draw((steps * heads, *leading, length))
        noise = {
            "weighting": tree.map_structure(by_head, noise),
            "dropout": self.weight_dropout.draw((steps, *leading, heads, length)),
        }
        return {name: x for name, x in noise.items() if x}

    def _blocks_save_time(self, length, causal):
        """Return whether blocks of a sliding window cost less than all positions."""
        if self.window_size is None or not isinstance(length, int | None):
            return False
        # Blocks return contexts only, not the additional outputs of a weighting.
        if self.weighting.reports:
            return False
        block_span = (2 if causal else 3) * sliding_windows.block_size(self.window_size)
        return length is None or length > block_span

    def _attend_in_blocks(self, query, memory, causal, training):
        """Return the contexts of a sliding window, computed block by block."""
        keys, values, valid = memory["keys"], memory["values"], memory.get("mask")
        batch, _, length, _ = ops.shape(query)
        steps = None
        if valid is not None:
            # A window counts valid steps only.
            order, inverse = sliding_windows.valid_first(valid)
            query, keys, values = (
                sliding_windows.reorder(x, order) for x in (query, keys, values)
            )
            steps = ops.sum(ops.cast(valid, "int32"), axis=1)
        size = sliding_windows.block_size(self.window_size)
        context, _, _ = self._attend(
            sliding_windows.query_blocks(query, size),
            sliding_windows.key_blocks(keys, size, causal),
            sliding_windows.key_blocks(values, size, causal),
            sliding_windows.block_mask(
                steps, batch, length, self.window_size, size, causal
            )[:, None],
            sliding_windows.block_offsets(size, causal),
            training=training,
        )
        context = sliding_windows.join_blocks(context, length)
        return context if valid is None else sliding_windows.reorder(context, inverse)

    def _can_fuse(self, keys, values, training):
        """Return whether the backend's fused attention can replace the weights."""
        backend = keras.backend.backend()
        on_jax = backend == "jax"
        return (
            is_plain_softmax(self.weighting)
            and not (self.weight_dropout.rate and training)
            and not (self.positions is not None and self.positions.has_value_term)
            # Backends fail for a softmax over an empty axis.
            and not is_zero(keys.shape[2])
            # TensorFlow has none, and the fallback of Keras is slower than `_weigh`.
            and backend != "tensorflow"
            # JAX needs keys and values of one depth, takes the softmax of float64 in
            # float32, and fails for float16 on CPUs.
            and not (on_jax and keys.shape[-1] != values.shape[-1])
            and not (on_jax and self.compute_dtype in ("float16", "float64"))
        )

    @classmethod
    def from_config(cls, config):
        return super().from_config(_with_new_names(config))

    def get_config(self):
        own = config_of(
            self,
            "num_heads key_dim output_dim use_output_projection scale weighting "
            "positions window_size query_key_norm use_gate",
        )
        return {
            **super().get_config(),
            **own,
            **self.weight_dropout.config_for_owner(),
            "dense_options": dict(self.dense_options),
        }


def _check_for_heads(weighting, dropout):
    """Raise `ValueError` for a weighting that several heads cannot have."""
    if weighting.sequential or weighting.state_names:
        raise ValueError(
            "With several heads, a weighting must handle all queries at once, and "
            "monotonic attention cannot. Use it in LuongAttention or "
            f"AdditiveAttention. Received: {type(weighting).__name__}"
        )
    if dropout and not weighting.allows_scaling:
        raise ValueError(
            "dropout cannot drop the only position of a hard choice. "
            f"Received: {type(weighting).__name__}, dropout={dropout}"
        )


def _with_new_names(config):
    """Return a config of 0.1.0 with today's names of the arguments."""
    names = {"projection": "dense_options", "norm": "query_key_norm"}
    return {names.get(name, name): value for name, value in config.items()}


def _head_norm(layer, name):
    """Return a new normalisation of heads for a layer, or `None`."""
    if layer.query_key_norm is None:
        return None
    return _NORMS[layer.query_key_norm](
        epsilon=1e-6, dtype=layer.dtype_policy, trainable=layer.trainable, name=name
    )


def _head_projection(layer, name, units):
    """Return a new projection for a layer, frozen if the layer is."""
    return keras.layers.Dense(
        units,
        **layer.dense_options,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
        name=name,
    )
