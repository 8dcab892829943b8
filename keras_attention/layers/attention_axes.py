"""Attention over some axes of tensors with more than three axes.

The attention axes become one axis, in row-major order, and the other axes become rows
of the batch.

Shapes: B batch, T queries, S positions, N heads, D depth.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from keras import ops

from keras_attention.typing import Nested, Shape, Tensor
from keras_attention.validation import as_integer, check_mask, may_be_equal


class AttentionAxes:
    """Reshapes tensors `(B, ..., D)` to `(rows, T, D)`, and results back.

    Args:
        axes: Sequence of integers, axes of the inputs.
        num_heads: N.
    """

    def __init__(self, axes: Sequence[int], num_heads: int) -> None:
        self.num_heads = num_heads
        # An array without axes is iterable by its type, but not by its value.
        is_one = as_integer(axes) is not None or not isinstance(axes, Iterable)
        listed = [axes] if is_one else list(axes)
        self.axes = [x for x in map(as_integer, listed) if x is not None]
        if len(self.axes) < max(len(listed), 1):
            raise ValueError(
                "attention_axes must be integers, one axis of the inputs or several, "
                f"or None. Received: {axes!r}"
            )

    def fold_shapes(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None
    ) -> Sequence[Shape | None]:
        """Return the shapes as `(rows, T, D)`; unchanged if they have three axes.

        Raises:
            ValueError: If a query does not have the axes, between batch and depth, or
                if a value or key does not have the other axes of the query.
        """
        shapes = query_shape, value_shape, key_shape
        rank = len(query_shape)
        axes = set(self._attended(rank))
        if len(axes) < len(self.axes) or not axes <= set(range(1, rank - 1)):
            raise ValueError(
                "attention_axes must be different axes between the batch and the depth."
                f" Received: {self.axes}, query {tuple(query_shape)}"
            )
        if rank == 3:
            return shapes
        rows = self._rows(rank)
        others = [query_shape[axis] for axis in rows]
        for name, shape in (("value", value_shape), ("key", key_shape)):
            if shape is None:
                continue
            same_rank = len(shape) == rank
            if not (same_rank and may_be_equal([shape[axis] for axis in rows], others)):
                raise ValueError(
                    f"{name} must have the axes of the query, of the same sizes except "
                    f"for the depth and attention_axes={self.axes}. Received: query "
                    f"{tuple(query_shape)}, {name} {tuple(shape)}"
                )
        return [None if shape is None else self._fold_shape(shape) for shape in shapes]

    def fold_inputs(self, inputs: Any) -> Any:
        """Return the `AttentionInputs` of an attention over one axis, `(rows, T, D)`.

        The attention mask may be `(B, [N,] T, S)`, `(T, S)` or `None`.
        """
        query = inputs.query
        value = query if inputs.value is None else inputs.value
        folded = {"attention_mask": self._fold_attention_mask(inputs, query, value)}
        for name, x in (("query", query), ("value", value), ("key", value)):
            mask, tensor = getattr(inputs, f"{name}_mask"), getattr(inputs, name)
            folded[f"{name}_mask"] = self._fold_mask(f"{name}_mask", mask, x.shape)
            folded[name] = None if tensor is None else self._fold(tensor)
        return dataclasses.replace(inputs, **folded)

    def unfold(self, results: Nested, query: Tensor, value: Tensor) -> Nested:
        """Return the results of an attention with all axes of query and value.

        Args:
            results: Dict of `"context"` `(rows, T, D)` and, if they are requested,
                `"weights"` `(rows, N, T, S)`.
            query, value: The tensors that were folded.
        """
        query_shape = ops.shape(query)
        order = self._order(len(query_shape))
        context = results["context"]
        sizes = [query_shape[axis] for axis in order[:-1]]
        context = ops.reshape(context, (*sizes, context.shape[-1]))
        permutation = [order.index(axis) for axis in range(len(order))]
        unfolded = {"context": ops.transpose(context, permutation)}
        if "weights" in results:
            weights = results["weights"]
            shape = self.weights_shape(query_shape, ops.shape(value))
            unfolded["weights"] = ops.reshape(weights, shape)
        return unfolded

    def weights_shape(self, query_shape: Shape, value_shape: Shape) -> Shape:
        """Return the shape of the weights with all axes.

        Returns:
            `(B, other axes, N, attention axes, attention axes of the value)`.
        """
        order, rows = self._order(len(query_shape)), len(self._rows(len(query_shape)))
        query_sizes, value_sizes = (
            [shape[axis] for axis in order[:-1]] for shape in (query_shape, value_shape)
        )
        return (
            *query_sizes[:rows],
            self.num_heads,
            *query_sizes[rows:],
            *value_sizes[rows:],
        )

    def _fold_shape(self, shape: Shape) -> Shape:
        """Return a shape `(B, ..., D)` as `(rows, T, D)`."""
        order, rows = self._order(len(shape)), len(self._rows(len(shape)))
        joined: list[int | None] = []
        for axes in (order[:rows], order[rows:-1]):
            sizes = [shape[axis] for axis in axes]
            known = [size for size in sizes if size is not None]
            joined.append(math.prod(known) if len(known) == len(sizes) else None)
        return (*joined, shape[-1])

    def _fold(self, x: Tensor) -> Tensor:
        """Return `(B, ..., D)` as `(rows, T, D)`."""
        rows = len(self._rows(len(x.shape)))
        x = ops.transpose(x, self._order(len(x.shape)))
        sizes = ops.shape(x)
        first, between = math.prod(sizes[:rows]), math.prod(sizes[rows:-1])
        return ops.reshape(x, (first, between, sizes[-1]))

    def _fold_mask(self, name: str, mask: Tensor, shape: Shape) -> Tensor | None:
        """Return the mask `(B, ...)` of a tensor of this shape as `(rows, T)`."""
        if mask is None:
            return None
        check_mask(name, mask, shape[:-1])
        return self._fold(ops.cast(mask, "bool")[..., None])[..., 0]

    def _fold_attention_mask(
        self, inputs: Any, query: Tensor, value: Tensor
    ) -> Tensor | None:
        """Return a mask `(B, [N,] T, S)` repeated for all rows; `(T, S)` unchanged."""
        mask = inputs.attention_mask
        if mask is None:
            return None
        batch = query.shape[0]
        pair = [self._fold_shape(x.shape)[1] for x in (query, value)]
        shapes = (batch, *pair), pair, (batch, self.num_heads, *pair)
        check_mask("attention_mask", mask, *shapes, broadcasts=True)
        if len(mask.shape) == 2 or mask.shape[0] == 1:
            return mask
        rows = self._rows(len(query.shape))
        repeats = math.prod(ops.shape(query)[axis] for axis in rows[1:])
        return ops.repeat(mask, repeats, axis=0)

    def _attended(self, rank: int) -> list[int]:
        return sorted(axis + rank if axis < 0 else axis for axis in self.axes)

    def _rows(self, rank: int) -> list[int]:
        """Return the axes that become rows."""
        return [axis for axis in range(rank - 1) if axis not in self._attended(rank)]

    def _order(self, rank: int) -> list[int]:
        """Return the axes of rows, those of attention, and the depth."""
        return [*self._rows(rank), *self._attended(rank), rank - 1]
