"""Attention layers composed of parts: a score, a weighting and a window.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

from typing import Any, Literal

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.backends import project_rows
from keras_attention.layers import base
from keras_attention.layers.base import (
    BaseMemory,
    BaseStep,
    Score,
    WeightDropout,
    Weighting,
)
from keras_attention.layers.weightings import get_weighting
from keras_attention.layers.windows import LocalWindow, spread_window
from keras_attention.ops.masks import clear_masked, combine_masks, where_rows
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.sizes import index_range, is_symbol
from keras_attention.typing import Config, Nested, Seed, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import check_boolean, check_mask


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionMemory(BaseMemory):
    """Memory of a single-head attention; see `BaseMemory` for the call.

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
            base.set_dtype_policy(key_projection, self.dtype_policy)
        self.key_projection = key_projection

    def build(self, value_shape: Shape, key_shape: Shape | None = None) -> None:
        if self.key_projection is not None and not self.key_projection.built:
            self.key_projection.build(key_shape or value_shape)
        self.built = True

    def call(
        self,
        value: Tensor,
        key: Tensor | None = None,
        *,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensors:
        key = value if key is None else key
        memory = {"values": value}
        value_mask = value_mask if mask is None else mask
        if not (value_mask is None and key_mask is None):
            check_mask("value_mask", value_mask, value.shape[:2])
            check_mask("key_mask", key_mask, value.shape[:2])
            # Nothing that is stored there, NaN included, can reach a result.
            memory["mask"] = mask = combine_masks(value_mask, key_mask)
            memory["values"], key = clear_masked(value, mask), clear_masked(key, mask)
        if isinstance(self.key_projection, keras.layers.Dense):
            key = project_rows(self.key_projection, key)
        elif self.key_projection is not None:
            key = self.key_projection(key)
        memory["keys"] = key
        return memory

    def shapes(self, value_shape: Shape, key_shape: Shape | None = None) -> Shapes:
        keys_shape = tuple(key_shape or value_shape)
        if self.key_projection is not None:
            keys_shape = tuple(self.key_projection.compute_output_shape(keys_shape))
        return {"values": tuple(value_shape), "keys": keys_shape}

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "key_projection")}


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionStep(BaseStep):
    """Step of an attention composed of parts.

    The window selects positions, the causal mask excludes those after the query, the
    score compares query and keys, the weighting turns scores into weights, the prior of
    the window scales them, coverage sums them up, and dropout drops some of them.
    Coverage and the weighting's own state do not depend on the dropout.

    See `BaseStep` for the other call arguments.

    Args:
        score: Part that is called as `score(query, keys)`; see `Score`.
        weighting: Part that turns scores into weights; see `Weighting`.
        window: Part that selects positions, or `None` for all of them.
        causal: Whether query t sees the positions up to and including t only.
        dropout: Rate at which weights are dropped in training.
        seed: Integer, `keras.random.SeedGenerator`, or `None`; for the dropout.

    Call arguments:
        extra_key: Key of one more position of every query, `(B, T, depth)`. Its weight
            is the output `"extra_weight"` `(B, T)`, which has no dropout; `"weights"`
            and `"context"` contain the positions of the memory only.
    """

    def __init__(
        self,
        score: Score,
        weighting: str | Weighting,
        window: LocalWindow | None,
        *,
        causal: bool,
        dropout: float,
        seed: Seed,
        **kwargs: Any,
    ) -> None:
        # States and noise keep their precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)
        _check_part("score", score, Score, "DotScore()")
        if window is not None:
            _check_part("window", window, LocalWindow, "LocalMonotonicWindow()")
        check_boolean("causal", causal)
        self.weighting: Weighting = get_weighting(weighting, self.dtype_policy)
        self.score = score = self.weighting.prepare_score(score)
        self.window = window
        self.coverage = score.takes_coverage
        self.causal = causal
        # A layer, because old files contain the state of its seed under its name.
        self.weight_dropout = WeightDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )
        _check_parts(self)
        self.reports = self.weighting.reports
        self.sequential = self.coverage or self.weighting.sequential
        self.has_state = bool(self.state_names)
        base.set_dtype_policy(score, self.dtype_policy)
        if window is not None:
            base.set_dtype_policy(window, self.dtype_policy)
            self.sequential = self.sequential or window.sequential

    @property
    def parts(self) -> dict[str, Any]:
        """Window and weighting: Keras saves their weights as those of `parts`."""
        parts = {"window": self.window, "weighting": self.weighting}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def state_names(self) -> Nested:
        window = () if self.window is None else self.window.state_names
        names = {
            "window": window,
            "causal_mask": ("step",) if self.causal else (),
            "weighting": self.weighting.state_names,
            "coverage": ("total",) if self.coverage else (),
        }
        return {name: dict.fromkeys(own) for name, own in names.items() if own}

    def initial_state(
        self,
        memory: Tensors,
        queries: int = 1,
        *,
        causal: bool = False,
        at_once: bool = False,
    ) -> Tensors:
        """Return the state before the first step, tensors `(B, queries, ...)`.

        Args:
            causal: Whether the queries are causal even if the layer is not.
            at_once: Whether the queries are all steps of one sequence, rather than the
                first steps of several. Only for a step that is not `sequential`.
        """
        states: Any = {}
        batch, length = ops.shape(memory["values"])[:2]
        if self.window is not None and self.window.state_names:
            states["window"] = _initial(self.window, memory, queries, at_once)
        if self.causal or causal:
            states["causal_mask"] = {"step": base.step_numbers(batch, queries, at_once)}
        if self.weighting.state_names:
            states["weighting"] = _initial(self.weighting, memory, queries, at_once)
        if self.coverage:
            dtype = accumulation_dtype(self.compute_dtype)
            states["coverage"] = {"total": ops.zeros((batch, queries, length), dtype)}
        return states

    def draw(self, memory: Tensors, steps: int, queries: int = 1) -> Nested:
        batch, length = ops.shape(memory["values"])[:2]
        length = self.window.width if self.window else length
        shape = (steps, batch, queries, length)
        noise = {
            "weighting": self.weighting.draw(shape),
            "dropout": self.weight_dropout.draw(shape),
        }
        return {name: x for name, x in noise.items() if x}

    def build(self, query_shape: Shape, memory_shape: Shapes) -> None:
        base.check_memory(memory_shape)
        if self.window is not None:
            base.build_part(self.window, query_shape, memory_shape)
        base.build_part(self.score, query_shape, memory_shape["keys"])
        base.build_part(self.weighting, (query_shape[0], None, None))
        base.freeze_new_weights(self)
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
        if not (isinstance(memory, dict) and {"values", "keys"} <= memory.keys()):
            base.check_memory(memory)
        query = ops.cast(query, self.compute_dtype)
        if state is None:
            state = self.initial_state(memory, ops.shape(query)[1])
        if noise is None:
            noise = self._draw_once(memory, query) if training else {}
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        new_state = {}

        def updated(new, old):
            return new if query_mask is None else where_rows(query_mask, new, old)

        # 1. Which positions each query may see.
        if self.window is None:
            view, valid = memory, memory.get("mask")
            valid = mask if valid is None else combine_masks(valid[:, None], mask)
        else:
            old = state.get("window", {})
            view, new = self.window(query, memory, old, mask)
            valid = view["mask"]
            if self.window.state_names:
                new_state["window"] = (
                    updated(new, old) if self.window.sequential else new
                )
        if "causal_mask" in state:
            step, length = state["causal_mask"]["step"], ops.shape(memory["values"])[1]
            places = view.get("positions", index_range(length))
            valid = combine_masks(valid, places <= step[..., None])
            new_state["causal_mask"] = {"step": step + 1}
        if query_mask is not None:
            valid = combine_masks(valid, query_mask[..., None])

        # 2. Scores of the queries against the keys.
        score = self.score.call if self.score.casts_weights else self.score
        if self.coverage:
            total = state["coverage"]["total"]
            scores = score(query, view["keys"], total)
        else:
            scores = score(query, view["keys"])
        if extra_key is not None:
            extra = score(query, extra_key[:, :, None])
            scores, valid = _append_score(scores, valid, extra, query_mask)

        # 3. Weights.
        old = state.get("weighting", {})
        weigh = self.weighting.call if self.weighting.casts_weights else self.weighting
        outputs, new = weigh(
            scores, valid, old, noise.get("weighting"), training=training
        )
        if extra_key is not None:
            weights = outputs["weights"]
            extra = {"weights": weights[..., :-1], "extra_weight": weights[..., -1]}
            outputs = {**outputs, **extra}
        if self.weighting.state_names:
            is_sequential = self.weighting.sequential
            new_state["weighting"] = updated(new, old) if is_sequential else new
        weights = outputs["weights"]
        if "prior" in view:
            weights = weights * view["prior"]
        if self.coverage:
            covered = total + ops.cast(weights, total.dtype)
            new_state["coverage"] = {"total": updated(covered, total)}
        if "dropout" in noise:
            weights = self.weight_dropout.drop(weights, noise["dropout"])

        # 4. The context: the weighted sum of the values.
        weights = ops.cast(weights, self.compute_dtype)
        values = ops.cast(view["values"], self.compute_dtype)
        if self.window is None:
            context = weights @ values
        else:
            context = (ops.expand_dims(weights, 2) @ values)[:, :, 0]
        if return_weights and self.window is not None:
            length = ops.shape(memory["values"])[1]
            weights = spread_window(weights, view["positions"], length)
        outputs = {**outputs, "context": context, "weights": weights}
        if not return_weights:
            del outputs["weights"]
        return outputs, new_state

    def _draw_once(self, memory, query):
        """Return noise for one step."""
        noise = self.draw(memory, 1, ops.shape(query)[1])
        return tree.map_structure(lambda x: x[0], noise)

    def get_config(self) -> Config:
        own = config_of(self, "score weighting window causal")
        dropout = self.weight_dropout.config_for_owner()
        return {**super().get_config(), **own, **dropout}


def _initial(part, memory, queries, at_once):
    """Return the state of a part before each query, or each first query."""
    if at_once:
        return part.states_of_sequence(memory, queries)
    return part.initial_state(memory, queries)


def _check_part(name, part, expected, example):
    """Raise `ValueError` unless a part is an instance of a class."""
    if not isinstance(part, expected):
        raise ValueError(
            f"{name} must be a {expected.__name__}, such as {example}. "
            f"Received: {part!r}"
        )


def _check_parts(step):
    """Raise `ValueError` for parts that cannot be combined."""
    score, weighting, window = step.score, step.weighting, step.window
    rate, reason = step.weight_dropout.rate, None
    if window and not score.uses_keys:
        reason = "a location score has a weight for every position and takes no window"
    elif window and weighting.needs_all_positions:
        reason = "monotonic attention moves over all positions and takes no window"
    elif window and window.has_prior and not weighting.allows_scaling:
        reason = "a hard choice cannot be multiplied with the prior of a local-p window"
    elif window and step.coverage:
        reason = "coverage sums the weights of all positions and takes no window"
    elif rate and not weighting.allows_scaling:
        reason = "dropout cannot drop the only position of a hard choice"
    if reason:
        names = [type(x).__name__ for x in (score, weighting, window) if x is not None]
        names += [f"dropout={rate}"] if rate else []
        raise ValueError(f"{reason}. Received: {', '.join(names)}")


class BaseAttention(CompositeLayer):
    """Base of the attention layers, which consist of a memory and a step.

    A call of the layer calls both. A decoder calls them separately.

    Attributes:
        memory: The `BaseMemory`; called once for every source.
        step: The `BaseStep`; called for one query after the other, or for all at once.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (args and isinstance(args[0], (list, tuple))) or "mask" in kwargs:
            base.check_calling_form(args, kwargs)
        if "use_causal_mask" in kwargs:
            check_boolean("use_causal_mask", kwargs["use_causal_mask"])
            # Keras would turn a boolean of NumPy into a tensor.
            kwargs["use_causal_mask"] = bool(kwargs["use_causal_mask"])
        return super().__call__(*args, **kwargs)

    def build(
        self,
        query_shape: Shape,
        value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:
        if value_shape is None:
            # Self-attention; a single step, (batch, depth), is one query.
            value_shape = (*query_shape[:1], None, query_shape[-1])
        shapes = query_shape, value_shape, key_shape
        base.check_shapes(*(None if x is None else tuple(x) for x in shapes))
        if not self.memory.built:
            self.memory.build(value_shape, key_shape)
        if not self.step.built:
            queries_shape = (query_shape[0], None, query_shape[-1])
            memory_shapes = self.memory.shapes(value_shape, key_shape)
            self.step.build(queries_shape, memory_shapes)
        base.freeze_new_weights(self)
        self.built = True


class ComposedAttention(BaseAttention):
    """Base of the attention layers that are composed of parts.

    Subclasses choose the parts; see `Attention` for the arguments and for the call.
    """

    def __init__(
        self,
        score: Score,
        key_projection: keras.layers.Layer | Literal[True] | None = True,
        window: LocalWindow | None = None,
        /,
        *,
        weighting: str | Weighting = "softmax",
        causal: bool = False,
        dropout: float = 0.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        step = AttentionStep(
            score,
            weighting,
            window,
            causal=causal,
            dropout=dropout,
            seed=seed,
            dtype=self.dtype_policy,
            name="step",
        )
        if key_projection is True:
            key_projection = step.score.make_key_projection()
        # Assigned before the step, so that the weights of the memory come first.
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
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        training: bool | None = None,
    ) -> Nested:
        key_shape = None if key is None else tuple(key.shape)
        ordered = self.step.causal or use_causal_mask
        base.check_shapes(
            tuple(query.shape), tuple(value.shape), key_shape, ordered=ordered
        )
        if query_mask is not None:
            check_mask("query_mask", query_mask, query.shape[:-1])
        if attention_mask is not None:
            attention_mask = base.standardize_attention_mask(
                attention_mask, query.shape, value.shape[1]
            )
        single = len(query.shape) == 2
        if single:
            query, query_mask = base.as_queries(query, query_mask)
        # Called without Keras' `__call__`, which has converted and cast all tensors.
        memory = self.memory.call(value, key, value_mask=value_mask, key_mask=key_mask)
        sequence = {"query": query}
        if query_mask is not None:
            sequence["query_mask"] = ops.cast(query_mask, "bool")
        if attention_mask is not None:
            shape = (*ops.shape(query)[:2], ops.shape(value)[1])
            mask = ops.cast(attention_mask, "bool")
            sequence["mask"] = ops.broadcast_to(mask, shape)
        options: dict[str, Any] = {
            "return_weights": return_attention_scores or return_details,
            "training": training,
        }
        if self.step.sequential:
            outputs = self._one_by_one(sequence, memory, use_causal_mask, options)
        else:
            state, noise = {}, {}
            if self.step.has_state or use_causal_mask:
                state = self.step.initial_state(
                    memory, ops.shape(query)[1], causal=use_causal_mask, at_once=True
                )
            if training:
                noise = self.step.draw(memory, ops.shape(query)[1])
                noise = tree.map_structure(_joined, noise)
            outputs, _ = self.step.call(
                memory=memory, state=state, noise=noise, **sequence, **options
            )
        if single:
            outputs = tree.map_structure(lambda x: x[:, 0], outputs)
        if return_details:
            return outputs
        context = outputs["context"]
        return (context, outputs["weights"]) if return_attention_scores else context

    def _one_by_one(self, sequence, memory, causal, options):
        """Run the steps of the queries of a sequence one after the other."""
        queries = ops.shape(sequence["query"])[1]
        inputs = {
            name: ops.swapaxes(x, 0, 1)[:, :, None] for name, x in sequence.items()
        }
        inputs["noise"] = self.step.draw(memory, queries) if options["training"] else {}

        def step(state, inputs):
            outputs, state = self.step.call(
                memory=memory, state=state, **inputs, **options
            )
            return state, outputs

        state = self.step.initial_state(memory, causal=causal)
        _, outputs = loops.scan(step, state, inputs)
        return tree.map_structure(_joined, outputs)

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
        use_causal_mask: bool = False,
        return_attention_scores: bool = False,
        return_details: bool = False,
        **kwargs: Any,
    ) -> Any:
        key_shape = None if key is None else tuple(key.shape)
        ordered = self.step.causal or use_causal_mask
        base.check_shapes(
            tuple(query.shape), tuple(value.shape), key_shape, ordered=ordered
        )
        if return_details:
            kwargs.update(use_causal_mask=use_causal_mask, return_details=True)
            return keras.Operation.compute_output_spec(
                self, query, value, key, **kwargs
            )
        context = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return context
        weights_shape = (*query.shape[:-1], value.shape[1])
        return context, keras.KerasTensor(weights_shape, self.compute_dtype)

    def get_config(self) -> Config:
        own = config_of(self.step, "weighting causal")
        dropout = self.step.weight_dropout.config_for_owner()
        return {**super().get_config(), **own, **dropout}


@keras.saving.register_keras_serializable(package="keras_attention")
class Attention(ComposedAttention):
    """Attention composed of a score, a weighting and a window.

    `memory(value, ...)` projects the keys once; `step(query, memory)` then attends with
    any number of queries, as a decoder does. Calling the layer does both.

    Masking and call: see `AdditiveAttention`.

    Args:
        score: Part that scores queries against keys, such as `DotScore()` or a
            subclass of `Score`.
        key_projection: Layer applied to the keys, once; `True` for the one that the
            score creates, if any, or `None` to leave the keys unchanged.
        weighting: How scores become weights: `"softmax"`, `"sparsemax"`, `"entmax"`,
            `"hard"`, `"monotonic"`, `"mocha"`, or a `Weighting`.
        window: Positions that a query sees: `None` for all, or a window such as
            `LocalPredictiveWindow(half_width=10)`.
        causal, dropout, seed: See `AdditiveAttention`.

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
        key_projection: keras.layers.Layer | Literal[True] | None = True,
        *,
        weighting: str | Weighting = "softmax",
        window: LocalWindow | None = None,
        **options: Any,
    ) -> None:
        super().__init__(score, key_projection, window, weighting=weighting, **options)

    def get_config(self) -> Config:
        own = config_of(self.step, "score window")
        own |= config_of(self.memory, "key_projection")
        return {**super().get_config(), **own}


def _joined(steps):
    """Return tensors of one query a step, `(T, B, 1, ...)`, as `(B, T, ...)`."""
    return ops.swapaxes(steps[:, :, 0], 0, 1)


def _append_score(scores, valid, extra, query_mask):
    """Append the scores `extra` `(B, T, 1)`, which are valid for valid queries.

    Returns:
        The scores, `(B, T, S + 1)`, and their mask or `None`.
    """
    if valid is not None:
        valid = ops.broadcast_to(valid, ops.shape(scores))
        query_mask = None if query_mask is None else query_mask[..., None]
        is_query = combine_masks(ops.ones_like(extra, "bool"), query_mask)
        valid = _append(valid, is_query)
    return _append(scores, extra), valid


def _append(x, last):
    """Return `x` `(..., S)` with one more entry per row, `last` `(..., 1)`."""
    if not is_symbol(x.shape[-1]):
        return ops.concatenate([x, last], axis=-1)
    # The converter of JAX to ONNX takes S for the length of the concatenation.
    padding = [[0, 0] for _ in x.shape[1:]] + [[0, 1]]
    at_end = ops.pad(ops.zeros_like(x), padding, constant_values=1) == 1
    return ops.where(at_end, last, ops.pad(x, padding))
