"""Recurrent networks after Bahdanau and Luong, and one without attention.

Shapes: B sentences, K hypotheses, T target tokens, S source tokens, U units, E depth of
an embedding.
"""

import keras
from keras import ops, tree

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    Dropout,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LuongAttention,
    RecurrentEncoder,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import DeepOutput
from keras_attention_apps.common.tokenizer import PAD
from keras_attention_apps.nmt.network.translation_network import TranslationNetwork


class RecurrentNetwork(TranslationNetwork):
    """Base class of recurrent encoders and decoders.

    Subclasses implement `_cell(units)`, which returns a recurrent cell;
    `_attention_cell(cell)`, the `AttentionCell` of the decoder;
    `_initial_states(finals)`, the list of the initial states of all decoder cells; and
    `_hidden(embedded, outputs)`, the inputs of the output layer before dropout.
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, vocabulary_size, **options)
        if not config.encoder_units:
            raise UserError(
                "encoder_units must be at least 1 for a recurrent encoder. Received: 0"
            )
        self.encoder = EncoderStack(
            lambda: self._cell(config.encoder_units),
            config.encoder_layers,
            config.dropout,
        )
        self.context_dropout = Dropout(config.context_dropout)
        cell, *rest = [self._cell(config.units) for _ in range(config.decoder_layers)]
        if rest:
            cell = keras.layers.StackedRNNCells([cell, *map(ResidualCell, rest)])
        self.decoder = AttentionDecoder(self._attention_cell(cell))

    def _embed(self, token_ids, training=None):
        return self.embedding_dropout(self.embedding(token_ids), training=training)

    def encode(self, source, training=None):
        mask = source != PAD
        embedded = self._embed(source, training)
        annotations, finals = self.encoder(embedded, mask, training=training)
        cell = self.decoder.cell.cell
        state = tree.pack_sequence_as(
            cell.get_initial_state(batch_size=1), self._initial_states(finals)
        )
        values, mask = self._attended(annotations, mask, finals)
        values = self.context_dropout(values, training=training)
        return {"values": values, "mask": mask, "state": {"cell": state}}

    def _attended(self, annotations, mask, finals):
        """Return the values of the attention, and their mask."""
        return annotations, mask

    def decode(self, target, memory, return_weights=False, training=None):
        embedded = self._embed(target, training)
        steps = self.decoder(
            embedded,
            memory["values"],
            memory["state"],
            value_mask=memory["mask"],
            training=training,
        )
        hidden = self._hidden(embedded, steps)
        weights = steps["weights"] if return_weights else None
        return self.output_dropout(hidden, training=training), weights

    def decoder_start(self, inputs, max_length):
        encoded = self.encode(inputs["source"])
        cell = self.decoder.cell
        memory = cell.attention.memory(encoded["values"], value_mask=encoded["mask"])
        return memory, cell.complete_state(encoded["state"], memory)

    def decoder_step(self, token_ids, state, memory):
        embedded = self.embedding(token_ids)
        outputs, state = self.decoder.cell(embedded, state, memory)
        return self._hidden(embedded, outputs), state, outputs["weights"]


class EncoderStack(keras.layers.Layer):
    """A stack of bidirectional recurrent encoders.

    From the second on, each layer has a residual connection. The call takes embedded
    words `(B, S, E)` and their mask, and returns annotations `(B, S, 2 U)`; and for
    each layer, for each direction, the list of the last states.
    """

    def __init__(self, make_cell, layers, dropout, **kwargs):
        super().__init__(**kwargs)
        self.encoders = [
            RecurrentEncoder(make_cell(), make_cell(), return_state=True)
            for _ in range(layers)
        ]
        self.dropout = Dropout(dropout)

    def build(self, inputs_shape, mask_shape=None):
        shape = inputs_shape
        for encoder in self.encoders:
            encoder.build(shape)
            shape, *_ = encoder.compute_output_shape(shape)
        self.built = True

    def call(self, inputs, mask, training=None):
        x, finals = inputs, []
        for index, encoder in enumerate(self.encoders):
            below = self.dropout(x, training=training) if index else x
            annotations, *states = encoder(below, mask=mask, training=training)
            count = len(states) // 2
            finals.append((states[:count], states[count:]))
            x = x + annotations if index else annotations
        return x, finals


class ResidualCell(keras.layers.Layer):
    """A recurrent cell with a residual connection, which keeps the depth."""

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        self.cell = cell
        self.state_size = cell.state_size
        self.output_size = cell.output_size

    def build(self, inputs_shape, states_shape=None):
        self.cell.build(inputs_shape)
        self.built = True

    def call(self, inputs, states, training=None):
        output, states = self.cell(inputs, states, training=training)
        return inputs + output, states

    def get_initial_state(self, batch_size=None):
        return self.cell.get_initial_state(batch_size=batch_size)


class BahdanauNetwork(RecurrentNetwork):
    """Encoder and decoder of GRUs, joined by additive attention.

        h[s]    = [forward GRU; backward GRU] over the embedded source
        s[0]    = tanh(W h[1](backward))
        c[t]    = additive attention of s[t-1] to h
        s[t]    = GRU([E y[t-1]; c[t]], s[t-1])
        hidden  = tanh(E y[t-1] + U s[t] + C c[t]), to be multiplied with the embeddings

    In the paper, the hidden vector is a maxout, and depends on s[t-1].

    Reference: [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, vocabulary_size, **options)
        self.bridges = [
            keras.layers.Dense(config.units, "tanh", name=f"bridge_{i}")
            for i in range(config.decoder_layers)
        ]
        self.readout = DeepOutput(config.embedding_units)

    def _cell(self, units):
        return LayerNormGRUCell(units)

    def _attention_cell(self, cell):
        attention = AdditiveAttention(self.config.attention_units, use_bias=True)
        return AttentionCell(cell, attention)

    def _initial_states(self, finals):
        _, (backward,) = finals[-1]
        return [bridge(backward) for bridge in self.bridges]

    def _hidden(self, embedded, outputs):
        return self.readout(embedded, outputs["output"], outputs["context"])


class SummaryNetwork(BahdanauNetwork):
    """Bahdanau's network without attention: the context is the encoder's final state.

    Reference: [Cho et al., 2014](https://arxiv.org/abs/1406.1078), section 2.2.
    """

    def _attended(self, annotations, mask, finals):
        summary = ops.concatenate([state for (state,) in finals[-1]], axis=-1)
        # With a single position, its attention weight is 1.
        return summary[:, None], ops.ones_like(mask[:, :1])


class LuongNetwork(RecurrentNetwork):
    """Stacks of LSTMs; the decoder attends with its current state.

        h[t]  = LSTM([E y[t-1]; h~[t-1]], h[t-1])
        c[t]  = attention of h[t] to the annotations
        h~[t] = tanh(W [c[t]; h[t]]), to be multiplied with the embeddings

    The initial state of a decoder layer is the final state of the encoder layer at the
    same height, counted from the top. If their depths differ, it is projected, with a
    tanh.

    Reference: [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.
    """

    def __init__(self, config, vocabulary_size, **options):
        super().__init__(config, vocabulary_size, **options)
        self.bridges = [
            keras.layers.Identity()
            if config.units == 2 * config.encoder_units
            else keras.layers.Dense(config.units, "tanh", name=f"bridge_{i}")
            for i in range(2 * config.decoder_layers)
        ]

    def _cell(self, units):
        return LayerNormLSTMCell(units)

    def _attention_cell(self, cell):
        config = self.config
        attention = LuongAttention(
            config.score,
            units=config.attention_units if config.score == "concat" else None,
            window=config.window,
            half_width=config.half_width,
        )
        return AttentionCell(
            cell,
            attention,
            order="current",
            input_feeding=config.input_feeding,
            attentional_vector=config.embedding_units,
        )

    def _initial_states(self, finals):
        layers = self.config.decoder_layers
        # Surplus decoder layers start from the lowest layer of the encoder.
        chosen = [finals[max(len(finals) - layers + i, 0)] for i in range(layers)]
        states = [
            ops.concatenate(parts, axis=-1)
            for directions in chosen
            for parts in zip(*directions, strict=True)
        ]
        return [bridge(x) for bridge, x in zip(self.bridges, states, strict=True)]

    def _hidden(self, embedded, outputs):
        return outputs["output"]
