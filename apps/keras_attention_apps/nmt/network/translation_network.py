"""The base of all networks: embeddings, the output layer, copying and the loss.

Shapes: B sentences, K hypotheses, T target tokens, S source tokens, E depth of an
embedding, N vocabulary size.
"""

import math

import keras
import numpy as np
from keras import ops, tree

from keras_attention import (
    Dropout,
    PointerGenerator,
    linear_crossentropy,
    sequence_crossentropy,
)
from keras_attention_apps.common.distribution import share_of_replica
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import DecoderNetwork
from keras_attention_apps.common.tokenizer import PAD, UNKNOWN
from keras_attention_apps.nmt.subwords import NONE, OUTSIDE, boundaries


def word_numbers(source, kinds):
    """Return the numbers of words of several subwords, and where these words begin.

    Both are `(B, S)`; the number is `NONE` for a subword outside of such words.
    """
    kinds = ops.take(ops.convert_to_tensor(kinds, dtype="int32"), source, axis=0)
    before = ops.pad(kinds[:, :-1], [[0, 0], [1, 0]], constant_values=OUTSIDE)
    begins, continues = boundaries(kinds, before)
    after = ops.pad(ops.cast(continues, "int32")[:, 1:], [[0, 0], [0, 1]])
    begins = begins & (after > 0)
    numbers = ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1
    return ops.where(begins | continues, numbers, NONE), begins


def extended_ids(source, kinds):
    """Return the ids under which each position is copied, `(B, S)`.

    The first subword of a word of several subwords has the extended id of the word.
    """
    numbers, begins = word_numbers(source, kinds)
    return ops.where(begins, len(kinds) + numbers, source)


# Log-probability of the least probable target whose loss has a gradient.
MIN_LOG_PROB = math.log(1e-30)


class TranslationNetwork(DecoderNetwork):
    """Base class of the translation networks.

    Subclasses implement:

    - `encode(source, training)`, which returns the memory of the decoder: a dict of
      tensors `(B, ...)`;
    - `decode(target, memory, return_weights, training)`, which returns inputs of the
      output layer, `(B, T, E)`, and the attention that `step` returns, `(B, T, S)`, for
      token ids `(B, T)`; the attention may be `None` unless it is requested;
    - `start(inputs, max_length)`, which returns the memory of a search and its first
      state;
    - `decoder_step(token_ids, state, memory)`, which returns inputs of the output layer
      `(B, K, E)`, the state and the attention of one step.

    With copying, a token of a target or of a search may be an extended id; see
    `subwords.Copying`. The decoder reads it as UNKNOWN. `kinds` are the kinds of the
    subwords.

    Call arguments:
        inputs: Dict with token ids, padded with PAD: `"source"` `(B, S)`, and
            `"target"` `(B, T + 1)` from START to END. In self-critical training
            `"target"` holds K samples of each sentence, `(B, K, T + 1)`, and
            `"advantages"` theirs, `(B, K)`.

    Returns:
        Inputs of the output layer, `(B, T, E)` or `(B * K, T, E)`, for the tokens after
        START. With copying, a dict of these as `"hidden"`, the attention as
        `"weights"`, `(B, T, S)`, and the ids of the source as `"source_ids"`, `(B, S)`.
    """

    def __init__(self, config, vocabulary_size, *, label_smoothing=0.0, **options):
        super().__init__(config, name="translator", **options)
        self.label_smoothing = label_smoothing
        deviation = config.embedding_units**-0.5
        self.embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            config.embedding_units,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=deviation),
            name="embedding",
        )
        self.embedding_dropout = Dropout(config.dropout)
        self.output_dropout = Dropout(config.output_dropout)
        self.kinds = np.full(vocabulary_size, OUTSIDE, "int32")
        self.pointer_generator = None
        if config.copy:
            if config.attention == "none":
                raise UserError(
                    "--model.copy needs a model with attention. Received: "
                    "attention=none"
                )
            self.pointer_generator = PointerGenerator(config.extra_ids, name="copying")
            depths = vocabulary_size, None, None, config.embedding_units
            self.pointer_generator.build(*((None, depth) for depth in depths))

    def build(self, inputs_shape):
        """Do nothing: the first call creates all weights, without a trace by Keras."""

    def call(self, inputs, training=None):
        target, are_samples = inputs["target"], "advantages" in inputs
        if are_samples:
            # Samples are drawn in inference mode, without dropout.
            training = False
        memory = self.encode(inputs["source"], training=training)
        if self.pointer_generator:
            memory["source_ids"] = extended_ids(inputs["source"], self.kinds)
        if are_samples:
            memory = tree.map_structure(
                lambda x: ops.repeat(x, ops.shape(target)[1], axis=0), memory
            )
        hidden, weights = self.decode(
            self._decoder_inputs(_rows(target)[:, :-1]),
            memory,
            return_weights=self.config.copy,
            training=training,
        )
        if not self.pointer_generator:
            return hidden
        source_ids = memory["source_ids"]
        return {"hidden": hidden, "weights": weights, "source_ids": source_ids}

    def _decoder_inputs(self, token_ids):
        """Replace extended ids by UNKNOWN, which has an embedding."""
        if not self.pointer_generator:
            return token_ids
        return ops.where(token_ids < len(self.kinds), token_ids, UNKNOWN)

    def begin(self, inputs, max_length):
        memory, state = self.decoder_start(inputs, max_length)
        memory = {"decoder": memory}
        if self.pointer_generator:
            memory["source_ids"] = extended_ids(inputs["source"], self.kinds)
        return memory, state

    def step(self, token_ids, state, memory):
        hidden, state, weights = self.decoder_step(
            self._decoder_inputs(token_ids), state, memory["decoder"]
        )
        logits = self.logits(hidden)
        if not self.pointer_generator:
            return ops.log_softmax(logits, axis=-1), state, weights
        # The switch of the `PointerGenerator` reads the hidden vector.
        inputs = logits, weights, memory["source_ids"], hidden
        return self.pointer_generator(*inputs), state, weights

    def logits(self, hidden, token_ids=None):
        """Return the logits `(..., N)`, in float32 at least.

        Those of some subwords alone, `(B, C)`, others for each sentence, are
        `(B, K, C)`.
        """
        if token_ids is None:
            logits = self.embedding(hidden, reverse=True)
        else:
            logits = self._logits_of(hidden, token_ids)
        dtype = keras.backend.standardize_dtype(logits.dtype)
        return logits if dtype == "float64" else ops.cast(logits, "float32")

    def _logits_of(self, hidden, token_ids):
        embeddings = ops.cast(self.embedding.embeddings, hidden.dtype)
        if token_ids.shape[0] == 1:
            # LiteRT multiplies matrices in 8 bits, but not stacks of them.
            rows = ops.take(embeddings, ops.reshape(token_ids, (-1,)), axis=0)
            return (hidden[0] @ ops.transpose(rows))[None]
        rows = ops.take(embeddings, token_ids, axis=0)
        return hidden @ ops.transpose(rows, (0, 2, 1))

    def output_layer(self, hidden):
        """Return hidden vectors and embeddings whose products are the logits."""
        return hidden, self.embedding.embeddings

    def forced(self, inputs):
        """Return the log-probabilities of given targets, `(B, T)`, and the attention.

        The inputs are those of a call, and the attention is `(B, T, S)`: the same as
        in the steps of a search that finds these targets.
        """
        source, target = inputs["source"], inputs["target"]
        memory = self.encode(source)
        hidden, weights = self.decode(
            self._decoder_inputs(target[:, :-1]), memory, return_weights=True
        )
        logits, following = self.logits(hidden), target[:, 1:]
        if self.pointer_generator:
            source_ids = extended_ids(source, self.kinds)
            log_probs = self.pointer_generator(
                logits, weights, source_ids, hidden, targets=following
            )
        else:
            chosen = ops.take_along_axis(logits, following[..., None], axis=-1)
            log_probs = chosen[..., 0] - ops.logsumexp(logits, axis=-1)
        return log_probs, weights

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        """Return the mean cross-entropy of a token.

        With advantages, the loss of each sample is weighted by its advantage: the
        gradient is an estimate of that of the expected reward
        ([Rennie et al., 2017](https://arxiv.org/abs/1612.00563), equation 8).
        """
        targets = _rows(x["target"])[:, 1:]
        mask = targets != PAD
        tokens = ops.sum(ops.cast(mask, "float32"))
        if self.pointer_generator:
            losses = self._copying_losses(self.pointer_generator, x, targets, y_pred)
            loss = ops.sum(ops.where(mask, losses, 0.0)) / ops.maximum(tokens, 1.0)
        else:
            options = {"label_smoothing": self.label_smoothing}
            hidden, table = self.output_layer(y_pred)
            if "advantages" in x:
                # With it, the bias of the logits is divided, too.
                hidden = hidden / self.sample_temperature
                options = {"weights": ops.reshape(x["advantages"], (-1, 1))}
            loss = linear_crossentropy(targets, hidden, table, mask, **options)
        tokens = ops.cast(tokens, loss.dtype)
        self.mean_loss.update_state(loss, sample_weight=tokens)
        loss = share_of_replica(tokens) * loss
        self.step_loss.update_state(loss)
        return loss

    def _copying_losses(self, pointer_generator, x, targets, y_pred):
        """Return the loss of every token, `(B, T)`, of a network that copies.

        Labels are smoothed over the vocabulary, not over extended ids.
        """
        hidden = y_pred["hidden"]
        logits = self.logits(hidden)
        inputs = logits, y_pred["weights"], y_pred["source_ids"], hidden
        if "advantages" in x:
            log_probs = pointer_generator(*inputs) / self.sample_temperature
            losses = sequence_crossentropy(targets, log_probs)
            return losses * ops.cast(ops.reshape(x["advantages"], (-1, 1)), "float32")
        log_probs = pointer_generator(*inputs, targets=targets)
        losses = -ops.maximum(log_probs, MIN_LOG_PROB)
        if self.label_smoothing:
            spread = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
            losses = losses + self.label_smoothing * (spread - losses)
        return losses


class ForcedDecoding(keras.Model):
    """Forced decoding as a compiled model: see `TranslationNetwork.forced`."""

    def __init__(self, network, **options):
        super().__init__(name="forced_decoding")
        self.network = network
        self.built = True
        self.compile(**options)

    def call(self, inputs):
        log_probs, weights = self.network.forced(inputs)
        return {"token_log_probs": log_probs, "weights": weights}


def _rows(target):
    """Reshape token ids `(B, T)` or `(B, K, T)` to `(rows, T)`."""
    return ops.reshape(target, (-1, ops.shape(target)[-1]))
