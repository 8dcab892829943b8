"""The loop of a recurrent decoder over a whole target sequence.

Shapes: B batch, T target steps, S positions, D step input, U cell units, V context. An
extra axis K after B holds several sequences that attend to the same memory.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.decoder.cell import (
    AttentionCell,
    add_sequence_axis,
    check_state,
    remove_sequence_axis,
)
from keras_attention.decoder.fast import DeferredValueGradients, Recurrence
from keras_attention.decoder.scheduled_sampling import ScheduledSampling
from keras_attention.layers.components import check_memory, freeze_new_weights
from keras_attention.layers.recurrent import initial_cell_state
from keras_attention.ops.masks import clear_masked, where_rows
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.sizes import at_least_one
from keras_attention.typing import Config, Nested, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import CheckedCall, check_mask, check_rank, check_shape


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionDecoder(CheckedCall, CompositeLayer):
    """Loop of an `AttentionCell` over a whole target sequence.

    What does not depend on the previous step is computed for all steps at once:
    products of kernels with inputs, attentional vectors that are not fed back, and the
    gradients of the kernels. The whole attention is computed at once, too, under four
    conditions: `order="current"`, nothing is fed back, the attention keeps no state,
    and no `sampling` replaces inputs in training. Coverage, monotonic attention, causal
    attention and local-m windows keep a state.

    Second derivatives, such as those of a gradient penalty, are correct on JAX only. On
    TensorFlow and PyTorch they are wrong without an error, since the gradients of the
    kernels are computed by hand and cannot be differentiated again.

    Args:
        cell: The `AttentionCell`.
        sampling: `ScheduledSampling` that replaces inputs in training, or `None`.

    Call arguments:
        inputs: Step inputs, `(B, T, D)`, or `(B, K, T, D)` for K sequences that
            attend to the same memory.
        value: Values of the attention, `(B, S, V)`; for several attentions a list with
            one tensor each, or one tensor for all.
        initial_state: Dict as `cell.get_initial_state` returns it; only `"cell"` is
            required, which may be a tensor for a cell with one state. Zeros by default.
        inputs_mask: Boolean `(B, [K,] T)`. A masked step keeps the state and returns
            zeros.
        value_mask: Boolean `(B, S)`, or a list; see the attention layer.
        training: Whether the pass trains.

    Implicit Keras masks are used where no explicit one is given; that of `inputs` is
    passed on with all outputs but the state.

    Returns:
        Dict with `"cell_output"` `(B, [K,] T, U)`, `"context"` `(B, [K,] T, V)`,
        `"weights"` `(B, [K,] T, S)`, and `"state"`, the state after the last step.
        `"output"` has the shape of `"cell_output"`, or the depth of the attentional
        vector. `"query"` is `(B, [K,] T, U)`, or `(B, [K,] T, U + D)` with the inputs
        in the query. The additional outputs of the attention follow, see
        `AttentionCell`. With `sampling`, also `"word_inputs"` `(B, [K,] T, D)`, the
        inputs of the steps after sampling, for a readout that takes them. With
        `order="previous"`, `"query"` holds the previous states, which Bahdanau's
        readout needs, followed by the inputs if they are in the query.

    Raises:
        ValueError: If `cell` is no `AttentionCell`, or a call argument does not have
            one of these shapes.

    Example:

    >>> attention = AdditiveAttention(16)
    >>> decoder = AttentionDecoder(AttentionCell(keras.layers.GRUCell(32), attention))
    >>> words = np.zeros((8, 11, 10), "float32")
    >>> regions = np.zeros((8, 49, 64), "float32")
    >>> tuple(decoder(words, regions)["weights"].shape)
    (8, 11, 49)

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2;
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.
    """

    def __init__(
        self,
        cell: AttentionCell,
        *,
        sampling: ScheduledSampling | None = None,
        **kwargs: Any,
    ) -> None:
        # States keep their precision.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(cell, AttentionCell):
            raise ValueError(f"cell must be an AttentionCell. Received: {cell!r}")
        if not isinstance(sampling, (ScheduledSampling, type(None))):
            raise ValueError(
                f"sampling must be ScheduledSampling or None. Received: {sampling!r}"
            )
        self.cell = cell
        self.sampling: Any = sampling
        self.supports_masking = True

    def build(
        self,
        inputs_shape: Shape,
        value_shape: Shapes,
        initial_state_shape: Shapes = None,
    ) -> None:
        _check_inputs(inputs_shape)
        cell = self.cell
        _check_value(value_shape, cell)
        if not getattr(cell.memory, "built", False):
            cell.memory.build(value_shape)
        if not cell.built:
            cell.build((None, inputs_shape[-1]), None, cell.memory.shapes(value_shape))
        freeze_new_weights(self)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        value: Nested,
        initial_state: Nested = None,
        *,
        inputs_mask: Tensor | None = None,
        value_mask: Nested = None,
        training: bool | None = None,
    ) -> Tensors:
        cell = self.cell
        _check_inputs(inputs.shape, inputs_mask)
        _check_value(tree.map_structure(lambda x: tuple(x.shape), value), cell)
        inputs = ops.cast(inputs, self.compute_dtype)
        memory = cell.memory(value, value_mask=value_mask)
        check_memory(memory, cell.attention, inputs)
        state = self._initial_state(inputs, initial_state, memory)
        single = len(inputs.shape) == 3
        if single:
            inputs, state = add_sequence_axis((inputs, state))
        sequence = {}
        if inputs_mask is not None:
            mask = ops.cast(inputs_mask, "bool")
            mask = add_sequence_axis(mask) if single else mask
            inputs = clear_masked(inputs, mask)
            sequence["mask"] = ops.moveaxis(mask, 2, 0)
        inputs = ops.moveaxis(inputs, 2, 0)
        outputs, state = self._run(inputs, sequence, state, memory, training)
        word_inputs = outputs.pop("word_inputs", inputs)
        outputs = cell.complete(outputs)
        if self.sampling is not None:
            outputs["word_inputs"] = word_inputs
        if inputs_mask is not None:
            outputs = tree.map_structure(
                lambda x: where_rows(sequence["mask"], x, ops.zeros_like(x)), outputs
            )
        outputs = tree.map_structure(lambda x: ops.moveaxis(x, 0, 2), outputs)
        results = {**outputs, "state": state}
        return remove_sequence_axis(results) if single else results

    def _run(
        self,
        inputs: Nested,
        sequence: Nested,
        state: Nested,
        memory: Tensors,
        training: bool | None,
    ) -> tuple[Tensors, Nested]:
        """Run the steps of sequences `(T, B, K, ...)` one after the other.

        The attention of all steps is read at once, after the loop, if no step depends
        on it.
        """
        cell, sampling = self.cell, self.sampling if training else None
        reads_later = not (cell.sequential or sampling)
        recurrence = Recurrence(
            cell, inputs, self.compute_dtype, training, splits=sampling is None
        )
        steps, _, sequences = ops.shape(inputs)[:-1]
        noise = cell.step.draw(memory, steps, sequences) if training else {}
        memories: Any = memory if cell.has_several else [memory]
        deferred = DeferredValueGradients(
            [] if reads_later else memories, ops.shape(inputs)[:-1], self.compute_dtype
        )
        seen: Any = deferred.memories
        if not (cell.has_several or reads_later):
            (seen,) = seen
        uses_inputs = sampling or cell.input_in_query or cell.sentinel
        sequence = {
            **sequence,
            "cell": recurrence.sequences,
            "inputs": inputs if uses_inputs else {},
            "noise": {} if reads_later else noise,
            "sampling": self._draw_samples(inputs, sequence) if sampling else {},
        }

        if deferred.zeros is not None:
            sequence["zeros"] = deferred.zeros

        def step(carry: Nested, part: Nested) -> tuple[Nested, Nested]:
            state, previous = carry
            words, cell_inputs = part["inputs"], part["cell"]
            if sampling:
                words = cell_inputs = sampling.choose(
                    part["sampling"], words, *previous
                )
            attend = partial(
                cell.step.call,
                memory=seen,
                state=state.get("attention", {}),
                noise=part["noise"] or None,
                training=training,
            )
            read = partial(cell.read, attend, zeros=part.get("zeros"))
            run_cell = partial(recurrence.step, cell_inputs, state["cell"])
            outputs, new_state = cell.equations(
                words, state, _read_later if reads_later else read, run_cell
            )
            if sampling:
                outputs = cell.complete(outputs)
                previous = words, outputs
                outputs = {**outputs, "word_inputs": words}
            outputs = {**outputs, "kernel_inputs": recurrence.kernel_inputs(state)}
            if "mask" in part:
                new_state = where_rows(part["mask"], new_state, state)
            return (new_state, previous), outputs

        first: tuple[Any, ...] = ()
        previous: tuple[Any, ...] = ()
        if sampling or cell.has_dropout:
            words, part = tree.map_structure(
                lambda x: at_least_one(x)[0], (inputs, sequence)
            )
            first = words, state, memory
        with cell.same_dropout(*first, training=training):
            if sampling:
                # This call gives the shapes of the outputs before the first step, and
                # builds, outside of the loop, every layer that is not built yet.
                outputs, _ = cell(*first, part["noise"], training=True)
                previous = words, tree.map_structure(ops.zeros_like, outputs)
                sampling.choose(part["sampling"], words, *previous)
            (state, _), outputs = loops.scan(step, (state, previous), sequence)
        if not reads_later:
            weights = outputs["weights"]
            deferred.record_weights(weights if cell.has_several else [weights])
        context = [outputs["context"]] if cell.order == "previous" else []
        recurrence.record_kernel_inputs(outputs.pop("kernel_inputs"), context)
        if reads_later:
            outputs |= self._read_all(inputs, outputs, memory, noise, training)
        return outputs, state

    def _read_all(
        self,
        inputs: Nested,
        outputs: Nested,
        memory: Tensors,
        noise: Tensor,
        training: bool | None,
    ) -> Nested:
        """Read the attention of all steps at once."""
        steps, _, sequences = ops.shape(inputs)[:-1]
        names = {"query": outputs["cell_output"], "inputs": inputs, "noise": noise}
        names["states"] = outputs.pop("states")
        all_ = tree.map_structure(_as_queries, names)
        attend = partial(
            self.cell.step.call,
            memory=memory,
            noise=all_["noise"] or None,
            training=training,
        )
        sources = [[all_["inputs"]], all_["states"]] if self.cell.sentinel else []
        results, _ = self.cell.read(attend, all_["query"], *sources)
        return tree.map_structure(lambda x: _as_steps(x, sequences, steps), results)

    def _draw_samples(self, inputs: Nested, sequence: Nested) -> Nested:
        """Draw the noise of scheduled sampling for all steps."""
        noise = self.sampling.draw(ops.shape(inputs)[0], ops.shape(inputs)[1:-1])
        if "mask" in sequence:
            # A step after padding has no output to sample from.
            mask = sequence["mask"]
            before = ops.concatenate([ops.zeros_like(mask[:1]), mask[:-1]], axis=0)
            noise["use_sample"] = ops.logical_and(noise["use_sample"], before)
        return noise

    def _initial_state(
        self, inputs: Nested, initial_state: Tensor, memory: Tensors
    ) -> Nested:
        """Return the state before the first step, in the dtypes of the cell."""
        leading = ops.shape(inputs)[:-2]
        state = {"cell": initial_cell_state(self.cell.cell, 1)}
        state = tree.map_structure(
            lambda x: ops.broadcast_to(x[0], (*leading, x.shape[-1])), state
        )
        if initial_state is not None:
            check_state(
                "initial_state", initial_state, self.cell.cell, len(leading) + 1
            )
            for x in tree.flatten(initial_state["cell"]):
                check_shape("initial_state", x, (*inputs.shape[:-2], x.shape[-1]))
            cell_state = _cast_like(initial_state["cell"], state["cell"])
            state = {**initial_state, "cell": cell_state}
        return self.cell.complete_state(state, memory)

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        if previous_mask is None:
            return None
        cell = self.cell
        state: dict[str, Any] = {"cell": initial_cell_state(cell.cell, 1)}
        if cell.step.state_names:
            state["attention"] = cell.step.state_names
        if cell.input_feeding:
            state["feedback"] = None
        names = ["output", "cell_output", "query", "context"]
        names += ["word_inputs"] if self.sampling is not None else []
        return {
            **dict.fromkeys(names, previous_mask),
            **self._masks_of_reports(previous_mask),
            "state": tree.map_structure(lambda x: None, state),
        }

    def _masks_of_reports(self, mask: Tensor) -> dict[str, Any]:
        """Return a dict that maps weights and reports of the attention to `mask`."""
        if not self.cell.has_several:
            return dict.fromkeys(("weights", *self.cell.reports), mask)
        reports = [("weights", *x.step.reports) for x in self.cell.attentions]
        names = dict.fromkeys(name for step_reports in reports for name in step_reports)
        return {
            name: [mask for step_reports in reports if name in step_reports]
            for name in names
        }

    def get_config(self) -> Config:
        return {**super().get_config(), **config_of(self, "cell sampling")}


def _cast_like(states: Nested, others: Nested) -> Nested:
    """Return states with the dtypes and the structure of `others`."""
    pairs = zip(tree.flatten(states), tree.flatten(others), strict=True)
    return tree.pack_sequence_as(others, [ops.cast(x, y.dtype) for x, y in pairs])


def _read_later(query: Tensor, *sources: Any) -> tuple[Tensors, Tensors]:
    """Return what the attention needs, once all steps are read at once."""
    return {"states": sources[1] if sources else []}, {}


def _as_queries(x: Tensor) -> Tensor:
    """Return `(T, B, K, ...)` as queries of a row, `(B, K * T, ...)`."""
    x = ops.moveaxis(x, 0, 2)
    batch, sequences, steps, *rest = ops.shape(x)
    return ops.reshape(x, (batch, sequences * steps, *rest))


def _as_steps(x: Tensor, sequences: Nested, steps: int) -> Tensor:
    """Undo `_as_queries`."""
    shape = ops.shape(x)
    x = ops.reshape(x, (shape[0], sequences, steps, *shape[2:]))
    return ops.moveaxis(x, 2, 0)


def _check_inputs(shape: Shape, mask: Tensor | None = None) -> None:
    check_rank("inputs", shape, (3, 4), "(batch, [sequences,] steps, depth)")
    check_mask("inputs_mask", mask, shape[:-1])


def _check_value(shapes: Shapes, cell: keras.layers.Layer) -> None:
    if isinstance(shapes, Mapping):
        raise ValueError(
            "value must be a tensor (batch, positions, depth): a decoder computes the "
            f"memory itself. Received: a dict with {', '.join(shapes)}"
        )
    is_list = isinstance(shapes[0], (list, tuple))
    if is_list and not cell.has_several:
        raise ValueError(
            "value must be one tensor for one attention. "
            f"Received: a list of shapes {shapes}"
        )
    for shape in shapes if is_list else [shapes]:
        check_rank("value", shape, (3,), "(batch, positions, depth)")
        if shape[-1] == 0:
            raise ValueError(f"value must have a depth. Received: {tuple(shape)}")
