"""The Transformer.

Shapes: B sentences, K hypotheses, S source tokens, E depth of an embedding.
"""

import keras
from keras import ops

from keras_attention import PositionEncoding
from keras_attention_apps.common.network.transformer import (
    TransformerDecoder,
    embed,
    embed_step,
    encoder_layer,
    last_norm,
    position_table,
)
from keras_attention_apps.common.tokenizer import PAD
from keras_attention_apps.nmt.network.translation_network import TranslationNetwork


class TransformerNetwork(TranslationNetwork):
    """Encoder and decoder of self-attention, without recurrence.

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3; with
    pre-norm [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 3.
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, vocabulary_size, **options)
        layer_options = {
            "heads": config.heads,
            "units": config.units,
            "dropout": config.dropout,
            "norm_first": config.norm_first,
            "activation": config.activation,
            "epsilon": config.epsilon,
        }
        depth = config.embedding_units
        self.positions = PositionEncoding(
            layout=config.position_layout, max_wavelength=config.max_wavelength
        )
        self.encoder_layers = [
            encoder_layer(depth, name=f"encoder_{i}", **layer_options)
            for i in range(config.encoder_layers)
        ]
        self.transformer = TransformerDecoder(
            config.decoder_layers,
            depth,
            alignment=(config.alignment_layer, config.alignment_head),
            **layer_options,
        )
        self.encoder_norm = last_norm(**layer_options)
        self.source_embedding = self.embedding
        if config.separate_embeddings:
            self.source_embedding = keras.layers.Embedding(
                vocabulary_size,
                depth,
                embeddings_initializer=keras.initializers.RandomNormal(
                    stddev=depth**-0.5
                ),
                name="source_embedding",
            )
        self.output_bias = None
        if config.output_bias:
            self.output_bias = self.add_weight(
                name="output_bias", shape=(vocabulary_size,), initializer="zeros"
            )

    def logits(self, hidden, token_ids=None):
        logits = super().logits(hidden, token_ids)
        if self.output_bias is None:
            return logits
        bias = ops.cast(self.output_bias, logits.dtype)
        if token_ids is not None:
            bias = ops.take(bias, token_ids, axis=0)[:, None]
        return logits + bias

    def output_layer(self, hidden):
        if self.output_bias is None:
            return super().output_layer(hidden)
        # The bias is the embedding of one more number of the hidden vector, 1.
        ones = ops.ones_like(hidden[..., :1])
        table = self.embedding.embeddings
        bias = ops.cast(self.output_bias, table.dtype)[:, None]
        return (
            ops.concatenate([hidden, ones], axis=-1),
            ops.concatenate([table, bias], axis=-1),
        )

    def embed(self, token_ids, training=None):
        """Return the embeddings of target tokens `(B, T)`, with their positions."""
        return self._embedded(self.embedding, token_ids, training)

    def _embedded(self, embedding, token_ids, training):
        embedded = embed(embedding, self.positions, token_ids)
        return self.embedding_dropout(embedded, training=training)

    def encode(self, source, training=None):
        mask = source != PAD
        x = self._embedded(self.source_embedding, source, training)
        for layer in self.encoder_layers:
            x = layer(x, mask=mask, training=training)
        return {"values": self.encoder_norm(x), "mask": mask}

    def decode(self, target, memory, return_weights=False, training=None):
        x = self.embed(target, training=training)
        outputs = self.transformer(
            x,
            memory["values"],
            memory["mask"],
            return_weights=return_weights,
            training=training,
        )
        return outputs if return_weights else (outputs, None)

    def decoder_start(self, inputs, max_length):
        encoded = self.encode(inputs["source"])
        memory = self.transformer.memory(encoded["values"], encoded["mask"])
        memory = {
            "layers": memory,
            "positions": position_table(self.embedding, self.positions, max_length),
        }
        rows = ops.shape(inputs["source"])[0]
        return memory, self.transformer.get_initial_cache(rows, max_length)

    def decoder_step(self, token_ids, state, memory):
        x = embed_step(self.embedding, memory["positions"], token_ids, state)
        return self.transformer.step(x, state, memory["layers"])
