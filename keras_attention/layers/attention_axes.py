"""Attention over some axes of tensors with more than three axes.

The attention axes become one axis, in row-major order, and the other axes become rows
of the batch.

Shapes: B batch, T queries, S positions, N heads, D depth.
"""

import math
from collections.abc import Iterable

from keras import ops

from keras_attention.validation import as_integer, check_mask, may_be_equal


class AttentionAxes:
    """Reshapes tensors `(B, ..., D)` to `(rows, T, D)`, and results back.

    Args:
        axes: Sequence of integers, axes of the inputs.
        num_heads: N.
    """

    def __init__(self, axes, num_heads):
        self.num_heads = num_heads
        listed = list(axes) if isinstance(axes, Iterable) else [axes]
        self.axes = [as_integer(axis) for axis in listed]
        if None in self.axes or not self.axes:
            raise ValueError(
                "attention_axes must be integers, one axis of the inputs or several, "
                f"or None. Received: {axes!r}"
            )

    def fold_shapes(self, query_shape, value_shape, key_shape):
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

    def fold_inputs(self, tensors, masks, attention_mask):
        """Return the inputs of an attention with the axes `(rows, T, D)`.

        Args:
            tensors: Query, value and key; the last two may be `None`.
            masks: Their masks, `None` or without the depth.
            attention_mask: `(B, [N,] T, S)`, `(T, S)` or `None`.

        Returns:
            The tensors and the masks `(rows, T)`, as two lists, and the attention mask.
        """
        query, value, _ = tensors
        value = query if value is None else value
        folded_masks = [
            self._fold_mask(name, mask, x.shape)
            for name, mask, x in zip(
                ("query_mask", "value_mask", "key_mask"),
                masks,
                (query, value, value),
                strict=True,
            )
        ]
        attention_mask = self._fold_attention_mask(attention_mask, query, value)
        folded = [None if x is None else self._fold(x) for x in tensors]
        return folded, folded_masks, attention_mask

    def unfold(self, results, query, value):
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
        places = [order.index(axis) for axis in range(len(order))]
        unfolded = {"context": ops.transpose(context, places)}
        if "weights" in results:
            weights = results["weights"]
            shape = self.weights_shape(query_shape, ops.shape(value))
            unfolded["weights"] = ops.reshape(weights, shape)
        return unfolded

    def weights_shape(self, query_shape, value_shape):
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

    def _fold_shape(self, shape):
        """Return a shape `(B, ..., D)` as `(rows, T, D)`."""
        order, rows = self._order(len(shape)), len(self._rows(len(shape)))
        joined = []
        for axes in (order[:rows], order[rows:-1]):
            sizes = [shape[axis] for axis in axes]
            joined.append(None if None in sizes else math.prod(sizes))
        return (*joined, shape[-1])

    def _fold(self, x):
        """Return `(B, ..., D)` as `(rows, T, D)`."""
        rows = len(self._rows(len(x.shape)))
        x = ops.transpose(x, self._order(len(x.shape)))
        sizes = ops.shape(x)
        first, between = math.prod(sizes[:rows]), math.prod(sizes[rows:-1])
        return ops.reshape(x, (first, between, sizes[-1]))

    def _fold_mask(self, name, mask, shape):
        """Return the mask `(B, ...)` of a tensor of this shape as `(rows, T)`."""
        if mask is None:
            return None
        check_mask(name, mask, shape[:-1])
        return self._fold(ops.cast(mask, "bool")[..., None])[..., 0]

    def _fold_attention_mask(self, mask, query, value):
        """Return a mask `(B, [N,] T, S)` repeated for all rows; `(T, S)` unchanged."""
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

    def _attended(self, rank):
        return sorted(axis + rank if axis < 0 else axis for axis in self.axes)

    def _rows(self, rank):
        """Return the axes that become rows."""
        return [axis for axis in range(rank - 1) if axis not in self._attended(rank)]

    def _order(self, rank):
        """Return the axes of rows, those of attention, and the depth."""
        return [*self._rows(rank), *self._attended(rank), rank - 1]
