"""A Transformer decoder that attends to regions of an image.

Shapes: B images, K captions of one image, T words, S regions, E depth of an embedding.
"""

import keras
from keras import ops
from keras_attention_apps.captioner.network.base import CaptionNetwork
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.transformer import (
    TransformerDecoder,
    embed,
    embed_step,
    position_table,
)

from keras_attention import PositionEncoding


class TransformerCaptioner(CaptionNetwork):
    """Self-attention over the words, and attention to the regions in every layer.

    The maps are the mean over the heads of all layers but the lowest; see
    `TransformerDecoder`. See `CaptionNetwork` for arguments and call.

    Raises:
        UserError: If the attention is not soft, or `embedding_units` is not a multiple
            of `heads`.

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3; as
    the decoder of a captioner
    [Herdade et al., 2019](https://arxiv.org/abs/1906.05963), section 3.
    """

    def __init__(self, config, vocabulary_size, **options):
        if config.attention != "soft":
            raise UserError(
                "attention must be soft with the transformer decoder; the recurrent "
                f"decoder takes others, too. Received: {config.attention}"
            )
        super().__init__(config, **options)
        deviation = config.embedding_units**-0.5
        self.add_embeddings(
            vocabulary_size, keras.initializers.RandomNormal(stddev=deviation)
        )
        self.positions = PositionEncoding()
        self.decoder = TransformerDecoder(
            config.decoder_layers,
            config.embedding_units,
            heads=config.heads,
            units=config.units,
            dropout=config.dropout,
        )

    @property
    def dropouts(self):
        return [*super().dropouts, *self.decoder.dropouts]

    def build(self, inputs_shape=None):
        """Create all weights; nothing depends on the inputs' shape."""
        if not self.built:
            self.decoder.build(*self.build_inputs())
            self.positions.built = True

    def decode(self, words, regions, training=None):
        embedded = embed(self.embedding, self.positions, words)
        embedded = self.embedding_dropout(embedded, training=training)
        hidden, weights = self.decoder(
            ops.reshape(embedded, (-1, *ops.shape(embedded)[2:])),
            regions,
            return_weights=True,
            training=training,
        )
        shape = ops.shape(words)
        return (
            ops.reshape(hidden, ops.shape(embedded)),
            {"weights": ops.reshape(weights, (*shape, ops.shape(regions)[1]))},
        )

    def begin(self, inputs, max_length):
        regions = self.regions(inputs, training=False)
        cache = self.decoder.get_initial_cache(ops.shape(regions)[0], max_length)
        memory = {
            "layers": self.decoder.memory(regions),
            "positions": position_table(self.embedding, self.positions, max_length),
        }
        return memory, cache

    def advance(self, token_ids, state, memory):
        embedded = embed_step(self.embedding, memory["positions"], token_ids, state)
        hidden, state, weights = self.decoder.step(embedded, state, memory["layers"])
        return hidden, state, {"weights": weights}
