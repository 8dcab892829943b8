"""Keras' own recurrent cells with their products taken apart.

A decoder knows all inputs of its cell beforehand but for the context. So the products
with them are computed at once, before the loop; and the gradients of the kernels that
stay inside are computed at once, after it, instead of being summed up step by step.

Shapes: T steps, R rows (batch, or batch x sequences), D depth of the inputs, V depth of
the context, U units.
"""

import keras
from keras import ops

from keras_attention import loops


def split_cell(cell, inputs, dtype):
    """A `SplitCell` for one of Keras' own cells, or `None` where there is none.

    Args:
        cell: Keras RNN cell, built for inputs of depth D + V.
        inputs: All inputs but the context, `(T, ..., D)`.
        dtype: Dtype to compute in.
    """
    if getattr(cell, "dropout", 0) or getattr(cell, "recurrent_dropout", 0):
        return None
    if type(cell) is keras.layers.LSTMCell:
        return SplitLSTM(cell, inputs, dtype)
    if type(cell) is keras.layers.GRUCell and cell.reset_after:
        return SplitGRU(cell, inputs, dtype)
    return None


class SplitCell:
    """One pass of a cell over known inputs.

    Attributes:
        sequences: Dict of tensors `(T, ...)`; each step is given its part.
    """

    def __init__(self, cell, inputs, dtype):
        self.cell = cell
        self.depth = inputs.shape[-1]
        self._inputs = ops.reshape(inputs, (-1, self.depth))
        self._leading = ops.shape(inputs)[:-1]
        self._dtype = dtype
        self._seen = None
        kernel = ops.cast(cell.kernel, dtype)
        self._of_inputs, self._of_context = kernel[: self.depth], kernel[self.depth :]
        self._of_state = ops.cast(cell.recurrent_kernel, dtype)

    def see(self, contexts, states):
        """What the steps multiplied with the kernels, for the gradients.

        Args:
            contexts: Tensor `(T, ..., V)`.
            states: Output states before every step, `(T, ..., U)`.
        """
        self._seen = {"context": contexts, "state": states}

    def _bias(self, index=None):
        if not self.cell.use_bias:
            return ops.zeros((self._of_state.shape[1],), self._dtype)
        bias = self.cell.bias if index is None else self.cell.bias[index]
        return ops.cast(bias, self._dtype)

    def _added(self, products, bias, **kernels):
        """`products + bias`, to which every step adds more products.

        The gradient of the sums is that of all their terms: so this gives its own to
        the kernels of what the steps add, too.
        """
        if not loops.looks_back():
            return ops.reshape(products + bias, (*self._leading, products.shape[-1]))

        def add(products, bias, *_):
            def gradient(*upstreams, upstream=None):
                upstream = upstreams[0] if upstream is None else upstream
                rows = ops.reshape(upstream, (-1, upstream.shape[-1]))
                factors = [self._seen[name] for name in kernels]
                factors = [ops.reshape(x, (-1, x.shape[-1])) for x in factors]
                return (
                    upstream,
                    ops.sum(rows, axis=0),
                    *(ops.matmul(ops.transpose(x), rows) for x in factors),
                )

            return products + bias, gradient

        sums = ops.custom_gradient(add)(products, bias, *kernels.values())
        return ops.reshape(sums, (*self._leading, sums.shape[-1]))


def _multiplier(kernel):
    """The function `x -> x @ kernel`, for the steps.

    Where `_added` cares for the kernel it is a constant. The gradient then is a product
    with its transpose, which is laid out once: multiplying with a matrix that lies the
    wrong way takes several times as long.
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


class SplitLSTM(SplitCell):
    """`keras.layers.LSTMCell`: one sum for all four gates."""

    def __init__(self, cell, inputs, dtype):
        super().__init__(cell, inputs, dtype)
        products = ops.matmul(self._inputs, self._of_inputs)
        kernels = {"context": self._of_context, "state": self._of_state}
        self.sequences = {"sums": self._added(products, self._bias(), **kernels)}
        self._from_context = _multiplier(self._of_context)
        self._from_state = _multiplier(self._of_state)

    def __call__(self, now, context, state):
        output, carry = state
        sums = now["sums"] + self._from_context(context) + self._from_state(output)
        gate, activation = self.cell.recurrent_activation, self.cell.activation
        update, forget, new, expose = ops.split(sums, 4, axis=-1)
        carry = gate(forget) * carry + gate(update) * activation(new)
        output = gate(expose) * activation(carry)
        return output, [output, carry]


class SplitGRU(SplitCell):
    """`keras.layers.GRUCell` that resets after the product (the default of Keras)."""

    def __init__(self, cell, inputs, dtype):
        super().__init__(cell, inputs, dtype)
        products = ops.matmul(self._inputs, self._of_inputs)
        rows = ops.zeros((ops.shape(products)[0], self._of_state.shape[1]), dtype)
        self.sequences = {
            "inputs": self._added(products, self._bias(0), context=self._of_context),
            "state": self._added(rows, self._bias(1), state=self._of_state),
        }
        self._from_context = _multiplier(self._of_context)
        self._from_state = _multiplier(self._of_state)

    def __call__(self, now, context, state):
        (output,) = state
        of_inputs = now["inputs"] + self._from_context(context)
        of_state = now["state"] + self._from_state(output)
        gate, activation = self.cell.recurrent_activation, self.cell.activation
        update, reset, new = ops.split(of_inputs, 3, axis=-1)
        update_state, reset_state, new_state = ops.split(of_state, 3, axis=-1)
        update = gate(update + update_state)
        new = activation(new + gate(reset + reset_state) * new_state)
        output = update * output + (1 - update) * new
        return output, [output]
