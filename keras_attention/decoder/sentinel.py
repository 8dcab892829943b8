"""The visual sentinel of a decoder step: the carry of its LSTM as one more position.

Shapes: B batch, K queries, D inputs of the LSTM, U its units, P depth of projected
keys, V depth of the values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import project_rows
from keras_attention.layers.attention import AttentionStep
from keras_attention.serialization import CompositeLayer
from keras_attention.typing import Nested, Shapes, Tensor, Tensors


class VisualSentinel(CompositeLayer):
    """Key and value of the visual sentinel, the gated carry of an LSTM.

        sentinel[t] = sigmoid(W_input x[t] + W_state h[t-1]) * tanh(carry[t])
        key[t]      = W_key sentinel[t]
        value[t]    = sentinel[t], or W_value sentinel[t] if U is not V

    Call arguments:
        inputs: List of tensors `(B, K, depth)`, whose concatenation is the input
            `x[t]` of the LSTM.
        previous: Output state of the LSTM before the step, `(B, K, U)`.
        carry: Carry of the LSTM after the step, `(B, K, U)`.

    Returns:
        key: Tensor of shape `(B, K, P)`.
        value: Tensor of shape `(B, K, V)`.

    Reference:
        [Lu et al., 2017](https://arxiv.org/abs/1612.01887), section 2.3.
    """

    def __init__(self, **kwargs: Any) -> None:
        # The states of the LSTM keep their precision; the layers cast their inputs.
        super().__init__(autocast=False, **kwargs)
        self.gate: Any = None
        self.key_projection: Any = None
        self.value_projection: Any = None

    def build(self, inputs_depth: int, units: int, memory_shapes: Shapes) -> None:
        keys, values = (memory_shapes[name][-1] for name in ("keys", "values"))
        self.gate = self._dense(units, "gate", activation="sigmoid")
        self.gate.build((None, inputs_depth + units))
        self.key_projection = self._dense(keys, "key_projection")
        self.key_projection.build((None, units))
        if values != units:
            self.value_projection = self._dense(values, "value_projection")
            self.value_projection.build((None, units))
        self.built = True

    def _dense(self, units: int, name: str, **options: Any) -> keras.layers.Dense:
        return keras.layers.Dense(
            units, use_bias=False, dtype=self.dtype_policy, name=name, **options
        )

    def call(
        self, inputs: Sequence[Tensor], previous: Tensor, carry: Nested
    ) -> tuple[Tensor, Tensor]:
        parts = [ops.cast(x, self.compute_dtype) for x in (*inputs, previous)]
        gate = project_rows(self.gate, ops.concatenate(parts, axis=-1))
        sentinel = gate * ops.tanh(ops.cast(carry, self.compute_dtype))
        value = sentinel
        if self.value_projection is not None:
            value = project_rows(self.value_projection, sentinel)
        return project_rows(self.key_projection, sentinel), value


def attend_with_sentinel(
    sentinel: VisualSentinel,
    attend: Callable[..., Any],
    query: Tensor,
    inputs: Sequence[Tensor],
    states: Nested,
) -> tuple[Tensors, Nested]:
    """Attend to a memory and to the sentinel.

    Args:
        sentinel: The `VisualSentinel`.
        attend: Function `(query, **options) -> (outputs, state)` of the attention.
        query: The query, `(B, K, U)`.
        inputs: List of the inputs of the cell.
        states: Output state of the LSTM before the step, and its carry after it.

    Returns:
        The outputs, with the weight of the sentinel as `"sentinel"` `(B, K)`, and the
        state of the attention.
    """
    key, value = sentinel(inputs, *states)
    outputs, state = attend(query, extra_key=key)
    outputs = dict(outputs)
    weight = outputs.pop("extra_weight")
    weighted = ops.cast(weight, value.dtype)[..., None] * value
    context = ops.cast(outputs["context"], value.dtype) + weighted
    return {**outputs, "context": context, "sentinel": weight}, state


def check_parts(
    cell: keras.layers.Layer, attention: keras.layers.Layer, order: str
) -> None:
    """Raise `ValueError` for parts that cannot be combined with a sentinel."""
    step, sizes, needed = getattr(attention, "step", None), cell.state_size, None
    if order != "current":
        needed = "order='current': it depends on the new state of the cell"
    elif len(tree.flatten(sizes)) != 2 or tree.is_nested(sizes[0]):
        needed = "one LSTM cell, because it depends on the carry"
    elif not isinstance(step, AttentionStep):
        needed = (
            "one attention that is composed of a score and a weighting, such as "
            "AdditiveAttention(256)"
        )
    elif step.window or step.sequential or not step.score.uses_keys:
        needed = (
            "an attention without window, coverage or monotonic weights, and a score "
            "that uses the keys"
        )
    elif step.weighting.reports:
        needed = "a deterministic weighting, such as softmax"
    if needed:
        raise ValueError(
            f"sentinel needs {needed}. Received: order={order!r}, cell={cell!r}, "
            f"attention={attention!r}"
        )
