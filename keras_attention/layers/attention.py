"""What all attention layers share: one memory, one step, one call contract.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

import keras
from keras import ops

from keras_attention.ops.weightings import masked_softmax


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionMemory(keras.layers.Layer):
    """Prepares once what every query will look at.

    Projects the keys and clears masked positions, so that nothing stored there
    (NaN and inf included) can reach a result or a gradient.

    Args:
        key_projection: Layer applied to the keys, or `None` to keep them as they are.

    Call arguments:
        value: Tensor of shape `(B, S, V)`.
        key: Tensor of shape `(B, S, key_depth)`; `value` if omitted.
        value_mask: Boolean `(B, S)`, `True` marks a position that may be attended.
        key_mask: Boolean `(B, S)`, combined with `value_mask` by a logical and.
        mask: What Keras passes when `value` comes alone and carries a mask; used
            unless there is a `value_mask`.

    Returns:
        Dict with `"values"` `(B, S, V)`, `"keys"` `(B, S, projected)` and, if there
        is a mask, the boolean `"mask"` `(B, S)`.
    """

    def __init__(self, key_projection=None, **kwargs):
        super().__init__(**kwargs)
        self.key_projection = key_projection
        self.supports_masking = True

    def build(self, value_shape, key_shape=None):
        if self.key_projection is not None and not self.key_projection.built:
            self.key_projection.build(key_shape or value_shape)
        self.built = True

    def call(self, value, key=None, *, value_mask=None, key_mask=None, mask=None):
        key = value if key is None else key
        value_mask = mask if value_mask is None else value_mask
        masks = [_as_mask(m) for m in (value_mask, key_mask) if m is not None]
        memory = {}
        if masks:
            mask = masks[0] if len(masks) == 1 else ops.logical_and(*masks)
            memory["mask"] = mask
            value = ops.where(mask[..., None], value, ops.zeros_like(value))
            key = ops.where(mask[..., None], key, ops.zeros_like(key))
        memory["values"] = value
        memory["keys"] = self.key_projection(key) if self.key_projection else key
        return memory

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        projection = self.key_projection
        return {
            **super().get_config(),
            "key_projection": projection
            and keras.saving.serialize_keras_object(projection),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        projection = config.pop("key_projection")
        if projection is not None:
            projection = keras.saving.deserialize_keras_object(projection)
        return cls(projection, **config)


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionStep(keras.layers.Layer):
    """Scores queries against a memory, weighs, and reads: the parts meet here.

    Args:
        score: Layer called as `score(query, keys)` that returns scores `(B, T, S)`.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        memory: Dict that `AttentionMemory` returned.
        mask: Boolean, broadcastable to `(B, T, S)`, combined with the memory's.

    Returns:
        `context` `(B, T, V)` and `weights` `(B, T, S)`.
    """

    def __init__(self, score, **kwargs):
        super().__init__(**kwargs)
        self.score = score
        self.supports_masking = True

    def build(self, query_shape, memory_shape):
        if not self.score.built:
            self.score.build(query_shape, memory_shape["keys"])
        self.built = True

    def call(self, query, memory, *, mask=None):
        valid = memory.get("mask")
        if valid is not None:
            valid = valid[:, None, :]
            mask = valid if mask is None else ops.logical_and(valid, mask)
        weights = masked_softmax(self.score(query, memory["keys"]), mask)
        weights = ops.cast(weights, self.compute_dtype)
        context = ops.matmul(weights, memory["values"])
        # On PyTorch, Keras multiplies float64 in float32.
        return ops.cast(context, self.compute_dtype), weights

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(self.score),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        score = keras.saving.deserialize_keras_object(config.pop("score"))
        return cls(score, **config)


class Attention(keras.layers.Layer):
    """Base of the attention layers: the call contract over a memory and a step.

    Subclasses choose the parts. `memory(value, ...)` prepares what is looked at,
    once; `step(query, memory)` looks at it, as often as needed: this is what a
    decoder uses. Calling the layer does both.

    Args:
        score: Layer that scores queries against projected keys.
        key_projection: Layer applied to the keys, or `None`.
    """

    def __init__(self, score, key_projection=None, **kwargs):
        super().__init__(**kwargs)
        self.memory = AttentionMemory(
            key_projection, dtype=self.dtype_policy, name="memory"
        )
        self.step = AttentionStep(score, dtype=self.dtype_policy, name="step")
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        _check_shapes(query_shape, value_shape, key_shape)
        self.memory.build(value_shape, key_shape)
        projection = self.memory.key_projection
        keys_shape = tuple(key_shape or value_shape)
        if projection is not None:
            keys_shape = tuple(projection.compute_output_shape(keys_shape))
        self.step.build(
            (query_shape[0], None, query_shape[-1]),
            {"values": tuple(value_shape), "keys": keys_shape},
        )
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        *,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        _check_shapes(query.shape, value.shape, None if key is None else key.shape)
        single = len(query.shape) == 2
        if single:
            query = query[:, None]
            attention_mask = None if attention_mask is None else attention_mask[:, None]
        mask = None if attention_mask is None else _as_mask(attention_mask)
        if query_mask is not None:
            asking = _as_mask(query_mask)
            asking = ops.reshape(asking, (-1, 1, 1)) if single else asking[..., None]
            query = ops.where(asking, query, ops.zeros_like(query))
            mask = asking if mask is None else ops.logical_and(asking, mask)
        memory = self.memory(value, key, value_mask=value_mask, key_mask=key_mask)
        context, weights = self.step(query, memory, mask=mask)
        if single:
            context, weights = context[:, 0], weights[:, 0]
        return (context, weights) if return_attention_scores else context

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self, query, value, key=None, *, return_attention_scores=False, **kwargs
    ):
        _check_shapes(query.shape, value.shape, None if key is None else key.shape)
        context = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return context
        weights_shape = (*query.shape[:-1], value.shape[1])
        return context, keras.KerasTensor(weights_shape, self.compute_dtype)


def project_rows(dense, x):
    """Apply a `Dense` layer to the last axis of `x` as to the rows of one matrix.

    On more than two axes Keras' own product does not compile under XLA inside a loop
    over a batch of unknown size.
    """
    if len(x.shape) == 2:
        return dense(x)
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


def _as_mask(mask):
    return ops.cast(mask, "bool")


def _check_shapes(query_shape, value_shape, key_shape):
    if len(query_shape) not in (2, 3):
        raise ValueError(
            "query must have the shape (batch, query_depth) or "
            f"(batch, queries, query_depth). Received: {tuple(query_shape)}"
        )
    for name, shape in (("value", value_shape), ("key", key_shape)):
        if shape is not None and len(shape) != 3:
            raise ValueError(
                f"{name} must have the shape (batch, positions, depth). "
                f"Received: {tuple(shape)}"
            )
    positions = {value_shape[1], value_shape[1] if key_shape is None else key_shape[1]}
    if len(positions - {None}) > 1:
        raise ValueError(
            "key and value must have the same number of positions. Received: "
            f"key {tuple(key_shape)}, value {tuple(value_shape)}"
        )
