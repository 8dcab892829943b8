"""Windows of local attention: local-m and local-p.

Shapes: B batch, T queries, Q query depth, S positions, W positions in a window,
U depth of the keys, V depth of the values.
"""

from typing import Any

import keras
from keras import ops

from keras_attention.backends import index_range, project_rows
from keras_attention.layers.components import AttentionPart, step_numbers
from keras_attention.layers.projections import (
    fresh_options,
    pop_weight_options,
    serialize_options,
)
from keras_attention.ops.gathering import take_rows
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.ops.rows import row_max
from keras_attention.sizes import at_least_one, is_zero, join_axes
from keras_attention.typing import Activation, Config, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import check_positive_integer


class LocalWindow(AttentionPart):
    """Base of the windows: `2 * half_width + 1` positions around a centre.

    A subclass implements `centers(query, memory, state)`.

    Args:
        half_width: Positions on either side of the centre, D in the paper.

    Attributes:
        has_prior: Whether the window has a prior that multiplies the weights.

    Call arguments:
        query: Tensor of shape `(B, T, Q)`.
        memory: Dict of `"keys"` `(B, S, U)`, `"values"` `(B, S, V)` and, if there is a
            mask, `"mask"` `(B, S)`.
        state: Dict of tensors, as `initial_state` returns it.
        valid: Boolean, broadcastable to `(B, T, S)`, positions that may be attended;
            `None` for all.

    Returns:
        view: Dict with the positions in the windows: `"keys"` `(B, T, W, U)`,
            `"values"` `(B, T, W, V)`, the boolean `"mask"` and the int32
            `"positions"`, both `(B, T, W)`, and `"prior"` `(B, T, W)`, which
            multiplies the weights, if the window `has_prior`.
        state: Dict for the next step.
    """

    has_prior = False

    def __init__(self, half_width: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.half_width = check_positive_integer("half_width", half_width)

    @property
    def width(self) -> int:
        """Number of positions in the window."""
        return 2 * self.half_width + 1

    def build(self, query_shape: Shape, memory_shape: Shapes = None) -> None:
        self.built = True

    def centers(
        self, query: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors]:
        """Return the centres `(B, T)` in float32 at least, and the next state."""
        raise NotImplementedError

    def call(
        self,
        query: Tensor,
        memory: Tensors,
        state: Tensors,
        valid: Tensor | None = None,
    ) -> tuple[Tensors, Tensors]:
        centers, state = self.centers(query, memory, state)
        offsets = ops.arange(-self.half_width, self.half_width + 1, dtype="int32")
        positions = ops.cast(ops.floor(centers), "int32")[..., None] + offsets
        length = ops.shape(memory["values"])[1]
        mask = ops.logical_and(positions >= 0, positions < length)
        if "mask" in memory:
            mask = ops.logical_and(mask, take_window(memory["mask"], positions))
        if valid is not None:
            valid = ops.broadcast_to(valid, (*ops.shape(centers), length))
            # Every query has its own row of the mask.
            rows = join_axes(valid)[..., None], join_axes(positions)[:, None]
            taken = ops.reshape(take_window(*rows), ops.shape(positions))
            mask = ops.logical_and(mask, taken)
        view = {
            "keys": take_window(memory["keys"], positions),
            "values": take_window(memory["values"], positions),
            "mask": mask,
            "positions": positions,
        }
        if self.has_prior:
            distance = ops.cast(positions, centers.dtype) - centers[..., None]
            deviation = self.half_width / 2
            view["prior"] = ops.exp(-ops.square(distance / deviation) / 2)
        return view, state

    def get_config(self) -> Config:
        return {**super().get_config(), "half_width": self.half_width}


@keras.saving.register_keras_serializable(package="keras_attention")
class LocalMonotonicWindow(LocalWindow):
    """Local-m: the window moves by one position with every query.

        center[t] = t

    Args:
        half_width: Positions on either side of the centre.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.2.
    """

    state_names = ("step",)

    def initial_state(self, memory: Tensors, queries: int) -> Tensors:
        batch = ops.shape(memory["values"])[0]
        return {"step": step_numbers(batch, queries, at_once=False)}

    def states_of_sequence(self, memory: Tensors, queries: int) -> Tensors:
        batch = ops.shape(memory["values"])[0]
        return {"step": step_numbers(batch, queries, at_once=True)}

    def centers(
        self, query: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors]:
        return ops.cast(state["step"], "float32"), {"step": state["step"] + 1}


@keras.saving.register_keras_serializable(package="keras_attention")
class LocalPredictiveWindow(LocalWindow):
    """Local-p: the query predicts the centre, and nearer positions weigh more.

        center[t]   = first + length * sigmoid(scale . tanh(W query[t]))
        prior[t, s] = exp(-(s - center[t])^2 / (2 (half_width / 2)^2))

    The window spans `floor(center) - half_width` to `floor(center) + half_width`.
    Positions count from zero; `first` and `length` are those of the source without its
    padding, which may be before or after it.

    Args:
        half_width: Positions on either side of the centre.
        units: Depth of the hidden layer; that of the query if omitted.
        kernel_initializer, kernel_regularizer, kernel_constraint: For `W` and `scale`.

    Reference:
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.2,
        equations 9 and 10.
    """

    has_prior = True

    def __init__(
        self,
        half_width: int = 10,
        *,
        units: int | None = None,
        **kwargs: Any,
    ) -> None:
        options = pop_weight_options(kwargs, kernel="glorot_uniform")
        super().__init__(half_width, **kwargs)
        self.options = options
        self.units = check_positive_integer("units", units, optional=True)

    def build(self, query_shape: Shape, memory_shape: Shapes = None) -> None:
        self.query_depth = query_shape[-1]
        units = self.units or self.query_depth
        self.hidden = self._dense(units, "tanh", "hidden")
        self.hidden.build((None, self.query_depth))
        self.center = self._dense(1, "sigmoid", "center")
        self.center.build((None, units))
        self.built = True

    def check_shared(self, *shapes: Any) -> None:
        query_shape, _ = shapes
        if query_shape[-1] != self.query_depth:
            raise ValueError(
                "layers that share a LocalPredictiveWindow must have the same depth of "
                f"queries, {self.query_depth}. Received: {query_shape[-1]}"
            )

    def _dense(
        self, units: Any, activation: Activation, name: str
    ) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            activation,
            use_bias=False,
            **fresh_options(self.options),
            dtype=self.dtype_policy,
            name=name,
        )

    def centers(
        self, query: Tensor, memory: Tensors, state: Tensors
    ) -> tuple[Tensor, Tensors]:
        share = project_rows(self.center, project_rows(self.hidden, query))[..., 0]
        # Half precision cannot represent every position of a long source.
        dtype = accumulation_dtype(self.compute_dtype)
        first, length = (
            ops.reshape(ops.cast(x, dtype), (-1, 1)) for x in _extent(memory)
        )
        return first + ops.cast(share, dtype) * length, state

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "units": self.units,
            **serialize_options(self.options),
        }


def _extent(memory: Tensors) -> tuple[Tensor, Tensor]:
    """Return the first valid position and length of every source, `(B,)` or scalar."""
    length = ops.shape(memory["values"])[1]
    if "mask" not in memory:
        return 0, length
    mask = memory["mask"]
    from_start = ops.arange(1, length + 1, dtype="int32")
    from_end = length + 1 - from_start
    # A source without a valid position may have any extent.
    end, rest = (
        ops.maximum(row_max(ops.where(mask, numbers, 0))[:, 0], 0)
        for numbers in (from_start, from_end)
    )
    first = length - rest
    return first, end - first


def take_window(x: Tensor, positions: Tensor) -> Tensor:
    """Return the entries of `x` `(B, S, ...)` at int32 positions `(B, T, W)`.

    Positions outside of the source give the nearest entry, or zeros if it is empty. The
    cost grows with the window and not with the source.
    """
    x = at_least_one(x, axis=1)
    return take_rows(x, _nearest(positions, ops.shape(x)[1]))


def spread_window(weights: Tensor, positions: Tensor, length: Any) -> Tensor:
    """Spread weights `(B, T, W)` at int32 positions over the source, to `(B, T, S)`.

    The weights of positions outside of the source are zero.
    """
    batch, queries = ops.shape(weights)[:2]
    if is_zero(length):
        return ops.zeros((batch, queries, 0), weights.dtype)
    rows = ops.reshape(index_range(batch * queries) * length, (batch, queries, 1))
    indices = ops.reshape(rows + _nearest(positions, length), (-1, 1))
    size = batch * queries * length
    flat = ops.reshape(weights, (-1,))
    if ops.is_tensor(size):
        # The size is unknown in a graph, and `scatter` fails for an empty tensor.
        flat = ops.scatter(indices, flat, (ops.maximum(size, 1),))[:size]
    else:
        flat = ops.scatter(indices, flat, (size,))
    return ops.reshape(flat, (batch, queries, length))


def _nearest(positions: Tensor, length: Any) -> Tensor:
    """Return the position of the source that is nearest to each; 0 if it is empty."""
    # On JAX with bfloat16 by default, `ops.maximum` of integers is a float; there, the
    # length is a Python integer.
    last = length - 1
    last = max(last, 0) if isinstance(last, int) else ops.maximum(last, 0)
    return ops.clip(positions, 0, last)
