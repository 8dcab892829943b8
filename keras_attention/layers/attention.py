"""What all attention layers share: one memory, one step, one call contract.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.layers.coverage import Coverage
from keras_attention.layers.parts import (
    check_mask,
    deserialize_parts,
    serialize_part,
    stay_frozen,
)
from keras_attention.layers.scores import Score
from keras_attention.layers.weightings import get_weighting
from keras_attention.layers.windows import LocalWindow
from keras_attention.ops.windows import spread_window


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionMemory(keras.layers.Layer):
    """Prepares once what every query will look at.

    Projects the keys and clears masked positions, so that nothing stored there
    (NaN and inf included) can reach a result or a gradient.

    Args:
        key_projection: Layer applied to the keys, or `None` to keep them as they are.
            Unless it is built already, it computes in the dtype of this layer.

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
        if key_projection is not None:
            _check_part(
                "key_projection", key_projection, keras.layers.Layer, "Dense(8)"
            )
            _compute_in(key_projection, self.dtype_policy)
        self.key_projection = key_projection
        self.supports_masking = True

    def build(self, value_shape, key_shape=None):
        if self.key_projection is not None and not self.key_projection.built:
            self.key_projection.build(key_shape or value_shape)
        self.built = True

    def call(self, value, key=None, *, value_mask=None, key_mask=None, mask=None):
        key = value if key is None else key
        value_mask = mask if value_mask is None else value_mask
        check_mask("value_mask", value_mask, value.shape[:2])
        check_mask("key_mask", key_mask, value.shape[:2])
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

    def shapes(self, value_shape, key_shape=None):
        """Shapes of keys and values in the dict that is returned."""
        keys_shape = tuple(key_shape or value_shape)
        if self.key_projection is not None:
            keys_shape = tuple(self.key_projection.compute_output_shape(keys_shape))
        return {"values": tuple(value_shape), "keys": keys_shape}

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "key_projection": serialize_part(self.key_projection),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionStep(keras.layers.Layer):
    """Where the parts meet: window, score, weighting and coverage.

    Args:
        score: Part that is called as `score(query, keys)`; see `Score`.
        weighting: Part that turns scores into weights; see `Weighting`.
        window: Part that selects what is looked at, or `None` for everything.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        memory: Dict that `AttentionMemory` returned.
        state: Dict of the states of the parts, tensors `(B, T, ...)`: what
            `initial_state` or the previous step returned. The T queries of one row
            belong to T sequences that do not know of each other.
        mask: Boolean, broadcastable to `(B, T, S)`, combined with the memory's.
        noise: Dict as `draw` returns it, for one step; drawn if omitted in training.
        return_weights: Whether weights in a window are spread over all positions.

    Returns:
        outputs: Dict with `"context"` `(B, T, V)`, `"weights"` `(B, T, S)`, and what
            else the weighting reports.
        state: Dict for the next step.
    """

    def __init__(self, score, weighting="softmax", window=None, **kwargs):
        # States and noise keep their precision whatever the layer computes in.
        super().__init__(autocast=False, **kwargs)
        _check_part("score", score, Score, "DotScore()")
        if window is not None:
            _check_part("window", window, LocalWindow, "LocalMonotonicWindow()")
        self.supports_masking = True
        self.score = score
        self.weighting = get_weighting(weighting, self.dtype_policy)
        self.window = window
        self.coverage = (
            Coverage(dtype=self.dtype_policy, name="coverage")
            if score.takes_coverage
            else None
        )
        _check_parts(self)
        for part in (score, *self.parts.values()):
            _compute_in(part, self.dtype_policy)

    @property
    def parts(self):
        """The parts that may have a state, by name."""
        parts = {"window": self.window, "weighting": self.weighting}
        parts["coverage"] = self.coverage
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def sequential(self):
        """Whether queries have to come one after the other."""
        return any(part.sequential for part in self.parts.values())

    @property
    def state_names(self):
        """Names of the tensors in the state, by part: a dict of dicts."""
        names = {name: part.state_names for name, part in self.parts.items()}
        return {name: dict.fromkeys(x) for name, x in names.items() if x}

    def look(self, query, memory, state=None, *, noise=None, training=None):
        """What a recurrent decoder asks of the step of an attention; see the call."""
        return self(query, memory, state, noise=noise, training=training)

    @property
    def reports(self):
        """Names of what it reports beside context and weights."""
        return self.weighting.reports

    def context_depth(self, query_depth, memory_shape):
        """Depth of what a query of this depth reads."""
        return memory_shape["values"][-1]

    def initial_state(self, memory, queries=1):
        """States of the parts before the first step, tensors `(B, queries, ...)`."""
        return self._states("initial_state", memory, queries)

    def state_of_all(self, memory, queries):
        """States in which the queries of one sequence find the parts in turn."""
        return self._states("state_of_all", memory, queries)

    def _states(self, method, memory, queries):
        states = {
            name: getattr(part, method)(memory, queries)
            for name, part in self.parts.items()
        }
        return {name: state for name, state in states.items() if state}

    def draw(self, memory, steps, queries=1):
        """Noise for some steps of training: dict of tensors `(steps, B, queries, ...)`.

        To be called outside of any loop.
        """
        batch, length = ops.shape(memory["values"])[:2]
        length = self.window.width if self.window else length
        return self.weighting.draw((steps, batch, queries, length))

    def build(self, query_shape, memory_shape):
        for part, shapes in (
            (self.window, (query_shape, memory_shape)),
            (self.score, (query_shape, memory_shape["keys"])),
            (self.weighting, ((*query_shape[:2], None),)),
            (self.coverage, ((*query_shape[:2], None),)),
        ):
            if part is not None and not part.built:
                part.build(*shapes)
        stay_frozen(self)
        self.built = True

    def call(
        self,
        query,
        memory,
        state=None,
        *,
        mask=None,
        noise=None,
        return_weights=True,
        training=None,
    ):
        queries = ops.shape(query)[1]
        query = ops.cast(query, self.compute_dtype)
        state = self.initial_state(memory, queries) if state is None else state
        if noise is None and training:
            noise = tree.map_structure(lambda x: x[0], self.draw(memory, 1, queries))
        new_state = {}

        view = self._whole(memory, mask)
        if self.window is not None:
            view, window_state = self.window(query, memory, state.get("window"), mask)
            new_state["window"] = window_state
        if self.coverage is None:
            scores = self.score(query, view["keys"])
        else:
            scores = self.score(query, view["keys"], state["coverage"]["total"])
        outputs, new_state["weighting"] = self.weighting(
            scores, view.get("mask"), state.get("weighting"), noise, training=training
        )
        weights = outputs["weights"]
        if "prior" in view:
            weights = weights * view["prior"]
        if self.coverage is not None:
            new_state["coverage"] = self.coverage(weights, state["coverage"])
        weights = ops.cast(weights, self.compute_dtype)
        context = read(weights, view["values"])
        # On PyTorch, Keras multiplies float64 in float32.
        context = ops.cast(context, self.compute_dtype)
        if "positions" in view and return_weights:
            length = ops.shape(memory["values"])[1]
            weights = spread_window(weights, view["positions"], length)
        outputs = {**outputs, "context": context, "weights": weights}
        return outputs, {name: part for name, part in new_state.items() if part}

    def _whole(self, memory, mask):
        """What a query may look at where there is no window."""
        valid = memory.get("mask")
        if valid is not None:
            valid = valid[:, None, :]
            mask = valid if mask is None else ops.logical_and(valid, mask)
        return {**memory, "mask": mask}

    def compute_mask(self, inputs, previous_mask):
        return None

    def get_config(self):
        return {
            **super().get_config(),
            "score": serialize_part(self.score),
            "weighting": serialize_part(self.weighting),
            "window": serialize_part(self.window),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))


def read(weights, values):
    """Sum of `values` `(B, [T,] S, V)` under weights `(B, T, S)`."""
    if len(values.shape) == 4:
        return ops.matmul(weights[:, :, None, :], values)[:, :, 0]
    return ops.matmul(weights, values)


def _check_part(name, part, kind, example):
    """Raise `ValueError` for what is no part of its kind."""
    if not isinstance(part, kind):
        raise ValueError(
            f"{name} must be a {kind.__name__}, such as {example}. Received: {part!r}"
        )


def _check_parts(step):
    """Raise `ValueError` for parts that make no sense together."""
    local = step.window is not None
    scaled = local and step.window.scales
    for wrong, reason in (
        (
            local and not step.score.uses_keys,
            "a location score has a weight for every position and knows no window",
        ),
        (
            local and step.weighting.everywhere,
            "monotonic attention moves over all positions and takes no window",
        ),
        (
            scaled and not step.weighting.scalable,
            "a hard choice cannot be multiplied with the prior of a local-p window",
        ),
        (
            local and step.coverage is not None,
            "coverage sums the weights of all positions and takes no window",
        ),
    ):
        if wrong:
            names = [type(part).__name__ for part in (step.score, step.weighting)]
            names += [type(step.window).__name__] if local else []
            raise ValueError(f"{reason}. Received: {', '.join(names)}")


def _compute_in(part, policy):
    """Make a part, which may have been made elsewhere, compute like its attention."""
    for layer in part._flatten_layers():
        if not layer.built:
            layer.dtype_policy = policy


class BaseAttention(keras.layers.Layer):
    """Base of the attention layers: their call contract over a memory and a step.

    Subclasses choose the parts; see `Attention` for the arguments and for the call.
    """

    def __init__(
        self, score, key_projection=None, *, weighting="softmax", window=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.memory = AttentionMemory(
            key_projection, dtype=self.dtype_policy, name="memory"
        )
        self.step = AttentionStep(
            score, weighting, window, dtype=self.dtype_policy, name="step"
        )
        self.supports_masking = True

    def build(self, query_shape, value_shape, key_shape=None):
        check_shapes(query_shape, value_shape, key_shape)
        self.memory.build(value_shape, key_shape)
        self.step.build(
            (query_shape[0], None, query_shape[-1]),
            self.memory.shapes(value_shape, key_shape),
        )
        stay_frozen(self)
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
        return_details=False,
        training=None,
    ):
        check_shapes(query.shape, value.shape, None if key is None else key.shape)
        check_mask("query_mask", query_mask, query.shape[:-1])
        mask_shape = (*query.shape[:-1], value.shape[1])
        check_mask("attention_mask", attention_mask, mask_shape, broadcasts=True)
        single = len(query.shape) == 2
        if single:
            query = query[:, None]
            attention_mask = None if attention_mask is None else attention_mask[:, None]
        mask = None if attention_mask is None else _as_mask(attention_mask)
        asking = None
        if query_mask is not None:
            asking = _as_mask(query_mask)
            asking = ops.reshape(asking, (-1, 1, 1)) if single else asking[..., None]
            query = ops.where(asking, query, ops.zeros_like(query))
            mask = asking if mask is None else ops.logical_and(asking, mask)
        memory = self.memory(value, key, value_mask=value_mask, key_mask=key_mask)
        if mask is not None:
            shape = (*ops.shape(query)[:2], ops.shape(value)[1])
            mask = ops.broadcast_to(mask, shape)
        run = self._one_by_one if self.step.sequential else self._all_at_once
        outputs = run(
            query,
            memory,
            mask,
            asking,
            return_weights=return_attention_scores or return_details,
            training=training,
        )
        if single:
            outputs = tree.map_structure(lambda x: x[:, 0], outputs)
        if return_details:
            return outputs
        context, weights = outputs["context"], outputs["weights"]
        return (context, weights) if return_attention_scores else context

    def _all_at_once(self, query, memory, mask, asking, **options):
        queries = ops.shape(query)[1]
        noise = {}
        if options["training"]:
            noise = self.step.draw(memory, queries)
            noise = tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), noise)
        state = self.step.state_of_all(memory, queries)
        outputs, _ = self.step(query, memory, state, mask=mask, noise=noise, **options)
        return outputs

    def _one_by_one(self, query, memory, mask, asking, **options):
        sequence = {"query": query, "mask": mask, "asking": asking}
        sequence = {
            name: ops.swapaxes(x, 0, 1)[:, :, None]
            for name, x in sequence.items()
            if x is not None
        }
        if options["training"]:
            sequence["noise"] = self.step.draw(memory, ops.shape(query)[1])

        def step(state, now):
            outputs, new_state = self.step(
                now["query"],
                memory,
                state,
                mask=now.get("mask"),
                noise=now.get("noise", {}),
                **options,
            )
            if "asking" in now:
                # A padded query leaves no trace.
                new_state = tree.map_structure(
                    lambda new, old: ops.where(now["asking"], new, old),
                    new_state,
                    state,
                )
            return new_state, outputs

        _, outputs = loops.scan(step, self.step.initial_state(memory), sequence)
        return tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), outputs)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        *,
        return_attention_scores=False,
        return_details=False,
        **kwargs,
    ):
        check_shapes(query.shape, value.shape, None if key is None else key.shape)
        if return_details:
            return keras.Operation.compute_output_spec(
                self, query, value, key, return_details=True, **kwargs
            )
        context = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return context
        weights_shape = (*query.shape[:-1], value.shape[1])
        return context, keras.KerasTensor(weights_shape, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class Attention(BaseAttention):
    """Attention made of parts: the base of the layers with a name of their own.

    `memory(value, ...)` prepares what is looked at, once; `step(query, memory)` looks
    at it, as often as needed: this is what a decoder uses. Calling the layer does both.

    Masking: `True` means attend. Positions where `value_mask`, `key_mask` or
    `attention_mask` is `False` get a weight of exactly zero, whatever is stored at
    positions that `value_mask` or `key_mask` excludes. A query with no valid
    position, and a masked query, gives zero weights and a zero context. Implicit
    Keras masks are used where no explicit one is given; the query's mask is passed on.

    Args:
        score: How well a query fits a key, such as `DotScore()`; a part of your own
            derives from `Score`.
        key_projection: Layer applied to the keys, once, or `None`.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, or a `Weighting` such as `HardWeighting()`.
        window: What a query looks at: `None` for everything, or a window such as
            `LocalPredictiveWindow(half_width=10)`.

    Call arguments:
        query: Tensor of shape `(batch, query_length, query_dim)`, or one query
            `(batch, query_dim)`.
        value: Tensor of shape `(batch, value_length, value_dim)`.
        key: Tensor of shape `(batch, value_length, key_dim)`; `value` if omitted.
        query_mask: Boolean `(batch, query_length)`; `(batch,)` for one query.
        value_mask, key_mask: Boolean `(batch, value_length)`.
        attention_mask: Boolean `(batch, query_length, value_length)`;
            `(batch, value_length)` for one query. An axis of size 1 is broadcast.
        return_attention_scores: Whether to return the weights, too.
        return_details: Whether to return a dict instead: `"context"`, `"weights"`, and
            what else the weighting reports, such as the `"log_probability"` of a hard
            choice.

    Returns:
        context: Tensor of shape `(batch, query_length, value_dim)`, or
            `(batch, value_dim)` for one query.
        weights: Tensor of shape `(batch, query_length, value_length)`, or
            `(batch, value_length)` for one query; only if
            `return_attention_scores` is `True`.

    Raises:
        ValueError: If parts make no sense together, or if a shape does not fit.

    Example:

    >>> attention = Attention(DotScore(scaled=True), weighting="sparsemax")
    >>> query, value = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> tuple(attention(query, value).shape)
    (2, 3, 8)
    """

    def get_config(self):
        return {
            **super().get_config(),
            "score": serialize_part(self.step.score),
            "key_projection": serialize_part(self.memory.key_projection),
            "weighting": serialize_part(self.step.weighting),
            "window": serialize_part(self.step.window),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialize_parts(config))


def _as_mask(mask):
    return ops.cast(mask, "bool")


def check_shapes(query_shape, value_shape, key_shape):
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
    given = {"query": query_shape, "value": value_shape, "key": key_shape}
    given = {name: tuple(x) for name, x in given.items() if x is not None}
    if len({shape[0] for shape in given.values()} - {None}) > 1:
        raise ValueError(
            f"{', '.join(given)} must have the same batch size. Received: "
            f"{', '.join(f'{name} {shape}' for name, shape in given.items())}"
        )
