"""Recurrent cells with layer normalisation, and helpers for any recurrent cell.

Shapes: B batch, D depth of the inputs, U units.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import draws_inside_loops
from keras_attention.layers.projections import fresh_initializer
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.sizes import at_least_one
from keras_attention.typing import Config, Initializer, Nested, Shape, Tensor
from keras_attention.validation import (
    check_fraction,
    check_positive,
    check_positive_integer,
)

# Greatest number of units of a cell, whose recurrent kernel `(U, 4 U)` has 4 GiB then.
MAX_RECURRENT_UNITS = 2**14


class NormalizedCell:
    """Mixin that adds layer normalisation to the matrix products of a Keras cell.

    Weights, options, states and dropout are those of the cell. Subclasses implement
    `apply_gates(input_products, state_products, state)`, which returns output and new
    state. Its arguments are the product of the inputs with `kernel`, that of the output
    state with `recurrent_kernel`, and the state, a list of tensors `(B, U)`.
    """

    def __init__(
        self,
        units: int,
        *,
        epsilon: float = 1e-5,
        gain_initializer: Initializer = "ones",
        **options: Any,
    ) -> None:
        check_positive("epsilon", epsilon)
        for name in ("dropout", "recurrent_dropout"):
            check_fraction(name, options.get(name, 0.0))
        units = check_positive_integer("units", units)
        if units > MAX_RECURRENT_UNITS:
            raise ValueError(
                f"units must be at most {MAX_RECURRENT_UNITS:,}, because the recurrent "
                f"kernel grows with their square. Received: {units:,}"
            )
        super().__init__(units, **options)
        self.epsilon = float(epsilon)
        self.gain_initializer = keras.initializers.get(gain_initializer)

    def _add_gain(self, name: str, size: Any) -> Tensor:
        return self.add_weight(
            name=name,
            shape=(size,),
            initializer=fresh_initializer(self.gain_initializer),
        )

    def call(
        self, inputs: Tensor, states: Nested, training: bool | None = False
    ) -> tuple[Tensor, Nested]:
        nested = tree.is_nested(states)
        state = list(states) if nested else [states]
        masks = [None, None]
        if training and 0 < self.dropout < 1:
            masks[0] = self.get_dropout_mask(inputs)
        if training and 0 < self.recurrent_dropout < 1:
            masks[1] = self.get_recurrent_dropout_mask(state[0])
        input_products = _product(inputs, self.kernel, masks[0])
        state_products = _product(state[0], self.recurrent_kernel, masks[1])
        output, state = self.apply_gates(input_products, state_products, state)
        return output, state if nested else state[0]

    def _normalize(self, x: Tensor, gain: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return `gain * (x - mean) / deviation + bias` over the last axis."""
        dtype = accumulation_dtype(self.compute_dtype)
        x = ops.cast(x, dtype)
        x = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(x), axis=-1, keepdims=True)
        x = x * ops.rsqrt(variance + self.epsilon) * ops.cast(gain, dtype)
        return x if bias is None else x + ops.cast(bias, dtype)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "epsilon": self.epsilon,
            "gain_initializer": keras.initializers.serialize(self.gain_initializer),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class LayerNormLSTMCell(NormalizedCell, keras.layers.LSTMCell):
    """LSTM cell with layer normalisation.

        i, f, g, o = LN(kernel x[t]) + LN(recurrent_kernel h[t-1]) + bias
        c[t]       = sigmoid(f) * c[t-1] + sigmoid(i) * tanh(g)
        h[t]       = sigmoid(o) * tanh(LN(c[t]) + carry_bias)
        LN(s)      = gain * (s - mean(s)) / sqrt(variance(s) + epsilon)

    Mean and variance are taken over the `4 U` sums of a row, all gates together, and
    over its U carries. Each LN has its own gain. The biases that the paper adds after
    the first two are part of `bias`, because only their sum matters.

    The cell works wherever a cell of Keras does, such as in `keras.layers.RNN`, which
    handles masks. The normalisation runs in float32 under half precision.

    Args:
        units: Positive integer U.
        epsilon: Positive number added to the variance.
        gain_initializer: Initializer of the gains.
        **options: Options of `keras.layers.LSTMCell`. `use_bias` and the bias options
            also apply to `carry_bias`; `unit_forget_bias` does not.

    Call arguments:
        inputs: Tensor of shape `(B, D)`.
        states: `[h, c]`, tensors `(B, U)`.
        training: Whether dropout is active.

    Returns:
        output: The new `h`, `(B, U)`.
        states: The new `[h, c]`.

    Raises:
        ValueError: If `units` is not a positive integer, or `epsilon` not positive.

    Example:

    >>> cell = LayerNormLSTMCell(32, recurrent_dropout=0.1)
    >>> states = keras.layers.RNN(cell, return_sequences=True)
    >>> tuple(states(np.zeros((8, 11, 10), "float32")).shape)
    (8, 11, 32)

    Reference:
        [Ba et al., 2016](https://arxiv.org/abs/1607.06450), section 3.1 and the
        supplementary material.
    """

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.input_gain = self._add_gain("input_gain", 4 * self.units)
        self.recurrent_gain = self._add_gain("recurrent_gain", 4 * self.units)
        self.carry_gain = self._add_gain("carry_gain", self.units)
        self.carry_bias = None
        if self.use_bias:
            self.carry_bias = self.add_weight(
                name="carry_bias",
                shape=(self.units,),
                initializer=fresh_initializer(self.bias_initializer),
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def apply_gates(
        self, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, Nested]:
        sums = self._normalize(input_products, self.input_gain, self.bias)
        sums = sums + self._normalize(state_products, self.recurrent_gain)
        return lstm_gates(
            self, ops.cast(sums, state[1].dtype), state, self.normalize_carry
        )

    def normalize_carry(self, carry: Tensor) -> Tensor:
        """Return the normalised carry, to which the output applies the activation."""
        normalized = self._normalize(carry, self.carry_gain, self.carry_bias)
        return ops.cast(normalized, carry.dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class LayerNormGRUCell(NormalizedCell, keras.layers.GRUCell):
    """GRU cell with layer normalisation.

        z, r   = LN(kernel x[t]) + LN(recurrent_kernel h[t-1])
        new    = tanh(LN(kernel x[t]) + sigmoid(r) * LN(recurrent_kernel h[t-1]))
        h[t]   = sigmoid(z) * h[t-1] + (1 - sigmoid(z)) * new
        LN(s)  = gain * (s - mean(s)) / sqrt(variance(s) + epsilon) + bias

    Mean and variance are taken over the `2 U` sums of `z` and `r` of a row together,
    and over the U sums of the candidate `new`. Each LN has its own gain and bias. As
    everywhere in Keras, the gate `z` is the share of the old state; in the paper, it is
    the share of the candidate.

    Arguments and use are as for `LayerNormLSTMCell`.

    Args:
        units, epsilon, gain_initializer: As for `LayerNormLSTMCell`.
        **options: Options of `keras.layers.GRUCell`.

    Call arguments:
        inputs: Tensor of shape `(B, D)`.
        states: `[h]`, a tensor `(B, U)`.
        training: Whether dropout is active.

    Returns:
        output: The new `h`, `(B, U)`.
        states: The new `[h]`.

    Raises:
        ValueError: If `units` is not a positive integer, `epsilon` not positive, or
            `reset_after` is `False`: the cell resets the normalised product.

    Example:

    >>> states = keras.layers.RNN(LayerNormGRUCell(32), return_sequences=True)
    >>> tuple(states(np.zeros((8, 11, 10), "float32")).shape)
    (8, 11, 32)

    Reference:
        [Ba et al., 2016](https://arxiv.org/abs/1607.06450), section 3.1 and the
        supplementary material.
    """

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(units, **options)
        if not self.reset_after:
            raise ValueError(
                "reset_after must be True: the cell resets the normalised product. "
                f"Received: {self.reset_after!r}"
            )

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.input_gain = self._add_gain("input_gain", 3 * self.units)
        self.recurrent_gain = self._add_gain("recurrent_gain", 3 * self.units)

    def apply_gates(
        self, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, Nested]:
        biases = self.bias if self.use_bias else [None, None]
        inputs = self._normalize_gates(input_products, self.input_gain, biases[0])
        states = self._normalize_gates(state_products, self.recurrent_gain, biases[1])
        dtype = state[0].dtype
        return gru_gates(self, ops.cast(inputs, dtype), ops.cast(states, dtype), state)

    def _normalize_gates(self, sums: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        """Normalise the sums of both gates together, and those of the candidate."""
        parts = slice(2 * self.units), slice(2 * self.units, None)
        normalized = [
            self._normalize(
                sums[..., part], gain[part], None if bias is None else bias[part]
            )
            for part in parts
        ]
        return ops.concatenate(normalized, axis=-1)


def lstm_gates(
    cell: keras.layers.Layer,
    sums: Tensor,
    state: Nested,
    prepare: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """Return output and new state of an LSTM cell.

    Args:
        cell: `keras.layers.LSTMCell`, or one that is derived from it.
        sums: Sums of all products and biases, `(..., 4 U)`.
        state: `[h, c]`, tensors `(..., U)`.
        prepare: Function of the new carry, applied before the activation; optional.
    """
    _, carry = state
    gate, activation = cell.recurrent_activation, cell.activation
    i, f, g, o = ops.split(sums, 4, axis=-1)
    carry = gate(f) * carry + gate(i) * activation(g)
    output = gate(o) * activation(carry if prepare is None else prepare(carry))
    return output, [output, carry]


def gru_gates(
    cell: keras.layers.Layer,
    input_products: Tensor,
    state_products: Tensor,
    state: Nested,
) -> tuple[Tensor, list[Tensor]]:
    """Return output and new state of a GRU cell that resets after the product.

    Args:
        cell: `keras.layers.GRUCell`, or one that is derived from it.
        input_products: Products of the inputs, with their bias, `(..., 3 U)`.
        state_products: Products of the state, with their bias, `(..., 3 U)`.
        state: `[h]`, a tensor `(..., U)`.
    """
    (output,) = state
    gate, activation = cell.recurrent_activation, cell.activation
    keep, reset, new = ops.split(input_products, 3, axis=-1)
    keep_state, reset_state, new_state = ops.split(state_products, 3, axis=-1)
    keep = gate(keep + keep_state)
    new = activation(new + gate(reset + reset_state) * new_state)
    output = keep * output + (1 - keep) * new
    return output, [output]


def _product(x: Tensor, kernel: Tensor, mask: Tensor) -> Tensor:
    """Return `x @ kernel`.

    The dropout mask is a tensor, a list of one tensor per gate, or `None`.
    """
    if not isinstance(mask, list):
        return ops.matmul(x if mask is None else x * mask, kernel)
    parts = zip(mask, ops.split(kernel, len(mask), axis=1), strict=True)
    return ops.concatenate([ops.matmul(x * m, part) for m, part in parts], axis=-1)


def check_cell(name: str, cell: keras.layers.Layer) -> None:
    """Raise `ValueError` unless `keras.layers.RNN` would accept the cell."""
    is_cell = isinstance(cell, keras.layers.Layer) and hasattr(cell, "state_size")
    if not is_cell or isinstance(cell, keras.layers.RNN):
        raise ValueError(
            f"{name} must be a Keras RNN cell, such as keras.layers.GRUCell(256). "
            f"Received: {cell!r}"
        )


def call_cell(
    cell: keras.layers.Layer, inputs: Nested, state: Nested, **options: Any
) -> tuple[Tensor, Nested]:
    """Call a cell for inputs `(B, D)` and states `(B, U)`; B may be 0."""
    # Where JAX infers shapes, B is a symbol.
    if not (isinstance(inputs.shape[0], int) and inputs.shape[0] == 0):
        return cell(inputs, state, **options)
    # On TensorFlow, the LSTM cell of Keras takes no empty batch.
    row = tree.map_structure(at_least_one, (inputs, state))
    return tree.map_structure(lambda x: x[:0], cell(*row, **options))


def check_loop_layer(name: str, layer: Any) -> None:
    """Raise `ValueError` on JAX for a layer that draws random numbers inside a loop.

    Args:
        name: Name of the argument.
        layer: The layer, or `None`.
    """
    if draws_inside_loops() or layer is None:
        return
    if any(part._seed_generators for part in layer._flatten_layers()):
        raise ValueError(
            f"{name} must have no dropout or noise on JAX, which cannot draw inside a "
            f"loop; apply it to the outputs of the decoder. Received: {layer!r}"
        )


def has_dropout(cell: keras.layers.Layer) -> bool:
    """Return whether a cell, or one of its stacked cells, has any dropout."""
    return any(
        getattr(layer, "dropout", 0) or getattr(layer, "recurrent_dropout", 0)
        for layer in cell._flatten_layers()
    )


def reset_dropout_masks(cell: keras.layers.Layer) -> None:
    """Delete the dropout masks that Keras cells keep from one call to the next."""
    for layer in cell._flatten_layers():
        if hasattr(layer, "reset_dropout_mask"):
            layer.reset_dropout_mask()
            layer.reset_recurrent_dropout_mask()


def initial_cell_state(cell: keras.layers.Layer, batch: Any) -> list[Tensor]:
    """Return the list of a cell's states before its first step, `(batch, units)`."""
    if hasattr(cell, "get_initial_state"):
        return _as_list(cell.get_initial_state(batch_size=batch))
    return [
        ops.zeros((batch, units), cell.compute_dtype)
        for units in _as_list(cell.state_size)
    ]


def topmost_units(cell: keras.layers.Layer) -> int:
    """Return the depth of the output state of a cell, the topmost if it is stacked."""
    while hasattr(cell, "cells"):
        cell = cell.cells[-1]
    return _as_list(cell.state_size)[0]


def output_units(cell: keras.layers.Layer) -> int:
    """Return the depth of the output of a cell."""
    return getattr(cell, "output_size", None) or topmost_units(cell)


def _as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, (list, tuple)) else [x]
