"""Multi-head attention of scaled dot products.

Shapes: B batch, T queries, S positions, L slots of a cache, N heads, Q query depth,
V value depth, D depth of a head.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_attention.layers.attention import BaseAttention
from keras_attention.layers.attention_axes import AttentionAxes
from keras_attention.layers.base import Weighting
from keras_attention.layers.base import as_queries
from keras_attention.layers.base import standardize_attention_mask
from keras_attention.layers.cache import initial_cache
from keras_attention.layers.cache import update_cache
from keras_attention.layers.multi_head import MultiHeadMemory
from keras_attention.layers.multi_head import MultiHeadStep
from keras_attention.layers.projections import serialize_options
from keras_attention.layers.projections import weight_options
from keras_attention.layers.relative_positions import RelativePositions
from keras_attention.layers.relative_positions import get_positions
from keras_attention.layers.self_attention_checks import check_arguments
from keras_attention.layers.self_attention_checks import check_call
from keras_attention.serialization import serialize_part
from keras_attention.serialization import serialize_seed
from keras_attention.typing import Config
from keras_attention.typing import Initializer
from keras_attention.typing import Nested
from keras_attention.typing import Regularizer
from keras_attention.typing import Seed
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.typing import Tensors
from keras_attention.typing import WeightConstraint
from keras_attention.validation import check_mask
from keras_attention.validation import check_positive_integer


@keras.saving.register_keras_serializable(package="keras_attention")
class SelfAttention(BaseAttention):
    """Multi-head attention of a sequence to itself, or to another sequence.

    Each head n projects queries, keys and values, and scores queries against keys by
    the scaled dot product. The contexts are concatenated and projected:

        scores[n, t, s] = scale * (W_query[n] query[t]) . (W_key[n] key[s])
        weights[n, t]   = softmax(scores[n, t]) over s
        head[n, t]      = sum over s of weights[n, t, s] * (W_value[n] value[s])
        output[t]       = W_output [head[1, t]; ...; head[N, t]]

    With `query` alone, it is also the value and the key (self-attention). Without
    position encodings, `positions`, a window or a causal mask, the layer is permutation
    equivariant. With `value`, queries attend to another sequence (cross-attention).
    Every projection has a bias if `use_bias`.

    Positions: `positions` lets the scores depend on the offset s - t, see
    `RotaryPositions`, `AlibiPositions`, `T5Positions` and `ShawPositions`. Masked steps
    do not count, so padding on either side changes nothing. In cross-attention, both
    sequences are counted from zero.

    Grouped heads: with `num_key_value_heads`, G, the N heads of queries share G heads
    of keys and values: counted from 0, head n reads head `floor(n G / N)`. The cache
    is smaller by a factor of N / G. G = 1 is multi-query attention.

    Sliding window: with `window_size`, W, query t sees the positions s with
    `|s - t| < W` only: up to W of them if `causal`, else up to 2 W - 1. In
    self-attention, time and memory then grow with the sequence times the window, not
    with its square, unless there is an `attention_mask`, a `value_mask`, a `key_mask`
    or a `cache`, the weights are requested, or the weighting has additional outputs, as
    `HardWeighting` does. The window counts valid steps;
    `keras.layers.GroupQueryAttention` counts masked ones, too. The results differ if a
    masked step lies between valid ones.

    Masking: `True` means attend. Positions where `value_mask`, `key_mask` or
    `attention_mask` is `False` get a weight of exactly zero, whatever is stored at
    positions that `value_mask` or `key_mask` excludes. A masked query and a query with
    no valid position give zero weights and a zero **output**, even where the output
    projection has a bias. In self-attention, the mask of the query is also that of the
    value, unless there is a `value_mask`. Implicit Keras masks are used where no
    explicit one is given; the query's mask is passed on.

    If neither weights nor dropout are needed, JAX and PyTorch compute softmax attention
    by `keras.ops.dot_product_attention`, which on a GPU may be flash attention. Flash
    attention has no second derivative on PyTorch (for a penalty on gradients, for
    example): request the weights there.

    Step by step: a causal layer handles a sequence one step at a time with a `cache`
    of the keys and values so far. The outputs are those of the full pass:

        cache = layer.get_initial_cache(batch_size, max_length)
        for t in range(max_length):
            output[:, t], cache = layer(x[:, t], cache=cache)

    All shapes are fixed and every tensor of the cache has the batch first, so the loop
    compiles, and a search can gather rows. Masked steps and steps beyond `max_length`
    are not stored, so each row may have its own length. The weights have one entry for
    each slot of the cache: `(batch, num_heads, max_length)`.

    For cross-attention step by step, project the other sequence once:
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
        value: Tensor of shape `(batch, value_length, value_depth)`; the query if
            omitted.
        key: Tensor of shape `(batch, value_length, key_depth)`; `value` if omitted.
        query_mask, mask: Boolean `(batch, query_length)`; `(batch,)` for one query.
            `mask` is an alias; it wins, because Keras may fill `query_mask` with an
            implicit mask.
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
        cache: Dict that `get_initial_cache` or the previous step returned. The query
            then holds the next step, or several.

    Returns:
        output: Tensor of shape `(batch, query_length, output_dim)`, or
            `(batch, output_dim)` for one query.
        weights: Tensor of shape `(batch, num_heads, query_length, value_length)`, or
            `(batch, num_heads, value_length)` for one query; with `attention_axes`,
            `(batch, other axes, num_heads, query axes, value axes)`. Only if
            `return_attention_scores` is `True`.
        cache: Dict for the next step; only if there is a `cache`.

    Raises:
        ValueError: If an argument or a shape does not fit, if there is a `key` without
            a `value`, or a `cache` for a layer that is not causal or for
            cross-attention.

    Example:

    >>> attention = SelfAttention(num_heads=8, key_dim=64)
    >>> words = np.zeros((2, 11, 512), "float32")
    >>> output, weights = attention(words, return_attention_scores=True)
    >>> tuple(output.shape), tuple(weights.shape)
    ((2, 11, 512), (2, 8, 11, 11))

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
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer = None,
        kernel_constraint: WeightConstraint = None,
        bias_initializer: Initializer = "zeros",
        bias_regularizer: Regularizer = None,
        bias_constraint: WeightConstraint = None,
        seed: Seed = None,
        positions: str | RelativePositions | None = None,
        num_key_value_heads: int | None = None,
        window_size: int | None = None,
        attention_axes: Sequence[int] | None = None,
        query_key_norm: str | None = None,
        use_gate: bool = False,
        **kwargs: Any,
    ) -> None:
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
        check_arguments(locals())
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
        options = serialize_options(weight_options(locals()))
        self.dense_options = {"use_bias": use_bias, **options}
        self.memory, self.step = self._make_parts(weighting, dropout, seed)

    def _make_parts(self, weighting, dropout, seed):
        """Return the memory and the step."""
        common = {
            "dense_options": self.dense_options,
            "dtype": self.dtype_policy,
            "trainable": self.trainable,
            "positions": self.positions,
            "window_size": self.window_size,
            "query_key_norm": self.query_key_norm,
        }
        memory = MultiHeadMemory(
            self.num_key_value_heads or self.num_heads,
            self.key_dim,
            self.value_dim or self.key_dim,
            name="memory",
            **common,
        )
        step = MultiHeadStep(
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
        return memory, step

    def get_initial_cache(self, batch_size: int, max_length: int) -> Tensors:
        """Return an empty cache for `batch_size` sequences of up to `max_length` steps.

        Returns:
            Dict with `"keys"` and `"values"` `(batch_size, num_key_value_heads,
            max_length, depth)`, in the compute dtype, and the integer `"length"`
            `(batch_size,)`, the number of steps that are stored.
        """
        return initial_cache(self.memory, batch_size, max_length)

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
        check_call(self, query, value, key, use_causal_mask, return_details, cache)
        query_mask = query_mask if mask is None else mask
        check_mask("query_mask", query_mask, query.shape[:-1])
        given = query, query if value is None else value
        if len(query.shape) > 3:
            tensors, masks, attention_mask = self.axes.fold_inputs(
                (query, value, key), (query_mask, value_mask, key_mask), attention_mask
            )
            (query, value, key), (query_mask, value_mask, key_mask) = tensors, masks
        length = self._length(query, value, cache)
        attention_mask = standardize_attention_mask(
            attention_mask, query.shape, length, self.num_heads
        )
        if len(query.shape) == 2:
            query, query_mask = as_queries(query, query_mask)
        is_self = value is None
        same_mask = value_mask is None and key_mask is None
        if is_self:
            value = query
            value_mask = query_mask if value_mask is None else value_mask
        start = None if cache is None else cache["length"]
        memory = self.memory(
            value, key, value_mask=value_mask, key_mask=key_mask, start=start
        )
        query_positions = memory.get("positions") if is_self else None
        if cache is not None:
            cache, memory, attention_mask = update_cache(cache, memory, attention_mask)
        results, _ = self.step(
            query,
            memory,
            query_mask=query_mask,
            mask=attention_mask,
            causal=(self.causal or use_causal_mask) and cache is None,
            return_weights=return_attention_scores or return_details,
            average_heads=False,
            query_positions=query_positions,
            same_sequence=is_self and same_mask and cache is None,
            training=training,
        )
        results = self._with_axes_of(results, *given)
        names = ("context", "weights") if return_attention_scores else ("context",)
        outputs = [results] if return_details else [results[name] for name in names]
        outputs += [] if cache is None else [cache]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _with_axes_of(self, results, query, value):
        """Return results for queries `(B, T, Q)` with the axes of the given ones."""
        if len(query.shape) > 3:
            return self.axes.unfold(results, query, value)
        if len(query.shape) == 3:
            return results
        return {
            name: ops.squeeze(x, axis=1 if name == "context" else 2)
            for name, x in results.items()
        }

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
        depth = self.output_dim or query_shape[-1]
        if not self.use_output_projection:
            depth = self.num_heads * self.memory.value_dim
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
        check_call(self, query, value, key, use_causal_mask, return_details, cache)
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
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "use_output_projection": self.use_output_projection,
            "causal": self.causal,
            "weighting": serialize_part(self.step.weighting),
            "dropout": self.step.weight_dropout.rate,
            "scale": self.scale,
            "seed": serialize_seed(self.step.weight_dropout.seed),
            "positions": serialize_part(self.positions),
            "num_key_value_heads": self.num_key_value_heads,
            "window_size": self.window_size,
            "attention_axes": self.axes and self.axes.axes,
            "query_key_norm": self.query_key_norm,
            "use_gate": self.use_gate,
            **self.dense_options,
        }
