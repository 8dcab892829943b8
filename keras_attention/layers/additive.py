"""Additive attention: a small neural network scores queries against keys.

    scores[t, s] = scale . tanh(W_query query[t] + W_key key[s] + bias)

The bias is optional. The function `additive_scores` is this arithmetic, given both
projections. The layer `AdditiveScore` holds the weights, except `W_key` and the bias:
these belong to the key projection, which the attention applies once for all queries, as
`W_key key[s] + bias`. The softmax is in `weightings.py`, or is another weighting there.
The weighted sum is in `attention.py`, as for every attention with one head.

Shapes: B batch, T queries, S positions, Q query depth, U units.
"""

import math
from typing import Any, ClassVar

import keras
from keras import initializers, ops

from keras_attention.backends import contract_last_axis, exceeds, project_rows
from keras_attention.layers.attention import ComposedAttention
from keras_attention.layers.components import Weighting
from keras_attention.layers.projections import (
    ProjectedScore,
    check_shared_depth,
    fresh_options,
    options_of,
    pop_weight_options,
    serialize_options,
    weight_arguments,
)
from keras_attention.ops import additive_blocks
from keras_attention.serialization import config_of
from keras_attention.typing import Config, Dtype, Seed, Shape, Tensor
from keras_attention.validation import check_boolean, check_positive_integer


@keras.saving.register_keras_serializable(package="keras_attention")
class AdditiveScore(ProjectedScore):
    """Additive score: a small network of one query and one key.

        scores[t, s] = scale . tanh(W_query query[t] + keys[s])
        keys[s]      = W_key key[s] + bias

    `make_key_projection` returns the layer for `W_key` and the bias, which the memory
    of the attention applies once, for all queries. With `coverage`,
    `w_coverage * coverage[t, s]` is added inside the tanh. With `normalize`, `scale` is
    replaced by `gain * scale / |scale|` with a learned gain, initially
    `sqrt(1 / units)`.

    Args:
        units: Positive integer, depth of the shared projection.
        coverage: Whether the score depends on the sum of earlier weights of a position.
        normalize: Whether `scale` is weight-normalised: its norm is a separate weight.
        use_bias: Whether the projection of the keys has a bias; none by default.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W_query`,
            `W_key` and `w_coverage`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.
        scale_initializer, scale_regularizer, scale_constraint: For `scale`.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        keys: Projected keys of shape `(B, [T,] S, units)`.
        coverage: Sum of the weights so far, `(B, T, S)`.

    Returns:
        Scores of shape `(B, T, S)`.

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2;
        [Salimans and Kingma, 2016](https://arxiv.org/abs/1602.07868), section 2;
        [See et al., 2017](https://arxiv.org/abs/1704.04368), equation 11.
    """

    # `call` casts its weights itself: variables are added with autocast=False.
    casts_weights = True
    default_initializers: ClassVar = {
        **ProjectedScore.default_initializers,
        "scale": "glorot_uniform",
    }

    def __init__(
        self,
        units: int,
        *,
        coverage: bool = False,
        normalize: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_boolean("coverage", coverage)
        check_boolean("normalize", normalize)
        self.units = check_positive_integer("units", units)
        self.takes_coverage = coverage
        self.normalize = normalize
        self.query_projection = keras.layers.Dense(
            self.units,
            use_bias=False,
            **options_of(self.options, "kernel"),
            dtype=self.dtype_policy,
            name="query_projection",
        )

    def make_key_projection(self) -> keras.layers.Layer | None:
        return keras.layers.Dense(
            self.units,
            use_bias=self.use_bias,
            **fresh_options(options_of(self.options, "kernel", "bias")),
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name="key_projection",
        )

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        self._check_keys(keys_shape)
        self.query_projection.build((None, query_shape[-1]))
        self.scale = self.add_weight(
            autocast=False,
            name="scale",
            shape=(self.units,),
            **weight_arguments(self.options, "scale"),
        )
        if self.normalize:
            self.gain = self.add_weight(
                autocast=False,
                name="gain",
                shape=(),
                initializer=initializers.Constant(math.sqrt(1 / self.units)),
            )
        if self.takes_coverage:
            self.coverage_kernel = self.add_weight(
                autocast=False,
                name="coverage_kernel",
                shape=(self.units,),
                **weight_arguments(self.options, "kernel"),
            )
        self.built = True

    def call(self, query: Tensor, keys: Tensor, coverage: Tensor = None) -> Tensor:
        query = project_rows(self.query_projection, query)
        # From here on, the hidden layer is tanh(query + keys + shift); the keys are
        # projected already, with their bias. A further bias would be a weight, made in
        # `build` and added to the projected query here: a shift is computed for every
        # pair of query and key.
        shift = None
        scale = ops.cast(self.scale, self.compute_dtype)
        if self.normalize:
            gain = ops.cast(self.gain, self.compute_dtype)
            scale = gain * scale / ops.norm(scale)
        if self.takes_coverage:
            kernel = ops.cast(self.coverage_kernel, self.compute_dtype)
            shift = ops.cast(coverage, self.compute_dtype)[..., None] * kernel
        # Large sizes have a faster way to the same result. One query, as in a decoder
        # step, does not gain from it, nor do queries with keys of their own.
        has_queries = not (isinstance(query.shape[1], int) and query.shape[1] == 1)
        if shift is None and has_queries and len(keys.shape) == 3:
            sizes = (*query.shape[:2], keys.shape[1], query.shape[2])
            if exceeds(additive_blocks.BLOCK_ELEMENTS, *sizes):
                return additive_blocks.large_scores(additive_scores, query, keys, scale)
        return additive_scores(query, keys, scale, shift)

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        self._check_keys(keys_shape)
        check_shared_depth(self.query_projection, query_shape)

    def _check_keys(self, keys_shape: Shape) -> None:
        if keys_shape[-1] != self.units:
            raise ValueError(
                f"keys must have the depth of the hidden layer, {self.units}: the "
                "attention needs a key_projection. "
                f"Received: keys of depth {keys_shape[-1]}"
            )

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            **config_of(self, "units normalize"),
            "coverage": self.takes_coverage,
        }


def additive_scores(
    query: Tensor, keys: Tensor, scale: Tensor, shift: Tensor | None = None
) -> Tensor:
    """Score every projected query against every projected key.

        scores[b, t, s] = scale . tanh(query[b, t] + keys[b, s] + shift[b, t, s])

    Args:
        query: Projected queries, `(B, T, U)`.
        keys: Projected keys, with the bias, `(B, [T,] S, U)`.
        scale: Vector that turns the hidden layer into one number, `(U,)`.
        shift: Another term of the hidden layer, `(B, T, S, U)`; optional.

    Returns:
        Scores, `(B, T, S)`.
    """
    # In float32 at least: processors need longer for a tanh in half precision.
    input_dtype = keras.backend.standardize_dtype(query.dtype)
    dtype = "float64" if input_dtype == "float64" else "float32"
    query, keys = ops.cast(query, dtype), ops.cast(keys, dtype)
    # The sums of every query and every key, (B, T, S, U).
    if len(keys.shape) == 4:
        sums = ops.expand_dims(query, 2) + keys
    elif isinstance(query.shape[1], int) and query.shape[1] == 1:
        # For one query, the gradient then sums over fewer axes.
        sums = ops.expand_dims(query + keys, 1)
    else:
        # Not `keys[:, None]`: its gradient is another array of this size.
        sums = ops.expand_dims(query, 2) + ops.expand_dims(keys, 1)
    if shift is not None:
        sums = sums + ops.cast(shift, dtype)
    hidden = ops.tanh(sums)
    return ops.cast(contract_last_axis(hidden, ops.cast(scale, dtype)), input_dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class AdditiveAttention(ComposedAttention):
    """Attention that scores queries against keys with a small network.

    Query and key are projected to `units` dimensions, added, and passed through
    a `tanh`; a learned vector turns the result into one score per position:

        scores[t, s] = scale . tanh(W_query query[t] + W_key key[s] + bias)
        weights      = weighting(scores) over s, a softmax by default
        context[t]   = sum over s of weights[t, s] * value[s]

    Unlike `keras.layers.AdditiveAttention`, the layer owns both projections, so query
    and key may differ in depth. A large hidden layer is computed in blocks. On
    TensorFlow, second derivatives, such as those of a gradient penalty, are then an
    error.

    Masking: `True` means attend. Positions where `value_mask`, `key_mask` or
    `attention_mask` is `False` get a weight of exactly zero, whatever is stored at
    positions that `value_mask` or `key_mask` excludes. A query with no valid position
    and a masked query give zero weights and a zero context. Implicit Keras masks are
    used where no explicit one is given; the query's mask is passed on. A floating-point
    mask holds 0 and 1 only; an additive mask is refused, except inside a graph, where
    its values cannot be checked.

    Args:
        units: Positive integer, depth of the shared projection.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, `"mocha"`, or a `Weighting`.
        causal: Whether query t sees the positions up to and including t only. In a
            decoder, t is the number of earlier steps.
        dropout: Rate at which weights are dropped in training; the others are scaled
            up. Zero with hard attention.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.
        coverage: Whether the hidden layer adds `w_coverage` times the sum of the
            earlier weights of every position, inside the tanh.
        normalize: Whether `scale` is weight-normalised: its norm is a separate weight,
            `gain`, initially `sqrt(1 / units)`.
        use_bias: Whether the hidden layer has a bias; none by default.
        kernel_initializer, kernel_regularizer, kernel_constraint: For both
            projections, `W_query` and `W_key`, and for `w_coverage`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.
        scale_initializer, scale_regularizer, scale_constraint: For the vector `scale`.

    Call arguments:
        query: Tensor of shape `(batch, query_length, query_dim)`, or one query
            `(batch, query_dim)`.
        value: Tensor of shape `(batch, value_length, value_dim)`.
        key: Tensor of shape `(batch, value_length, key_dim)`; `value` if omitted.
        query_mask: Boolean `(batch, query_length)`; `(batch,)` for one query.
        value_mask, key_mask: Boolean `(batch, value_length)`.
        attention_mask: Boolean `(batch, query_length, value_length)`, or
            `(query_length, value_length)` for all sequences; `(batch, value_length)`
            for one query. An axis of size 1 is broadcast.
        use_causal_mask: Whether this call is causal, even if the layer is not.
        return_attention_scores: Whether to return the weights that were used, too: in
            training, after dropout.
        return_details: Whether to return a dict instead: `"context"`, `"weights"`, and
            the additional outputs of the weighting, such as the `"log_probability"` of
            a hard choice.

    Returns:
        context: Tensor of shape `(batch, query_length, value_dim)`, or
            `(batch, value_dim)` for one query.
        weights: Tensor of shape `(batch, query_length, value_length)`, or
            `(batch, value_length)` for one query; only if
            `return_attention_scores` is `True`.

    Raises:
        ValueError: If `units` is not a positive integer, if arguments cannot be
            combined, if a shape does not fit, or if causal attention receives a single
            query, `(batch, query_dim)`.

    Example:

    One decoder step over the 49 regions of a 7 x 7 feature map:

    >>> attention = AdditiveAttention(units=64)
    >>> state = np.zeros((8, 1, 512), "float32")
    >>> regions = np.zeros((8, 49, 1280), "float32")
    >>> context, weights = attention(state, regions, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((8, 1, 1280), (8, 1, 49))

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2;
        [Tu et al., 2016](https://arxiv.org/abs/1601.04811), for the coverage.
    """

    def __init__(
        self,
        units: int,
        *,
        weighting: str | Weighting = "softmax",
        causal: bool = False,
        dropout: float = 0.0,
        seed: Seed = None,
        coverage: bool = False,
        normalize: bool = False,
        use_bias: bool = False,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        options = pop_weight_options(kwargs, **AdditiveScore.default_initializers)
        score = AdditiveScore(
            units,
            coverage=coverage,
            normalize=normalize,
            use_bias=use_bias,
            **options,
            dtype=dtype,
            name="score",
        )
        super().__init__(
            score,
            weighting=weighting,
            causal=causal,
            dropout=dropout,
            seed=seed,
            dtype=dtype,
            **kwargs,
        )
        self.units = score.units
        self.coverage = coverage
        self.normalize = normalize
        self.use_bias = use_bias
        self.options = options

    def get_config(self) -> Config:
        config = config_of(self, "units coverage normalize use_bias")
        return {**super().get_config(), **config, **serialize_options(self.options)}
