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
            Those of several heads `(B, N, S, V)` are read by the steps as they are.
        leading: `(T, B)` or `(T, B, K)`.

    Attributes:
        memories: The same, for the steps.
        sequences: Dict of tensors `(T, B, [K,] V)` by the number of the attention;
            every step adds its part to what that attention reads. They are zeros, but
            for their gradient. Where there is none, the steps give it to the values.
    """

    def __init__(self, memories, leading):
        self.memories, self.sequences = list(memories), {}
        self._leading = leading
        self._weights = []
        if loops.looks_back():
            for i, memory in enumerate(memories):
                values = memory["values"]
                if len(values.shape) == 3:
                    self.sequences[i] = self._zeros(i, values)
                    self.memories[i] = {**memory, "values": ops.stop_gradient(values)}

    def see(self, weights):
        """The weights with which the steps have read: a list of `(T, B, [K,] S)`."""
        self._weights += map(ops.stop_gradient, weights)

    def _zeros(self, index, values):
        # What PyTorch keeps with the zeros must not know anything that depends on them.
        seen, shape = self._weights, (*self._leading, values.shape[-1])

        def zeros(values):
            def gradient(*upstreams, upstream=None):
                upstream = upstreams[0] if upstream is None else upstream
                weights = ops.transpose(_rows(seen[index]), (0, 2, 1))
                of_values = ops.matmul(weights, _rows(upstream))
                return ops.cast(of_values, values.dtype)

            return ops.zeros(shape, values.dtype), gradient

        return ops.custom_gradient(zeros)(values)


def _rows(x):
    """`(T, B, [K,] D)` as `(B, T [* K], D)`."""
    batch, depth = ops.shape(x)[1], ops.shape(x)[-1]
    return ops.reshape(ops.swapaxes(x, 0, 1), (batch, -1, depth))
