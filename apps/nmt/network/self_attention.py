"""The self-attention network (Transformer).

Shapes: B sentences, K hypotheses, S source tokens, E depth of an embedding.
"""

import keras
from keras import ops, tree
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.tokens import PAD
from keras_attention_apps.nmt.network.base import TranslationNetwork

from keras_attention import PositionEncoding, SelfAttention


class SelfAttentionNetwork(TranslationNetwork):
    """Encoder and decoder of self-attention, without recurrence.

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3; with
    norms before the sublayers
    [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 3.
    """

    def __init__(self, config, vocabulary_size, **losses):
        super().__init__(config, vocabulary_size, **losses)
        if config.embedding_units % config.heads:
            raise UserError(
                "embedding_units must be a multiple of heads. Received: "
                f"{config.embedding_units} and {config.heads}"
            )
        self.positions = PositionEncoding()
        self.encoder_layers = [
            EncoderLayer(config, name=f"encoder_{i}")
            for i in range(config.encoder_layers)
        ]
        self.decoder_layers = [
            DecoderLayer(config, name=f"decoder_{i}")
            for i in range(config.decoder_layers)
        ]
        norm = keras.layers.LayerNormalization
        last = norm if config.pre_norm else keras.layers.Identity
        self.encoder_norm, self.decoder_norm = last(), last()

    def _embed(self, embedding, token_ids, start=0, training=None):
        embedded = embedding(token_ids) * self.config.embedding_units**0.5
        embedded = self.positions(embedded, start=start)
        return self.embedding_dropout(embedded, training=training)

    def encode(self, source, training=None):
        mask = source != PAD
        x = self._embed(self.source_embedding, source, training=training)
        for layer in self.encoder_layers:
            x = layer(x, mask, training=training)
        return {"values": self.encoder_norm(x), "mask": mask}

    def decode(self, target, memory, training=None):
        x = self._embed(self.embedding, target, training=training)
        for layer in self.decoder_layers:
            x = layer(x, memory["values"], memory["mask"], training=training)
        return self.decoder_norm(x)

    def begin(self, inputs, max_length):
        encoded = self.encode(inputs["source"])
        memory = [
            layer.source_attention.memory(encoded["values"], value_mask=encoded["mask"])
            for layer in self.decoder_layers
        ]
        rows = ops.shape(inputs["source"])[0]
        state = [
            layer.self_attention.get_initial_cache(rows, max_length)
            for layer in self.decoder_layers
        ]
        return memory, state

    def advance(self, token_ids, state, memory):
        several = ops.shape(token_ids)
        flat = tree.map_structure(
            lambda x: ops.reshape(x, (-1, *ops.shape(x)[2:])), state
        )
        x = self._embed(
            self.embedding, ops.reshape(token_ids, (-1,)), flat[0]["length"]
        )
        x = ops.reshape(x, (*several, x.shape[-1]))
        caches, weights = [], []
        for index, layer in enumerate(self.decoder_layers):
            # The lowest layer attends to the last word rather than the next one.
            aligns = index > 0 or len(self.decoder_layers) == 1
            x, cache, attention = layer.step(x, flat[index], memory[index], aligns)
            caches.append(cache)
            if aligns:
                weights.append(attention)
        state = tree.map_structure(
            lambda x: ops.reshape(x, (*several, *ops.shape(x)[1:])), caches
        )
        return self.decoder_norm(x), state, sum(weights) / len(weights)


class AttentionLayer(keras.layers.Layer):
    """Base of encoder and decoder layers: norms, dropout and feed-forward network."""

    def __init__(self, config, sublayers, **kwargs):
        super().__init__(**kwargs)
        self.pre_norm = config.pre_norm
        self.norms = [keras.layers.LayerNormalization() for _ in range(sublayers)]
        self.dropout = keras.layers.Dropout(config.dropout)
        self.widen = keras.layers.Dense(config.units, "relu", name="widen")
        self.narrow = keras.layers.Dense(config.embedding_units, name="narrow")

    def build(self, x_shape):
        # Otherwise, Keras would trace the call to build these layers.
        for norm in self.norms:
            norm.build(x_shape)
        for attention in self.attentions:
            attention.build(x_shape)
        self.widen.build(x_shape)
        self.narrow.build((*x_shape[:-1], self.widen.units))

    def attention(self, config, **options):
        """Return a `SelfAttention` of this configuration."""
        return SelfAttention(
            config.heads,
            config.embedding_units // config.heads,
            dropout=config.attention_dropout,
            **options,
        )

    def add(self, x, index, sublayer, training=None):
        """Apply a sublayer with residual connection and pre-norm or post-norm."""
        norm = self.norms[index]
        if self.pre_norm:
            return x + self.dropout(sublayer(norm(x)), training=training)
        return norm(x + self.dropout(sublayer(x), training=training))

    def feed_forward(self, x):
        return self.narrow(self.widen(x))


class EncoderLayer(AttentionLayer):
    """Self-attention and a feed-forward network, with residual connections."""

    def __init__(self, config, **kwargs):
        super().__init__(config, 2, **kwargs)
        self.self_attention = self.attention(config)

    @property
    def attentions(self):
        return [self.self_attention]

    def call(self, x, mask, training=None):
        x = self.add(x, 0, lambda x: self.self_attention(x, mask=mask), training)
        return self.add(x, 1, self.feed_forward, training)


class DecoderLayer(AttentionLayer):
    """Causal self-attention, attention to the source, and a feed-forward network."""

    def __init__(self, config, **kwargs):
        super().__init__(config, 3, **kwargs)
        self.self_attention = self.attention(config, causal=True)
        self.source_attention = self.attention(config)

    @property
    def attentions(self):
        return [self.self_attention, self.source_attention]

    def call(self, x, values, value_mask, training=None):
        def attend(x):
            return self.source_attention(x, values, value_mask=value_mask)

        x = self.add(x, 0, self.self_attention, training)
        x = self.add(x, 1, attend, training)
        return self.add(x, 2, self.feed_forward, training)

    def step(self, x, cache, memory, return_attention_scores):
        """Run one step of K hypotheses.

        Args:
            x: `(B, K, E)`.
            cache: Cache of `B * K` rows.
            memory: Result of `source_attention.memory`, of B rows.
            return_attention_scores: Whether to return the weights, too.

        Returns:
            `x`, the cache, and the mean weights of all heads `(B, K, S)` or `None`.
        """
        weights = None

        def attend_to_prefix(x):
            nonlocal cache
            rows = ops.reshape(x, (-1, x.shape[-1]))
            output, cache = self.self_attention(rows, cache=cache)
            return ops.reshape(output, ops.shape(x))

        def attend_to_source(x):
            nonlocal weights
            # The K hypotheses are K queries to one memory.
            outputs, _ = self.source_attention.step(
                x, memory, return_weights=return_attention_scores
            )
            weights = outputs.get("weights")
            return outputs["context"]

        x = self.add(x, 0, attend_to_prefix)
        x = self.add(x, 1, attend_to_source)
        x = self.add(x, 2, self.feed_forward)
        return x, cache, weights
