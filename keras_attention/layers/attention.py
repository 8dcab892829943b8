"""Attention layers composed of parts: a score, a weighting and a window.

Shapes: B batch, T queries, S positions, Q query depth, V value depth.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.backends import append_entry, index_range, project_rows
from keras_attention.layers import components
from keras_attention.layers.components import (
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
from keras_attention.typing import Config, Nested, Seed, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import check_boolean, check_call_arguments, check_mask


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
            components.set_dtype_policy(key_projection, self.dtype_policy)
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

    The window selects positions, and the causal mask excludes those after the query.
    The score compares query and keys, and the weighting turns scores into weights. The
    prior of the window scales the weights, coverage sums them up, and dropout drops
    some of them. Coverage and the weighting's own state do not depend on the dropout.

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
        # A layer, so that Keras saves the state of its seed.
        self.weight_dropout = WeightDropout(
            dropout, seed=seed, dtype=self.dtype_policy, name="weight_dropout"
        )
        _check_parts(self)
        self.reports = self.weighting.reports
        self.sequential = self.coverage or self.weighting.sequential
        self.has_state = bool(self.state_names)
        components.set_dtype_policy(score, self.dtype_policy)
        if window is not None:
            components.set_dtype_policy(window, self.dtype_policy)
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
        return {
            name: dict.fromkeys(part_names)
            for name, part_names in names.items()
            if part_names
        }

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
            states["causal_mask"] = {
                "step": components.step_numbers(batch, queries, at_once)
            }
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
        components.check_memory(memory_shape)
        if self.window is not None:
            components.build_part(self.window, query_shape, memory_shape)
        components.build_part(self.score, query_shape, memory_shape["keys"])
        components.build_part(self.weighting, (query_shape[0], None, None))
        components.freeze_new_weights(self)
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
            components.check_memory(memory)
        query = ops.cast(query, self.compute_dtype)
        if state is None:
            state = self.initial_state(memory, ops.shape(query)[1])
        if noise is None:
            noise = self._draw_once(memory, query) if training else {}
        if query_mask is not None:
            query = clear_masked(query, query_mask)
        new_state = {}

        def updated(new: Tensor, old: Tensor) -> Tensor:
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
            positions = view.get("positions", index_range(length))
            valid = combine_masks(valid, positions <= step[..., None])
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

    def _draw_once(self, memory: Tensors, query: Tensor) -> Nested:
        """Return noise for one step."""
        noise = self.draw(memory, 1, ops.shape(query)[1])
        return tree.map_structure(lambda x: x[0], noise)

    def get_config(self) -> Config:
        config = config_of(self, "score weighting window causal")
        dropout = self.weight_dropout.config_for_owner()
        return {**super().get_config(), **config, **dropout}


def _initial(
    part: components.AttentionPart, memory: Tensors, queries: Any, at_once: bool
) -> Tensors:
    """Return the state of a part before each query, or each first query."""
    if at_once:
        return part.states_of_sequence(memory, queries)
    return part.initial_state(memory, queries)


def _check_part(name: str, part: Any, expected: type, example: str) -> None:
    """Raise `ValueError` unless a part is an instance of a class."""
    if not isinstance(part, expected):
        raise ValueError(
            f"{name} must be a {expected.__name__}, such as {example}. "
            f"Received: {part!r}"
        )


def _check_parts(step: AttentionStep) -> None:
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


@dataclasses.dataclass
class AttentionInputs:
    """Inputs of an attention, in the form in which all layers compute.

    Attributes:
        query: Tensor `(B, T, Q)`.
        value: Tensor `(B, S, V)`; `None` in self-attention.
        key: Tensor `(B, S, depth)`; `None` for the value.
        query_mask: Boolean `(B, T)`, or `None`.
        value_mask, key_mask: Boolean `(B, S)`, or `None`.
        attention_mask: Boolean `(B, [N,] T, S)`, or `None`; any axis may be of size 1.
    """

    query: Tensor
    value: Tensor | None = None
    key: Tensor | None = None
    query_mask: Tensor | None = None
    value_mask: Tensor | None = None
    key_mask: Tensor | None = None
    attention_mask: Tensor | None = None


class BaseAttention(CompositeLayer):
    """Base of the attention layers, which consist of a memory and a step.

    A call standardises its inputs, attends, and gives the results the form of the
    inputs. A decoder calls memory and step separately. A subclass creates both, and
    implements `attend`.

    Attributes:
        memory: The `BaseMemory`; called once for every source.
        step: The `BaseStep`; called for one query after the other, or for all at once.
        num_heads: Number N of heads, an axis of the weights; `None` for no such axis.
        axes: The `AttentionAxes` of inputs with more than three axes, or `None`.
        ordered: Whether the position of a query in its sequence matters.
        takes_value: Whether the layer attends from a query to a value; otherwise, it
            attends to the sequence of its queries.
    """

    num_heads: int | None = None
    axes: Any = None
    ordered: bool = False
    takes_value = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_list = args and isinstance(args[0], (list, tuple))
        names = components.call_arguments(type(self))  # type: ignore[arg-type]
        if is_list or "mask" in kwargs or not kwargs.keys() <= names:
            components.check_calling_form(self, args, kwargs)
        if len(args) > 1 and not self.takes_value:
            raise TypeError(
                f"{type(self).__name__} takes one sequence. To attend from a query to "
                f"a value, use MultiHeadAttention. Received: {len(args)} tensors"
            )
        if "use_causal_mask" in kwargs:
            check_boolean("use_causal_mask", kwargs["use_causal_mask"])
            # Keras would turn a boolean of NumPy into a tensor.
            kwargs["use_causal_mask"] = bool(kwargs["use_causal_mask"])
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            check_call_arguments(self.call, args, kwargs, error)
            raise

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
        self.check_inputs(query, value, key, use_causal_mask, return_details)
        inputs = AttentionInputs(
            query, value, key, query_mask, value_mask, key_mask, attention_mask
        )
        has_mask = not (query_mask is None and attention_mask is None)
        if has_mask or len(query.shape) != 3:
            inputs = self.standardize(inputs, value.shape[1])
        outputs = self.attend(
            inputs,
            causal=use_causal_mask,
            return_weights=return_attention_scores or return_details,
            training=training,
        )
        if len(query.shape) != 3:
            outputs = self.restore(outputs, query, value)
        if return_details:
            return outputs
        context = outputs["context"]
        return (context, outputs["weights"]) if return_attention_scores else context

    def attend(
        self,
        inputs: AttentionInputs,
        *,
        causal: bool,
        return_weights: bool,
        training: bool | None,
    ) -> Tensors:
        """Return the outputs of the step for all queries.

        Args:
            inputs: The standardised inputs.
            causal: Whether the queries are causal even if the layer is not.
            return_weights: Whether the outputs contain `"weights"`.
            training: Whether the layer trains.
        """
        raise NotImplementedError

    def check_inputs(
        self,
        query: Tensor,
        value: Tensor | None,
        key: Tensor | None,
        use_causal_mask: bool,
        return_details: bool,
    ) -> None:
        """Raise `ValueError` for tensors of a call whose shapes do not fit."""
        shapes: Any = (
            tuple(query.shape),
            None if value is None else tuple(value.shape),
            None if key is None else tuple(key.shape),
        )
        if self.axes is not None:
            shapes = self.axes.fold_shapes(*shapes)
            if return_details and len(query.shape) > 3:
                raise ValueError(
                    "With attention_axes, return_details must be False. Received: "
                    f"return_details={return_details}, attention_axes={self.axes.axes}"
                )
        components.check_shapes(*shapes, ordered=bool(self.ordered or use_causal_mask))

    def standardize(
        self, inputs: AttentionInputs, positions: int | None
    ) -> AttentionInputs:
        """Return the inputs of a call as `(B, T, Q)` and `(B, S, V)`, masks checked.

        One query `(B, Q)` becomes a sequence of one; several `attention_axes` become
        one.

        Args:
            inputs: The inputs, as they were given.
            positions: Number of positions that a query may attend to, if the inputs
                have three axes.
        """
        if inputs.query_mask is not None:
            check_mask("query_mask", inputs.query_mask, inputs.query.shape[:-1])
        if len(inputs.query.shape) > 3:
            inputs = self.axes.fold_inputs(inputs)
            positions = (inputs.query if inputs.value is None else inputs.value).shape[
                1
            ]
        if inputs.attention_mask is not None:
            mask = self._with_all_axes(inputs.attention_mask, inputs.query, positions)
            inputs = dataclasses.replace(inputs, attention_mask=mask)
        if len(inputs.query.shape) == 2:
            mask = inputs.query_mask
            inputs = dataclasses.replace(
                inputs,
                query=inputs.query[:, None],
                query_mask=None if mask is None else mask[:, None],
            )
        return inputs

    def _with_all_axes(
        self, attention_mask: Tensor, query: Tensor, positions: Any
    ) -> Tensor:
        """Return an attention mask as `(B, [N,] T, S)`; any axis may be of size 1.

        Args:
            attention_mask: Boolean `(B, T, S)` or `(T, S)`; `(B, S)` for one query;
                with heads `(B, N, T, S)`, or `(B, N, S)` for one query, too.
            query: Tensor `(B, T, Q)`, or `(B, Q)` for one query.
            positions: S.
        """
        batch, *queries, _ = query.shape
        shapes = [(batch, *queries, positions)]
        shapes += [(*queries, positions)] if queries else []
        if self.num_heads is not None:
            shapes.append((batch, self.num_heads, *queries, positions))
        check_mask("attention_mask", attention_mask, *shapes, broadcasts=True)
        if not queries:
            attention_mask = attention_mask[..., None, :]
        elif len(attention_mask.shape) == 2:
            attention_mask = attention_mask[None]
        if self.num_heads is not None and len(attention_mask.shape) == 3:
            return attention_mask[:, None]
        return attention_mask

    def restore(self, outputs: Tensors, query: Tensor, value: Tensor) -> Tensors:
        """Return outputs with the axes of the given tensors, if these are not three."""
        if len(query.shape) > 3:
            return self.axes.unfold(outputs, query, value)
        # All outputs but the context have the axis of heads before that of queries.
        axis = 1 if self.num_heads is None else 2
        return {
            name: tree.map_structure(
                partial(ops.squeeze, axis=1 if name == "context" else axis), x
            )
            for name, x in outputs.items()
        }

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        shapes: Any = query_shape, value_shape, key_shape
        if self.axes is not None:
            shapes = self.axes.fold_shapes(*shapes)
        query_shape, value_shape, key_shape = shapes
        components.check_shapes(*(None if x is None else tuple(x) for x in shapes))
        if not self.memory.built:
            self.memory.build(value_shape, key_shape)
        if not self.step.built:
            queries_shape = (query_shape[0], None, query_shape[-1])
            memory_shapes = self.memory.shapes(value_shape, key_shape)
            self.step.build(queries_shape, memory_shapes)
        components.freeze_new_weights(self)
        self.built = True

    def weights_shape(self, query_shape: Shape, value_shape: Shape) -> Shape:
        """Return the shape of the weights for shapes of a query and a value."""
        if len(query_shape) > 3:
            return self.axes.weights_shape(query_shape, value_shape)
        batch, *queries, _ = query_shape
        heads = [] if self.num_heads is None else [self.num_heads]
        return (batch, *heads, *queries, value_shape[1])

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
        self.check_inputs(query, value, key, use_causal_mask, return_details)
        if return_details:
            kwargs.update(use_causal_mask=use_causal_mask, return_details=True)
            return keras.Operation.compute_output_spec(
                self, query, value, key, **kwargs
            )
        shape = self.compute_output_shape(query.shape, value.shape)
        context = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return context
        shape = self.weights_shape(query.shape, value.shape)
        return context, keras.KerasTensor(shape, self.compute_dtype)


def check_takes_value(attention: Any, further: str = "") -> None:
    """Raise `ValueError` unless an attention layer attends from a query to a value."""
    if isinstance(attention, BaseAttention) and attention.takes_value:
        return
    example = "AdditiveAttention(64) or MultiHeadAttention(8, 64)"
    raise ValueError(
        "attention must be an attention layer of keras_attention that takes a query "
        f"and a value, such as {example}{further}. Received: {attention!r}"
    )


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
        self.ordered = causal

    def attend(
        self,
        inputs: AttentionInputs,
        *,
        causal: bool,
        return_weights: bool,
        training: bool | None,
    ) -> Tensors:
        query = inputs.query
        # Called without Keras' `__call__`, which has converted and cast all tensors.
        memory = self.memory.call(
            inputs.value,
            inputs.key,
            value_mask=inputs.value_mask,
            key_mask=inputs.key_mask,
        )
        sequence = {"query": query}
        if inputs.query_mask is not None:
            sequence["query_mask"] = ops.cast(inputs.query_mask, "bool")
        if inputs.attention_mask is not None:
            shape = (*ops.shape(query)[:2], ops.shape(inputs.value)[1])
            mask = ops.cast(inputs.attention_mask, "bool")
            sequence["mask"] = ops.broadcast_to(mask, shape)
        options: dict[str, Any] = {
            "return_weights": return_weights,
            "training": training,
        }
        if self.step.sequential:
            return self._one_by_one(sequence, memory, causal, options)
        state, noise = {}, {}
        if self.step.has_state or causal:
            state = self.step.initial_state(
                memory, ops.shape(query)[1], causal=causal, at_once=True
            )
        if training:
            noise = self.step.draw(memory, ops.shape(query)[1])
            noise = tree.map_structure(_joined, noise)
        outputs, _ = self.step.call(
            memory=memory, state=state, noise=noise, **sequence, **options
        )
        return outputs

    def _one_by_one(
        self, sequence: Nested, memory: Tensors, causal: bool, options: dict[str, Any]
    ) -> Nested:
        """Run the steps of the queries of a sequence one after the other."""
        queries = ops.shape(sequence["query"])[1]
        inputs = {
            name: ops.swapaxes(x, 0, 1)[:, :, None] for name, x in sequence.items()
        }
        inputs["noise"] = self.step.draw(memory, queries) if options["training"] else {}

        def step(state: Nested, inputs: Nested) -> tuple[Nested, Nested]:
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

    def get_config(self) -> Config:
        config = config_of(self.step, "weighting causal")
        dropout = self.step.weight_dropout.config_for_owner()
        return {**super().get_config(), **config, **dropout}


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
        config = config_of(self.step, "score window")
        config |= config_of(self.memory, "key_projection")
        return {**super().get_config(), **config}


def _joined(steps: Tensor) -> Tensor:
    """Return tensors of one query a step, `(T, B, 1, ...)`, as `(B, T, ...)`."""
    return ops.swapaxes(steps[:, :, 0], 0, 1)


def _append_score(
    scores: Tensor, valid: Tensor, extra: Tensor, query_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Append the scores `extra` `(B, T, 1)`, which are valid for valid queries.

    Returns:
        The scores, `(B, T, S + 1)`, and their mask or `None`.
    """
    if valid is not None:
        valid = ops.broadcast_to(valid, ops.shape(scores))
        query_mask = None if query_mask is None else query_mask[..., None]
        is_query = combine_masks(ops.ones_like(extra, "bool"), query_mask)
        valid = append_entry(valid, is_query)
    return append_entry(scores, extra), valid
