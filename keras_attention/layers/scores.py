"""Scores of queries against keys, each with its own weights.

Shapes: B batch, T queries, Q query depth, S positions, U depth of projected keys. Keys
are `(B, S, U)`, or `(B, T, S, U)` where every query has a window of its own.
"""

import math
from typing import Any

import keras
from keras import initializers
from keras import ops

from keras_attention.layers.base import AttentionPart
from keras_attention.layers.base import build_part
from keras_attention.layers.projections import ConcatenatedProjection
from keras_attention.layers.projections import fresh_options
from keras_attention.layers.projections import options_of
from keras_attention.layers.projections import project_rows
from keras_attention.layers.projections import serialize_options
from keras_attention.layers.projections import take_options
from keras_attention.layers.projections import weight_arguments
from keras_attention.ops.fast_scores import fast_additive_scores
from keras_attention.ops.scores import dot_scores
from keras_attention.serialization import serialize_part
from keras_attention.typing import Config
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.validation import check_boolean
from keras_attention.validation import check_positive_integer


class Score(AttentionPart):
    """Base of the scores.

    A custom score implements `build(query_shape, keys_shape)` and `call(query, keys)`,
    or, with `takes_coverage`, `call(query, keys, coverage=None)`.

    Attributes:
        takes_coverage: Whether it takes the sum of earlier weights of each position.
        uses_keys: Whether it uses the keys.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        keys: Projected keys, `(B, [T,] S, U)`.

    Returns:
        Scores, `(B, T, S)`.
    """

    takes_coverage = False
    uses_keys = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.autocast = True

    def make_key_projection(self) -> keras.layers.Layer | None:
        """Return a new layer that projects the keys for this score, or `None`."""
        return None


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
        return ops.cast(dot_scores(query, keys), self.compute_dtype)

    def get_config(self) -> Config:
        return {**super().get_config(), "scaled": self.scaled}


class ProjectedScore(Score):
    """Base of the scores that have a projection.

    Args:
        use_bias: Whether the projection has a bias.
        **kwargs: `kernel_initializer`, `bias_regularizer` and the like, for the weights
            in `default_initializers`, and options of the layer.

    Attributes:
        default_initializers: Pairs of the name of a weight and its initializer.
        options: Dict of initializers, regularizers and constraints of the weights.
    """

    default_initializers: tuple[tuple[str, str], ...] = (
        ("kernel", "glorot_uniform"),
        ("bias", "zeros"),
    )

    def __init__(self, *, use_bias: bool = False, **kwargs: Any) -> None:
        options = take_options(kwargs, self.default_initializers)
        super().__init__(**kwargs)
        check_boolean("use_bias", use_bias)
        self.use_bias = use_bias
        self.options = options

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            **serialize_options(self.options),
        }


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
        _check_shared_depth(self.query_projection, query_shape)
        if keys_shape[-1] != self.query_projection.units:
            raise ValueError(
                "layers that share a general score must have the same depth of keys, "
                f"{self.query_projection.units}. Received: {keys_shape[-1]}"
            )

    def call(self, query: Tensor, keys: Tensor) -> Tensor:
        query = project_rows(self.query_projection, query)
        return ops.cast(dot_scores(query, keys), self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class AdditiveScore(ProjectedScore):
    """Additive score: a small network of one query and one key.

        scores[t, s] = scale . tanh(W_query query[t] + keys[s])
        keys[s]      = W_key key[s] + bias

    `make_key_projection` returns the layer for `W_key`, which the memory of the
    attention applies once. With `coverage`, `w_coverage * coverage[t, s]` is added
    inside the tanh. With `normalize`, `scale` is replaced by `gain * scale / |scale|`
    with a learned gain, initially `sqrt(1 / units)`.

    Args:
        units: Positive integer, depth of the shared projection.
        coverage: Whether the score depends on the sum of earlier weights of a position.
        normalize: Whether `scale` is weight-normalised: its norm is a separate weight.
        use_bias: Whether the projection of the keys has a bias.
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

    default_initializers = (
        *ProjectedScore.default_initializers,
        ("scale", "glorot_uniform"),
    )

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
            name="scale",
            shape=(self.units,),
            **weight_arguments(self.options, "scale"),
        )
        if self.normalize:
            self.gain = self.add_weight(
                name="gain",
                shape=(),
                initializer=initializers.Constant(math.sqrt(1 / self.units)),
            )
        if self.takes_coverage:
            self.coverage_kernel = self.add_weight(
                name="coverage_kernel",
                shape=(self.units,),
                **weight_arguments(self.options, "kernel"),
            )
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        self._check_keys(keys_shape)
        _check_shared_depth(self.query_projection, query_shape)

    def _check_keys(self, keys_shape):
        if keys_shape[-1] != self.units:
            raise ValueError(
                f"keys must have the depth of the hidden layer, {self.units}: the "
                "attention needs a key_projection. "
                f"Received: keys of depth {keys_shape[-1]}"
            )

    def call(self, query: Tensor, keys: Tensor, coverage: Tensor = None) -> Tensor:
        query = project_rows(self.query_projection, query)
        scale, shift = ops.convert_to_tensor(self.scale), None
        if self.normalize:
            scale = self.gain * scale / ops.norm(scale)
        if self.takes_coverage:
            shift = coverage[..., None] * self.coverage_kernel
        return fast_additive_scores(query, keys, scale, shift)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "units": self.units,
            "coverage": self.takes_coverage,
            "normalize": self.normalize,
        }


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
        _check_shared_depth(self.projection, query_shape)

    def call(self, query: Tensor, keys: Tensor) -> Tensor:
        length = keys.shape[-2]
        # Unknown lengths are None, or a symbol where JAX infers shapes.
        if isinstance(length, int) and length > self.positions:
            raise ValueError(
                f"value must have at most {self.positions} positions, for which the "
                f"location score has weights. Received: {length}"
            )
        scores = project_rows(self.projection, query)
        if isinstance(length, int):
            return scores[..., :length]
        return ops.take(scores, ops.arange(ops.shape(keys)[-2], dtype="int32"), axis=-1)

    def get_config(self) -> Config:
        return {**super().get_config(), "positions": self.positions}


@keras.saving.register_keras_serializable(package="keras_attention")
class ScorePair(Score):
    """A score, and a copy of it with its own weights, for weightings that take two.

    If the score projects its keys, the copy has its own projection, too. The keys are
    then both projections, concatenated.

    Args:
        score: The `Score`.

    Returns:
        Pair of scores, each `(B, T, S)`.
    """

    def __init__(self, score: Score, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = score
        config = {**score.get_config(), "name": f"{score.name}_copy"}
        self.second = type(score).from_config(config)
        self.takes_coverage = score.takes_coverage
        self.uses_keys = score.uses_keys

    def make_key_projection(self) -> keras.layers.Layer | None:
        if not self._projects_keys:
            return None
        scores = self.first, self.second
        first, second = (x.make_key_projection() for x in scores)  # type: Any, Any
        second.name += "_copy"
        return ConcatenatedProjection(first, second, name="key_projection")

    @property
    def _projects_keys(self):
        return type(self.first).make_key_projection is not Score.make_key_projection

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        keys_shape = self._keys_of_one(keys_shape)
        for score in (self.first, self.second):
            build_part(score, query_shape, keys_shape)
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        keys_shape = self._keys_of_one(keys_shape)
        for score in (self.first, self.second):
            score.check_shared(query_shape, keys_shape)

    def _keys_of_one(self, keys_shape):
        """Return the shape of the keys of one score, given those of the pair."""
        projection = self.make_key_projection()
        if projection is None:
            return keys_shape
        depth = keys_shape[-1]
        one = (*keys_shape[:-1], depth // 2)
        if projection.compute_output_shape(one)[-1] != depth:
            raise ValueError(
                "a weighting with two scores needs two projections of the keys, "
                'concatenated, as with key_projection="score". Received: keys of depth '
                f"{depth}"
            )
        return one

    def call(self, query: Tensor, keys: Tensor, coverage: Tensor = None) -> Any:
        pair = ops.split(keys, 2, axis=-1) if self._projects_keys else [keys, keys]
        options = {"coverage": coverage} if self.takes_coverage else {}
        scores = zip((self.first, self.second), pair, strict=True)
        return tuple(score(query, keys, **options) for score, keys in scores)

    def get_config(self) -> Config:
        return {**super().get_config(), "score": serialize_part(self.first)}


def _check_shared_depth(projection, query_shape):
    """Raise `ValueError` if queries do not have the depth of a built projection."""
    depth = projection.input_spec.axes[-1]
    if query_shape[-1] != depth:
        raise ValueError(
            "layers that share a score must have the same depth of queries, "
            f"{depth}. Received: {query_shape[-1]}"
        )
