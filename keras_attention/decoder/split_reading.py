"""What a decoder reads, with the gradient of the values computed once.

Every step adds its part to the gradient of all values: summed up in the loop, these are
as many passes over the whole memory as there are steps. Here the values are constants
in the loop, and one product gives them their gradient after it.

Shapes: T steps, B batch, K sequences, S positions, V depth of the values.
"""

from keras import ops

from keras_attention import loops


class SplitReading:
    """One pass of a decoder over known memories.

    Args:
        memories: List of dicts with `"values"` `(B, S, V)`, one for every attention.
        leading: `(T, B)` or `(T, B, K)`.

    Attributes:
        memories: The same, for the steps.
        sequences: List of tensors `(T, B, [K,] V)`, of which every step adds its part
            to what it reads. They are zeros, but for their gradient. Empty where the
            steps themselves give the values their gradient.
    """

    def __init__(self, memories, leading):
        self.memories, self.sequences = list(memories), []
        self._leading = leading
        self._weights = None
        if loops.looks_back():
            values = [memory["values"] for memory in memories]
            self.memories = [
                {**memory, "values": ops.stop_gradient(x)}
                for memory, x in zip(memories, values, strict=True)
            ]
            self.sequences = [self._zeros(i, x) for i, x in enumerate(values)]

    def see(self, weights):
        """The weights with which the steps have read: a list of `(T, B, [K,] S)`."""
        self._weights = weights

    def _zeros(self, index, values):
        def zeros(values):
            def gradient(*upstreams, upstream=None):
                upstream = upstreams[0] if upstream is None else upstream
                weights = ops.transpose(_rows(self._weights[index]), (0, 2, 1))
                of_values = ops.matmul(weights, _rows(upstream))
                return ops.cast(of_values, values.dtype)

            return ops.zeros((*self._leading, values.shape[-1]), values.dtype), gradient

        return ops.custom_gradient(zeros)(values)


def _rows(x):
    """`(T, B, [K,] D)` as `(B, T [* K], D)`."""
    x = ops.swapaxes(x, 0, 1)
    return ops.reshape(x, (ops.shape(x)[0], -1, x.shape[-1]))
