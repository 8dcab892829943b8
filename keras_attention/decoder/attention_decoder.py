"""The loop of a recurrent decoder over a whole target sequence.

Shapes: B batch, T target steps, S positions, D step input, U cell units, V depth of
what is read. An extra axis K after B holds several sequences that look at the same
memory.
"""

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.decoder.attention_cell import (
    AttentionCell,
    check_state,
    joined,
    shapes,
)
from keras_attention.decoder.scheduled_sampling import ScheduledSampling
from keras_attention.decoder.split_reading import SplitReading
from keras_attention.layers.parts import (
    check_mask,
    check_rank,
    deserialize_parts,
    serialize_part,
    stay_frozen,
)
from keras_attention.layers.recurrent import first_state
from keras_attention.split_cells import split_cell


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionDecoder(keras.layers.Layer):
    """Runs an `AttentionCell` over a whole target sequence.

    What does not depend on the step before is computed for all steps at once: the
    products of the cell with its inputs, the attentional vectors unless they are fed
    back, and the whole attention where the current state asks and nothing is fed back.
    So are the gradients of the kernels; a second derivative, such as of a penalty on
    gradients, is then right on JAX alone.

    Args:
        cell: The `AttentionCell`.
        sampling: `ScheduledSampling` that replaces inputs in training, or `None`.

    Call arguments:
        inputs: Step inputs, `(B, T, D)`, or `(B, K, T, D)` for K sequences that
            look at the same memory.
        value: What to look at, `(B, S, V)`; for several attentions a list of as many
            tensors, or one for all.
        initial_state: Dict as `cell.get_initial_state` returns it, of which `"cell"`
            is enough; zeros if omitted.
        inputs_mask: Boolean `(B, [K,] T)`. A step that is `False` copies the state
            through and returns zeros.
        value_mask: Boolean `(B, S)`, or a list; see the attention layer.
        training: Whether the pass trains.

    Implicit Keras masks are used where no explicit one is given; that of `inputs` is
    passed on with all outputs but the state.

    Returns:
        Dict with `"output"`, `"cell_output"` and `"query"` `(B, [K,] T, U)`,
        `"context"` `(B, [K,] T, V)`, `"weights"` `(B, [K,] T, S)` and what else the
        attention reports (see `AttentionCell`), and `"state"`, the state after the last
        step. With `order="previous"`, `"query"` holds the states that a readout like
        Bahdanau's asks for, and the inputs, if they are in the query.

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

    def __init__(self, cell, *, sampling=None, **kwargs):
        # States keep their precision.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(cell, AttentionCell):
            raise ValueError(f"cell must be an AttentionCell. Received: {cell!r}")
        if not isinstance(sampling, (ScheduledSampling, type(None))):
            raise ValueError(
                f"sampling must be ScheduledSampling or None. Received: {sampling!r}"
            )
        self.cell = cell
        self.sampling = sampling
        self.supports_masking = True

    def build(self, inputs_shape, value_shape, initial_state_shape=None):
        _check_inputs(inputs_shape)
        cell, memory_shapes = self.cell, []
        is_list = isinstance(value_shape[0], (list, tuple))
        value_shapes = self._of_each("value", value_shape if is_list else [value_shape])
        for attention, shape in zip(cell.attentions, value_shapes, strict=True):
            shape = tuple(shape)
            check_rank("value", shape, (3,), "(batch, positions, depth)")
            if not attention.memory.built:
                attention.memory.build(shape)
            memory_shapes.append(attention.memory.shapes(shape))
        if not cell.built:
            memory_shape = memory_shapes if cell.has_several else memory_shapes[0]
            cell.build((None, inputs_shape[-1]), None, memory_shape)
        stay_frozen(self)
        self.built = True

    def call(
        self,
        inputs,
        value,
        initial_state=None,
        *,
        inputs_mask=None,
        value_mask=None,
        training=None,
    ):
        cell = self.cell
        _check_inputs(inputs.shape, inputs_mask)
        inputs = ops.cast(inputs, self.compute_dtype)
        memory = self._remember(value, value_mask)
        cell.check_memory(memory, inputs)
        state = self._first_state(inputs)
        if initial_state is not None:
            check_state(
                "initial_state", initial_state, cell.cell, len(inputs.shape) - 1
            )
            given = _as_precise(initial_state["cell"], state["cell"])
            state = {**initial_state, "cell": given}
        state = cell.complete_state(state, memory)

        time = len(inputs.shape) - 2
        sequence = {}
        if inputs_mask is not None:
            mask = ops.cast(inputs_mask, "bool")
            inputs = ops.where(mask[..., None], inputs, ops.zeros_like(inputs))
            sequence["mask"] = ops.moveaxis(mask, time, 0)
        inputs = ops.moveaxis(inputs, time, 0)
        samples = training and self.sampling is not None
        one_by_one = samples or cell.sequential
        run = self._step_by_step if one_by_one else self._look_at_once
        outputs, state = run(inputs, sequence, state, memory, training)
        outputs = cell.complete(outputs)
        if inputs_mask is not None:
            outputs = tree.map_structure(
                lambda x: _where(sequence["mask"], x, ops.zeros_like(x)), outputs
            )
        outputs = tree.map_structure(lambda x: ops.moveaxis(x, 0, time), outputs)
        return {**outputs, "state": state}

    def _step_by_step(self, inputs, sequence, state, memory, training):
        """One step after the other; all sequences are `(T, B, [K,] ...)`."""
        if training:
            sequence = {**sequence, "noise": self._draw(inputs, memory)}
        if training and self.sampling is not None:
            return self._sample(inputs, sequence, state, memory)
        cell = self.cell
        split = split_cell(cell.cell, inputs, self.compute_dtype)
        sequence = {**sequence, "inputs": inputs if split is None else split.sequences}
        if cell.input_in_query:
            sequence["asking"] = inputs
        memories = memory if cell.has_several else [memory]
        reading = SplitReading(memories, ops.shape(inputs)[:-1])
        memory = reading.memories if cell.has_several else reading.memories[0]
        sequence["later"] = reading.sequences

        def step(state, now):
            outputs, new_state = cell.run(
                now["inputs"],
                state,
                memory,
                now.get("noise"),
                split,
                now["later"],
                now.get("asking"),
                training,
            )
            outputs["before"] = _multiplied(state, split)
            return _keep(state, new_state, now), outputs

        first_step = (inputs[0], state, memory)
        with cell.same_dropout(*first_step, training=training):
            state, outputs = loops.scan(step, state, sequence)
        weights = outputs["weights"]
        reading.see(weights if cell.has_several else [weights])
        before = outputs.pop("before")
        if before:
            context = [outputs["context"]] if cell.order == "previous" else []
            split.see(joined([*before["fed"], *context]), before["state"])
        return outputs, state

    def _sample(self, inputs, sequence, state, memory):
        """The same in training, where any input may turn out to be another."""
        cell, sampling = self.cell, self.sampling
        own = sampling.draw(ops.shape(inputs)[0], ops.shape(inputs)[1:-1])
        sequence = {**sequence, "inputs": inputs, "own": own}

        def step(carry, now):
            state, previous = carry
            read = sampling.choose(now["own"], now["inputs"], *previous)
            outputs, new_state = cell(read, state, memory, now["noise"], training=True)
            return (_keep(state, new_state, now), (read, outputs)), outputs

        with cell.same_dropout(inputs[0], state, memory, training=True):
            # The first step has no word of its own: only the shapes matter. What is
            # not built yet is built here, outside of the loop.
            first = tree.map_structure(lambda x: x[0], sequence)
            outputs, _ = cell(inputs[0], state, memory, first["noise"], training=True)
            before = inputs[0], tree.map_structure(ops.zeros_like, outputs)
            sampling.choose(first["own"], inputs[0], *before)
            (state, _), outputs = loops.scan(step, (state, before), sequence)
        return outputs, state

    def _look_at_once(self, inputs, sequence, state, memory, training):
        """First the cell alone, then the attention of all steps."""
        cell = self.cell
        split = split_cell(cell.cell, inputs, self.compute_dtype)
        sequence = {**sequence, "inputs": inputs if split is None else split.sequences}

        def step(state, now):
            output, cell_state = cell.run_cell(
                now["inputs"], [], state["cell"], split, training
            )
            before = _multiplied(state, split)
            outputs = {"cell_output": output, "before": before}
            return _keep(state, {"cell": cell_state}, now), outputs

        first_step = (inputs[0], state, memory)
        with cell.same_dropout(*first_step, training=training):
            state, outputs = loops.scan(step, state, sequence)
        before = outputs.pop("before")
        if before:
            split.see(None, before["state"])

        shape = ops.shape(outputs["cell_output"])[:-1]
        looking = {"query": outputs["cell_output"]}
        if training:
            looking["noise"] = self._draw(inputs, memory)
        looking = tree.map_structure(lambda x: _steps_last(x, len(shape)), looking)
        found, _ = cell.look(memory=memory, training=training, **looking)
        found = tree.map_structure(lambda x: _steps_first(x, shape), found)
        return {**outputs, **found}, state

    def _remember(self, value, value_mask):
        """The memory of every attention."""
        cell = self.cell
        values = self._of_each("value", value)
        masks = self._of_each("value_mask", value_mask)
        for one in values:
            check_rank("value", one.shape, (3,), "(batch, positions, depth)")
        memories = [
            attention.memory(one, value_mask=mask)
            for attention, one, mask in zip(cell.attentions, values, masks, strict=True)
        ]
        return memories if cell.has_several else memories[0]

    def _of_each(self, name, x):
        """A list with what belongs to each attention; one thing belongs to all."""
        x = list(x) if isinstance(x, (list, tuple)) else [x]
        count = len(self.cell.attentions)
        if len(x) not in (1, count):
            raise ValueError(
                f"{name} must be one for all attentions, or a list of {count}. "
                f"Received: {shapes(x)}"
            )
        return x * count if len(x) == 1 else x

    def _draw(self, inputs, memory):
        """Noise for all steps, tensors `(T, B, [K,] ...)`."""
        several = len(inputs.shape) == 4
        steps, queries = ops.shape(inputs)[0], ops.shape(inputs)[-2] if several else 1
        noise = self.cell.draw(memory, steps, queries)
        return noise if several else tree.map_structure(lambda x: x[:, :, 0], noise)

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None:
            return None
        cell = self.cell
        names = ["output", "cell_output", "query", "context"]
        state = {"cell": first_state(cell.cell, 1)}
        if any(a.step.state_names for a in cell.attentions):
            state["attention"] = [a.step.state_names for a in cell.attentions]
            if not cell.has_several:
                state["attention"] = state["attention"][0]
        if cell.input_feeding:
            state["fed"] = None
        return {
            **dict.fromkeys(names, previous_mask),
            **cell.reports(previous_mask),
            "state": tree.map_structure(lambda x: None, state),
        }

    def _first_state(self, inputs):
        """The cell's first state, `(B, units)` or `(B, K, units)`, for these inputs."""
        leading = ops.shape(inputs)[:-2]
        state = {"cell": first_state(self.cell.cell, 1)}
        return tree.map_structure(
            lambda x: ops.broadcast_to(x[0], (*leading, x.shape[-1])), state
        )

    def get_config(self):
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "sampling": serialize_part(self.sampling),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        return cls(cell, **deserialize_parts(config))


def _as_precise(states, others):
    """The states of a cell, in the dtypes and the structure of others."""
    pairs = zip(tree.flatten(states), tree.flatten(others), strict=True)
    return tree.pack_sequence_as(others, [ops.cast(x, y.dtype) for x, y in pairs])


def _multiplied(state, split):
    """What a split cell is about to multiply, where its gradients want to know."""
    if split is None or not loops.looks_back():
        return {}
    fed = [state["fed"]] if "fed" in state else []
    return {"state": tree.flatten(state["cell"])[0], "fed": fed}


def _keep(state, new_state, now):
    """The new state where a step is valid."""
    if "mask" not in now:
        return new_state
    return tree.map_structure(
        lambda new, old: _where(now["mask"], new, old), new_state, state
    )


def _steps_last(x, rank):
    """`(T, B, [K,] ...)` as queries of a row, `(B, [K *] T, ...)`."""
    x = ops.moveaxis(x, 0, rank - 1)
    return x if rank == 2 else ops.reshape(x, (ops.shape(x)[0], -1, *x.shape[3:]))


def _steps_first(x, shape):
    """Undo `_steps_last`; `shape` is `(T, B, [K])`."""
    steps, *rows = shape
    return ops.moveaxis(ops.reshape(x, (*rows, steps, *ops.shape(x)[2:])), len(rows), 0)


def _where(mask, x, otherwise):
    """`ops.where` with a mask `(..., B, [K])` for tensors `(..., B, [K,] ...)`."""
    missing = len(x.shape) - len(mask.shape)
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * missing))
    return ops.where(mask, x, otherwise)


def _check_inputs(shape, mask=None):
    check_rank("inputs", shape, (3, 4), "(batch, [sequences,] steps, depth)")
    check_mask("inputs_mask", mask, shape[:-1])
