"""Multi-head attention: scaled dot products, in several heads.

Shapes: B batch, T queries, S positions, L slots of a cache, N heads, G groups of heads
that share keys and values, Q query depth, V value depth, D depth of a head.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import (
    clear_finite,
    has_fused_attention,
    project_heads,
    project_rows,
)
from keras_attention.layers import components
from keras_attention.layers.attention import AttentionInputs, BaseAttention
from keras_attention.layers.attention_axes import AttentionAxes
from keras_attention.layers.components import (
    BaseMemory,
    BaseStep,
    WeightDropout,
    Weighting,
)
from keras_attention.layers.positions import (
    RelativePositions,
    get_positions,
    positions_of_steps,
)
from keras_attention.layers.projections import pop_weight_options, serialize_options
from keras_attention.layers.weightings import get_weighting, is_plain_softmax
from keras_attention.ops import sliding_windows
from keras_attention.ops.heads import (
    causal_mask,
    fused_heads,
    head_scores,
    join_heads,
    read_heads,
    sees_a_key,
)
from keras_attention.ops.masks import clear_masked, combine_masks
from keras_attention.ops.precision import at_least_float32
from keras_attention.serialization import config_of, deserialize_parts
from keras_attention.typing import Config, Nested, Seed, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import (
    MAX_SIZE,
    check_boolean,
    check_choice,
    check_dropout,
    check_mask,
    check_number,
    check_positive_integer,
)

# Normalisations of queries and keys.
_NORMS = {
    "rms": keras.layers.RMSNormalization,
    "layer": keras.layers.LayerNormalization,
}

# Options that are numbers or names.
_NUMBERS = (
    "num_heads",
    "key_dim",
    "value_dim",
    "output_dim",
    "use_output_projection",
    "causal",
    "scale",
    "num_key_value_heads",
    "window_size",
    "query_key_norm",
    "use_gate",
)


@dataclasses.dataclass(frozen=True, eq=False)
class HeadOptions:
    """Options of several heads, for the memory and the step of an attention.

    Those of `MultiHeadAttention`, which explains them, and `dense_options`: a dict of
    arguments of `keras.layers.Dense`, for every projection.
    """

    num_heads: int
    key_dim: int
    value_dim: int | None = None
    output_dim: int | None = None
    use_output_projection: bool = True
    causal: bool = False
    weighting: str | Weighting = "softmax"
    dropout: float = 0.0
    scale: float | None = None
    seed: Seed = None
    positions: RelativePositions | None = None
    num_key_value_heads: int | None = None
    window_size: int | None = None
    query_key_norm: str | None = None
    use_gate: bool = False
    dense_options: Config = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        optional = ("value_dim", "output_dim", "num_key_value_heads", "window_size")
        for name in ("num_heads", "key_dim", *optional):
            number = check_positive_integer(
                name, getattr(self, name), optional=name in optional
            )
            object.__setattr__(self, name, number)
        depth = self.num_heads * max(self.key_dim, self.value_depth)
        if depth > MAX_SIZE:
            raise ValueError(
                "num_heads times key_dim or value_dim, the depth of all heads, must be "
                f"at most {MAX_SIZE:,}. Received: {depth:,}"
            )
        if self.num_heads % self.key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide num_heads={self.num_heads}. "
                f"Received: {self.num_key_value_heads}"
            )
        if self.output_dim is not None and not self.use_output_projection:
            raise ValueError(
                "output_dim must be None without an output projection. "
                f"Received: {self.output_dim!r}"
            )
        if self.query_key_norm is not None:
            check_choice("query_key_norm", self.query_key_norm, _NORMS)
        if self.scale is not None:
            check_number("scale", self.scale, "a finite number or None", math.isfinite)
        for name in ("causal", "use_output_projection", "use_gate"):
            check_boolean(name, getattr(self, name))
        check_dropout(self.dropout)

    @functools.cached_property
    def key_value_heads(self) -> int:
        """Number G of heads of the keys and values."""
        return self.num_key_value_heads or self.num_heads

    @functools.cached_property
    def value_depth(self) -> int:
        """Depth of a value in one head."""
        return self.value_dim or self.key_dim

    @functools.cached_property
    def score_scale(self) -> float:
        """Number that multiplies the scores."""
        return self.key_dim**-0.5 if self.scale is None else float(self.scale)

    @functools.cached_property
    def needs_positions(self) -> bool:
        """Whether scores depend on the positions of query and key."""
        return not (self.positions is None and self.window_size is None)


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
    results differ only if a masked step lies between valid ones.

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
    value_mask=...)` of a layer that is not causal. The step ignores the `causal` of the
    layer. For a causal result, pass `causal=True` to the step, with all queries in one
    call. With `positions` or a window, pass
    `query_positions`, the position of each query in its sequence, int32
    `(batch, queries)`; without them, the queries of every step count from 0.

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
            head before positions and scale. All heads share a gain (and a bias, for
            `"layer"`) of `key_dim` numbers. `None` for no normalisation.
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
        weights = pop_weight_options(kwargs, kernel="glorot_uniform", bias="zeros")
        super().__init__(**kwargs)
        check_boolean("use_bias", use_bias)
        options = HeadOptions(
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            output_dim=output_dim,
            use_output_projection=use_output_projection,
            causal=causal,
            weighting=weighting,
            dropout=dropout,
            scale=scale,
            seed=seed,
            positions=get_positions(positions, causal, self.dtype_policy),
            num_key_value_heads=num_key_value_heads,
            window_size=window_size,
            query_key_norm=query_key_norm,
            use_gate=use_gate,
            # From a configuration, every projection makes an initializer of its own:
            # two that share one would start with the same weights.
            dense_options={"use_bias": use_bias, **serialize_options(weights)},
        )
        self.options = options
        # As in the layers of Keras, arguments are attributes.
        for name in _NUMBERS:
            setattr(self, name, getattr(options, name))
        self.positions = options.positions
        self.ordered = options.causal or options.needs_positions
        if attention_axes is not None:
            self.axes = AttentionAxes(attention_axes, options.num_heads)
        common = {"dtype": self.dtype_policy, "trainable": self.trainable}
        self.memory = MultiHeadMemory(options, name="memory", **common)
        self.step = MultiHeadStep(options, name="step", **common)

    def attend(
        self,
        inputs: AttentionInputs,
        *,
        causal: bool,
        return_weights: bool,
        training: bool | None,
    ) -> Tensors:
        # Called without Keras' `__call__`, which has converted and cast all tensors.
        memory = self.memory.call(
            inputs.value,
            inputs.key,
            value_mask=inputs.value_mask,
            key_mask=inputs.key_mask,
        )
        outputs, _ = self.step.call(
            inputs.query,
            memory,
            query_mask=inputs.query_mask,
            mask=inputs.attention_mask,
            causal=self.options.causal or causal,
            return_weights=return_weights,
            average_heads=False,
            training=training,
        )
        return outputs

    def compute_output_shape(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Any:
        memory_shapes = {"values": (self.options.value_depth,)}
        depth = self.step.context_depth(query_shape[-1], memory_shapes)
        return (*query_shape[:-1], depth)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **config_of(self.options, " ".join(_NUMBERS)),
            **config_of(self.step, "weighting positions"),
            **self.step.weight_dropout.config_for_owner(),
            "attention_axes": self.axes and self.axes.axes,
            **self.options.dense_options,
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadMemory(BaseMemory):
    """Memory of multi-head attention; see `BaseMemory` for the call.

    Args:
        options: The `HeadOptions`.

    Call arguments:
        start: Position of the first step of each row, int32 `(B,)`; zero if omitted.

    Returns:
        Dict with `"keys"` `(B, G, S, key_dim)`, `"values"` `(B, G, S, value_dim)`
        and, if there is a mask, the boolean `"mask"` `(B, S)`. With `positions` or a
        window, also the int32 `"positions"` `(B, S)`, unless they are 0 to S - 1 in
        every row.
    """

    def __init__(self, options: HeadOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options
        self.positions = options.positions
        self.key_norm = _head_norm(self, "key_norm")
        self.key_projection = _head_projection(
            self, "key_projection", options.key_value_heads * options.key_dim
        )
        self.value_projection = _head_projection(
            self, "value_projection", options.key_value_heads * options.value_depth
        )

    def build(self, value_shape: Shape, key_shape: Shape | None = None) -> None:
        self.key_projection.build((None, (key_shape or value_shape)[-1]))
        self.value_projection.build((None, value_shape[-1]))
        if self.key_norm is not None:
            self.key_norm.build((None, None, None, self.options.key_dim))
        self.built = True

    def call(
        self,
        value: Tensor,
        key: Tensor | None = None,
        *,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
        start: Tensor | None = None,
    ) -> Tensors:
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
        num_heads = self.options.key_value_heads
        keys = project_heads(self.key_projection, key, num_heads)
        memory["keys"] = keys if self.key_norm is None else self.key_norm(keys)
        memory["values"] = project_heads(self.value_projection, value, num_heads)
        if not self.options.needs_positions:
            return memory
        positions = positions_of_steps(memory.get("mask"), ops.shape(value)[1], start)
        if self.positions is not None:
            memory["keys"] = self.positions.rotate(memory["keys"], positions)
        if "mask" in memory or start is not None:
            memory["positions"] = positions
        return memory

    def shapes(
        self, value_shape: Shape, key_shape: Shape | None = None
    ) -> dict[str, Shape]:
        options = self.options
        heads = (*value_shape[:1], options.key_value_heads, *value_shape[1:2])
        depths = {"values": options.value_depth, "keys": options.key_dim}
        return {name: (*heads, depth) for name, depth in depths.items()}

    @classmethod
    def from_config(cls, config: Config) -> Any:
        return cls(**_with_options(config))

    def get_config(self) -> Config:
        options = self.options
        return {
            **super().get_config(),
            **config_of(options, "key_dim window_size query_key_norm"),
            **config_of(self, "positions"),
            "num_heads": options.key_value_heads,
            "value_dim": options.value_depth,
            "dense_options": dict(options.dense_options),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadStep(BaseStep):
    """Step of multi-head attention: project, attend, join the heads, project.

    If no weights are requested, the step may use the fused attention of the backend.
    See `BaseStep` for the call. The mask may also be one per head, `(B, N, T, S)`.

    Masks are combined where they are needed: `call` adds those of padding and window,
    `_attend` the causal one. The fused attention is told that it is causal; if it needs
    a mask for that, `fused_heads` of `ops/heads.py` adds it. A window in blocks has its
    masks in `ops/sliding_windows.py`, and with a cache, `update_cache` of
    `self_attention.py` adds the mask of the filled slots.

    Args:
        options: The `HeadOptions`.

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

    def __init__(self, options: HeadOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = options
        self.weighting = get_weighting(options.weighting, self.dtype_policy)
        _check_for_heads(self.weighting, options.dropout)
        self.reports = self.weighting.reports
        self._is_softmax = is_plain_softmax(self.weighting)
        self.positions = options.positions
        self.query_norm = _head_norm(self, "query_norm")
        self.query_projection = _head_projection(
            self, "query_projection", options.num_heads * options.key_dim
        )
        self.weight_dropout = WeightDropout(
            options.dropout,
            seed=options.seed,
            dtype=self.dtype_policy,
            name="weight_dropout",
        )

    def draw(self, memory: Tensors, steps: int, queries: Any = 1) -> Nested:
        batch, _, length, _ = ops.shape(memory["keys"])
        return self._draw_steps(self.options.num_heads, (steps, batch, queries, length))

    def build(self, query_shape: Shape, memory_shape: Shapes) -> None:
        components.check_memory(memory_shape)
        self.query_projection.build((None, query_shape[-1]))
        if self.positions is not None:
            shapes = (
                (None, self.options.num_heads, None, self.options.key_dim),
                memory_shape["values"],
            )
            components.build_part(self.positions, *shapes)
        if self.query_norm is not None:
            self.query_norm.build((None, None, None, self.options.key_dim))
        joined = self.options.num_heads * memory_shape["values"][-1]
        if self.options.use_gate:
            self.gate_projection = _head_projection(self, "gate_projection", joined)
            self.gate_projection.build((None, query_shape[-1]))
        if self.options.use_output_projection:
            depth = self.context_depth(query_shape[-1], memory_shape)
            self.output_projection = _head_projection(self, "output_projection", depth)
            self.output_projection.build((None, joined))
        heads = [self.options.num_heads] if self.weighting.takes_heads else []
        components.build_part(self.weighting, (None, *heads, None, None))
        self.built = True

    def call(
        self,
        query: Tensor,
        memory: Tensors,
        state: Nested | None = None,
        *,
        causal: bool = False,
        query_mask: Tensor | None = None,
        mask: Tensor | None = None,
        noise: Nested | None = None,
        average_heads: bool = True,
        return_weights: bool = True,
        training: bool | None = None,
        query_positions: Any = None,
        same_sequence: Any = False,
        sees_itself: Any = False,
    ) -> tuple[Tensors, Nested]:
        if not (isinstance(memory, dict) and {"values", "keys"} <= memory.keys()):
            components.check_memory(memory)
        if mask is not None and len(mask.shape) == 3:
            mask = mask[:, None]
        if noise is not None:
            noise = tree.map_structure(lambda x: ops.swapaxes(x, 1, 2), noise)
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        if query_positions is not None:
            query_positions = ops.cast(query_positions, "int32")
        elif self.options.needs_positions:
            query_positions = positions_of_steps(query_mask, ops.shape(query)[1])

        # 1. Queries of all heads, scaled before the product, which could overflow in
        # half precision.
        heads = project_heads(self.query_projection, query, self.options.num_heads)
        if self.query_norm is not None:
            heads = self.query_norm(heads)
        heads = heads * self.options.score_scale
        if self.positions is not None:
            heads = self.positions.rotate(heads, query_positions)

        # 2. Contexts of all heads.
        keys, values = memory["keys"], memory["values"]
        blocks = same_sequence and mask is None and not return_weights
        if blocks and self._blocks_save_time(heads.shape[2], causal):
            context = sliding_windows.attend_in_blocks(
                functools.partial(self._context_of_block, training),
                heads,
                keys,
                values,
                memory.get("mask"),
                window_size=self.options.window_size,
                causal=causal,
            )
            # Every valid step sees itself, so only masked queries have no key.
            outputs: Tensors = {}
            has_key = query_mask
        else:
            offsets: Any = None
            valid = memory.get("mask")
            if valid is not None:
                mask = combine_masks(mask, valid[:, None, None])
            if self.options.needs_positions:
                key_positions = memory.get("positions")
                if key_positions is None:
                    key_positions = positions_of_steps(valid, ops.shape(keys)[2])
                offsets = key_positions[:, None] - query_positions[:, :, None]
            if self.options.window_size is not None:
                in_window = sliding_windows.in_window(offsets, self.options.window_size)
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
        if self.options.use_gate:
            output = output * ops.sigmoid(project_rows(self.gate_projection, query))
        if self.options.use_output_projection:
            output = project_rows(self.output_projection, output)
        if has_key is not None:
            output = clear_finite(output, has_key)
        # On PyTorch, Keras multiplies float64 in float32.
        outputs["context"] = ops.cast(output, self.compute_dtype)
        return outputs, {}

    def context_depth(self, query_depth: int | None, memory_shapes: Shapes) -> Any:
        if self.options.use_output_projection:
            return self.options.output_dim or query_depth
        return self.options.num_heads * memory_shapes["values"][-1]

    def _attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        offsets: Nested,
        *,
        causal: bool = False,
        query_mask: Tensor | None = None,
        noise: Nested | None = None,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensors, Tensor]:
        """Return contexts `(B, N, T, V)`, a dict of other outputs, and the mask used.

        The outputs are those of the weighting, `(B, N, T, ...)`, with `"weights"` if
        they are requested. The mask is `None` if all positions are seen.
        """
        bias = None if self.positions is None else self.positions.bias(query, offsets)
        if not (return_weights or self._needs_weights(training)) and (
            has_fused_attention(keys, values, self.compute_dtype)
        ):
            context, mask = fused_heads(query, keys, values, mask, bias, causal)
            return context, {}, mask
        if causal:
            mask = combine_masks(mask, causal_mask(query, keys))
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

    def _weigh(
        self, scores: Tensor, mask: Tensor, noise: Nested, training: bool | None
    ) -> Tensors:
        """Return the outputs of the weighting for all heads, tensors `(B, N, T, ...)`.

        Args:
            scores: Tensor of shape `(B, N, T, S)`.
            mask: Boolean, broadcastable to the scores, or `None`.
            noise: Dict of tensors `(B, N, T, ...)`; empty or `None` for no noise.
            training: Whether the layer trains.
        """
        weigh = self.weighting.call if self.weighting.casts_weights else self.weighting
        if self.weighting.takes_heads:
            return weigh(scores, mask, {}, noise, training=training)[0]
        batch, heads, queries, _ = shape = ops.shape(scores)

        def joined(x: Tensor) -> Tensor:
            return ops.reshape(x, (batch, heads * queries, *ops.shape(x)[3:]))

        if mask is not None:
            mask = joined(ops.broadcast_to(mask, shape))
        noise = noise and tree.map_structure(joined, noise)
        outputs, _ = weigh(joined(scores), mask, {}, noise, training=training)
        return tree.map_structure(
            lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[2:])),
            outputs,
        )

    def _draw_for(self, scores: Tensor) -> Nested:
        """Return noise for scores `(B, N, T, S)`, tensors `(B, N, T, ...)`."""
        batch, heads, queries, length = ops.shape(scores)
        # `HardWeighting` draws one coin (soft or hard) per example for all heads of a
        # step. The queries of all heads take the place of heads here, so they share it.
        noise = self._draw_steps(heads * queries, (1, batch, 1, length))
        return tree.map_structure(
            lambda x: ops.reshape(x, (batch, heads, queries, *ops.shape(x)[4:])), noise
        )

    def _draw_steps(self, heads: int, shape: Any) -> Nested:
        """Return noise `(steps, B, T, heads, ...)` for a shape `(steps, B, T, S)`."""
        steps, *leading, length = shape

        def by_head(x: Tensor) -> Tensor:
            x = ops.reshape(x, (steps, heads, *ops.shape(x)[1:]))
            return ops.moveaxis(x, 1, 3)

        noise = self.weighting.draw((steps * heads, *leading, length))
        noise = {
            "weighting": tree.map_structure(by_head, noise),
            "dropout": self.weight_dropout.draw((steps, *leading, heads, length)),
        }
        return {name: x for name, x in noise.items() if x}

    def _blocks_save_time(self, length: int | None, causal: bool) -> bool:
        """Return whether blocks of a sliding window cost less than all positions."""
        if self.options.window_size is None or not isinstance(length, int | None):
            return False
        # Blocks return contexts only, not the additional outputs of a weighting.
        if self.weighting.reports:
            return False
        span = sliding_windows.block_span(self.options.window_size, causal)
        return length is None or length > span

    def _context_of_block(self, training: bool | None, *inputs: Tensor) -> Tensor:
        """Return contexts from queries, keys, values, mask and offsets of a block."""
        context, _, _ = self._attend(*inputs, training=training)
        return context

    def _needs_weights(self, training: bool | None) -> bool:
        """Return whether the contexts are not those of a plain softmax."""
        return (
            not self._is_softmax
            or (self.weight_dropout.rate and training)
            or (self.positions is not None and self.positions.has_value_term)
        )

    @classmethod
    def from_config(cls, config: Config) -> Any:
        return cls(**_with_options(config))

    def get_config(self) -> Config:
        names = "num_heads key_dim output_dim use_output_projection window_size "
        names += "query_key_norm use_gate"
        return {
            **super().get_config(),
            **config_of(self.options, names),
            **config_of(self, "weighting positions"),
            **self.weight_dropout.config_for_owner(),
            "scale": self.options.score_scale,
            "dense_options": dict(self.options.dense_options),
        }


def _check_for_heads(weighting: Any, dropout: Any) -> None:
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


def _with_options(config: Config) -> Config:
    """Return a config of a memory or a step with its `HeadOptions` as one argument."""
    config = deserialize_parts(config)
    names = [field.name for field in dataclasses.fields(HeadOptions)]
    options = {name: config.pop(name) for name in names if name in config}
    return {"options": HeadOptions(**options), **config}


def _head_norm(layer: Any, name: str) -> keras.layers.Layer | None:
    """Return a new normalisation of heads for a layer, or `None`."""
    if layer.options.query_key_norm is None:
        return None
    return _NORMS[layer.options.query_key_norm](
        epsilon=1e-6, dtype=layer.dtype_policy, trainable=layer.trainable, name=name
    )


def _head_projection(layer: Any, name: str, units: int) -> keras.layers.Dense:
    """Return a new projection for a layer, frozen if the layer is."""
    return keras.layers.Dense(
        units,
        **layer.options.dense_options,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
        name=name,
    )
