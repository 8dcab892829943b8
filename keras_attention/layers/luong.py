"""Luong's attention: dot, general, concat and location scores, global or local."""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.backends import first_entries, project_rows
from keras_attention.layers.additive import AdditiveScore
from keras_attention.layers.attention import ComposedAttention
from keras_attention.layers.components import Score, Weighting
from keras_attention.layers.projections import (
    ProjectedScore,
    check_shared_depth,
    fresh_options,
    options_of,
    pop_weight_options,
    serialize_options,
)
from keras_attention.layers.windows import (
    LocalMonotonicWindow,
    LocalPredictiveWindow,
    LocalWindow,
)
from keras_attention.serialization import config_of
from keras_attention.typing import Config, Dtype, Seed, Shape, Tensor
from keras_attention.validation import (
    check_boolean,
    check_choice,
    check_positive_integer,
)

SCORES = ("dot", "scaled-dot", "general", "concat", "location")
WINDOWS = ("global", "local-m", "local-p")


@keras.saving.register_keras_serializable(package="keras_attention")
class LuongAttention(ComposedAttention):
    """Attention with the scores and the windows of Luong, Pham and Manning.

        scores[t, s] = query[t] . key[s]                          (dot)
                       query[t] . key[s] / sqrt(depth)            (scaled-dot)
                       (W query[t] + bias) . key[s]               (general)
                       scale . tanh(W [query[t]; key[s]] + bias)  (concat)
                       (W query[t] + bias)[s]                     (location)
        weights      = weighting(scores) over s, a softmax by default
        context[t]   = sum over s of weights[t, s] * value[s]

    Every query sees all positions (global), or only `2 * half_width + 1` of
    them. The weighting then runs inside the window, and time and memory grow with the
    window instead of the source. For local-m:

        center[t] = t

    For local-p, a prior around the centre multiplies the weights:

        center[t] = first + length * sigmoid(window_scale . tanh(W_window query[t]))
        prior     = exp(-(s - center[t])^2 / (2 (half_width / 2)^2))
        weights   = weighting(scores) * prior

    The window spans `floor(center) - half_width` to `floor(center) + half_width`.
    Positions count from zero. For local-p, `first` and `length` are the first position
    and the length of the source without its padding. Local-m and location scores count
    padding as positions, so it has to come after the source. The weights of local-p are
    not normalised again, so they sum to less than one. If a window lies wholly outside
    of the source, its query has no valid position.

    Masking and call: see `AdditiveAttention`.

    Args:
        score: `"dot"`, `"scaled-dot"`, `"general"`, `"concat"` or `"location"`.
        units: Depth of the hidden layer, required for `"concat"`; other scores ignore
            it.
        positions: Maximum number of positions, required for `"location"`, whose kernel
            has one column per position; other scores ignore it.
        window: `"global"`, `"local-m"` or `"local-p"`.
        half_width: Positions on either side of a window's centre, D in the paper;
            `"global"` ignores it.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, `"mocha"`, or a `Weighting`.
        causal, dropout, seed: See `AdditiveAttention`.
        coverage: Whether `"concat"` adds `w_coverage * sum of earlier weights` inside
            the tanh.
        use_bias: Whether the score has a bias; the dot scores have none.
        kernel_initializer, kernel_regularizer, kernel_constraint: For every `W` and
            every scale.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.

    Raises:
        ValueError: If an argument is not one of its choices, if choices cannot be
            combined, or if a shape does not fit.

    Example:

    >>> attention = LuongAttention("general", window="local-p", half_width=3)
    >>> query, value = np.ones((2, 5, 8), "float32"), np.ones((2, 40, 16), "float32")
    >>> context, weights = attention(query, value, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((2, 5, 16), (2, 5, 40))

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.
    """

    def __init__(
        self,
        score: str = "general",
        *,
        units: int | None = None,
        positions: int | None = None,
        window: str = "global",
        half_width: int = 10,
        weighting: str | Weighting = "softmax",
        causal: bool = False,
        dropout: float = 0.0,
        seed: Seed = None,
        coverage: bool = False,
        use_bias: bool = False,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        # Keras loads "dot" from an .h5 file as the function `keras.ops.dot`.
        score = getattr(score, "__name__", score)
        check_choice("score", score, SCORES)
        check_choice("window", window, WINDOWS)
        units = check_positive_integer("units", units, optional=score != "concat")
        positions = check_positive_integer(
            "positions", positions, optional=score != "location"
        )
        half_width = check_positive_integer("half_width", half_width)
        check_boolean("coverage", coverage)
        options = pop_weight_options(kwargs, **ProjectedScore.default_initializers)
        super().__init__(
            _build_score(score, units, positions, coverage, use_bias, options, dtype),
            True,
            _build_window(window, half_width, options, dtype),
            weighting=weighting,
            causal=causal,
            dropout=dropout,
            seed=seed,
            dtype=dtype,
            **kwargs,
        )
        self.score = score
        self.units = units
        self.positions = positions
        self.window = window
        self.half_width = half_width
        self.coverage = coverage
        self.use_bias = use_bias
        self.options = options

    def get_config(self) -> Config:
        config = config_of(
            self,
            "score units positions window half_width coverage use_bias",
        )
        return {**super().get_config(), **config, **serialize_options(self.options)}


def _build_score(
    score: str,
    units: Any,
    positions: Any,
    coverage: bool,
    use_bias: bool,
    options: dict[str, Any],
    dtype: Dtype,
) -> Score:
    if coverage and score != "concat":
        raise ValueError(
            "coverage is defined inside the tanh of the concat score only. "
            f"Received: score={score!r}"
        )
    common: dict[str, Any] = {"dtype": dtype, "name": "score"}
    if score in ("dot", "scaled-dot"):
        return DotScore(scaled=score == "scaled-dot", **common)
    common |= {"use_bias": use_bias, **options}
    if score == "general":
        return GeneralScore(**common)
    if score == "location":
        return LocationScore(positions, **common)
    # W [query; key] is the sum of two projections.
    kernel = options_of(options, "kernel")
    scale = {name.replace("kernel", "scale"): x for name, x in kernel.items()}
    return AdditiveScore(units, coverage=coverage, **fresh_options(scale), **common)


def _build_window(
    window: str,
    half_width: Any,
    options: dict[str, Any],
    dtype: Dtype,
) -> LocalWindow | None:
    if window == "global":
        return None
    if window == "local-m":
        return LocalMonotonicWindow(half_width, dtype=dtype, name="window")
    kernel = options_of(options, "kernel")
    return LocalPredictiveWindow(half_width, **kernel, dtype=dtype, name="window")


@keras.saving.register_keras_serializable(package="keras_attention")
class DotScore(Score):
    """Dot product of query and key, which must have the same depth.

        scores[t, s] = query[t] . keys[s]                 (dot)
        scores[t, s] = query[t] . keys[s] / sqrt(depth)   (scaled)

    Args:
        scaled: Whether to divide by the square root of the depth.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1;
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """

    casts_weights = True

    def __init__(self, scaled: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_boolean("scaled", scaled)
        self.scaled = scaled

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        self.check_shared(query_shape, keys_shape)
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        if query_shape[-1] != keys_shape[-1]:
            raise ValueError(
                "query and key must have the same depth for a dot score; the general "
                f"score has no such limit. Received: query depth {query_shape[-1]}, "
                f"key depth {keys_shape[-1]}"
            )

    def call(self, query: Tensor, keys: Tensor) -> Tensor:
        if self.scaled:
            query = query / math.sqrt(query.shape[-1])
        return dot_scores(query, keys)

    def get_config(self) -> Config:
        return {**super().get_config(), "scaled": self.scaled}


def dot_scores(query: Tensor, keys: Tensor) -> Tensor:
    """Return the dot product of every query and every key.

        scores[b, t, s] = query[b, t] . keys[b, s]

    Args:
        query: Tensor `(B, T, U)`.
        keys: Tensor `(B, [T,] S, U)`.

    Returns:
        Scores, `(B, T, S)`.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1.
    """
    keys = ops.cast(keys, query.dtype)
    if len(keys.shape) == 4:
        return (keys @ ops.expand_dims(query, -1))[..., 0]
    # Unlike a transposed copy of the keys, this is a single matrix product.
    return ops.einsum("btd,bsd->bts", query, keys)


@keras.saving.register_keras_serializable(package="keras_attention")
class GeneralScore(ProjectedScore):
    """Bilinear form, also called multiplicative score.

        scores[t, s] = (W query[t] + bias) . keys[s]

    The query is projected rather than the keys, because there are fewer queries.

    Args:
        use_bias: Whether the projection has a bias.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1.
    """

    casts_weights = True

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        self.query_projection = keras.layers.Dense(
            keys_shape[-1],
            use_bias=self.use_bias,
            **self.options,
            dtype=self.dtype_policy,
            name="query_projection",
        )
        self.query_projection.build((None, query_shape[-1]))
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        check_shared_depth(self.query_projection, query_shape)
        if keys_shape[-1] != self.query_projection.units:
            raise ValueError(
                "layers that share a general score must have the same depth of keys, "
                f"{self.query_projection.units}. Received: {keys_shape[-1]}"
            )

    def call(self, query: Tensor, keys: Tensor) -> Tensor:
        query = project_rows(self.query_projection, query)
        return dot_scores(query, keys)


@keras.saving.register_keras_serializable(package="keras_attention")
class LocationScore(ProjectedScore):
    """Score of every position from the query alone, without the keys.

        scores[t] = W query[t] + bias

    Args:
        positions: Number of positions that have weights: the maximum source length.
        use_bias: Whether there is a bias.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1.
    """

    uses_keys = False
    casts_weights = True

    def __init__(self, positions: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.positions = check_positive_integer("positions", positions)
        self.projection = keras.layers.Dense(
            self.positions,
            use_bias=self.use_bias,
            **self.options,
            dtype=self.dtype_policy,
            name="projection",
        )

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        self.projection.build((None, query_shape[-1]))
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, _ = shapes
        check_shared_depth(self.projection, query_shape)

    def call(self, query: Tensor, keys: Tensor) -> Tensor:
        length = keys.shape[-2]
        # Unknown lengths are None, or a symbol where JAX infers shapes.
        if isinstance(length, int) and length > self.positions:
            raise ValueError(
                f"value must have at most {self.positions} positions, for which the "
                f"location score has weights. Received: {length}"
            )
        scores = project_rows(self.projection, query)
        return first_entries(scores, ops.shape(keys)[-2])

    def get_config(self) -> Config:
        return {**super().get_config(), "positions": self.positions}
