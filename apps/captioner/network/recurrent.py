"""Recurrent decoders: Show, Attend and Tell, and Knowing When to Look.

Shapes: B images, K captions of one image, T words, S regions, D depth of a region.
"""

import keras
from keras import ops
from keras_attention_apps.captioner.network.base import CaptionNetwork
from keras_attention_apps.common.network.base import DeepOutput

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    HardWeighting,
    ReinforceLoss,
)


class ShowAttendTell(CaptionNetwork):
    """The recurrent network, with soft or hard attention; see `CaptionNetwork`.

    Reference: [Xu et al., 2015](https://arxiv.org/abs/1502.03044).
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, **options)
        self.initial_output, self.initial_carry = (
            keras.layers.Dense(config.units, "tanh", name=name)
            for name in ("initial_output", "initial_carry")
        )
        self.add_embeddings(vocabulary_size)
        self.decoder = AttentionDecoder(self.make_cell(config))
        self.readout = DeepOutput(config.embedding_units, dropout=config.dropout)
        # Weight files of captioners store this layer under the name `from_output`.
        self.readout.from_output = self.readout.from_state

    def make_cell(self, config):
        """Return the `AttentionCell` of the decoder."""
        weighting = "softmax"
        if config.attention == "hard":
            weighting = HardWeighting(
                config.estimator,
                inference=config.inference,
                soft_probability=config.soft_probability,
            )
            if config.estimator == "score-function":
                self.reinforce = ReinforceLoss(
                    reward_weight=self.loss_options.reward_weight,
                    entropy_weight=self.loss_options.entropy_weight,
                )
        attention = AdditiveAttention(
            config.attention_units, use_bias=True, weighting=weighting
        )
        return AttentionCell(
            keras.layers.LSTMCell(config.units),
            attention,
            input_in_query=config.input_in_query,
            gate=True,
        )

    @property
    def dropouts(self):
        return [*super().dropouts, self.readout.dropout]

    def build(self, inputs_shape=None):
        """Create all weights; nothing depends on the inputs' shape."""
        if self.built:
            return
        embedded, regions = self.build_inputs()
        mean = (None, regions[-1])
        self.initial_output.build(mean)
        self.initial_carry.build(mean)
        self.build_decoder(embedded, regions)
        # The cell has created its weights.
        self.decoder.cell.attention.built = True
        self.readout.build(embedded, (*embedded[:2], self.config.units), regions)

    def build_decoder(self, embedded_shape, regions_shape):
        """Create the weights of the decoder."""
        self.decoder.build(embedded_shape, regions_shape)

    def initial_state(self, regions):
        """Return the initial state of the LSTM, from the mean region."""
        mean = ops.mean(regions, axis=1)
        return {"cell": [self.initial_output(mean), self.initial_carry(mean)]}

    def whole_image(self, regions):
        """Return a dict of further entries of the memory; here it is empty."""
        return {}

    def cell_inputs(self, embedded, memory):
        """Return the inputs of the cell: the embedded words `(B, K, [T,] E)` alone."""
        return embedded

    def reported(self, outputs):
        """Select the weights and the reports of the attention from all outputs."""
        return {name: outputs[name] for name in ("weights", *self.decoder.cell.reports)}

    def decode(self, words, regions, training=None):
        embedded = self.embedding_dropout(self.embedding(words), training=training)
        state = keras.tree.map_structure(
            lambda x: ops.repeat(x[:, None], ops.shape(words)[1], axis=1),
            self.initial_state(regions),
        )
        inputs = self.cell_inputs(embedded, self.whole_image(regions))
        steps = self.decoder(inputs, regions, state, training=training)
        hidden = self.readout(
            embedded, steps["output"], steps["context"], training=training
        )
        return hidden, self.reported(steps)

    def begin(self, inputs, max_length=None):
        regions = self.regions(inputs, training=False)
        memory = self.decoder.cell.attention.memory(regions)
        return {**memory, **self.whole_image(regions)}, self.initial_state(regions)

    def advance(self, token_ids, state, memory):
        embedded = self.embedding(token_ids)
        inputs = self.cell_inputs(embedded, memory)
        outputs, state = self.decoder.cell(inputs, state, memory)
        hidden = self.readout(embedded, outputs["output"], outputs["context"])
        return hidden, state, self.reported(outputs)


class AdaptiveCaptioner(ShowAttendTell):
    """The recurrent network with adaptive attention; see `CaptionNetwork`.

    The LSTM reads the last word and a vector of the whole image, and its new state is
    the query. The attention has one more position beside the regions, the visual
    sentinel, which is computed from the carry of the LSTM:

        image       = relu(W_image mean of all regions)
        h[t], m[t]  = LSTM([word[t-1]; image], h[t-1], m[t-1])
        context[t]  = beta[t] * sentinel[t] + (1 - beta[t]) * sum of shares[t] * region

    The scores are additive, with a weight-normalised scale.
    Initial state and output layer are those of `ShowAttendTell`.

    Returns:
        Dict with `"logits"`; `"weights"` `(B, K, T, S)`, `(1 - beta) * shares`;
        `"probabilities"` `(B, K, T, S)`, the shares, which sum to one; and
        `"sentinel"` `(B, K, T)`, beta. In a search, the maps `(B, K, S + 1)` end with
        beta.

    Reference: [Lu et al., 2017](https://arxiv.org/abs/1612.01887).
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, vocabulary_size, **options)
        self.image_projection = keras.layers.Dense(
            config.region_units or self.backbone.depth, "relu", name="image_projection"
        )

    def make_cell(self, config):
        return AttentionCell(
            keras.layers.LSTMCell(config.units),
            # In the first steps, regions are more useful than an untrained sentinel.
            # Without normalisation, its scores could fall so far in these steps that
            # it would receive no gradient afterwards.
            AdditiveAttention(config.attention_units, use_bias=True, normalize=True),
            order="current",
            sentinel=True,
        )

    def build_decoder(self, embedded_shape, regions_shape):
        self.image_projection.build((None, regions_shape[-1]))
        depth = embedded_shape[-1] + self.image_projection.units
        self.decoder.build((*embedded_shape[:-1], depth), regions_shape)

    def whole_image(self, regions):
        return {"image": self.image_projection(ops.mean(regions, axis=1))}

    def cell_inputs(self, embedded, memory):
        image = ops.cast(memory["image"], embedded.dtype)
        shape = (*ops.shape(embedded)[:-1], image.shape[-1])
        for _ in range(len(embedded.shape) - 2):
            image = image[:, None]
        return ops.concatenate([embedded, ops.broadcast_to(image, shape)], axis=-1)

    def reported(self, outputs):
        found = super().reported(outputs)
        weights = ops.cast(found["weights"], "float32")
        # The sum is zero only where the sentinel has the whole weight.
        total = ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1e-7)
        return {**found, "probabilities": weights / total}

    def advance(self, token_ids, state, memory):
        hidden, state, found = super().advance(token_ids, state, memory)
        sentinel = found["sentinel"][..., None]
        maps = {
            name: ops.concatenate([ops.cast(found[name], "float32"), sentinel], -1)
            for name in ("weights", "probabilities")
        }
        return hidden, state, maps
