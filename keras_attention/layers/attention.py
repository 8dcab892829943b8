"""Attention composed of parts: a score, a weighting and a window.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

from typing import Any, Self

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.layers.base import (
    BaseAttention,
    BaseMemory,
    BaseStep,
    check_shapes,
    stay_frozen,
)
from keras_attention.layers.coverage import Coverage
from keras_attention.layers.scores import Score
from keras_attention.layers.weightings import Weighting, get_weighting
from keras_attention.layers.windows import LocalWindow
from keras_attention.ops.extra_position import append_score, split_weight
from keras_attention.ops.masks import clear_masked, combine_masks
from keras_attention.ops.windows import spread_window
from keras_attention.serialization import deserialize_parts, serialize_part
from keras_attention.typing import Config, Nested, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import check_mask


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionMemory(BaseMemory):
    """Memory of an attention with one set of keys; see `BaseMemory` for the call.

    Args:
        key_projection: Layer applied to the keys, or `None` to leave them unchanged.
            Unless it is built already, it computes in the dtype of this layer.

    Returns:
        Dict with `"values"` `(B, S, V)`, `"keys"` `(B, S, projected)` and, if there
        is a mask, the boolean `"mask"` `(B, S)`.
    """

    def __init__(
        self, key_projection: keras.layers.Layer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if key_projection is not None:
            _check_part(
                "key_projection", key_projection, keras.layers.Layer, "Dense(8)"
            )
            _compute_in(key_projection, self.dtype_policy)
        self.key_projection = key_projection

    def build(self, value_shape: Shape, key_shape: Shape | None = None) -> None:
        if self.key_projection is not None and not self.key_projection.built:
            self.key_projection.build(key_shape or value_shape)
        self.built = True

    def project(self, value: Tensor, key: Tensor | None) -> Tensors:
        key = key if self.key_projection is None else self.key_projection(key)
        return {"values": value, "keys": key}

    def shapes(self, value_shape: Shape, key_shape: Shape | None = None) -> Shapes:
        keys_shape = tuple(key_shape or value_shape)
        if self.key_projection is not None:
            keys_shape = tuple(self.key_projection.compute_output_shape(keys_shape))
        return {"values": tuple(value_shape), "keys": keys_shape}

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "key_projection": serialize_part(self.key_projection),
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**deserialize_parts(config))


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionStep(BaseStep):
    """Step of an attention composed of parts: window, score, weighting, coverage.

    See `BaseStep` for the call. `extra_key` `(B, T, depth)` is the key of one more
    position for every query. Its weight is the output `"extra_weight"` `(B, T)`; the
    other outputs are those of the memory.

    Args:
        score: Part that is called as `score(query, keys)`; see `Score`.
        weighting: Part that turns scores into weights; see `Weighting`.
        window: Part that selects positions, or `None` for all of them.
    """

    def __init__(
        self,
        score: Score,
        weighting: str | Weighting = "softmax",
        window: LocalWindow | None = None,
        **kwargs: Any,
    ) -> None:
        # States and noise keep their precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)
        _check_part("score", score, Score, "DotScore()")
        if window is not None:
            _check_part("window", window, LocalWindow, "LocalMonotonicWindow()")
        self.score = score
        self.weighting = get_weighting(weighting, self.dtype_policy)
        self.window = window
        self.coverage = (
            Coverage(dtype=self.dtype_policy, name="coverage")
            if score.takes_coverage
            else None
        )
        _check_parts(self)
        self.reports = self.weighting.reports
        _compute_in(score, self.dtype_policy)
        stateful = []
        for name, part in self.parts.items():
            _compute_in(part, self.dtype_policy)
            self.sequential = self.sequential or part.sequential
            if part.state_names:
                stateful.append(name)
        self._stateful = tuple(stateful)

    @property
    def parts(self) -> dict[str, Any]:
        """The parts other than the score, by the names under which Keras saves them."""
        parts = {
            "window": self.window,
            "weighting": self.weighting,
            "coverage": self.coverage,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def state_names(self) -> Nested:
        return {
            name: dict.fromkeys(getattr(self, name).state_names)
            for name in self._stateful
        }

    def initial_state(self, memory: Tensors, queries: int = 1) -> Tensors:
        states = {}
        for name in self._stateful:
            states[name] = getattr(self, name).initial_state(memory, queries)
        return states

    def state_of_all(self, memory: Tensors, queries: int) -> Tensors:
        """Return the states of all queries of a sequence, to handle them at once."""
        states = {}
        for name in self._stateful:
            states[name] = getattr(self, name).state_of_all(memory, queries)
        return states

    def draw(self, memory: Tensors, steps: int, queries: int = 1) -> Nested:
        batch, length = ops.shape(memory["values"])[:2]
        length = self.window.width if self.window else length
        return self.weighting.draw((steps, batch, queries, length))

    def build(self, query_shape: Shape, memory_shape: Shapes) -> None:
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
        query: Tensor,
        memory: Tensors,
        state: Nested = None,
        *,
        query_mask: Tensor | None = None,
        mask: Tensor | None = None,
        noise: Nested = None,
        extra_key: Tensor | None = None,
        return_weights: bool = True,
        training: bool | None = None,
    ) -> tuple[Tensors, Nested]:
        query = ops.cast(query, self.compute_dtype)
        if state is None:
            state = self.initial_state(memory, ops.shape(query)[1])
        if noise is None and training:
            noise = self.draw(memory, 1, ops.shape(query)[1])
            noise = tree.map_structure(lambda x: x[0], noise)
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        new_state = {}

        if self.window is None:
            view, valid = memory, memory.get("mask")
            valid = valid if valid is None else valid[:, None, :]
            valid = valid if mask is None else combine_masks(valid, mask)
        else:
            window_state = state.get("window", {})
            view, window_state = self.window(query, memory, window_state, mask)
            if "window" in self._stateful:
                new_state["window"] = window_state
            valid = view["mask"]
        if query_mask is not None:
            valid = combine_masks(valid, query_mask[..., None])

        if self.coverage is None:
            scores = self.score(query, view["keys"])
        else:
            scores = self.score(query, view["keys"], state["coverage"]["total"])

        if extra_key is not None:
            extra = self.score(query, extra_key[:, :, None])
            scores, valid = append_score(scores, valid, extra, query_mask)
        outputs, after = self.weighting(
            scores, valid, state.get("weighting"), noise, training=training
        )
        if extra_key is not None:
            outputs = split_weight(outputs)
        if "weighting" in self._stateful:
            new_state["weighting"] = after
        weights = outputs["weights"]
        if "prior" in view:
            weights = weights * view["prior"]
        if self.coverage is not None:
            new_state["coverage"] = self.coverage(weights, state["coverage"])

        weights = ops.cast(weights, self.compute_dtype)
        # On PyTorch, Keras multiplies float64 in float32.
        context = ops.cast(read(weights, view["values"]), self.compute_dtype)
        if return_weights and "positions" in view:
            length = ops.shape(memory["values"])[1]
            weights = spread_window(weights, view["positions"], length)
        outputs = {**outputs, "context": context, "weights": weights}
        if not return_weights:
            del outputs["weights"]
        if query_mask is not None:
            new_state = _update_where(query_mask, new_state, state)
        return outputs, new_state

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "score": serialize_part(self.score),
            "weighting": serialize_part(self.weighting),
            "window": serialize_part(self.window),
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**deserialize_parts(config))


def read(weights, values):
    """Return the sum of `values` `(B, [T,] S, V)`, weighted by `(B, T, S)`."""
    if len(values.shape) == 4:
        return ops.matmul(weights[:, :, None, :], values)[:, :, 0]
    return ops.matmul(weights, values)


def _update_where(mask, new_state, state):
    """Return the new state of queries where `mask` `(B, T)`, else the old one."""

    def update(new, old):
        shape = (*ops.shape(mask), *[1] * (len(new.shape) - 2))
        return ops.where(ops.reshape(mask, shape), new, old)

    return tree.map_structure(update, new_state, state)


def _check_part(name, part, kind, example):
    """Raise `ValueError` for a part of another kind."""
    if not isinstance(part, kind):
        raise ValueError(
            f"{name} must be a {kind.__name__}, such as {example}. Received: {part!r}"
        )


def _check_parts(step):
    """Raise `ValueError` for parts that cannot be combined."""
    local = step.window is not None
    scaled = local and step.window.scales
    for wrong, reason in (
        (
            local and not step.score.uses_keys,
            "a location score has a weight for every position and takes no window",
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
    """Give the dtype policy of an attention to a part that is not built yet."""
    for layer in part._flatten_layers():
        if not layer.built:
            layer.dtype_policy = policy


class ComposedAttention(BaseAttention):
    """Base of the attention layers that are composed of parts.

    Subclasses choose the parts; see `Attention` for the arguments and for the call.
    """

    def __init__(
        self,
        score: Score,
        key_projection: str | keras.layers.Layer | None,
        window: LocalWindow | None,
        /,
        *,
        weighting: str | Weighting,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        step = AttentionStep(
            score, weighting, window, dtype=self.dtype_policy, name="step"
        )
        if key_projection == "score":
            key_projection = score.make_key_projection()
        # The weights of the memory come first.
        self.memory = AttentionMemory(
            key_projection, dtype=self.dtype_policy, name="memory"
        )
        self.step = step

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        check_shapes(query.shape, value.shape, None if key is None else key.shape)
        if query_mask is not None:
            check_mask("query_mask", query_mask, query.shape[:-1])
        if attention_mask is not None:
            mask_shape = (*query.shape[:-1], value.shape[1])
            check_mask("attention_mask", attention_mask, mask_shape, broadcasts=True)
        single = len(query.shape) == 2
        if single:
            query = query[:, None]
            attention_mask = None if attention_mask is None else attention_mask[:, None]
            query_mask = None if query_mask is None else query_mask[:, None]
        memory = self.memory(value, key, value_mask=value_mask, key_mask=key_mask)
        sequence = {"query": query}
        if query_mask is not None:
            sequence["query_mask"] = ops.cast(query_mask, "bool")
        if attention_mask is not None:
            shape = (*ops.shape(query)[:2], ops.shape(value)[1])
            mask = ops.cast(attention_mask, "bool")
            sequence["mask"] = ops.broadcast_to(mask, shape)
        run = self._one_by_one if self.step.sequential else self._all_at_once
        return_weights = return_attention_scores or return_details
        outputs = run(sequence, memory, return_weights, training)
        if single:
            outputs = tree.map_structure(lambda x: x[:, 0], outputs)
        if return_details:
            return outputs
        context = outputs["context"]
        return (context, outputs["weights"]) if return_attention_scores else context

    def _all_at_once(self, sequence, memory, return_weights, training):
        """Run one step for all queries of a sequence together."""
        queries = ops.shape(sequence["query"])[1]
        noise = {}
        if training:
            noise = self.step.draw(memory, queries)
            noise = tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), noise)
        outputs, _ = self.step(
            memory=memory,
            state=self.step.state_of_all(memory, queries),
            noise=noise,
            return_weights=return_weights,
            training=training,
            **sequence,
        )
        return outputs

    def _one_by_one(self, sequence, memory, return_weights, training):
        """Run the steps of the queries of a sequence one after the other."""
        queries = ops.shape(sequence["query"])[1]
        inputs = {
            name: ops.swapaxes(x, 0, 1)[:, :, None] for name, x in sequence.items()
        }
        inputs["noise"] = self.step.draw(memory, queries) if training else {}

        def step(state, inputs):
            outputs, state = self.step(
                memory=memory,
                state=state,
                return_weights=return_weights,
                training=training,
                **inputs,
            )
            return state, outputs

        _, outputs = loops.scan(step, self.step.initial_state(memory), inputs)
        return tree.map_structure(lambda x: ops.swapaxes(x[:, :, 0], 0, 1), outputs)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Any:
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        *,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
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
class Attention(ComposedAttention):
    """Attention composed of a score, a weighting and a window.

    `memory(value, ...)` projects the keys once; `step(query, memory)` then attends with
    any number of queries, as a decoder does. Calling the layer does both.

    Masking and call: see `AdditiveAttention`.

    Args:
        score: Part that scores queries against keys, such as `DotScore()` or a
            subclass of `Score`.
        key_projection: Layer applied to the keys, once: `"score"` for the one that the
            score creates, if any, or `None` to leave the keys unchanged.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, or a `Weighting` such as `HardWeighting()`.
        window: Positions that a query sees: `None` for all, or a window such as
            `LocalPredictiveWindow(half_width=10)`.

    Raises:
        ValueError: If the parts cannot be combined, or if a shape does not fit.

    Example:

    >>> attention = Attention(DotScore(scaled=True), weighting="sparsemax")
    >>> query, value = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
    >>> tuple(attention(query, value).shape)
    (2, 3, 8)
    """

    def __init__(
        self,
        score: Score,
        key_projection: str | keras.layers.Layer | None = "score",
        *,
        weighting: str | Weighting = "softmax",
        window: LocalWindow | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(score, key_projection, window, weighting=weighting, **kwargs)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "score": serialize_part(self.step.score),
            "key_projection": serialize_part(self.memory.key_projection),
            "weighting": serialize_part(self.step.weighting),
            "window": serialize_part(self.step.window),
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**deserialize_parts(config))
