"""Recurrent encoder in one direction or in both.

Shapes: B batch, S steps, D depth of the inputs, U units.
"""

from typing import Any

import keras
from keras import ops, tree

from keras_attention import backends, loops
from keras_attention.layers import recurrent
from keras_attention.layers.components import freeze_new_weights
from keras_attention.ops.masks import clear_masked
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.sizes import at_least_one
from keras_attention.split_cells import split_cell
from keras_attention.typing import Config, Nested, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import (
    CheckedCall,
    check_boolean,
    check_mask,
    check_rank,
    may_be_equal,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class RecurrentEncoder(CheckedCall, CompositeLayer):
    """Recurrent encoder in one direction, or in both with two cells.

        forward[s]     = cell(inputs[s], forward[s-1])
        backward[s]    = backward_cell(inputs[s], backward[s+1])
        annotations[s] = [forward[s]; backward[s]]

    Without a mask, the result equals that of `keras.layers.RNN`, or of
    `keras.layers.Bidirectional` around it, and is computed in less time. Both
    directions run in one loop. If the cell is a `keras.layers.GRUCell` (with
    `reset_after`), `LSTMCell`, `SimpleRNNCell`, `LayerNormGRUCell` or
    `LayerNormLSTMCell` without dropout, its products with the inputs are computed for
    all steps at once, and so are the gradients of its kernels. Second derivatives, such
    as those of a gradient penalty, are then correct on JAX only. Any other Keras cell
    runs unchanged.

    Masking: a masked step keeps the state, so each direction goes from one valid step
    to the next, wherever the padding is. Values in the padding, `NaN` included, reach
    no result and no gradient. The annotation of a masked step is zero;
    `keras.layers.RNN` repeats the previous one.

    Args:
        cell: Keras RNN cell, such as `keras.layers.GRUCell(256)`.
        backward_cell: Cell that reads from the end to the start; `None` for one
            direction.
        return_state: Whether to return the final states, too.

    Call arguments:
        inputs: Tensor of shape `(B, S, D)`.
        initial_state: List of states `(B, U)`, those of `cell` before those of
            `backward_cell`; by default the initial states of the cells, mostly zeros.
        mask: Boolean `(B, S)`; the implicit Keras mask of `inputs` by default.
        training: Whether the pass trains.

    Returns:
        annotations: Tensor of shape `(B, S, U)`, or `(B, S, U + U_backward)`. The mask
            of the inputs is passed on with it.
        states: Final states of `cell`, then those of `backward_cell`, which ends at the
            first step. Each is a separate output; stacked cells give one list per cell.
            Only if `return_state` is `True`.

    Raises:
        ValueError: If a cell is no Keras RNN cell, or both are the same; if
            `inputs`, `mask` or `initial_state` has another shape.

    Example:

    >>> cells = keras.layers.GRUCell(32), keras.layers.GRUCell(32)
    >>> encoder = RecurrentEncoder(*cells, return_state=True)
    >>> annotations, last, first = encoder(np.zeros((8, 11, 10), "float32"))
    >>> tuple(annotations.shape), tuple(first.shape)
    ((8, 11, 64), (8, 32))

    Reference:
        [Schuster and Paliwal, 1997](https://doi.org/10.1109/78.650093), section II;
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), section 3.2.
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        backward_cell: keras.layers.Layer | None = None,
        *,
        return_state: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        recurrent.check_cell("cell", cell)
        if backward_cell is not None:
            recurrent.check_cell("backward_cell", backward_cell)
        check_boolean("return_state", return_state)
        if cell is backward_cell:
            raise ValueError(
                "backward_cell must be another cell, with weights of its own. "
                f"Received: {backward_cell!r} twice"
            )
        self.cell = cell
        self.backward_cell = backward_cell
        self.return_state = return_state
        self.supports_masking = True

    @property
    def _cells(self) -> list[keras.layers.Layer]:
        return [cell for cell in (self.cell, self.backward_cell) if cell is not None]

    def build(self, inputs_shape: Shape, initial_state_shape: Shapes = None) -> None:
        _check_inputs(inputs_shape)
        for cell in self._cells:
            if not cell.built:
                cell.build((inputs_shape[0], inputs_shape[-1]))
                cell.built = True
        freeze_new_weights(self)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        initial_state: Nested = None,
        *,
        mask: Tensor | None = None,
        inputs_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Nested:
        # Keras fills `mask` if there is one tensor, `inputs_mask` if there are several.
        mask = inputs_mask if mask is None else mask
        _check_inputs(inputs.shape, mask)
        states = self._states(initial_state, inputs)
        inputs = ops.swapaxes(inputs, 0, 1)
        if mask is not None:
            mask = ops.swapaxes(ops.cast(mask, "bool"), 0, 1)
            inputs = clear_masked(inputs, mask)
        self._reset_dropout_masks()
        try:
            passes = [
                _Pass(cell, inputs, mask, state, backward=cell is self.backward_cell)
                for cell, state in zip(self._cells, states, strict=True)
            ]

            def step(states: Nested, parts: Nested) -> tuple[Nested, ...]:
                together = zip(passes, states, parts, strict=True)
                results = [
                    direction.step(state, part) for direction, state, part in together
                ]
                return tuple(zip(*results, strict=True))

            sequences = tuple(direction.sequences for direction in passes)
            states, results = loops.scan(step, tuple(states), sequences)
        finally:
            self._reset_dropout_masks()
        pairs = zip(passes, results, strict=True)
        annotations = ops.concatenate(
            [direction.finish(x) for direction, x in pairs], axis=-1
        )
        if mask is not None:
            annotations = clear_masked(annotations, mask)
        annotations = ops.cast(ops.swapaxes(annotations, 0, 1), self.compute_dtype)
        if not self.return_state:
            return annotations
        states = tree.map_structure(lambda x: ops.cast(x, self.compute_dtype), states)
        return (annotations, *(x for state in states for x in state))

    def _states(self, initial_state: Nested, inputs: Nested) -> list[Nested]:
        """Return the list of states before the first step of every cell."""
        batch = ops.shape(inputs)[0]
        states = [recurrent.initial_cell_state(cell, batch) for cell in self._cells]
        if initial_state is not None:
            tensors = tree.flatten(initial_state)
            shapes = [tuple(x.shape) for x in tensors]
            expected = [(inputs.shape[0], x.shape[-1]) for x in tree.flatten(states)]
            fits = len(shapes) == len(expected)
            if not fits or not all(map(may_be_equal, shapes, expected)):
                raise ValueError(
                    "initial_state must be a list of tensors (batch, units), of the "
                    f"shapes {expected}. Received: {shapes}"
                )
            states = tree.pack_sequence_as(states, tensors)
        return [
            tree.map_structure(
                lambda x, cell=cell: ops.cast(x, cell.compute_dtype), cell_states
            )
            for cell, cell_states in zip(self._cells, states, strict=True)
        ]

    def _reset_dropout_masks(self) -> None:
        for cell in self._cells:
            recurrent.reset_dropout_masks(cell)

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        if not self.return_state:
            return previous_mask
        states = [recurrent.initial_cell_state(cell, 1) for cell in self._cells]
        return (previous_mask, *(None for _ in tree.flatten(states)))

    def compute_output_shape(
        self, inputs_shape: Shape, initial_state_shape: Shapes = None
    ) -> Any:
        _check_inputs(inputs_shape)
        batch, steps, _ = inputs_shape
        depth = sum(recurrent.output_units(cell) for cell in self._cells)
        if not self.return_state:
            return batch, steps, depth
        states = [
            x for cell in self._cells for x in recurrent.initial_cell_state(cell, 1)
        ]
        states = tree.map_structure(lambda x: (batch, x.shape[-1]), states)
        return ((batch, steps, depth), *states)

    def get_config(self) -> Config:
        config = config_of(self, "cell backward_cell return_state")
        return {**super().get_config(), **config}


class _Pass:
    """One pass of a cell over the inputs.

    Args:
        cell: The cell, built.
        inputs: Tensor of shape `(S, B, D)`.
        mask: Boolean `(S, B)`, or `None`.
        state: List of states before the first step.
        backward: Whether the last step comes first.

    Attributes:
        sequences: Dict of tensors `(S, ...)`; each step receives its part.
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        inputs: Nested,
        mask: Tensor,
        state: Nested,
        backward: bool,
    ) -> None:
        self._cell = cell
        self._backward = backward
        inputs = self._in_order(ops.cast(inputs, cell.compute_dtype))
        self._split: Any = split_cell(cell, inputs, cell.compute_dtype)
        self.sequences: Tensors = {"inputs": inputs}
        if self._split is not None:
            self.sequences = {"inputs": self._split.sequences}
        elif recurrent.has_dropout(cell):
            # A dropout mask that is drawn inside a loop cannot be used outside of it.
            recurrent.call_cell(cell, at_least_one(inputs)[0], state)
        if mask is not None:
            self.sequences["mask"] = self._in_order(mask)[..., None]

    def step(self, state: Nested, part: Nested) -> tuple[Nested, Tensors]:
        """Return the new state, and the dict that `finish` takes."""
        if self._split is None:
            output, new_state = recurrent.call_cell(self._cell, part["inputs"], state)
        else:
            output, new_state = self._split(part["inputs"], None, state)
        results = {"output": output}
        if self._split is not None and backends.defers_gradients(output):
            results["previous_state"] = state[0]
        new_state = tree.pack_sequence_as(state, tree.flatten(new_state))
        new_state = tree.map_structure(
            lambda new, old: ops.cast(new, old.dtype), new_state, state
        )
        if "mask" in part:
            new_state = tree.map_structure(
                lambda new, old: ops.where(part["mask"], new, old), new_state, state
            )
        return new_state, results

    def finish(self, results: Nested) -> Tensor:
        """Return the outputs `(S, B, U)` in the order of the inputs."""
        if "previous_state" in results:
            self._split.record_kernel_inputs(None, results["previous_state"])
        return self._in_order(results["output"])

    def _in_order(self, x: Tensor) -> Tensor:
        return ops.flip(x, axis=0) if self._backward else x


def _check_inputs(shape: Shape, mask: Tensor | None = None) -> None:
    check_rank("inputs", shape, (3,), "(batch, steps, depth)")
    check_mask("mask", mask, shape[:2])
