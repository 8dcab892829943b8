"""Recurrent cells with their products taken apart.

An encoder knows all inputs of its cell beforehand, a decoder all but the context. So
the products with them are computed at once, before the loop; and the gradients of the
kernels that stay inside are computed at once, after it, instead of being summed up
step by step.

Shapes: T steps, R rows (batch, or batch x sequences), D depth of the known inputs, V
depth of the context, U units.
"""

import keras
from keras import ops

from keras_attention import loops
from keras_attention.layers.recurrent import LayerNormGRUCell, LayerNormLSTMCell


def split_cell(cell, inputs, dtype):
    """A `SplitCell` for one of the cells that have one, or `None`.

    Args:
        cell: Keras RNN cell, built for inputs of depth D + V.
        inputs: All inputs but the context, `(T, ..., D)`.
        dtype: Dtype to compute in.
    """
    if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
        return None
    if not getattr(cell, "reset_after", True):
        return None
    # A subclass may compute something else.
    split = SPLITS.get(type(cell))
    return split and split(cell, inputs, dtype)


class SplitCell:
    """One pass of a cell over known inputs.

    Attributes:
        sequences: Dict of tensors `(T, ...)`; each step is given its part.
        adds_bias: Whether the bias of the cell is part of the sums.

    Call arguments:
        now: Part of `sequences`.
        context: What the step adds to the known inputs, `(R, V)`; `None` where V is 0.
        state: List of tensors `(R, U)`.

    Returns:
        output: Tensor of shape `(R, U)`.
        state: List for the next step.
    """

    adds_bias = True

    def __init__(self, cell, inputs, dtype):
        self.cell = cell
        self._dtype = dtype
        self._leading = ops.shape(inputs)[:-1]
        self._seen = None
        depth = inputs.shape[-1]
        kernel = ops.cast(cell.kernel, dtype)
        recurrent = ops.cast(cell.recurrent_kernel, dtype)
        self._products = ops.matmul(ops.reshape(inputs, (-1, depth)), kernel[:depth])
        self._kernels = {"state": recurrent}
        if kernel.shape[0] > depth:
            self._kernels["context"] = kernel[depth:]
        self._multiply = {name: _multiplier(x) for name, x in self._kernels.items()}

    def see(self, contexts, states):
        """What the steps multiplied with the kernels, for the gradients.

        Args:
            contexts: Tensor `(T, ..., V)`; `None` where V is 0.
            states: Output states before every step, `(T, ..., U)`.
        """
        self._seen = {"context": contexts, "state": states}

    def _plus(self, sums, **factors):
        """`sums` and the products of `factors` with their kernels."""
        for name, x in factors.items():
            if x is not None:
                sums = sums + self._multiply[name](x)
        return sums

    def _plus_bias(self, sums, index=None):
        if not (self.cell.use_bias and self.adds_bias):
            return sums
        bias = self.cell.bias if index is None else self.cell.bias[index]
        return sums + ops.cast(bias, self._dtype)

    def _plus_later(self, sums, *names):
        """The same `sums`, to which every step adds products with kernels.

        The gradient of the sums is that of all their terms: so this gives its own to
        the kernels of what the steps add, too.
        """
        kernels = {name: self._kernels[name] for name in names if name in self._kernels}
        if kernels and loops.looks_back():

            def add(sums, *_):
                def gradient(*upstreams, upstream=None):
                    upstream = upstreams[0] if upstream is None else upstream
                    rows = ops.reshape(upstream, (-1, upstream.shape[-1]))
                    factors = [self._seen[name] for name in kernels]
                    factors = [ops.reshape(x, (-1, x.shape[-1])) for x in factors]
                    products = [ops.matmul(ops.transpose(x), rows) for x in factors]
                    return upstream, *products

                return sums, gradient

            sums = ops.custom_gradient(add)(sums, *kernels.values())
        return ops.reshape(sums, (*self._leading, sums.shape[-1]))


def _multiplier(kernel):
    """The function `x -> x @ kernel`, for the steps.

    Where `_plus_later` cares for the kernel it is a constant. The gradient then is a
    product with its transpose, which is laid out once: multiplying with a matrix that
    lies the wrong way takes several times as long.
    """
    if not loops.looks_back():
        return lambda x: ops.matmul(x, kernel)
    kernel = ops.stop_gradient(kernel)
    transposed = ops.transpose(kernel)

    def multiply(x):
        def gradient(*upstreams, upstream=None):
            upstream = upstreams[0] if upstream is None else upstream
            return ops.matmul(upstream, transposed)

        return ops.matmul(x, kernel), gradient

    return ops.custom_gradient(multiply)


class SplitSum(SplitCell):
    """A cell that needs the sum of all products only."""

    def __init__(self, cell, inputs, dtype):
        super().__init__(cell, inputs, dtype)
        sums = self._plus_bias(self._products)
        self.sequences = {"sums": self._plus_later(sums, "context", "state")}

    def __call__(self, now, context, state):
        sums = self._plus(now["sums"], context=context, state=state[0])
        return self._advance(sums, state)


class SplitSimple(SplitSum):
    """`keras.layers.SimpleRNNCell`."""

    def _advance(self, sums, state):
        output = self.cell.activation(sums)
        return output, [output]


class SplitLSTM(SplitSum):
    """`keras.layers.LSTMCell`."""

    def _advance(self, sums, state):
        _, carry = state
        gate, activation = self.cell.recurrent_activation, self.cell.activation
        update, forget, new, expose = ops.split(sums, 4, axis=-1)
        carry = gate(forget) * carry + gate(update) * activation(new)
        output = gate(expose) * activation(carry)
        return output, [output, carry]


class SplitSums(SplitCell):
    """A cell that needs the products with inputs and with the state apart."""

    def __init__(self, cell, inputs, dtype):
        super().__init__(cell, inputs, dtype)
        of_inputs = self._plus_bias(self._products, 0)
        of_state = self._plus_bias(ops.zeros_like(self._products), 1)
        self.sequences = {
            "inputs": self._plus_later(of_inputs, "context"),
            "state": self._plus_later(of_state, "state"),
        }

    def __call__(self, now, context, state):
        of_inputs = self._plus(now["inputs"], context=context)
        of_state = self._plus(now["state"], state=state[0])
        return self._advance(of_inputs, of_state, state)


class SplitGRU(SplitSums):
    """`keras.layers.GRUCell` that resets after the product (the default of Keras)."""

    def _advance(self, of_inputs, of_state, state):
        (output,) = state
        gate, activation = self.cell.recurrent_activation, self.cell.activation
        update, reset, new = ops.split(of_inputs, 3, axis=-1)
        update_state, reset_state, new_state = ops.split(of_state, 3, axis=-1)
        update = gate(update + update_state)
        new = activation(new + gate(reset + reset_state) * new_state)
        output = update * output + (1 - update) * new
        return output, [output]


class SplitNormalized(SplitSums):
    """`LayerNormLSTMCell` and `LayerNormGRUCell`."""

    # Not before the normalisation.
    adds_bias = False

    def _advance(self, of_inputs, of_state, state):
        return self.cell.advance(of_inputs, of_state, state)


SPLITS = {
    keras.layers.SimpleRNNCell: SplitSimple,
    keras.layers.LSTMCell: SplitLSTM,
    keras.layers.GRUCell: SplitGRU,
    LayerNormLSTMCell: SplitNormalized,
    LayerNormGRUCell: SplitNormalized,
}
