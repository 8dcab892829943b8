"""Transformer layers, and a decoder that also runs one token at a time.

Shapes: B sources, K target sequences of one source, T target tokens, S positions of a
source, E depth of the layers.
"""

import keras
from keras import ops

from keras_attention import (
    MultiHeadAttention,
    SelfAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from keras_attention_apps.common.errors import UserError

# Number that layer normalisations add to the variance, the default of Keras.
EPSILON = 1e-3


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


def attention_options(depth, heads):
    """Return the options of attention whose heads share a depth."""
    if depth % heads:
        raise UserError(
            "embedding_units must be a multiple of heads. Received: "
            f"{depth} and {heads}"
        )
    return {"num_heads": heads, "key_dim": depth // heads}


def encoder_layer(depth, *, heads, epsilon=EPSILON, **options):
    """Return a `TransformerEncoderLayer` of a depth."""
    attention = SelfAttention(**attention_options(depth, heads))
    return TransformerEncoderLayer(attention, epsilon=epsilon, **options)


def decoder_layer(depth, *, heads, epsilon=EPSILON, **options):
    """Return a `TransformerDecoderLayer` of a depth."""
    heads = attention_options(depth, heads)
    attentions = SelfAttention(causal=True, **heads), MultiHeadAttention(**heads)
    return TransformerDecoderLayer(*attentions, epsilon=epsilon, **options)


def last_norm(*, norm_first=True, epsilon=EPSILON, **_):
    """Return what follows the last layer: a norm, or nothing after post-norm layers.

    The options are those of the layers.
    """
    if not norm_first:
        return keras.layers.Identity()
    return keras.layers.LayerNormalization(epsilon=epsilon)


class TransformerDecoder(keras.layers.Layer):
    """A stack of decoder layers, for whole sequences or step by step.

    A call takes `x` `(B, K, T, E)` or, for one sequence of each source, `(B, T, E)`,
    and the source `values` `(B, S, depth)`. The weights over the source, `(B, [K,] T,
    S)`, are the mean over the heads of all layers but the lowest, which attends to the
    last token rather than the next one; they are only returned if `return_weights`.

    With an `alignment`, a pair of a layer and a head, they are those of this head, or
    the mean over the heads of this layer if the head is `None`.
    """

    def __init__(self, layers, depth, *, alignment=(None, None), **options):
        super().__init__(name="decoder")
        self.layers = [
            decoder_layer(depth, name=f"decoder_{i}", **options) for i in range(layers)
        ]
        self.norm = last_norm(**options)
        self.alignment = alignment
        layer, head = alignment
        if (layer or 0) >= layers or (head or 0) >= options["heads"]:
            raise UserError(
                f"alignment_layer and alignment_head must be below {layers} layers and "
                f"{options['heads']} heads. Received: {layer} and {head}"
            )

    def build(self, x_shape, values_shape):
        for layer in self.layers:
            layer.build(x_shape, values_shape)
        self.norm.build(x_shape)

    def call(self, x, values, value_mask=None, *, return_weights=False, training=None):
        weights = []
        for index, layer in enumerate(self.layers):
            aligns = return_weights and self._aligns(index)
            x, *attention = _results(
                layer(
                    x,
                    values,
                    value_mask=value_mask,
                    return_attention_scores=aligns,
                    training=training,
                )
            )
            weights += attention
        x = self.norm(x)
        return (x, self._alignment(weights)) if return_weights else x

    def memory(self, values, value_mask=None):
        """Return the memory of all layers for `step`, from values `(B, S, depth)`."""
        return [layer.memory(values, value_mask=value_mask) for layer in self.layers]

    def get_initial_cache(self, rows, max_length):
        """Return the empty cache of all layers, tensors `(rows, ...)`."""
        caches = [layer.get_initial_cache(rows, max_length) for layer in self.layers]
        # All layers have the same length.
        lengths = [cache.pop("length") for cache in caches]
        return {"length": lengths[0], "layers": caches}

    def step(self, x, cache, memory):
        """Run one step of K hypotheses, the embedded tokens `(B, K, E)`.

        The cache of all layers has tensors `(B, K, ...)`. Returns outputs `(B, K, E)`,
        the cache, and the weights `(B, K, S)`.
        """
        hypotheses = ops.shape(x)[:2]
        length = _lengths(cache)
        x = x[:, :, None]
        following, weights = [], []
        for index, layer in enumerate(self.layers):
            aligns = self._aligns(index)
            x, *attention, layer_cache = layer(
                x,
                memory=memory[index],
                cache={**cache["layers"][index], "length": length},
                return_attention_scores=aligns,
            )
            longer = layer_cache.pop("length")
            following.append(layer_cache)
            weights += attention
        longer = ops.broadcast_to(longer, hypotheses)
        cache = {"length": longer, "layers": following}
        return self.norm(x[:, :, 0]), cache, self._alignment(weights)[:, :, 0]

    def _aligns(self, index):
        if self.alignment[0] is not None:
            return index == self.alignment[0]
        return index > 0 or len(self.layers) == 1

    def _alignment(self, weights):
        """Return the weights `(..., T, S)` that align, from those `(..., heads, T, S)`.

        `weights` has those of all layers that align.
        """
        head = self.alignment[1]
        if head is not None:
            return weights[0][..., head, :, :]
        return sum(ops.mean(x, axis=-3) for x in weights) / len(weights)


def _results(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)
