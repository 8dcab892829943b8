"""Show, Attend and Tell: a captioner that attends to regions of a CNN's feature grid.

Shapes: B images, K captions of one image, T words, S regions, D depth of a region,
N vocabulary size.
"""

import keras
from keras import ops
from keras_attention_apps.captioner.backbone import Backbone
from keras_attention_apps.common.compiling import cast_beforehand
from keras_attention_apps.common.tokens import END, PAD, START, UNKNOWN

from keras_attention import (
    AdditiveAttention,
    AttentionCell,
    AttentionDecoder,
    HardWeighting,
    ReinforceLoss,
    attention_supervision,
    doubly_stochastic_penalty,
    sequence_crossentropy,
)

# What no caption has among its words.
BANNED = (PAD, START, UNKNOWN)


class DeepOutput(keras.layers.Layer):
    """Scores of the next word from everything that is known at a step.

        hidden = tanh(E y[t-1] + L_h h[t] + L_z z[t])

    to be multiplied with the word embeddings, which serve as the output layer, too.

    Reference: [Xu et al., 2015](https://arxiv.org/abs/1502.03044), equation 7, with
    the tanh of the authors' code.
    """

    def __init__(self, units, dropout, **kwargs):
        super().__init__(**kwargs)
        self.from_output = keras.layers.Dense(units, name="from_output")
        self.from_context = keras.layers.Dense(
            units, use_bias=False, name="from_context"
        )
        self.dropout = keras.layers.Dropout(dropout)

    def build(self, embedded_shape, output_shape, context_shape):
        self.from_output.build(output_shape)
        self.from_context.build(context_shape)
        self.built = True

    def call(self, embedded, output, context, training=None):
        hidden = embedded + self.from_output(output) + self.from_context(context)
        return self.dropout(ops.tanh(hidden), training=training)

    def compute_output_shape(self, embedded_shape, output_shape, context_shape):
        return embedded_shape


class ShowAttendTell(keras.Model):
    """The network: photographs or their features in, word scores and maps out.

    Args:
        config: A `ModelConfig`.
        vocabulary_size: Number of words N.
        backbone_weights: See `Backbone`.
        label_smoothing, doubly_stochastic, supervision, reward_weight, entropy_weight:
            Of the training loss.
        sample_temperature: By which scores are divided before captions are sampled in
            self-critical training.

    Call arguments:
        inputs: Dict with either `"images"` `(B, size, size, 3)` or `"features"`
            `(B, S, D)`, and `"captions"`, token ids `(B, K, T + 1)` from START to
            END, filled with PAD. For self-critical training also `"advantages"`
            `(B, K)`: how much better than expected each caption, a sample, is. To
            supervise the attention also `"regions"` `(B, K, T, S)`: where the object is
            that a word names, zero for other words.

    Returns:
        Dict with `"logits"` `(B, K, T, N)`, `"weights"` `(B, K, T, S)` and what else
        hard attention reports; see `keras_attention.HardWeighting`.

    Reference: [Xu et al., 2015](https://arxiv.org/abs/1502.03044).
    """

    def __init__(
        self,
        config,
        vocabulary_size,
        *,
        backbone_weights=None,
        label_smoothing=0.0,
        doubly_stochastic=0.0,
        supervision=0.0,
        reward_weight=0.1,
        entropy_weight=0.002,
        sample_temperature=1.0,
    ):
        super().__init__(name="show_attend_tell")
        self.config = config
        self.label_smoothing = label_smoothing
        self.doubly_stochastic = doubly_stochastic
        self.supervision = supervision
        self.sample_temperature = sample_temperature
        self.backbone = Backbone(config.backbone, config.image_size, backbone_weights)
        self.region_projection = (
            keras.layers.Dense(config.region_units, "relu", name="region_projection")
            if config.region_units
            else keras.layers.Identity()
        )
        self.region_dropout = keras.layers.Dropout(config.dropout)
        self.initial_output = keras.layers.Dense(
            config.units, "tanh", name="initial_output"
        )
        self.initial_carry = keras.layers.Dense(
            config.units, "tanh", name="initial_carry"
        )
        self.embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size, config.embedding_units
        )
        self.embedding_dropout = keras.layers.Dropout(config.dropout)
        weighting, self.reinforce = "softmax", None
        if config.attention == "hard":
            weighting = HardWeighting(
                config.estimator,
                inference=config.inference,
                soft_probability=config.soft_probability,
            )
            if config.estimator == "score-function":
                self.reinforce = ReinforceLoss(
                    reward_weight=reward_weight, entropy_weight=entropy_weight
                )
        attention = AdditiveAttention(
            config.attention_units, use_bias=True, weighting=weighting
        )
        self.decoder = AttentionDecoder(
            AttentionCell(
                keras.layers.LSTMCell(config.units),
                attention,
                input_in_query=config.input_in_query,
                gate=True,
            )
        )
        self.readout = DeepOutput(config.embedding_units, config.dropout)
        self.words_loss = keras.metrics.Mean(name="words_loss")

    @property
    def dropouts(self):
        """All dropout layers."""
        return (self.region_dropout, self.embedding_dropout, self.readout.dropout)

    def build(self, inputs_shape=None):
        """Create all weights; nothing depends on the inputs' shape."""
        if self.built:
            return
        self.built = True
        config, regions = self.config, (None, None, self.backbone.depth)
        self.region_projection.build(regions)
        regions = self.region_projection.compute_output_shape(regions)
        mean, embedded = (None, regions[-1]), (None, None, config.embedding_units)
        self.initial_output.build(mean)
        self.initial_carry.build(mean)
        self.embedding.build()
        self.decoder.build(embedded, regions)
        self.readout.build(embedded, (*embedded[:2], config.units), regions)

    def regions(self, inputs, training=None):
        """What is attended to, `(B, S, region_units)`."""
        features = inputs.get("features")
        if features is None:
            features = self.backbone(inputs["images"])
        return self.region_dropout(self.region_projection(features), training=training)

    def initial_state(self, regions):
        """State of the LSTM from the mean region, each `(B, units)`."""
        mean = ops.mean(regions, axis=1)
        return {"cell": [self.initial_output(mean), self.initial_carry(mean)]}

    def call(self, inputs, training=None):
        if "advantages" in inputs:
            # Samples come from the network as it is when it does not train.
            training = False
        regions = self.regions(inputs, training)
        words = inputs["captions"][..., :-1]
        embedded = self.embedding_dropout(self.embedding(words), training=training)
        state = keras.tree.map_structure(
            lambda x: ops.repeat(x[:, None], ops.shape(words)[1], axis=1),
            self.initial_state(regions),
        )
        steps = self.decoder(embedded, regions, state, training=training)
        hidden = self.readout(
            embedded, steps["output"], steps["context"], training=training
        )
        reports = self.decoder.cell.attention.step.reports
        reported = {name: steps[name] for name in ("weights", *reports)}
        return {"logits": self.embedding(hidden, reverse=True), **reported}

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Per word: cross-entropy plus lambda times the doubly stochastic penalty.

        Where regions are given, and supervision is wanted, the attention is told them.
        Where regions are drawn, what `ReinforceLoss` adds to the likelihood is there,
        too. With advantages, the cross-entropy of each sampled caption counts as much
        as its advantage: the gradient is an estimate of that of the expected reward
        ([Rennie et al., 2017](https://arxiv.org/abs/1612.00563), equation 8).
        """
        targets = x["captions"][..., 1:]
        mask = targets != PAD
        advantages = x.get("advantages")
        logits = y_pred["logits"]
        if advantages is not None:
            logits = self._logits_of_samples(logits)

        def captions_loss(**options):
            losses = sequence_crossentropy(targets, logits, **options)
            if advantages is not None:
                losses = ops.cast(advantages, losses.dtype)[..., None] * losses
            return ops.sum(ops.where(mask, losses, 0.0), axis=-1)

        smoothing = self.label_smoothing if advantages is None else 0.0
        losses = captions_loss(label_smoothing=smoothing)
        words = ops.maximum(ops.sum(ops.cast(mask, losses.dtype)), 1.0)
        self.words_loss.update_state(ops.sum(losses) / words)
        if self.reinforce and advantages is None:
            # The likelihood that it rewards is not smoothed.
            likelihood = -captions_loss()
            reinforced = self._reinforced(likelihood, mask, y_pred, training)
            losses = losses + likelihood + reinforced
        weights = y_pred.get("probabilities", y_pred["weights"])
        weights = ops.cast(weights, losses.dtype)
        penalty = doubly_stochastic_penalty(weights, mask)
        penalty = ops.where(ops.any(mask, axis=-1), penalty, 0.0)
        losses = losses + self.doubly_stochastic * penalty
        if self.supervision and "regions" in x:
            told = attention_supervision(weights, x["regions"], mask)
            losses = losses + self.supervision * told
        return ops.sum(losses) / words

    def _logits_of_samples(self, logits):
        """What samples are drawn by: sharper scores, of all words but the banned."""
        banned = ops.sum(ops.one_hot(BANNED, logits.shape[-1]), axis=0)
        logits = ops.cast(logits, "float32") / self.sample_temperature
        return logits - 1e9 * banned

    def _reinforced(self, likelihood, mask, y_pred, training):
        """Losses of captions `(B, K)` with what teaches hard attention to choose.

        Args:
            likelihood: Log-likelihoods of the captions, `(B, K)`.
            mask, y_pred, training: As in `compute_loss`.
        """

        def flat(x):
            return ops.reshape(x, (-1, *ops.shape(x)[2:]))

        reinforced = self.reinforce(
            flat(likelihood),
            flat(y_pred["log_probability"]),
            flat(y_pred["entropy"]),
            mask=flat(mask),
            # All steps of a caption are drawn, or none; captions may be missing.
            sampled=ops.logical_and(
                flat(y_pred["sampled"])[:, 0], ops.any(flat(mask), axis=-1)
            ),
            training=training,
        )
        return ops.reshape(reinforced, ops.shape(likelihood))


class CaptionSearch(keras.Model):
    """A search over a `ShowAttendTell`: one call from photographs to captions.

    Args:
        network: The `ShowAttendTell`.
        max_length: Largest number of words.
        find: One of the searches of `keras_attention`, with its own arguments bound.
        maps: What is recorded of each step: `"weights"`, or `"probabilities"`, from
            which hard attention chooses. They are the same for soft attention.
        seed_generator: The `keras.random.SeedGenerator` that `find` draws from, if any.
        jit_compile: Whether XLA compiles it.

    Call arguments:
        inputs: Dict with `"images"` or `"features"`, as for the network.

    Returns:
        What the search returns.
    """

    def __init__(
        self,
        network,
        max_length,
        find,
        *,
        maps="weights",
        seed_generator=None,
        jit_compile=False,
    ):
        super().__init__(name="caption_search")
        self.network = network
        self.max_length = max_length
        self.find = find
        self.maps = maps
        self.seed_generator = seed_generator
        self.built = True
        self.compile(jit_compile=jit_compile)

    def call(self, inputs):
        network = self.network
        regions = network.regions(inputs, training=False)
        memory = network.decoder.cell.attention.memory(regions)

        def step(token_ids, state):
            embedded = network.embedding(token_ids)
            outputs, state = network.decoder.cell(embedded, state, memory)
            hidden = network.readout(embedded, outputs["output"], outputs["context"])
            logits = ops.cast(network.embedding(hidden, reverse=True), "float32")
            maps = outputs.get(self.maps, outputs["weights"])
            return ops.log_softmax(logits, axis=-1), state, maps

        return self.find(
            cast_beforehand(step, network),
            network.initial_state(regions),
            start=START,
            end=END,
            max_length=self.max_length + 1,
            banned=BANNED,
        )
