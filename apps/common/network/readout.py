"""The readout of a recurrent decoder."""

import keras
from keras import ops


class DeepOutput(keras.layers.Layer):
    """Deep output: the hidden vector from last word, decoder state and context.

        hidden = tanh(E y[t-1] + U s + C c[t])
        hidden = max of pairs of (V E y[t-1] + U s + C c[t])              (maxout)

    The logits are its product with the word embeddings (tied weights).

    Args:
        units: Depth of the result, which for `"tanh"` is that of the embeddings.
        kind: `"tanh"` or `"maxout"`.
        dropout: Dropout rate of the result.

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2;
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 7, with the tanh
        of the authors' code.
    """

    def __init__(self, units, kind="tanh", dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.is_maxout = kind == "maxout"
        width = 2 * units if self.is_maxout else units
        self.from_state = keras.layers.Dense(width, name="from_state")
        self.from_context = keras.layers.Dense(
            width, use_bias=False, name="from_context"
        )
        self.from_word = (
            keras.layers.Dense(width, use_bias=False, name="from_word")
            if self.is_maxout
            else keras.layers.Identity()
        )
        self.dropout = keras.layers.Dropout(dropout)

    def build(self, embedded_shape, state_shape, context_shape):
        self.from_state.build(state_shape)
        self.from_context.build(context_shape)
        self.from_word.build(embedded_shape)
        self.built = True

    def call(self, embedded, state, context, training=None):
        hidden = (
            self.from_word(embedded)
            + self.from_state(state)
            + self.from_context(context)
        )
        if self.is_maxout:
            pairs = ops.reshape(hidden, (*ops.shape(hidden)[:-1], self.units, 2))
            hidden = ops.max(pairs, axis=-1)
        else:
            hidden = ops.tanh(hidden)
        return self.dropout(hidden, training=training)

    def compute_output_shape(self, embedded_shape, state_shape, context_shape):
        return (*embedded_shape[:-1], self.units)
