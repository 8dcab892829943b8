"""Memory and step of an attention of several heads.

Shapes: B batch, T queries, S positions, N heads, Q query depth, V value depth, D depth
of a head.
"""

import keras
from keras import ops

from keras_attention import acceleration
from keras_attention.layers.base import (
    BaseMemory,
    BaseStep,
)
from keras_attention.layers.projections import project_rows
from keras_attention.lengths import is_zero, may_be_zero
from keras_attention.ops.masks import clear_masked, combine_masks
from keras_attention.ops.weightings import (
    masked_entmax15,
    masked_softmax,
    masked_sparsemax,
)

# Functions `(scores, mask) -> weights` over the last axis.
WEIGHTINGS = {
    "softmax": masked_softmax,
    "sparsemax": masked_sparsemax,
    "entmax": masked_entmax15,
}


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadMemory(BaseMemory):
    """Memory of an attention of several heads; see `BaseMemory` for the call.

    Args:
        num_heads: Number of heads N.
        key_dim, value_dim: Depth of a key and of a value in one head.
        projection: Dict of `keras.layers.Dense` arguments, for both projections.

    Returns:
        Dict with `"keys"` `(B, N, S, key_dim)`, `"values"` `(B, N, S, value_dim)`
        and, if there is a mask, the boolean `"mask"` `(B, S)`.
    """

    def __init__(self, num_heads, key_dim, value_dim, projection, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.projection = projection
        self.key_projection = _projection(self, "key_projection", num_heads * key_dim)
        self.value_projection = _projection(
            self, "value_projection", num_heads * value_dim
        )

    def build(self, value_shape, key_shape=None):
        self.key_projection.build((None, (key_shape or value_shape)[-1]))
        self.value_projection.build((None, value_shape[-1]))
        self.built = True

    def project(self, value, key):
        keys = project_rows(self.key_projection, key)
        values = project_rows(self.value_projection, value)
        return {
            "keys": _split_heads(keys, self.num_heads),
            "values": _split_heads(values, self.num_heads),
        }

    def shapes(self, value_shape, key_shape=None):
        heads = (*value_shape[:1], self.num_heads, *value_shape[1:2])
        return {"values": (*heads, self.value_dim), "keys": (*heads, self.key_dim)}

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "projection": dict(self.projection),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MultiHeadStep(BaseStep):
    """Step of an attention of several heads: project, attend, join, project.

    Without weights in the outputs, the backend's fused attention may be used.
    See `BaseStep` for the call.

    Args:
        num_heads: Number of heads N.
        key_dim: Depth of a query in one head.
        output_dim: Depth of the output; `None` for the depth of the queries.
        use_output_projection: Whether the joined heads are projected.
        scale: Number that multiplies the scores.
        weighting: `"softmax"`, `"sparsemax"` or `"entmax"`.
        dropout: Rate at which weights are dropped in training.
        seed: Integer, for the dropout.
        projection: Dict of `keras.layers.Dense` arguments, for both projections.

    Call arguments:
        causal: Whether query t sees the positions up to t only.
        average_heads: Whether `"weights"` is the mean over the heads `(B, T, S)`, or
            the weights of each head `(B, N, T, S)`.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        output_dim,
        use_output_projection,
        scale,
        weighting,
        dropout,
        seed,
        projection,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.output_dim = output_dim
        self.use_output_projection = use_output_projection
        self.scale = scale
        self.weighting = weighting
        self.dropout = dropout
        self.seed = seed
        self.projection = projection
        self.query_projection = _projection(
            self, "query_projection", num_heads * key_dim
        )
        self.weight_dropout = keras.layers.Dropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )

    def build(self, query_shape, memory_shape):
        self.query_projection.build((None, query_shape[-1]))
        if self.use_output_projection:
            depth = self.context_depth(query_shape[-1], memory_shape)
            self.output_projection = _projection(self, "output_projection", depth)
            joined = self.num_heads * memory_shape["values"][-1]
            self.output_projection.build((None, joined))
        self.built = True

    def call(
        self,
        query,
        memory,
        state=None,
        *,
        causal=False,
        query_mask=None,
        mask=None,
        noise=None,
        average_heads=True,
        return_weights=True,
        training=None,
    ):
        keys, values = memory["keys"], memory["values"]
        positions = memory.get("mask")
        mask = combine_masks(mask, None if positions is None else positions[:, None])
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        query = _split_heads(project_rows(self.query_projection, query), self.num_heads)
        # Scaled before the product, which could overflow in half precision.
        query = query * self.scale
        fused = not return_weights and self._fuses(keys, values, training)
        if causal and not (fused and mask is None):
            mask = combine_masks(mask, _up_to_each_query(query, keys))
        outputs = {}
        if fused:
            context = ops.dot_product_attention(
                *(ops.transpose(x, (0, 2, 1, 3)) for x in (query, keys, values)),
                mask=None if mask is None else mask[:, None],
                scale=1.0,
                is_causal=causal and mask is None,
                flash_attention=keras.config.is_flash_attention_enabled(),
            )
            context = ops.transpose(context, (0, 2, 1, 3))
        else:
            queries = None if query_mask is None else query_mask[..., None]
            weights = self._weigh(query, keys, combine_masks(mask, queries), training)
            context = _read(weights, values)
            if return_weights:
                average = average_heads
                outputs["weights"] = ops.mean(weights, axis=1) if average else weights
        output = _join_heads(context)
        if self.use_output_projection:
            output = project_rows(self.output_projection, output)
        has_position = combine_masks(_has_position(mask, query, keys), query_mask)
        if has_position is not None:
            output = clear_masked(output, has_position)
        # On PyTorch, Keras multiplies float64 in float32.
        outputs["context"] = ops.cast(output, self.compute_dtype)
        return outputs, {}

    def context_depth(self, query_depth, memory_shapes):
        if self.use_output_projection:
            return self.output_dim or query_depth
        return self.num_heads * memory_shapes["values"][-1]

    def _fuses(self, keys, values, training):
        """Return whether the backend's fused attention can replace `_weigh`."""
        backend = keras.backend.backend()
        on_jax = backend == "jax"
        return (
            self.weighting == "softmax"
            and not (self.dropout and training)
            # Backends take no softmax over no position.
            and not is_zero(keys.shape[2])
            # TensorFlow has none, and the replacement of Keras is slower than `_weigh`.
            and backend != "tensorflow"
            # JAX needs keys and values of one depth, takes the softmax of float64 in
            # float32, and fails for float16 on CPUs.
            and not (on_jax and keys.shape[-1] != values.shape[-1])
            and not (on_jax and self.compute_dtype in ("float16", "float64"))
        )

    def _weigh(self, query, keys, mask, training):
        """Return the weights `(B, N, T, S)` of scaled queries `(B, N, T, D)`."""
        scores = _scores(query, keys)
        mask = None if mask is None else mask[:, None]
        weights = WEIGHTINGS[self.weighting](scores, mask)
        weights = ops.cast(weights, self.compute_dtype)
        return self.weight_dropout(weights, training=training)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "output_dim": self.output_dim,
            "use_output_projection": self.use_output_projection,
            "scale": self.scale,
            "weighting": self.weighting,
            "dropout": self.dropout,
            "seed": self.seed,
            "projection": dict(self.projection),
        }


def _projection(layer, name, units):
    """Return a projection of a layer, frozen if the layer is."""
    return keras.layers.Dense(
        units,
        **layer.projection,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
        name=name,
    )


def _split_heads(x, num_heads):
    """Reshape `(B, T, N * D)` to `(B, N, T, D)`."""
    batch, length = ops.shape(x)[:2]
    depth = x.shape[-1] // num_heads
    if x.shape[1] == 1:
        return ops.reshape(x, (batch, num_heads, 1, depth))
    x = ops.reshape(x, (batch, length, num_heads, depth))
    return ops.transpose(x, (0, 2, 1, 3))


def _join_heads(x):
    """Reshape `(B, N, T, D)` to `(B, T, N * D)`."""
    batch, num_heads, length, depth = ops.shape(x)
    if x.shape[2] != 1:
        x = ops.transpose(x, (0, 2, 1, 3))
    return ops.reshape(x, (batch, length, num_heads * depth))


def _scores(query, keys):
    """Return `query @ keys^T` for `(B, N, T, D)` and `(B, N, S, D)`."""
    if acceleration.has_few_scores((*query.shape[:3], keys.shape[2]), query.dtype):
        return ops.sum(query[:, :, :, None] * keys[:, :, None], axis=-1)
    return ops.matmul(query, ops.transpose(keys, (0, 1, 3, 2)))


def _read(weights, values):
    """Return `weights @ values` for `(B, N, T, S)` and `(B, N, S, D)`."""
    if acceleration.has_few_scores(weights.shape, weights.dtype):
        return ops.sum(weights[..., None] * values[:, :, None], axis=-2)
    return ops.matmul(weights, values)


def _has_position(mask, query, keys):
    """Return which queries may see any position, `(B, T)`; `None` if all may."""
    if mask is not None:
        return ops.any(mask, axis=-1)
    if not may_be_zero(keys.shape[2]):
        return None
    batch, _, queries, _ = ops.shape(query)
    return ops.broadcast_to(ops.shape(keys)[2] > 0, (batch, queries))


def _up_to_each_query(query, keys):
    """Return the causal mask, `(1, T, S)`."""
    t, s = (ops.arange(ops.shape(x)[2], dtype="int32") for x in (query, keys))
    return t[None, :, None] >= s
