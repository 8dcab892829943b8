"""Gradients of the values that a decoder reads, computed once after its loop.

Every step contributes to the gradient of all values. Summed up in the loop, this costs
one pass over the whole memory per step. Here the values are constants in the loop, and
one product after the loop computes their gradient.

Shapes: T steps, B batch, K sequences, S positions, V depth of the values.
"""

from keras import ops

from keras_attention import acceleration
from keras_attention.ops.gradients import with_upstream


class DeferredValueGradients:
    """One pass of a decoder over memories whose values are constants in the loop.

    Values of several heads, `(B, N, S, V)`, are not constants: each step computes their
    gradient.

    Args:
        memories: List of dicts with `"values"` `(B, S, V)`, one for every attention.
        leading: `(T, B, K)`.

    Attributes:
        memories: The memories for the steps, with values that stop gradients.
        sequences: Zeros `(T, B, K, V)`, one tensor per memory. Each step adds its slice
            to the context, so the gradient of the zeros is that of the contexts; it
            gives the gradient of the values. Empty if gradients are not deferred.
    """

    def __init__(self, memories, leading):
        self.memories, self.sequences = list(memories), []
        self._leading = leading
        self._weights = []
        values = [memory["values"] for memory in memories]
        if acceleration.defers_gradients() and all(len(x.shape) == 3 for x in values):
            self.sequences = [self._zeros(i, x) for i, x in enumerate(values)]
            self.memories = [
                {**memory, "values": ops.stop_gradient(memory["values"])}
                for memory in memories
            ]

    def add(self, context, part):
        """Return the context plus the parts of `sequences` for this step."""
        if not part:
            return context
        zeros = [ops.cast(x, context.dtype) for x in part]
        return context + (zeros[0] if len(zeros) == 1 else ops.concatenate(zeros, -1))

    def record_weights(self, weights):
        """Record the weights of all steps: a list of tensors `(T, B, K, S)`."""
        self._weights += map(ops.stop_gradient, weights)

    def _zeros(self, index, values):
        # PyTorch keeps this closure alive as long as its result. If it referred to a
        # tensor computed from the result, the cycle would never be freed.
        recorded, shape = self._weights, (*self._leading, values.shape[-1])

        def zeros(values):
            @with_upstream
            def gradient(upstream):
                weights = ops.transpose(_rows(recorded[index]), (0, 2, 1))
                values_gradient = ops.matmul(weights, _rows(upstream))
                return ops.cast(values_gradient, values.dtype)

            return ops.zeros(shape, values.dtype), gradient

        return ops.custom_gradient(zeros)(values)


def _rows(x):
    """Return `(T, B, K, D)` as `(B, T * K, D)`."""
    steps, batch, sequences, depth = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 0, 1), (batch, steps * sequences, depth))
