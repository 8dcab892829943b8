"""How a decoder trains fast: what its loop can leave to be computed at once.

The cell's products with the inputs of all steps are computed before the loop (see
`split_cells`), and its kernels get their gradients after it.

Every step contributes to the gradient of all values. Summed up in the loop, this costs
one pass over the whole memory per step. Here the values are constants in the loop, and
one product after the loop computes their gradient.

Shapes: T steps, B batch, K sequences, S positions, V depth of the values.
"""

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops, tree

from keras_attention import backends
from keras_attention.decoder.cell import as_rows, as_sequences, joined
from keras_attention.split_cells import split_cell
from keras_attention.typing import Dtype, Nested, Tensor, Tensors


class Recurrence:
    """The RNN cell in the loop of a decoder, split if possible; see `split_cell`.

    Attributes:
        sequences: Tensors `(T, ...)`; each step receives its part.
    """

    def __init__(
        self,
        cell: Any,
        inputs: Nested,
        dtype: Dtype,
        training: bool | None,
        *,
        splits: bool = True,
    ) -> None:
        self._cell, self._training = cell, training
        steps, batch, sequences, depth = ops.shape(inputs)
        rows = ops.reshape(inputs, (steps, batch * sequences, depth))
        self._split: Any = split_cell(cell.cell, rows, dtype) if splits else None
        self._defers = self._split is not None and backends.defers_gradients(rows)
        self.sequences = inputs if self._split is None else self._split.sequences

    def step(
        self, part: Nested, state: Nested, added: Sequence[Tensor]
    ) -> tuple[Tensor, Nested]:
        """Return output and new state, for a part of `sequences` and added inputs."""
        if self._split is None:
            return self._cell.run_cell(part, state, added, self._training)
        leading = ops.shape(tree.flatten(state)[0])[:2]
        added, rows = as_rows((joined(added), state))
        output, new_state = as_sequences(self._split(part, added, rows), leading)
        return output, tree.pack_sequence_as(state, tree.flatten(new_state))

    def kernel_inputs(self, state: Nested) -> dict[str, Any]:
        """Return the inputs of the kernels in this step, if gradients are deferred."""
        if not self._defers:
            return {}
        feedback = [state["feedback"]] if "feedback" in state else []
        return {"state": tree.flatten(state["cell"])[0], "feedback": feedback}

    def record_kernel_inputs(
        self, kernel_inputs: dict[str, Any], context: Sequence[Tensor]
    ) -> None:
        """Record the inputs of all steps for the deferred gradients of the kernels."""
        if kernel_inputs:
            self._split.record_kernel_inputs(
                joined([*kernel_inputs["feedback"], *context]), kernel_inputs["state"]
            )


class DeferredValueGradients:
    """One pass of a decoder over memories whose values are constants in the loop.

    Values of several heads, `(B, N, S, V)`, are not constants: each step computes their
    gradient.

    Args:
        memories: List of dicts with `"values"` `(B, S, V)`, one for every attention.
        leading: `(T, B, K)`.
        dtype: Dtype of the contexts.

    Attributes:
        memories: The memories for the steps, with values that stop gradients.
        zeros: Zeros `(T, B, K, V)`, for all memories side by side. Each step adds its
            slice to the context, so the gradient of the zeros is that of the contexts;
            it gives the gradient of the values. `None` if gradients are not deferred.
    """

    def __init__(self, memories: Sequence[Tensors], leading: Any, dtype: Dtype) -> None:
        self.memories, self.zeros = list(memories), None
        self._weights: list[Tensor] = []
        ranks = {len(memory["values"].shape) for memory in memories}
        if ranks == {3} and backends.defers_gradients(memories[0]["values"]):
            zeros = [
                self._zeros_of(i, memory["values"], leading, dtype)
                for i, memory in enumerate(memories)
            ]
            self.zeros = zeros[0] if len(zeros) == 1 else ops.concatenate(zeros, -1)
            self.memories = [
                {**memory, "values": ops.stop_gradient(memory["values"])}
                for memory in memories
            ]

    def record_weights(self, weights: Sequence[Tensor]) -> None:
        """Record the weights of all steps: a list of tensors `(T, B, K, S)`."""
        self._weights += map(ops.stop_gradient, weights)

    def _zeros_of(
        self, index: int, values: Tensor, leading: Any, dtype: Dtype
    ) -> Tensor:
        # PyTorch keeps this closure alive as long as its result. If it referred to a
        # tensor computed from the result, the cycle would never be freed.
        recorded, shape = self._weights, (*leading, values.shape[-1])

        def zeros(values: Tensor) -> tuple[Tensor, Callable[..., Any]]:
            @backends.with_upstream
            def gradient(upstream: Tensor) -> Tensor:
                weights = ops.transpose(_rows(recorded[index]), (0, 2, 1))
                values_gradient = ops.matmul(weights, _rows(upstream))
                return ops.cast(values_gradient, values.dtype)

            return ops.zeros(shape, dtype), gradient

        return ops.custom_gradient(zeros)(values)


def _rows(x: Tensor) -> Tensor:
    """Return `(T, B, K, D)` as `(B, T * K, D)`."""
    steps, batch, sequences, depth = ops.shape(x)
    return ops.reshape(ops.swapaxes(x, 0, 1), (batch, steps * sequences, depth))
