"""Show, Attend and Tell: an LSTM that attends to regions of an image.

Shapes: B images, K captions of one image, T words, S regions.
"""

import keras
from keras import ops
from keras_attention_apps.captioner.network.base import CaptionNetwork
from keras_attention_apps.common.network.readout import DeepOutput

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    HardWeighting,
    ReinforceLoss,
    ScheduledSampling,
)


class ShowAttendTell(CaptionNetwork):
    """The recurrent network, with soft or hard attention; see `CaptionNetwork`.

    Reference: [Xu et al., 2015](https://arxiv.org/abs/1502.03044).
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, **options)
        self.initial_output = keras.layers.Dense(
            config.units, "tanh", name="initial_output"
        )
        self.initial_carry = keras.layers.Dense(
            config.units, "tanh", name="initial_carry"
        )
        self.add_embeddings(vocabulary_size)
        sampling = None
        if self.scheduled_sampling:
            sampling = ScheduledSampling(self.embedding, self._predict, rate=0.0)
        self.decoder = AttentionDecoder(self.make_cell(config), sampling=sampling)
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

    def initial_state(self, regions, mask=None):
        """Return the initial state of the LSTM, from the mean region."""
        mean = mean_region(regions, mask)
        return {"cell": [self.initial_output(mean), self.initial_carry(mean)]}

    def whole_image(self, regions, mask=None):
        """Return a dict of further entries of the memory; here it is empty."""
        return {}

    def cell_inputs(self, embedded, memory):
        """Return the inputs of the cell: the embedded words `(B, K, [T,] E)` alone."""
        return embedded

    def reported(self, outputs):
        """Select the weights and the reports of the attention from all outputs."""
        return {name: outputs[name] for name in ("weights", *self.decoder.cell.reports)}

    def decode(self, words, regions, mask=None, training=None):
        embedded = self.embedding_dropout(self.embedding(words), training=training)
        state = keras.tree.map_structure(
            lambda x: ops.repeat(x[:, None], ops.shape(words)[1], axis=1),
            self.initial_state(regions, mask),
        )
        inputs = self.cell_inputs(embedded, self.whole_image(regions, mask))
        steps = self.decoder(inputs, regions, state, value_mask=mask, training=training)
        # In scheduled sampling, some of the words that were read are samples.
        read = steps.get("word_inputs", embedded)
        hidden = self.readout(
            read, steps["output"], steps["context"], training=training
        )
        return hidden, self.reported(steps)

    def _predict(self, embedded, outputs):
        """Return the logits of one step, for scheduled sampling."""
        hidden = self.readout(embedded, outputs["output"], outputs["context"])
        return self.embedding(hidden, reverse=True)

    def begin(self, inputs, max_length=None):
        regions = self.regions(inputs, training=False)
        mask = self.region_mask(inputs)
        memory = self.decoder.cell.attention.memory(regions, value_mask=mask)
        memory = {**memory, **self.whole_image(regions, mask)}
        return memory, self.initial_state(regions, mask)

    def advance(self, token_ids, state, memory):
        embedded = self.embedding(token_ids)
        inputs = self.cell_inputs(embedded, memory)
        outputs, state = self.decoder.cell(inputs, state, memory)
        hidden = self.readout(embedded, outputs["output"], outputs["context"])
        return hidden, state, self.reported(outputs)


def mean_region(regions, mask=None):
    """Return the mean of the regions `(B, S, D)` where the mask `(B, S)` is true."""
    if mask is None:
        return ops.mean(regions, axis=1)
    shares = ops.cast(mask, regions.dtype)[..., None]
    count = ops.maximum(ops.sum(shares, axis=1), 1)
    return ops.sum(shares * regions, axis=1) / count
