"""Attention over some axes of tensors with more than three axes.

The attention axes become one axis, in row-major order, and the other axes become rows
of the batch.

Shapes: B batch, T queries, S positions, N heads, D depth.
"""

import math
from collections.abc import Iterable

from keras import ops

from keras_attention.validation import check_mask
from keras_attention.validation import may_be_equal


def attend_over_axes(attend, axes, tensors, masks, attention_mask, return_weights):
    """Attend over some axes; the outputs and the weights have all axes of the inputs.

    Args:
        attend: Attention of the folded query, value and key, with the arguments
            `query_mask`, `value_mask`, `key_mask`, `attention_mask` and
            `return_attention_scores`.
        axes: The `AttentionAxes`.
        tensors: Dict of `"query"`, `"value"` and `"key"`; the last two may be `None`.
        masks: Dict of their masks by the same names, `None` or without the depth.
        attention_mask: `(B, [N,] T, S)`, `(T, S)` or `None`.
    """
    query = tensors["query"]
    value = query if tensors["value"] is None else tensors["value"]
    axes.check(*(None if x is None else x.shape for x in tensors.values()))
    results = attend(
        *(None if x is None else axes.fold(x) for x in tensors.values()),
        **{
            f"{name}_mask": axes.fold_mask(
                name, mask, (query if name == "query" else value).shape
            )
            for name, mask in masks.items()
        },
        attention_mask=axes.fold_attention_mask(attention_mask, query),
        return_attention_scores=return_weights,
    )
    if not return_weights:
        return axes.unfold(results, query)
    output, weights = results
    return axes.unfold(output, query), axes.unfold_weights(weights, query, value)


def check_no_details(return_details, axes):
    """Raise `ValueError` for details of attention over some axes."""
    if return_details:
        raise ValueError(
            "With attention_axes, return_details must be False. "
            f"Received: return_details=True, attention_axes={axes}"
        )


class AttentionAxes:
    """Reshapes tensors `(B, ..., D)` to `(rows, T, D)`, and results back.

    Args:
        axes: Sequence of integers, axes of the inputs.
    """

    def __init__(self, axes):
        listed = list(axes) if isinstance(axes, Iterable) else [axes]
        if axes is not None and not all(isinstance(axis, int) for axis in listed):
            raise ValueError(
                "attention_axes must be integers, axes of the inputs, or None. "
                f"Received: {axes!r}"
            )
        self.axes = None if axes is None else listed

    def must_fold(self, query_shape):
        """Return whether the axes of a query must be folded to `(rows, T, D)`."""
        return self.axes is not None and len(query_shape) > 3

    def check_axes(self, query_shape):
        """Raise `ValueError` unless a query has the axes, between batch and depth."""
        if self.axes is None:
            return
        rank = len(query_shape)
        axes = set(self._attended(rank))
        if len(axes) < len(self.axes) or not axes <= set(range(1, rank - 1)):
            raise ValueError(
                "attention_axes must be different axes between the batch and the depth."
                f" Received: {self.axes}, query {tuple(query_shape)}"
            )

    def check(self, query_shape, value_shape, key_shape):
        """Raise `ValueError` unless the shapes have these axes and the rest agrees."""
        self.check_axes(query_shape)
        rows = self._rows(len(query_shape))
        others = [query_shape[axis] for axis in rows]
        for name, shape in (("value", value_shape), ("key", key_shape)):
            if shape is None:
                continue
            same_rank = len(shape) == len(query_shape)
            if not (same_rank and may_be_equal([shape[axis] for axis in rows], others)):
                raise ValueError(
                    f"{name} must have the axes of the query, of the same sizes except "
                    f"for the depth and attention_axes={self.axes}. Received: query "
                    f"{tuple(query_shape)}, {name} {tuple(shape)}"
                )

    def fold_shape(self, shape):
        """Return a shape `(B, ..., D)` as `(rows, T, D)`."""
        order, rows = self._order(len(shape)), len(self._rows(len(shape)))
        joined = []
        for axes in (order[:rows], order[rows:-1]):
            sizes = [shape[axis] for axis in axes]
            joined.append(None if None in sizes else math.prod(sizes))
        return (*joined, shape[-1])

    def fold(self, x):
        """Return `(B, ..., D)` as `(rows, T, D)`."""
        rows = len(self._rows(len(x.shape)))
        x = ops.transpose(x, self._order(len(x.shape)))
        sizes = ops.shape(x)
        first, between = math.prod(sizes[:rows]), math.prod(sizes[rows:-1])
        return ops.reshape(x, (first, between, sizes[-1]))

    def fold_mask(self, name, mask, shape):
        """Return the mask `(B, ...)` of a tensor of this shape as `(rows, T)`."""
        if mask is None:
            return None
        check_mask(f"{name}_mask", mask, shape[:-1])
        return self.fold(ops.cast(mask, "bool")[..., None])[..., 0]

    def fold_attention_mask(self, mask, query):
        """Return a mask `(B, [N,] T, S)` repeated for all rows; `(T, S)` unchanged."""
        if mask is None or len(mask.shape) == 2:
            return mask
        rows = self._rows(len(query.shape))
        repeats = math.prod(ops.shape(query)[axis] for axis in rows[1:])
        return mask if mask.shape[0] == 1 else ops.repeat(mask, repeats, axis=0)

    def unfold(self, x, query):
        """Return outputs `(rows, T, D)` with the axes of the query."""
        order = self._order(len(query.shape))
        sizes = [ops.shape(query)[axis] for axis in order[:-1]]
        x = ops.reshape(x, (*sizes, x.shape[-1]))
        return ops.transpose(x, [order.index(axis) for axis in range(len(order))])

    def unfold_weights(self, weights, query, value):
        """Return weights `(rows, N, T, S)` with all axes, see `weights_shape`."""
        shapes = ops.shape(query), ops.shape(value)
        return ops.reshape(weights, self.weights_shape(weights.shape[1], *shapes))

    def weights_shape(self, num_heads, query_shape, value_shape):
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
            num_heads,
            *query_sizes[rows:],
            *value_sizes[rows:],
        )

    def _attended(self, rank):
        return sorted(axis + rank if axis < 0 else axis for axis in self.axes)

    def _rows(self, rank):
        """Return the axes that become rows."""
        return [axis for axis in range(rank - 1) if axis not in self._attended(rank)]

    def _order(self, rank):
        """Return the axes of rows, those of attention, and the depth."""
        return [*self._rows(rank), *self._attended(rank), rank - 1]
