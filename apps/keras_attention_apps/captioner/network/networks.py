"""The networks of captioners: image encoder, embeddings, decoder and loss.

Shapes: B images, K captions of one image, T words, S regions, D depth of a region,
E depth of an embedding, N vocabulary size.
"""

import dataclasses

import keras
from keras import ops

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    Dropout,
    HardWeighting,
    PositionEncoding,
    ReinforceLoss,
    attention_supervision,
    doubly_stochastic_penalty,
    sequence_crossentropy,
)
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.captioner.vocabulary import Vocabulary
from keras_attention_apps.common.distribution import share_of_replica
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network import decoder_network
from keras_attention_apps.common.network.transformer import (
    TransformerDecoder,
    embed,
    embed_step,
    position_table,
)
from keras_attention_apps.common.tokenizer import PAD


def build_network(config, vocabulary_size, **options):
    """Build the network of a `ModelConfig`, with all its weights."""
    is_transformer = config.decoder == "transformer"
    kind = TransformerCaptioner if is_transformer else ShowAttendTell
    network = kind(config, vocabulary_size, **options)
    network.build()
    return network


@dataclasses.dataclass
class LossOptions:
    """Options of the training loss; see the options of a training."""

    label_smoothing: float = 0.0
    doubly_stochastic: float = 0.0
    attention_entropy: float = 0.0
    attention_similarity: float = 0.0
    supervision: float = 0.0
    reward_weight: float = 0.1
    entropy_weight: float = 0.002


class CaptionNetwork(decoder_network.DecoderNetwork):
    """Base class of the networks: images or their features in, logits and maps out.

    Subclasses call `add_embeddings`, and implement `build_decoder`, `decode`,
    `begin` and `decoder_step`. A `backbone` is that of another network, to share it.

    Call arguments:
        inputs: Dict with either `"images"` `(B, size, size, 3)` or `"features"`
            `(B, S, D)`, and `"captions"`, token ids `(B, K, T + 1)` from START to END,
            padded with PAD. For self-critical training also `"advantages"`
            `(B, K)`, those of sampled captions. For attention supervision also
            `"coverage"` `(B, K, T, S)`: the share of each region that the object of a
            word covers, zero for words without an object.

    Returns:
        Dict with `"logits"` `(B, K, T, N)`, `"weights"` `(B, K, T, S)` and the further
        outputs of hard attention; see `keras_attention.HardWeighting`.
    """

    built: bool
    # The `ReinforceLoss` of hard attention.
    reinforce: ReinforceLoss | None = None

    def __init__(
        self,
        config,
        *,
        backbone_weights=None,
        backbone=None,
        sample_temperature=1.0,
        **loss_options,
    ):
        super().__init__(
            config, sample_temperature=sample_temperature, name="captioner"
        )
        self.loss_options = LossOptions(**loss_options)
        self.backbone = backbone or Backbone(
            config.backbone, config.image_size, backbone_weights
        )
        self.region_projection = (
            keras.layers.Dense(config.region_units, "relu", name="region_projection")
            if config.region_units
            else keras.layers.Identity()
        )
        self.region_dropout = Dropout(config.dropout)
        self.words_loss = keras.metrics.Mean(name="words_loss")

    def add_embeddings(self, vocabulary_size, initializer="uniform"):
        """Create the word embeddings, which the output layer shares."""
        self.embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            self.config.embedding_units,
            embeddings_initializer=initializer,
        )
        self.embedding_dropout = Dropout(self.config.dropout)

    @property
    def dropouts(self):
        """All dropout layers but those of the CNN."""
        return [self.region_dropout, self.embedding_dropout]

    def build(self, inputs_shape=None):
        """Create all weights; nothing depends on the inputs' shape."""
        if self.built:
            return
        regions = (None, None, self.backbone.depth)
        self.region_projection.build(regions)
        self.embedding.build()
        self.built = True
        regions = self.region_projection.compute_output_shape(regions)
        self.build_decoder((None, None, self.config.embedding_units), regions)

    def build_decoder(self, embedded, regions):
        """Create the other weights, for the shapes `(B, T, E)` and `(B, S, D)`."""
        raise NotImplementedError

    def regions(self, inputs, training=None):
        """Return the regions, the values of the attention, `(B, S, region_units)`."""
        features = inputs.get("features")
        if features is None:
            features = self.backbone(inputs["images"])
        return self.region_dropout(self.region_projection(features), training=training)

    def call(self, inputs, training=None):
        if "advantages" in inputs:
            # Samples are drawn in inference mode, without dropout.
            training = False
        regions = self.regions(inputs, training)
        words = inputs["captions"][..., :-1]
        hidden, reported = self.decode(words, regions, training)
        return {"logits": self.embedding(hidden, reverse=True), **reported}

    def decode(self, words, regions, training=None):
        """Return inputs of the output layer `(B, K, T, E)`, and the attention.

        `words` are token ids `(B, K, T)`, and regions are `(B, S, region_units)`. The
        attention is a dict with `"weights"` `(B, K, T, S)` and its further outputs.
        """
        raise NotImplementedError

    def step(self, token_ids, state, memory, maps="weights"):
        """Run one step of a search; see `keras_attention.beam_search`.

        The maps are the `"weights"`, or the `"probabilities"` from which hard attention
        chooses a region.
        """
        hidden, state, reported = self.decoder_step(token_ids, state, memory)
        logits = ops.cast(self.embedding(hidden, reverse=True), "float32")
        weights = reported.get(maps, reported["weights"])
        return ops.log_softmax(logits, axis=-1), state, weights

    def decoder_step(self, token_ids, state, memory):
        """Return inputs of the output layer `(B, K, E)`, the state and the attention.

        The attention is a dict with `"weights"` `(B, K, S)`, as in `decode`.
        """
        raise NotImplementedError

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Return cross-entropy plus weighted penalties of the attention, per word.

        These are the doubly stochastic penalty, the entropy and the similarity.
        With `"coverage"` and a weight of supervision, the loss of attention supervision
        is added; with sampled regions, that of `ReinforceLoss`. With advantages, the
        cross-entropy of each sampled caption is weighted by its advantage: the gradient
        is an estimate of that of the expected reward
        ([Rennie et al., 2017](https://arxiv.org/abs/1612.00563), equation 8).
        """
        options = self.loss_options
        targets = x["captions"][..., 1:]
        mask = targets != PAD
        advantages = x.get("advantages")
        logits = y_pred["logits"]
        if advantages is not None:
            # Samples are drawn with a temperature and without banned words.
            banned = ops.sum(ops.one_hot(Vocabulary.banned, logits.shape[-1]), axis=0)
            logits = ops.cast(logits, "float32") / self.sample_temperature
            logits = logits - 1e9 * banned

        def captions_loss(**options):
            losses = sequence_crossentropy(targets, logits, **options)
            if advantages is not None:
                losses = ops.cast(advantages, losses.dtype)[..., None] * losses
            return ops.sum(ops.where(mask, losses, 0.0), axis=-1)

        smoothing = options.label_smoothing if advantages is None else 0.0
        losses = captions_loss(label_smoothing=smoothing)
        words = ops.sum(ops.cast(mask, losses.dtype))
        divisor = ops.maximum(words, 1.0)
        self.words_loss.update_state(ops.sum(losses) / divisor, sample_weight=words)
        if self.reinforce and advantages is None:
            # The reward is the likelihood without label smoothing.
            likelihood = -captions_loss()
            reinforced = _reinforced(self.reinforce, likelihood, mask, y_pred, training)
            losses = losses + likelihood + reinforced
        weights = y_pred.get("probabilities", y_pred["weights"])
        weights = ops.cast(weights, losses.dtype)
        penalty = doubly_stochastic_penalty(weights, mask)
        penalty = ops.where(ops.any(mask, axis=-1), penalty, 0.0)
        losses = losses + options.doubly_stochastic * penalty
        if options.attention_entropy:
            entropies = ops.where(mask, attention_entropy(weights), 0.0)
            total = ops.sum(entropies, axis=-1)
            losses = losses + options.attention_entropy * total
        if options.attention_similarity:
            similarity = attention_similarity(weights, mask)
            total = similarity * ops.sum(ops.cast(mask, losses.dtype), axis=-1)
            losses = losses + options.attention_similarity * total
        if options.supervision and "coverage" in x:
            supervised = attention_supervision(weights, x["coverage"], mask)
            losses = losses + options.supervision * supervised
        loss = ops.sum(losses) / divisor
        self.mean_loss.update_state(loss, sample_weight=words)
        loss = share_of_replica(words) * loss
        self.step_loss.update_state(loss)
        return loss


def attention_entropy(weights):
    """Return the entropy of attention weights `(..., S)` in nats, `(...)`."""
    # The gradient of x log x is infinite at 0.
    logarithms = ops.log(ops.maximum(weights, 1e-9))
    return -ops.sum(weights * logarithms, axis=-1)


def attention_similarity(weights, mask):
    """Return the mean cosine similarity between the maps of two words of a caption.

    `weights` are `(..., T, S)`, and the boolean mask is `(..., T)`. The similarity,
    `(...)`, is 0 for captions of one word.
    """
    mask = ops.cast(mask, weights.dtype)
    squares = ops.sum(ops.square(weights), axis=-1)
    directions = weights * (mask / ops.sqrt(squares))[..., None]
    # The square of the sum has each pair twice, and each word with itself.
    total = ops.sum(ops.square(ops.sum(directions, axis=-2)), axis=-1)
    words = ops.sum(mask, axis=-1)
    return ops.maximum(total - words, 0.0) / ops.maximum(words * (words - 1), 1.0)


def _reinforced(loss, likelihood, mask, y_pred, training):
    """Return the losses of hard attention by a `ReinforceLoss`, `(B, K)`."""

    def flat(x):
        return ops.reshape(x, (-1, *ops.shape(x)[2:]))

    reinforced = loss(
        flat(likelihood),
        flat(y_pred["log_probability"]),
        flat(y_pred["entropy"]),
        mask=flat(mask),
        # All steps of a caption are sampled, or none; captions may be missing.
        sampled=ops.logical_and(
            flat(y_pred["sampled"])[:, 0], ops.any(flat(mask), axis=-1)
        ),
        training=training,
    )
    return ops.reshape(reinforced, ops.shape(likelihood))


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
        cell = AttentionCell(
            keras.layers.LSTMCell(config.units),
            attention,
            input_in_query=config.input_in_query,
            gate=True,
        )
        self.decoder = AttentionDecoder(cell)
        self.readout = decoder_network.DeepOutput(
            config.embedding_units, dropout=config.dropout
        )

    @property
    def dropouts(self):
        return [*super().dropouts, self.readout.dropout]

    def build_decoder(self, embedded, regions):
        mean = (None, regions[-1])
        self.initial_output.build(mean)
        self.initial_carry.build(mean)
        self.decoder.build(embedded, regions)
        # The cell has created its weights.
        self.decoder.cell.attention.built = True
        self.readout.build(embedded, (*embedded[:2], self.config.units), regions)

    def initial_state(self, regions):
        """Return the initial state of the LSTM, from the mean region."""
        mean = ops.mean(regions, axis=1)
        return {"cell": [self.initial_output(mean), self.initial_carry(mean)]}

    def reported(self, outputs):
        """Select the weights and the reports of the attention from all outputs."""
        return {name: outputs[name] for name in ("weights", *self.decoder.cell.reports)}

    def decode(self, words, regions, training=None):
        embedded = self.embedding_dropout(self.embedding(words), training=training)
        state = keras.tree.map_structure(
            lambda x: ops.repeat(x[:, None], ops.shape(words)[1], axis=1),
            self.initial_state(regions),
        )
        steps = self.decoder(embedded, regions, state, training=training)
        hidden = self.readout(
            embedded, steps["output"], steps["context"], training=training
        )
        return hidden, self.reported(steps)

    def begin(self, inputs, max_length=None):
        regions = self.regions(inputs, training=False)
        memory = self.decoder.cell.attention.memory(regions)
        return memory, self.initial_state(regions)

    def decoder_step(self, token_ids, state, memory):
        embedded = self.embedding(token_ids)
        outputs, state = self.decoder.cell(embedded, state, memory)
        hidden = self.readout(embedded, outputs["output"], outputs["context"])
        return hidden, state, self.reported(outputs)


class TransformerCaptioner(CaptionNetwork):
    """Self-attention over the words, and attention to the regions in every layer.

    The maps are the mean over the heads of all layers but the lowest; see
    `TransformerDecoder`. See `CaptionNetwork` for arguments and call.

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
        sublayers = self.decoder.layers
        return [*super().dropouts, *(layer.residual_dropout for layer in sublayers)]

    def build_decoder(self, embedded, regions):
        self.decoder.build(embedded, regions)
        self.positions.built = True

    def decode(self, words, regions, training=None):
        embedded = embed(self.embedding, self.positions, words)
        embedded = self.embedding_dropout(embedded, training=training)
        hidden, weights = self.decoder(
            embedded, regions, return_weights=True, training=training
        )
        return hidden, {"weights": weights}

    def begin(self, inputs, max_length):
        regions = self.regions(inputs, training=False)
        cache = self.decoder.get_initial_cache(ops.shape(regions)[0], max_length)
        memory = {
            "layers": self.decoder.memory(regions),
            "positions": position_table(self.embedding, self.positions, max_length),
        }
        return memory, cache

    def decoder_step(self, token_ids, state, memory):
        embedded = embed_step(self.embedding, memory["positions"], token_ids, state)
        hidden, state, weights = self.decoder.step(embedded, state, memory["layers"])
        return hidden, state, {"weights": weights}


class CaptionEnsemble(decoder_network.Ensemble):
    """Caption networks that share one CNN, which sees every image once.

    The maps are those of the first network: the mean of several says less about where
    one of them looks for a word.
    """

    @property
    def backbone(self):
        """The CNN of all networks."""
        return self.networks[0].backbone

    def begin(self, inputs, max_length):
        if "features" not in inputs:
            inputs = {"features": self.backbone(inputs["images"])}
        return super().begin(inputs, max_length)

    def steps(self, memory, **options):
        first, *others = super().steps(memory, **options)
        maps = []

        def keeping(*arguments):
            result = first(*arguments)
            maps.append(result[-1])
            return result

        def following(step):
            def follow(*arguments):
                log_probs, state, _ = step(*arguments)
                return log_probs, state, maps[-1]

            return follow

        return [keeping, *map(following, others)]
