"""The memories and the steps of several attentions, with the interface of one.

Shapes: B batch, K queries, S positions, V depth of the context.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from keras import ops

from keras_attention.layers.attention import check_takes_value
from keras_attention.layers.multi_head import MultiHeadAttention
from keras_attention.typing import Dtype, Nested, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import shapes_of


class JointMemory:
    """The memories of several attentions: a list of dicts.

    Args:
        memories: List of the `memory` layers of the attentions.
    """

    def __init__(self, memories: Sequence[Any]) -> None:
        self._memories = memories

    def __call__(
        self, value: Nested, *, value_mask: Nested | None = None
    ) -> list[Tensors]:
        values = self._one_per_attention("value", value)
        masks = self._one_per_attention("value_mask", value_mask)
        return [
            memory(x, value_mask=mask)
            for memory, x, mask in zip(self._memories, values, masks, strict=True)
        ]

    def build(self, value_shape: Shapes) -> None:
        for memory, shape in self._pairs(value_shape):
            if not memory.built:
                memory.build(shape)

    def shapes(self, value_shape: Shapes) -> list[Shapes]:
        """Return a list with the shapes that each memory returns."""
        return [memory.shapes(shape) for memory, shape in self._pairs(value_shape)]

    def _pairs(self, value_shape: Shapes) -> Iterable[tuple[Any, Any]]:
        is_list = isinstance(value_shape[0], (list, tuple))
        value_shapes = self._one_per_attention(
            "value", value_shape if is_list else [value_shape]
        )
        return zip(self._memories, map(tuple, value_shapes), strict=True)

    def _one_per_attention(self, name: str, x: Any) -> Sequence[Any]:
        """Return a list with one entry for each attention; a single `x` is repeated."""
        x = list(x) if isinstance(x, (list, tuple)) else [x]
        count = len(self._memories)
        if len(x) not in (1, count):
            raise ValueError(
                f"{name} must be one for all attentions, or a list of {count}. "
                f"Received: {shapes_of(x)}"
            )
        return x * count if len(x) == 1 else x


class JointStep:
    """The steps of several attentions: contexts concatenated, other outputs in lists.

    Args:
        steps: List of the `step` layers of the attentions.
        dtype: Dtype of the context.
    """

    def __init__(self, steps: Sequence[Any], dtype: Dtype) -> None:
        self._steps = steps
        self._dtype = dtype

    def call(
        self,
        query: Tensor,
        memory: Nested,
        state: Nested | None = None,
        *,
        noise: Nested | None = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Nested]:
        count = len(self._steps)
        results = [
            step.call(query, *inputs, noise=one_noise, training=training)
            for step, *inputs, one_noise in zip(
                self._steps,
                memory,
                state or [{}] * count,
                noise or [None] * count,
                strict=True,
            )
        ]
        outputs, states = [dict(x) for x, _ in results], [state for _, state in results]
        contexts = [ops.cast(x.pop("context"), self._dtype) for x in outputs]
        joint = {name: [x[name] for x in outputs if name in x] for name in self.reports}
        weights = [x["weights"] for x in outputs]
        context = ops.concatenate(contexts, axis=-1)
        return {**joint, "weights": weights, "context": context}, states

    @property
    def built(self) -> bool:
        return all(step.built for step in self._steps)

    def build(self, query_shape: Shape, memory_shapes: Shapes) -> None:
        for step, shape in zip(self._steps, memory_shapes, strict=True):
            if not step.built:
                step.build(query_shape, shape)

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the reports of any attention, each once."""
        return tuple(dict.fromkeys(x for step in self._steps for x in step.reports))

    @property
    def state_names(self) -> Nested:
        """List of the structures of the states; empty if there is no state."""
        names = [step.state_names for step in self._steps]
        return names if any(names) else []

    def context_depth(self, query_depth: int | None, memory_shapes: Shapes) -> Any:
        """Return the sum of the depths, or `None` if one is unknown."""
        pairs = zip(self._steps, memory_shapes, strict=True)
        depths = [step.context_depth(query_depth, shape) for step, shape in pairs]
        return None if None in depths else sum(depths)

    def initial_state(self, memory: Nested, queries: Any = 1) -> Nested:
        """Return a list with the state of each step before the first query."""
        pairs = zip(self._steps, memory, strict=True)
        return [step.initial_state(step_memory, queries) for step, step_memory in pairs]

    def draw(self, memory: Nested, steps: int, queries: Any = 1) -> Nested:
        """Return a list with the noise of each step for training."""
        pairs = zip(self._steps, memory, strict=True)
        return [step.draw(step_memory, steps, queries) for step, step_memory in pairs]


def check_attention(attention: Any) -> None:
    """Raise `ValueError` for anything but an attention layer or a list of them."""
    attentions = attention if isinstance(attention, list) else [attention]
    for layer in attentions or [None]:
        check_takes_value(layer, ", or a list of such layers")
        is_multi_head = isinstance(layer, MultiHeadAttention)
        if is_multi_head and (layer.options.causal or layer.options.needs_positions):
            raise ValueError(
                f"A {type(layer).__name__} in a decoder must neither be causal nor "
                "have positions or a window_size, because its query has no position in "
                f"a sequence. Received: causal={layer.causal}, "
                f"positions={layer.positions}, window_size={layer.window_size}"
            )
