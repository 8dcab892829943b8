"""The networks: recurrent ones that attend after Bahdanau or Luong, and self-attention.

Shapes: B sentences, K hypotheses, T target tokens, S source tokens, U units, E depth of
an embedding, N vocabulary size.
"""

import re
import warnings

import keras
from keras import ops, tree
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.compiling import cast_beforehand
from keras_attention_apps.common.tokens import END, PAD, START

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    LayerNormGRUCell,
    LayerNormLSTMCell,
    LuongAttention,
    PositionEncoding,
    RecurrentEncoder,
    SelfAttention,
    linear_crossentropy,
)

# Within an error that Keras passes on, the message of the layer.
_BOLD = re.compile("\x1b\\[1m(.*?)\x1b\\[0m", re.DOTALL)


def build_network(config, vocabulary_size, **losses):
    """The network that a complete `ModelConfig` describes, with all its weights.

    Args:
        config: The `ModelConfig`.
        vocabulary_size: Number of subwords N.
        **losses: See `TranslationNetwork`.
    """
    kinds = {
        "bahdanau": BahdanauNetwork,
        "luong": LuongNetwork,
        "self-attention": SelfAttentionNetwork,
        "none": SummaryNetwork,
    }
    try:
        with warnings.catch_warnings():
            # Of layers that cannot be built, Keras warns before it fails.
            warnings.filterwarnings("ignore", category=UserWarning, module="keras")
            network = kinds[config.attention](config, vocabulary_size, **losses)
            # No weight's shape depends on the sentences.
            sentence = ops.full((1, 2), END, dtype="int32")
            network({"source": sentence, "target": sentence})
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"the model cannot be built: {_reason(error)}") from error
    return network


def _reason(error):
    """The message of an error as one line, without what Keras writes around it."""
    message = str(error)
    bold = _BOLD.search(message)
    return " ".join((bold[1] if bold else message).split())


class TranslationNetwork(keras.Model):
    """What all networks share: embeddings, the output layer and the loss.

    Subclasses implement `encode`, `decode`, `begin` and `step`.

    Args:
        config: A complete `ModelConfig`.
        vocabulary_size: Number of subwords N.
        label_smoothing: Of the training loss.

        sample_temperature: By which scores are divided where the targets are samples,
            as they were when these were drawn.

    Call arguments:
        inputs: Dict with token ids, filled with PAD: `"source"` `(B, S)`, and
            `"target"` `(B, T + 1)` from START to END; of samples `(B, K, T + 1)`, K of
            each sentence, with `"advantages"` `(B, K)`.

    Returns:
        What the output layer multiplies, `(B, T, E)` or `(B * K, T, E)`, for the tokens
        behind START.
    """

    def __init__(
        self,
        config,
        vocabulary_size,
        *,
        label_smoothing=0.0,
        sample_temperature=1.0,
    ):
        super().__init__(name="translator")
        self.config = config
        self.label_smoothing = label_smoothing
        self.sample_temperature = sample_temperature
        self.embedding = self._embeddings(vocabulary_size, "embedding")
        self.source_embedding = self.embedding
        if not config.share_embeddings:
            self.source_embedding = self._embeddings(
                vocabulary_size, "source_embedding"
            )
        self.embedding_dropout = keras.layers.Dropout(config.dropout)
        self.output_dropout = keras.layers.Dropout(config.output_dropout)

    def _embeddings(self, vocabulary_size, name):
        return keras.layers.ReversibleEmbedding(
            vocabulary_size,
            self.config.embedding_units,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=self.config.embedding_units**-0.5
            ),
            name=name,
        )

    def call(self, inputs, training=None):
        target = inputs["target"]
        if "advantages" not in inputs:
            memory = self.encode(inputs["source"], training=training)
            return self.decode(target[:, :-1], memory, training=training)
        # Samples come from the network as it is when it does not train.
        memory = self.encode(inputs["source"], training=False)
        memory = tree.map_structure(
            lambda x: ops.repeat(x, ops.shape(target)[1], axis=0), memory
        )
        return self.decode(_rows(target)[:, :-1], memory, training=False)

    def encode(self, source, training=None):
        """What a decoder must know of the source: a dict of tensors `(B, ...)`."""
        raise NotImplementedError

    def decode(self, target, memory, training=None):
        """What the output layer multiplies, `(B, T, E)`, for token ids `(B, T)`."""
        raise NotImplementedError

    def begin(self, source, max_length):
        """What is computed once for a search: a memory, and a state before the start.

        Args:
            source: Token ids `(B, S)`.
            max_length: Largest number of steps.
        """
        raise NotImplementedError

    def step(self, token_ids, state, memory):
        """One step of `keras_attention.beam_search`."""
        hidden, state, weights = self.advance(token_ids, state, memory)
        return ops.log_softmax(self.logits(hidden), axis=-1), state, weights

    def logits(self, hidden):
        """The output layer: `(..., N)`, in float32."""
        return ops.cast(self.embedding(hidden, reverse=True), "float32")

    def advance(self, token_ids, state, memory):
        """What the output layer multiplies, `(B, K, E)`, the state and the weights."""
        raise NotImplementedError

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Cross-entropy of a token, on average over the batch.

        With advantages, that of each sample counts as much as its advantage: the
        gradient is an estimate of that of the expected reward
        ([Rennie et al., 2017](https://arxiv.org/abs/1612.00563), equation 8).
        """
        targets = _rows(x["target"])[:, 1:]
        options = {"label_smoothing": self.label_smoothing}
        if "advantages" in x:
            y_pred = y_pred / self.sample_temperature
            options = {"weights": ops.reshape(x["advantages"], (-1, 1))}
        return linear_crossentropy(
            targets, y_pred, self.embedding.embeddings, targets != PAD, **options
        )


def _rows(target):
    """Token ids `(B, T)` or `(B, K, T)` as `(rows, T)`."""
    return ops.reshape(target, (-1, ops.shape(target)[-1]))


class RecurrentNetwork(TranslationNetwork):
    """Recurrent networks that read the source, and write the target.

    Subclasses implement `_cell`, `_attention_cell`, `_initial_states` and `_hidden`.
    """

    bidirectional = True

    def __init__(self, config, vocabulary_size, **losses):
        super().__init__(config, vocabulary_size, **losses)
        self.encoder = EncoderStack(
            lambda: self._cell(config.encoder_units),
            config.encoder_layers,
            self.bidirectional,
            config.dropout,
        )
        self.context_dropout = keras.layers.Dropout(config.context_dropout)
        cells = [self._cell(config.units) for _ in range(config.decoder_layers)]
        if len(cells) > 1:
            rest = [ResidualCell(cell) for cell in cells[1:]]
            cell = keras.layers.StackedRNNCells([cells[0], *rest])
        else:
            (cell,) = cells
        self.decoder = AttentionDecoder(self._attention_cell(cell))

    def _cell(self, units):
        """A recurrent cell."""
        raise NotImplementedError

    def _attention_cell(self, cell):
        """The `AttentionCell` of the decoder."""
        raise NotImplementedError

    def _initial_states(self, finals):
        """States of all decoder cells in a row, from those that the encoder ends with.

        Args:
            finals: For every encoder layer, for each direction, a list of tensors.
        """
        raise NotImplementedError

    def _hidden(self, embedded, outputs, training=None):
        """What the output layer multiplies, before dropout."""
        raise NotImplementedError

    def _embed(self, embedding, token_ids, training=None):
        return self.embedding_dropout(embedding(token_ids), training=training)

    def encode(self, source, training=None):
        mask = source != PAD
        embedded = self._embed(self.source_embedding, source, training)
        annotations, finals = self.encoder(embedded, mask, training=training)
        cell = self.decoder.cell.cell
        state = tree.pack_sequence_as(
            cell.get_initial_state(batch_size=1), self._initial_states(finals)
        )
        values, mask = self._attended(annotations, mask, finals)
        values = self.context_dropout(values, training=training)
        return {"values": values, "mask": mask, "state": {"cell": state}}

    def _attended(self, annotations, mask, finals):
        """What is attended to, and its mask."""
        return annotations, mask

    def decode(self, target, memory, training=None):
        embedded = self._embed(self.embedding, target, training)
        steps = self.decoder(
            embedded,
            memory["values"],
            memory["state"],
            value_mask=memory["mask"],
            training=training,
        )
        hidden = self._hidden(embedded, steps)
        return self.output_dropout(hidden, training=training)

    def begin(self, source, max_length):
        encoded = self.encode(source)
        cell = self.decoder.cell
        memory = cell.attention.memory(encoded["values"], value_mask=encoded["mask"])
        return memory, cell.complete_state(encoded["state"], memory)

    def advance(self, token_ids, state, memory):
        embedded = self.embedding(token_ids)
        outputs, state = self.decoder.cell(embedded, state, memory)
        return self._hidden(embedded, outputs), state, outputs["weights"]


class EncoderStack(keras.layers.Layer):
    """A stack of recurrent encoders, each in one direction or both.

    From the second on, each layer adds to what it reads.

    Args:
        make_cell: Function that returns a recurrent cell.
        layers: Number of layers.
        bidirectional: Whether half the annotation comes from behind.
        dropout: Rate between the layers.

    Call arguments:
        inputs: `(B, S, E)`.
        mask: Boolean `(B, S)`.

    Returns:
        annotations: `(B, S, U)` or, in both directions, `(B, S, 2 U)`.
        finals: For each layer, for each direction, the list of the last states.
    """

    def __init__(self, make_cell, layers, bidirectional, dropout, **kwargs):
        super().__init__(**kwargs)
        self.directions = 1 + bidirectional
        self.encoders = [
            RecurrentEncoder(
                *(make_cell() for _ in range(self.directions)), return_state=True
            )
            for _ in range(layers)
        ]
        self.dropout = keras.layers.Dropout(dropout)

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
            count = len(states) // self.directions
            finals.append([states[:count], states[count:]][: self.directions])
            x = x + annotations if index else annotations
        return x, finals


class ResidualCell(keras.layers.Layer):
    """A recurrent cell that adds to what it reads; both are equally deep."""

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
        hidden  = tanh(E y[t-1] + U s + C c[t]), or its maxout, to be multiplied with
                  the embeddings; s is s[t], or s[t-1] as in the paper

    Reference: [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.
    """

    def __init__(self, config, vocabulary_size, **losses):
        super().__init__(config, vocabulary_size, **losses)
        self.bridges = [
            keras.layers.Dense(config.units, "tanh", name=f"bridge_{i}")
            for i in range(config.decoder_layers)
        ]
        self.readout = DeepOutput(config.embedding_units, config.readout)

    def _cell(self, units):
        cell = LayerNormGRUCell if self.config.layer_norm else keras.layers.GRUCell
        return cell(units)

    def _attention_cell(self, cell):
        attention = AdditiveAttention(self.config.attention_units, use_bias=True)
        return AttentionCell(cell, attention)

    def _initial_states(self, finals):
        _, (backward,) = finals[-1]
        return [bridge(backward) for bridge in self.bridges]

    def _hidden(self, embedded, outputs):
        previous = self.config.readout_state == "previous"
        state = outputs["query" if previous else "output"]
        return self.readout(embedded, state, outputs["context"])


class SummaryNetwork(BahdanauNetwork):
    """The same without attention: the context is always the last states of the encoder.

    Reference: [Cho et al., 2014](https://arxiv.org/abs/1406.1078), section 2.2.
    """

    def _attended(self, annotations, mask, finals):
        summary = ops.concatenate([state for (state,) in finals[-1]], axis=-1)
        # Of one position, attention gives all to it.
        return summary[:, None], ops.ones_like(mask[:, :1])


class DeepOutput(keras.layers.Layer):
    """What is multiplied with the embeddings, from everything known at a step.

    hidden = tanh(E y[t-1] + U s + C c[t])
    hidden = max of pairs of (V E y[t-1] + U s + C c[t])              (maxout)

    Args:
        units: Depth of the result.
        kind: `"tanh"` or `"maxout"`.
    """

    def __init__(self, units, kind, **kwargs):
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

    def build(self, embedded_shape, state_shape, context_shape):
        self.from_state.build(state_shape)
        self.from_context.build(context_shape)
        self.from_word.build(embedded_shape)
        self.built = True

    def call(self, embedded, state, context):
        sums = (
            self.from_word(embedded)
            + self.from_state(state)
            + self.from_context(context)
        )
        if not self.is_maxout:
            return ops.tanh(sums)
        pairs = ops.reshape(sums, (*ops.shape(sums)[:-1], self.units, 2))
        return ops.max(pairs, axis=-1)


class LuongNetwork(RecurrentNetwork):
    """Stacks of LSTMs; the decoder attends with its current state.

        h[t]  = LSTM([E y[t-1]; h~[t-1]], h[t-1])
        c[t]  = attention of h[t] to the annotations
        h~[t] = tanh(W [c[t]; h[t]]), to be multiplied with the embeddings

    The decoder starts where the encoder's layers of the same height end, counted from
    the top. States that are not as deep as the decoder's are projected, with a tanh.

    Reference: [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.
    """

    def __init__(self, config, vocabulary_size, **losses):
        self.bidirectional = config.bidirectional
        super().__init__(config, vocabulary_size, **losses)
        depth = config.encoder_units * (1 + config.bidirectional)
        self.bridges = [
            keras.layers.Identity()
            if depth == config.units
            else keras.layers.Dense(config.units, "tanh", name=f"bridge_{i}")
            for i in range(2 * config.decoder_layers)
        ]

    def _cell(self, units):
        cell = LayerNormLSTMCell if self.config.layer_norm else keras.layers.LSTMCell
        return cell(units)

    def _attention_cell(self, cell):
        config = self.config
        attention = LuongAttention(
            config.score,
            units=config.attention_units if config.score == "concat" else None,
            positions=config.max_length if config.score == "location" else None,
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

    def encode(self, source, training=None):
        if self.config.score == "location":
            # What a batch has beyond its positions is padding.
            source = source[:, : self.config.max_length]
        return super().encode(source, training=training)

    def _initial_states(self, finals):
        layers = self.config.decoder_layers
        # A decoder with more layers than the encoder has its lowest ends several times.
        chosen = [finals[max(len(finals) - layers + i, 0)] for i in range(layers)]
        states = [
            ops.concatenate(parts, axis=-1)
            for directions in chosen
            for parts in zip(*directions, strict=True)
        ]
        return [bridge(x) for bridge, x in zip(self.bridges, states, strict=True)]

    def _hidden(self, embedded, outputs):
        return outputs["output"]


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

    def begin(self, source, max_length):
        encoded = self.encode(source)
        memory = [
            layer.source_attention.memory(encoded["values"], value_mask=encoded["mask"])
            for layer in self.decoder_layers
        ]
        rows = ops.shape(source)[0]
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
            # The lowest layer looks at what was written last, and not at what comes.
            aligns = index > 0 or len(self.decoder_layers) == 1
            x, cache, looked = layer.step(x, flat[index], memory[index], aligns)
            caches.append(cache)
            if aligns:
                weights.append(looked)
        state = tree.map_structure(
            lambda x: ops.reshape(x, (*several, *ops.shape(x)[1:])), caches
        )
        return self.decoder_norm(x), state, sum(weights) / len(weights)


class AttentionLayer(keras.layers.Layer):
    """What the layers of encoder and decoder share: norms, dropout and feed-forward."""

    def __init__(self, config, sublayers, **kwargs):
        super().__init__(**kwargs)
        self.pre_norm = config.pre_norm
        self.norms = [keras.layers.LayerNormalization() for _ in range(sublayers)]
        self.dropout = keras.layers.Dropout(config.dropout)
        self.widen = keras.layers.Dense(config.units, "relu", name="widen")
        self.narrow = keras.layers.Dense(config.embedding_units, name="narrow")

    def attention(self, config, **options):
        """A `SelfAttention` of this configuration."""
        return SelfAttention(
            config.heads,
            config.embedding_units // config.heads,
            dropout=config.attention_dropout,
            **options,
        )

    def add(self, x, index, sublayer, training=None):
        """`x` and what a sublayer makes of it, normalised before or behind."""
        norm = self.norms[index]
        if self.pre_norm:
            return x + self.dropout(sublayer(norm(x)), training=training)
        return norm(x + self.dropout(sublayer(x), training=training))

    def feed_forward(self, x):
        return self.narrow(self.widen(x))


class EncoderLayer(AttentionLayer):
    """Self-attention and a feed-forward network, each added to what it reads."""

    def __init__(self, config, **kwargs):
        super().__init__(config, 2, **kwargs)
        self.self_attention = self.attention(config)

    def call(self, x, mask, training=None):
        x = self.add(x, 0, lambda x: self.self_attention(x, mask=mask), training)
        return self.add(x, 1, self.feed_forward, training)


class DecoderLayer(AttentionLayer):
    """Self-attention to what is written, attention to the source, feed-forward."""

    def __init__(self, config, **kwargs):
        super().__init__(config, 3, **kwargs)
        self.self_attention = self.attention(config, causal=True)
        self.source_attention = self.attention(config)

    def call(self, x, values, value_mask, training=None):
        def look(x):
            return self.source_attention(x, values, value_mask=value_mask)

        x = self.add(x, 0, self.self_attention, training)
        x = self.add(x, 1, look, training)
        return self.add(x, 2, self.feed_forward, training)

    def step(self, x, cache, memory, return_attention_scores):
        """The same for one step of K hypotheses.

        Args:
            x: `(B, K, E)`.
            cache: Cache of `B * K` rows.
            memory: What `source_attention.memory` returned for B rows.
            return_attention_scores: Whether to return the weights, too.

        Returns:
            `x`, the cache, and the mean weights of all heads `(B, K, S)` or `None`.
        """
        found = {"weights": None}

        def look_back(x):
            rows = ops.reshape(x, (-1, x.shape[-1]))
            output, found["cache"] = self.self_attention(rows, cache=cache)
            return ops.reshape(output, ops.shape(x))

        def look(x):
            # Hypotheses are so many queries to one memory.
            looked = self.source_attention.step(
                x, memory, return_attention_scores=return_attention_scores
            )
            if not return_attention_scores:
                return looked
            output, weights = looked
            found["weights"] = ops.mean(weights, axis=1)
            return output

        x = self.add(x, 0, look_back)
        x = self.add(x, 1, look)
        x = self.add(x, 2, self.feed_forward)
        return x, found["cache"], found["weights"]


class TranslationSearch(keras.Model):
    """A search over a network: one call from source to target.

    Args:
        network: The `TranslationNetwork`.
        max_length: Largest number of tokens, END included.
        find: One of the searches of `keras_attention`, with its own arguments bound.
        limits: For every number of tokens of the source, from 0 on, how many its
            translation may have; `max_length` if omitted. `beam_search` alone has them.
        seed_generator: The `keras.random.SeedGenerator` that `find` draws from, if any.
        jit_compile: Whether XLA compiles it.

    Call arguments:
        inputs: Dict with `"source"`, token ids `(B, S)`.

    Returns:
        What the search returns.
    """

    def __init__(
        self,
        network,
        max_length,
        find,
        *,
        limits=None,
        seed_generator=None,
        jit_compile=False,
    ):
        super().__init__(name="translation_search")
        self.network = network
        self.max_length = max_length
        self.find = find
        self.limits = limits
        self.seed_generator = seed_generator
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        network = self.network
        source = inputs["source"]
        memory, state = network.begin(source, self.max_length)
        options = {}
        if self.limits is not None:
            limits = ops.convert_to_tensor(self.limits, dtype="int32")
            options["limit"] = ops.take(limits, ops.shape(source)[1])

        def step(token_ids, state):
            return network.step(token_ids, state, memory)

        return self.find(
            cast_beforehand(step, network),
            state,
            start=START,
            end=END,
            max_length=self.max_length,
            **options,
        )
