"""The Transformer.

Shapes: B sentences, K hypotheses, S source tokens, E depth of an embedding.
"""

import keras
from keras import ops
from keras_attention_apps.common.network.transformer import (
    EncoderLayer,
    TransformerDecoder,
    embed,
    embed_step,
    position_table,
)
from keras_attention_apps.common.text import PAD
from keras_attention_apps.nmt.network.base import TranslationNetwork

from keras_attention import PositionEncoding


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
        }
        depth = config.embedding_units
        self.positions = PositionEncoding()
        self.encoder_layers = [
            EncoderLayer(depth, name=f"encoder_{i}", **layer_options)
            for i in range(config.encoder_layers)
        ]
        self.transformer = TransformerDecoder(
            config.decoder_layers, depth, **layer_options
        )
        self.encoder_norm = keras.layers.LayerNormalization()

    def _embed(self, token_ids, training=None):
        embedded = embed(self.embedding, self.positions, token_ids)
        return self.embedding_dropout(embedded, training=training)

    def encode(self, source, training=None):
        mask = source != PAD
        x = self._embed(source, training=training)
        for layer in self.encoder_layers:
            x = layer(x, mask, training=training)
        return {"values": self.encoder_norm(x), "mask": mask}

    def decode(self, target, memory, return_weights=False, training=None):
        x = self._embed(target, training=training)
        found = self.transformer(
            x,
            memory["values"],
            memory["mask"],
            return_weights=return_weights,
            training=training,
        )
        return found if return_weights else (found, None)

    def start(self, inputs, max_length):
        encoded = self.encode(inputs["source"])
        memory = self.transformer.memory(encoded["values"], encoded["mask"])
        memory = {
            "layers": memory,
            "positions": position_table(self.embedding, self.positions, max_length),
        }
        rows = ops.shape(inputs["source"])[0]
        return memory, self.transformer.get_initial_cache(rows, max_length)

    def advance(self, token_ids, state, memory):
        x = embed_step(self.embedding, memory["positions"], token_ids, state)
        return self.transformer.step(x, state, memory["layers"])
