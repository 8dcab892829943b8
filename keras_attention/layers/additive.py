"""Additive attention: a small neural network scores queries against keys."""

from typing import Any

import keras

from keras_attention.layers.attention import ComposedAttention
from keras_attention.layers.projections import serialize_options
from keras_attention.layers.projections import weight_options
from keras_attention.layers.scores import AdditiveScore
from keras_attention.layers.weighting import Weighting
from keras_attention.typing import Config
from keras_attention.typing import Dtype
from keras_attention.typing import Initializer
from keras_attention.typing import Regularizer
from keras_attention.typing import Seed
from keras_attention.typing import WeightConstraint
from keras_attention.validation import check_positive_integer


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
            initially `sqrt(1 / units)`.
        use_bias: Whether the hidden layer has a bias.
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
        kernel_initializer: Initializer = "glorot_uniform",
        kernel_regularizer: Regularizer = None,
        kernel_constraint: WeightConstraint = None,
        bias_initializer: Initializer = "zeros",
        bias_regularizer: Regularizer = None,
        bias_constraint: WeightConstraint = None,
        scale_initializer: Initializer = "glorot_uniform",
        scale_regularizer: Regularizer = None,
        scale_constraint: WeightConstraint = None,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        units = check_positive_integer("units", units)
        options = weight_options(locals())
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
            "score",
            None,
            weighting=weighting,
            causal=causal,
            dropout=dropout,
            seed=seed,
            dtype=dtype,
            **kwargs,
        )
        self.units = units
        self.coverage = coverage
        self.normalize = normalize
        self.use_bias = use_bias
        self.options = options

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "units": self.units,
            "coverage": self.coverage,
            "normalize": self.normalize,
            "use_bias": self.use_bias,
            **serialize_options(self.options),
        }
