"""Additive attention: queries and keys meet in a small neural network."""

import keras
from keras import constraints, initializers, regularizers

from keras_attention.layers.attention import Attention, project_rows
from keras_attention.ops.scores import additive_scores


@keras.saving.register_keras_serializable(package="keras_attention")
class AdditiveScore(keras.layers.Layer):
    """The query's half of the additive score, and the vector that reads it.

        scores[t, s] = scale . tanh(W_query query[t] + keys[s])

    Args:
        units: Positive integer, depth of the shared projection.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W_query`.
        scale_initializer, scale_regularizer, scale_constraint: For `scale`.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        keys: Projected keys of shape `(B, S, units)`.

    Returns:
        Scores of shape `(B, T, S)`.
    """

    def __init__(
        self,
        units,
        *,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        scale_initializer="glorot_uniform",
        scale_regularizer=None,
        scale_constraint=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.units = units
        self.query_projection = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=kernel_initializer,
            kernel_regularizer=kernel_regularizer,
            kernel_constraint=kernel_constraint,
            dtype=self.dtype_policy,
            name="query_projection",
        )
        self.scale_initializer = initializers.get(scale_initializer)
        self.scale_regularizer = regularizers.get(scale_regularizer)
        self.scale_constraint = constraints.get(scale_constraint)

    def build(self, query_shape, keys_shape):
        self.query_projection.build(query_shape)
        self.scale = self.add_weight(
            name="scale",
            shape=(self.units,),
            initializer=self.scale_initializer,
            regularizer=self.scale_regularizer,
            constraint=self.scale_constraint,
        )
        self.built = True

    def call(self, query, keys):
        query = project_rows(self.query_projection, query)
        return additive_scores(query, keys, self.scale)

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        projection = self.query_projection.get_config()
        return {
            **super().get_config(),
            "units": self.units,
            "kernel_initializer": projection["kernel_initializer"],
            "kernel_regularizer": projection["kernel_regularizer"],
            "kernel_constraint": projection["kernel_constraint"],
            "scale_initializer": initializers.serialize(self.scale_initializer),
            "scale_regularizer": regularizers.serialize(self.scale_regularizer),
            "scale_constraint": constraints.serialize(self.scale_constraint),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class AdditiveAttention(Attention):
    """Soft attention that scores queries against keys with a small network.

    Query and key are projected to `units` dimensions, added, and passed through
    a `tanh`; a learned vector turns the result into one score per position:

        scores[t, s] = scale . tanh(W_query query[t] + W_key key[s] + bias)
        weights      = softmax(scores) over s
        context[t]   = sum over s of weights[t, s] * value[s]

    Unlike `keras.layers.AdditiveAttention`, the layer owns both projections, so
    query and key may differ in depth.

    Masking: `True` means attend. Positions where `value_mask`, `key_mask` or
    `attention_mask` is `False` get a weight of exactly zero, whatever is stored at
    positions that `value_mask` or `key_mask` excludes. A query with no valid
    position, and a masked query, gives zero weights and a zero context. Implicit
    Keras masks are used where no explicit one is given; the query's mask is passed on.

    Args:
        units: Positive integer, depth of the shared projection.
        use_bias: Whether the hidden layer has a bias.
        kernel_initializer, kernel_regularizer, kernel_constraint: For both
            projections, `W_query` and `W_key`.
        bias_initializer, bias_regularizer, bias_constraint: For the bias.
        scale_initializer, scale_regularizer, scale_constraint: For the vector `scale`.

    Call arguments:
        query: Tensor of shape `(batch, query_length, query_dim)`, or one query
            `(batch, query_dim)`.
        value: Tensor of shape `(batch, value_length, value_dim)`.
        key: Tensor of shape `(batch, value_length, key_dim)`; `value` if omitted.
        query_mask: Boolean `(batch, query_length)`; `(batch,)` for one query.
        value_mask, key_mask: Boolean `(batch, value_length)`.
        attention_mask: Boolean `(batch, query_length, value_length)`;
            `(batch, value_length)` for one query.
        return_attention_scores: Whether to return the weights, too.

    Returns:
        context: Tensor of shape `(batch, query_length, value_dim)`, or
            `(batch, value_dim)` for one query.
        weights: Tensor of shape `(batch, query_length, value_length)`, or
            `(batch, value_length)` for one query; only if
            `return_attention_scores` is `True`.

    Raises:
        ValueError: If `units` is not a positive integer, or if a shape does not fit.

    Example:

    One decoder step over the 49 regions of a 7 x 7 feature map:

    >>> attention = AdditiveAttention(units=64)
    >>> state = np.zeros((8, 1, 512), "float32")
    >>> regions = np.zeros((8, 49, 1280), "float32")
    >>> context, weights = attention(state, regions, return_attention_scores=True)
    >>> tuple(context.shape), tuple(weights.shape)
    ((8, 1, 1280), (8, 1, 49))

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """

    def __init__(
        self,
        units,
        *,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        kernel_regularizer=None,
        kernel_constraint=None,
        bias_initializer="zeros",
        bias_regularizer=None,
        bias_constraint=None,
        scale_initializer="glorot_uniform",
        scale_regularizer=None,
        scale_constraint=None,
        dtype=None,
        **kwargs,
    ):
        if isinstance(units, bool) or not isinstance(units, int) or units < 1:
            raise ValueError(f"units must be a positive integer. Received: {units!r}")
        kernel = {
            "kernel_initializer": kernel_initializer,
            "kernel_regularizer": kernel_regularizer,
            "kernel_constraint": kernel_constraint,
        }
        score = AdditiveScore(
            units,
            **kernel,
            scale_initializer=scale_initializer,
            scale_regularizer=scale_regularizer,
            scale_constraint=scale_constraint,
            dtype=dtype,
            name="score",
        )
        key_projection = keras.layers.Dense(
            units,
            use_bias=use_bias,
            **kernel,
            bias_initializer=bias_initializer,
            bias_regularizer=bias_regularizer,
            bias_constraint=bias_constraint,
            dtype=dtype,
            name="key_projection",
        )
        super().__init__(score, key_projection, dtype=dtype, **kwargs)
        self.units = units

    def get_config(self):
        dense = self.memory.key_projection.get_config()
        score = self.step.score.get_config()
        config = {
            **super().get_config(),
            "units": self.units,
            "use_bias": dense["use_bias"],
        }
        for part in ("kernel", "bias", "scale"):
            for kind in ("initializer", "regularizer", "constraint"):
                name = f"{part}_{kind}"
                config[name] = score[name] if part == "scale" else dense[name]
        return config
