"""Transformer layers, and a decoder that also runs one token at a time.

Shapes: B sources, K target sequences of one source, T target tokens, S positions of a
source, E depth of the layers.
"""

import keras
from keras import ops, tree
from keras_attention_apps.common.errors import UserError

from keras_attention import SelfAttention


def embed(embedding, positions, token_ids):
    """Return embeddings of token ids `(..., T)` times sqrt(E), with their positions."""
    return positions(embedding(token_ids) * embedding.output_dim**0.5)


def position_table(embedding, positions, max_length):
    """Return the encodings of the first positions, `(max_length, E)`."""
    zeros = ops.zeros((1, max_length, embedding.output_dim), embedding.compute_dtype)
    return positions(zeros)[0]


def embed_step(embedding, table, token_ids, cache):
    """Return what `embed` returns for the last tokens of hypotheses, `(B, K)`."""
    encodings = ops.take(table, _lengths(cache), axis=0)
    return embedding(token_ids) * embedding.output_dim**0.5 + encodings


def _lengths(cache):
    """Return the lengths of hypotheses, `(B, K)`, or their one length if B is 1."""
    lengths = cache["length"]
    sources = lengths.shape[0]
    is_one = isinstance(sources, int) and sources == 1
    return lengths[0, 0] if is_one else lengths


class TransformerLayer(keras.layers.Layer):
    """Base of encoder and decoder layers: norms, dropout and feed-forward network.

    `depth` is E, a multiple of `heads`, and `units` are those of the hidden layer.
    Layer normalisation comes before each sublayer (pre-norm).

    Reference: [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3;
    pre-norm: [Xiong et al., 2020](https://arxiv.org/abs/2002.04745), section 3.
    """

    def __init__(self, depth, sublayers, *, heads, units, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        if depth % heads:
            raise UserError(
                "embedding_units must be a multiple of heads. Received: "
                f"{depth} and {heads}"
            )
        self._attention_options = {"num_heads": heads, "key_dim": depth // heads}
        self.norms = [keras.layers.LayerNormalization() for _ in range(sublayers)]
        self.dropout = keras.layers.Dropout(dropout)
        self.widen = keras.layers.Dense(units, "relu", name="widen")
        self.narrow = keras.layers.Dense(depth, name="narrow")

    def build_feed_forward(self, x_shape):
        """Build norms and feed-forward network; Keras would trace the call for them."""
        for norm in self.norms:
            norm.build(x_shape)
        self.widen.build(x_shape)
        self.narrow.build((*x_shape[:-1], self.widen.units))

    def attention(self, **options):
        """Return a `SelfAttention` of this layer's heads."""
        return SelfAttention(**self._attention_options, **options)

    def add(self, x, index, sublayer, training=None):
        """Apply a sublayer with pre-norm and a residual connection."""
        return x + self.dropout(sublayer(self.norms[index](x)), training=training)

    def feed_forward(self, x):
        return self.narrow(self.widen(x))


class EncoderLayer(TransformerLayer):
    """Self-attention and a feed-forward network, with residual connections."""

    def __init__(self, depth, **options):
        super().__init__(depth, 2, **options)
        self.self_attention = self.attention()

    def build(self, x_shape):
        self.build_feed_forward(x_shape)
        self.self_attention.build(x_shape)

    def call(self, x, mask, training=None):
        x = self.add(x, 0, lambda x: self.self_attention(x, mask=mask), training)
        return self.add(x, 1, self.feed_forward, training)


class DecoderLayer(TransformerLayer):
    """Causal self-attention, attention to the source, and a feed-forward network.

    A call takes `x` `(B * K, T, E)` and the source `values` `(B, S, depth)`, and
    returns `x` and the mean weights of all heads over the source, `(B, K * T, S)`, or
    `None`.
    """

    def __init__(self, depth, **options):
        super().__init__(depth, 3, **options)
        self.self_attention = self.attention(causal=True)
        self.source_attention = self.attention()

    def build(self, x_shape, values_shape):
        self.build_feed_forward(x_shape)
        self.self_attention.build(x_shape)
        self.source_attention.build((None, *x_shape[1:]), values_shape)

    def call(self, x, values, value_mask=None, *, return_weights=False, training=None):
        memory = self.source_attention.memory(values, value_mask=value_mask)
        return self._sublayers(x, self.self_attention, memory, return_weights, training)

    def step(self, x, cache, memory, return_weights):
        """Run one step of K hypotheses, `x` of `(B, K, E)`; the cache has `B * K` rows.

        Returns `x`, the cache, and the mean weights of all heads `(B, K, S)` or `None`.
        """

        def attend_to_prefix(x):
            nonlocal cache
            rows = ops.reshape(x, (-1, x.shape[-1]))
            output, cache = self.self_attention(rows, cache=cache)
            return ops.reshape(output, ops.shape(x))

        x, weights = self._sublayers(x, attend_to_prefix, memory, return_weights)
        return x, cache, weights

    def _sublayers(self, x, attend_to_prefix, memory, return_weights, training=None):
        weights = None

        def attend_to_source(x):
            nonlocal weights
            # The tokens of all sequences of a source are queries to one memory.
            sources = ops.shape(memory["keys"])[0]
            outputs, _ = self.source_attention.step(
                ops.reshape(x, (sources, -1, x.shape[-1])),
                memory,
                return_weights=return_weights,
                training=training,
            )
            weights = outputs.get("weights")
            return ops.reshape(outputs["context"], ops.shape(x))

        x = self.add(x, 0, attend_to_prefix, training)
        x = self.add(x, 1, attend_to_source, training)
        return self.add(x, 2, self.feed_forward, training), weights


class TransformerDecoder(keras.layers.Layer):
    """A stack of decoder layers, for whole sequences or step by step.

    The weights over the source are the mean over the heads of all layers but the
    lowest, which attends to the last token rather than the next one. A call is that of
    `DecoderLayer`; the weights are only returned if `return_weights`.
    """

    def __init__(self, layers, depth, **options):
        super().__init__(name="decoder")
        self.layers = [
            DecoderLayer(depth, name=f"decoder_{i}", **options) for i in range(layers)
        ]
        self.norm = keras.layers.LayerNormalization()

    def build(self, x_shape, values_shape):
        for layer in self.layers:
            layer.build(x_shape, values_shape)
        self.norm.build(x_shape)

    def call(self, x, values, value_mask=None, *, return_weights=False, training=None):
        weights = []
        for index, layer in enumerate(self.layers):
            aligns = return_weights and self._aligns(index)
            x, attention = layer(
                x, values, value_mask, return_weights=aligns, training=training
            )
            if aligns:
                weights.append(attention)
        x = self.norm(x)
        return (x, sum(weights) / len(weights)) if return_weights else x

    def memory(self, values, value_mask=None):
        """Return the memory of all layers for `step`, from values `(B, S, depth)`."""
        return [
            layer.source_attention.memory(values, value_mask=value_mask)
            for layer in self.layers
        ]

    def get_initial_cache(self, rows, max_length):
        """Return the empty cache of all layers, tensors `(rows, ...)`."""
        caches = [
            layer.self_attention.get_initial_cache(rows, max_length)
            for layer in self.layers
        ]
        # All layers have the same length.
        lengths = [cache.pop("length") for cache in caches]
        return {"length": lengths[0], "layers": caches}

    def step(self, x, cache, memory):
        """Run one step of K hypotheses, the embedded tokens `(B, K, E)`.

        The cache of all layers has tensors `(B, K, ...)`. Returns outputs `(B, K, E)`,
        the cache, and the weights `(B, K, S)`.
        """
        hypotheses = ops.shape(x)[:2]
        rows = tree.map_structure(
            lambda x: ops.reshape(x, (-1, *ops.shape(x)[2:])), cache["layers"]
        )
        length = _lengths(cache)
        length = ops.reshape(length, (-1,)) if len(length.shape) else length
        following, weights = [], []
        for index, layer in enumerate(self.layers):
            aligns = self._aligns(index)
            own = {**rows[index], "length": length}
            x, own, attention = layer.step(x, own, memory[index], aligns)
            longer = own.pop("length")
            following.append(own)
            if aligns:
                weights.append(attention)
        following = tree.map_structure(
            lambda x: ops.reshape(x, (*hypotheses, *ops.shape(x)[1:])), following
        )
        longer = ops.reshape(longer, (hypotheses[0], -1))
        cache = {"length": ops.broadcast_to(longer, hypotheses), "layers": following}
        return self.norm(x), cache, sum(weights) / len(weights)

    def _aligns(self, index):
        return index > 0 or len(self.layers) == 1
