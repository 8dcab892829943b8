"""Recurrent cells whose products with known inputs are computed outside the loop.

An encoder knows all inputs of its cell before the loop, a decoder all but the context.
Their products with the kernel are computed at once, before the loop. The gradients of
the kernels that remain in the loop are also computed at once, after the loop.

Shapes: T steps, R rows (batch, or batch x sequences), D depth of the known inputs, V
depth of the context, U units.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_attention import backends
from keras_attention.layers.recurrent import (
    LayerNormGRUCell,
    LayerNormLSTMCell,
    gru_gates,
    lstm_gates,
)
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.typing import Dtype, Nested, Tensor, Tensors


def split_cell(
    cell: keras.layers.Layer, inputs: Nested, dtype: Dtype
) -> "SplitCell | None":
    """Return a `SplitCell` for one pass of a cell, or `None` if it cannot be split.

    Args:
        cell: Keras RNN cell, built for inputs of depth D + V.
        inputs: All inputs but the context, `(T, ..., D)`.
        dtype: Dtype to compute in.
    """
    # A subclass may override the computation, so the type has to be exact.
    split = SPLITS.get(type(cell))
    if split is None or cell.compute_dtype != dtype:
        return None
    if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
        return None
    return split(cell, inputs, dtype) if getattr(cell, "reset_after", True) else None


class SplitCell:
    """One pass of a cell over known inputs.

    Attributes:
        sequences: Dict of tensors `(T, ...)`; each step receives its part.
        adds_bias: Whether the bias of the cell is part of the sums.

    Call arguments:
        part: Part of `sequences`.
        context: Inputs that only the step knows, `(R, V)`; `None` if V is 0.
        state: List of tensors `(R, U)`.

    Returns:
        output: Tensor of shape `(R, U)`.
        state: List for the next step.
    """

    adds_bias = True
    #: Tensors `(S, ...)`; each step receives its part.
    sequences: Nested

    def __init__(self, cell: keras.layers.Layer, inputs: Nested, dtype: Dtype) -> None:
        self.cell = cell
        self._dtype = dtype
        self._kernel_inputs: Tensors = {}
        depth = inputs.shape[-1]
        kernel = ops.cast(self._prepared(cell.kernel), dtype)
        recurrent = ops.cast(self._prepared(cell.recurrent_kernel), dtype)
        self._products = backends.project_rows(
            lambda rows: ops.matmul(rows, kernel[:depth]), inputs
        )
        self._kernels = {"state": recurrent}
        if kernel.shape[0] > depth:
            self._kernels["context"] = kernel[depth:]
        self._multiply = {name: _multiplier(x) for name, x in self._kernels.items()}

    def _prepared(self, kernel: Tensor) -> Tensor:
        """Return a kernel of the cell in the form that the products use."""
        return kernel

    def record_kernel_inputs(self, contexts: Tensor, states: Nested) -> None:
        """Record the inputs of the kernels in all steps, for the deferred gradients.

        Args:
            contexts: Tensor `(T, ..., V)`; `None` if V is 0.
            states: Output states before every step, `(T, ..., U)`.
        """
        for name, x in {"context": contexts, "state": states}.items():
            if x is not None:
                self._kernel_inputs[name] = ops.stop_gradient(ops.cast(x, self._dtype))

    def _add_products(self, sums: Tensor, **kernel_inputs: Any) -> Tensor:
        """Return `sums` plus the products of inputs with the kernels of these names."""
        for name, x in kernel_inputs.items():
            if x is not None:
                sums = sums + self._multiply[name](ops.cast(x, self._dtype))
        return sums

    def _add_bias(self, sums: Tensor, index: int | None = None) -> Tensor:
        if not (self.cell.use_bias and self.adds_bias):
            return sums
        bias = self.cell.bias if index is None else self.cell.bias[index]
        return sums + ops.cast(bias, self._dtype)

    def _with_deferred_gradients(self, sums: Tensor, *names: str) -> Tensor:
        """Return `sums`; in the backward pass, these kernels get their gradients, too.

        Every step adds `x @ kernel` to the sums, so the gradient of the kernel is
        `x^T @ gradient`, with the rows of all steps at once.
        """
        kernels = {name: self._kernels[name] for name in names if name in self._kernels}
        if kernels and backends.defers_gradients(sums):
            add = _defer_gradients(self._kernel_inputs, list(kernels))
            return add(sums, *kernels.values())
        return sums


def _defer_gradients(
    kernel_inputs: Tensors, names: Sequence[str]
) -> Callable[..., Any]:
    """Return a function `(sums, *kernels) -> sums` with deferred kernel gradients.

    PyTorch keeps the gradient function alive as long as its result. If it referred to a
    tensor computed from the result, the cycle would never be freed.

    Args:
        kernel_inputs: Dict that holds the inputs of the kernels once the loop has run;
            gradients stop at them.
        names: Names of the kernels.
    """

    def add(sums: Tensor, *_: Any) -> tuple[Tensor, Callable[..., Any]]:
        @backends.with_upstream
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            rows = ops.reshape(upstream, (-1, upstream.shape[-1]))
            inputs = [
                ops.reshape(kernel_inputs[n], (-1, kernel_inputs[n].shape[-1]))
                for n in names
            ]
            products = [ops.matmul(ops.transpose(x), rows) for x in inputs]
            return upstream, *products

        return sums, gradient

    return ops.custom_gradient(add)


def _multiplier(kernel: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function `x -> x @ kernel` for the steps.

    The kernel is a constant here: `_with_deferred_gradients` computes its gradient. The
    gradient of `x` is a product with the transpose, which is laid out in memory once: a
    product with a transposed view takes several times as long.
    """
    if not backends.defers_gradients(kernel):
        return lambda x: ops.matmul(x, kernel)
    kernel = ops.stop_gradient(kernel)
    transposed = ops.transpose(kernel)

    def multiply(x: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        @backends.with_upstream
        def gradient(upstream: Tensor) -> Tensor:
            return ops.matmul(upstream, transposed)

        return ops.matmul(x, kernel), gradient

    return ops.custom_gradient(multiply)


class SplitSum(SplitCell):
    """Base of the cells that need only the sum of all products."""

    def __init__(self, cell: keras.layers.Layer, inputs: Nested, dtype: Dtype) -> None:
        super().__init__(cell, inputs, dtype)
        sums = self._add_bias(self._products)
        self.sequences = {
            "sums": self._with_deferred_gradients(sums, "context", "state")
        }

    def __call__(
        self, part: Nested, context: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        sums = self._add_products(part["sums"], context=context, state=state[0])
        return self._advance(self.cell, sums, state)

    @staticmethod
    def _advance(
        cell: keras.layers.Layer, sums: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        """Return output and new state, given the sum of all products."""
        raise NotImplementedError


class SplitSimple(SplitSum):
    """Split `keras.layers.SimpleRNNCell`."""

    @staticmethod
    def _advance(
        cell: keras.layers.Layer, sums: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        output = cell.activation(sums)
        return output, [output]


class SplitLSTM(SplitSum):
    """Split `keras.layers.LSTMCell`."""

    _advance = staticmethod(lstm_gates)


class SplitProducts(SplitCell):
    """Base of the cells that need the products with inputs and state separately."""

    def __init__(self, cell: keras.layers.Layer, inputs: Nested, dtype: Dtype) -> None:
        super().__init__(cell, inputs, dtype)
        input_products = self._add_bias(self._products, 0)
        state_products = self._add_bias(ops.zeros_like(self._products), 1)
        self.sequences = {
            "inputs": self._with_deferred_gradients(input_products, "context"),
            "state": self._with_deferred_gradients(state_products, "state"),
        }

    def __call__(
        self, part: Nested, context: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        input_products = self._add_products(part["inputs"], context=context)
        state_products = self._add_products(part["state"], state=state[0])
        return self._advance(self.cell, input_products, state_products, state)

    def _advance(
        self, cell: Any, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        """Return output and new state, given the products of inputs and state."""
        raise NotImplementedError


class SplitGRU(SplitProducts):
    """Split `keras.layers.GRUCell` with `reset_after`, the default of Keras."""

    _advance = staticmethod(gru_gates)


class SplitNormalized(SplitProducts):
    """Base of the split `LayerNormLSTMCell` and `LayerNormGRUCell`.

    Products with a kernel whose rows have mean zero have mean zero, too. The means are
    therefore subtracted from the kernels, once, instead of from the products. If all
    inputs are known, their products are normalised before the loop.

    Attributes:
        averaging: Symmetric matrix `(gates, gates)` that averages the means of the
            gates that are normalised together.
    """

    # The bias is added after the normalisation.
    adds_bias = False
    averaging: tuple[tuple[float, ...], ...]

    def __init__(self, cell: keras.layers.Layer, inputs: Nested, dtype: Dtype) -> None:
        self._sum_dtype = accumulation_dtype(cell.compute_dtype)
        self._averaging = ops.convert_to_tensor(self.averaging, self._sum_dtype)
        super().__init__(cell, inputs, dtype)
        if "context" not in self._kernels:
            self.sequences["inputs"] = self._of_inputs(self.sequences["inputs"])

    def _prepared(self, kernel: Tensor) -> Tensor:
        gates = _by_gate(ops.cast(kernel, self._sum_dtype), self._averaging)
        return ops.reshape(gates - _mean(gates, self._averaging), kernel.shape)

    def _advance(
        self, _: Tensor, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        if "context" in self._kernels:
            input_products = self._of_inputs(input_products)
        return self._step(input_products, self._of_state(state_products), state)

    def _of_inputs(self, sums: Tensor) -> Tensor:
        """Return the normalised products with the inputs, and the bias."""
        raise NotImplementedError

    def _of_state(self, sums: Tensor) -> Tensor:
        """Return the normalised products with the state."""
        raise NotImplementedError

    def _step(
        self, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        """Return output and new state, given normalised products."""
        raise NotImplementedError

    def _normalized(
        self, sums: Tensor, gain: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Return `gain * sums / deviation + bias`."""
        standardize = _standardizer(self._averaging, self.cell.epsilon)
        dtype = self._sum_dtype
        sums = standardize(ops.cast(sums, dtype)) * ops.cast(gain, dtype)
        if bias is not None:
            sums = sums + ops.cast(bias, dtype)
        return ops.cast(sums, self._dtype)


def _standardizer(averaging: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    """Return a function that divides sums of mean zero by their standard deviation."""

    def divide(sums: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        gates = _by_gate(sums, averaging)
        scale = ops.rsqrt(_mean(ops.square(gates), averaging) + epsilon)
        standardized = gates * scale

        @backends.with_upstream
        def gradient(upstream: Tensor) -> Tensor:
            upstream = _by_gate(upstream, averaging)
            mean_product = _mean(upstream * standardized, averaging)
            sums_gradient = scale * (upstream - mean_product * standardized)
            return ops.reshape(sums_gradient, ops.shape(sums))

        return ops.reshape(standardized, ops.shape(sums)), gradient

    return ops.custom_gradient(divide)


def _by_gate(x: Tensor, averaging: Tensor) -> Tensor:
    gates = averaging.shape[0]
    return ops.reshape(x, (*ops.shape(x)[:-1], gates, x.shape[-1] // gates))


def _mean(gates: Tensor, averaging: Tensor) -> Tensor:
    """Return the mean that normalises each gate, `(..., gates, 1)`."""
    return ops.matmul(ops.mean(gates, axis=-1), averaging)[..., None]


class SplitNormalizedLSTM(SplitNormalized):
    """Split `LayerNormLSTMCell`."""

    averaging = ((0.25,) * 4,) * 4

    def _of_inputs(self, sums: Tensor) -> Tensor:
        return self._normalized(sums, self.cell.input_gain, self.cell.bias)

    def _of_state(self, sums: Tensor) -> Tensor:
        return self._normalized(sums, self.cell.recurrent_gain)

    def _step(
        self, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        return lstm_gates(
            self.cell, input_products + state_products, state, self.cell.normalize_carry
        )


class SplitNormalizedGRU(SplitNormalized):
    """Split `LayerNormGRUCell`."""

    averaging = ((0.5, 0.5, 0), (0.5, 0.5, 0), (0, 0, 1))

    def _of_inputs(self, sums: Tensor) -> Tensor:
        bias = self.cell.bias[0] if self.cell.use_bias else None
        return self._normalized(sums, self.cell.input_gain, bias)

    def _of_state(self, sums: Tensor) -> Tensor:
        bias = self.cell.bias[1] if self.cell.use_bias else None
        return self._normalized(sums, self.cell.recurrent_gain, bias)

    def _step(
        self, input_products: Tensor, state_products: Tensor, state: Nested
    ) -> tuple[Tensor, list[Tensor]]:
        return gru_gates(self.cell, input_products, state_products, state)


SPLITS = {
    keras.layers.SimpleRNNCell: SplitSimple,
    keras.layers.LSTMCell: SplitLSTM,
    keras.layers.GRUCell: SplitGRU,
    LayerNormLSTMCell: SplitNormalizedLSTM,
    LayerNormGRUCell: SplitNormalizedGRU,
}
