"""Recurrent decoders with attention: one step, and the loop over it.

Shapes: B batch, T target steps, S positions, D step input, U cell units, V value depth.
An extra axis K after B holds several sequences that look at the same memory, such
as the captions of one image or the hypotheses of a beam.
"""

from contextlib import contextmanager

import keras
from keras import ops, tree

from keras_attention import loops
from keras_attention.cells import split_cell
from keras_attention.layers.attention import BaseAttention
from keras_attention.layers.parts import project_rows, stay_frozen


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionCell(keras.layers.Layer):
    """One step of a decoder: attend with the previous state, then run the cell.

        context[t], weights[t] = attention(h[t-1], memory)
        context[t]             = sigmoid(w_gate . h[t-1] + b_gate) * context[t]  (gate)
        h[t], ...              = cell([input[t]; context[t]], h[t-1], ...)

    The query is the **previous** state, and the context enters the cell in the
    **same** step, as in the paper. There is no hidden state between calls: a cell
    with dropout draws another mask at every step, unless within `same_dropout`.

    Args:
        cell: Keras RNN cell, such as `keras.layers.GRUCell(256)`, or a
            `keras.layers.StackedRNNCells`, whose topmost state asks.
        attention: Attention layer of this package.
        gate: Whether a learned scalar in (0, 1) scales the context (Show, Attend
            and Tell, section 4.2.1).

    Call arguments:
        inputs: Input of this step, `(B, D)` or `(B, K, D)`.
        state: Dict of states, each `(B, ...)` or `(B, K, ...)`: what
            `get_initial_state` or the previous step returned. `"cell"` is that of the
            cell, `"attention"`, if there is any, that of the attention.
        memory: Dict that `attention.memory(value, ...)` returned, for batch B.
        noise: Dict as `attention.step.draw` returns it, for one step; drawn if omitted
            in training.
        split: What runs instead of the cell on a dict of sums that replaces `inputs`;
            how a decoder computes the products of all steps at once.

    Returns:
        outputs: Dict with `"output"` `(B, U)`, `"context"` `(B, V)`, `"weights"`
            `(B, S)`, and what else the attention reports, each with the axis K if the
            inputs have it.
        state: Dict for the next step.

    Raises:
        ValueError: If `cell` is no Keras RNN cell, or `attention` no attention layer
            of this package; if `inputs`, `state` or `memory` is not as above.

    Example:

    >>> cell = AttentionCell(keras.layers.GRUCell(32), AdditiveAttention(16))
    >>> memory = cell.attention.memory(np.zeros((8, 49, 64), "float32"))
    >>> state = cell.get_initial_state(batch_size=8)
    >>> outputs, state = cell(np.zeros((8, 10), "float32"), state, memory)
    >>> tuple(outputs["context"].shape)
    (8, 64)

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2;
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), section 3.1.2.
    """

    def __init__(self, cell, attention, *, gate=False, **kwargs):
        # States and noise keep their precision whatever the layer computes in.
        super().__init__(autocast=False, **kwargs)
        is_cell = hasattr(cell, "state_size") and hasattr(cell, "get_initial_state")
        if not is_cell or isinstance(cell, keras.layers.RNN):
            raise ValueError(
                "cell must be a Keras RNN cell, such as keras.layers.GRUCell(256). "
                f"Received: {cell!r}"
            )
        if not isinstance(attention, BaseAttention):
            raise ValueError(
                "attention must be an attention layer of keras_attention, such as "
                f"AdditiveAttention(256). Received: {attention!r}"
            )
        self.cell = cell
        self.attention = attention
        self.gate = gate
        self._shares_dropout = False
        if gate:
            self.context_gate = keras.layers.Dense(
                1, activation="sigmoid", dtype=self.dtype_policy, name="context_gate"
            )

    def build(self, inputs_shape, state_shape=None, memory_shape=None):
        _check_rank("inputs", inputs_shape, (2, 3), "(batch, [sequences,] depth)")
        _check_memory(memory_shape)
        value_shape = tuple(memory_shape["values"])
        rows = (None,)
        query_shape = (*rows, 1, _output_units(self.cell))
        if not self.attention.step.built:
            self.attention.step.build(query_shape, memory_shape)
        if self.gate:
            self.context_gate.build((*rows, query_shape[-1]))
        if not self.cell.built:
            self.cell.build((*rows, inputs_shape[-1] + value_shape[-1]))
        stay_frozen(self)
        self.built = True

    def get_initial_state(self, batch_size, memory=None):
        """State before the first step of `batch_size` sequences.

        Args:
            batch_size: Number of rows B.
            memory: Dict that `attention.memory(value, ...)` returned; needed where
                the attention remembers something about every position.
        """
        state = {"cell": self.cell.get_initial_state(batch_size=batch_size)}
        return self.with_attention_state(state, memory)

    def with_attention_state(self, state, memory):
        """A state of the cell with what the attention remembers before the first step.

        Args:
            state: Dict with `"cell"`, tensors `(B, U)` or `(B, K, U)`; returned as it
                is where the attention remembers nothing.
            memory: As for `get_initial_state`.
        """
        step = self.attention.step
        if not step.state_names or "attention" in state:
            return state
        if memory is None:
            raise ValueError(
                "memory must be given: this attention starts with a state for every "
                f"position. Received: memory={memory!r}"
            )
        output = tree.flatten(state["cell"])[0]
        several = len(output.shape) == 3
        first = step.initial_state(memory, ops.shape(output)[1] if several else 1)
        if not several:
            first = tree.map_structure(lambda x: x[:, 0], first)
        return {**state, "attention": first}

    @contextmanager
    def same_dropout(self, *first_step, training):
        """Use one dropout mask for all steps within; drawn here, outside of any loop.

        Keras cells keep the mask they draw. Drawn inside a compiled loop it would be
        unusable outside, and kept beyond the sequence it would be used for the next.

        Args:
            *first_step: The call arguments of any step; only their shapes matter.
            training: Whether the steps train. Some Keras cells draw masks that they
                do not use otherwise.
        """
        self._forget_dropout()
        self._shares_dropout = True
        try:
            cells = self._cells_with_dropout()
            if any(cell.dropout or cell.recurrent_dropout for cell in cells):
                self(*first_step, training=training)
            yield
        finally:
            self._shares_dropout = False
            self._forget_dropout()

    def _forget_dropout(self):
        for cell in self._cells_with_dropout():
            cell.reset_dropout_mask()
            cell.reset_recurrent_dropout_mask()

    def _cells_with_dropout(self):
        layers = self._flatten_layers()
        return [layer for layer in layers if hasattr(layer, "reset_dropout_mask")]

    def call(self, inputs, state, memory, noise=None, split=None, training=None):
        rank = len(tree.flatten(inputs)[0].shape)
        if split is None:
            _check_rank("inputs", inputs.shape, (2, 3), "(batch, [sequences,] depth)")
        _check_state("state", state, self.cell, rank)
        _check_memory(memory)
        several = rank == 3
        query = self._query(state["cell"])
        looked, attention_state = self._attend(
            query, state.get("attention"), memory, noise, several, training
        )
        context = looked["context"]
        if self.gate:
            context = project_rows(self.context_gate, query) * context
        if split is None:
            inputs = ops.cast(inputs, self.compute_dtype)
            inputs = ops.concatenate([inputs, context], axis=-1)
            arguments = inputs, state["cell"]
        else:
            arguments = inputs, context, state["cell"]
        output, cell_state = self._run_cell(split, arguments, several, training)
        outputs = {**looked, "context": context, "output": output}
        new_state = {"cell": cell_state}
        if attention_state:
            new_state["attention"] = attention_state
        return outputs, new_state

    def _attend(self, query, state, memory, noise, several, training):
        arguments = {"query": query, "state": state or {}, "noise": noise}
        if not several:
            # One sequence of several.
            arguments = tree.map_structure(
                lambda x: None if x is None else x[:, None], arguments
            )
        found = self.attention.step(memory=memory, training=training, **arguments)
        return found if several else tree.map_structure(lambda x: x[:, 0], found)

    def _query(self, cell_state):
        """The topmost cell's output state, `(B, [K,] U)`."""
        while isinstance(cell_state[-1], (list, tuple)):
            cell_state = cell_state[-1]
        return cell_state[0]

    def _run_cell(self, split, arguments, several, training):
        """Output and new state, in the structure of the state, the last argument."""
        leading = ops.shape(tree.flatten(arguments)[0])[:-1]
        if several:
            # Keras cells know one batch axis only.
            arguments = tree.map_structure(
                lambda x: ops.reshape(x, (-1, x.shape[-1])), arguments
            )
        if split is None:
            try:
                output, state = self.cell(*arguments, training=training)
            finally:
                if not self._shares_dropout:
                    self._forget_dropout()
        else:
            output, state = split(*arguments)
        found = output, tree.pack_sequence_as(arguments[-1], tree.flatten(state))
        if several:
            found = tree.map_structure(
                lambda x: ops.reshape(x, (*leading, x.shape[-1])), found
            )
        return found

    def get_config(self):
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "attention": keras.saving.serialize_keras_object(self.attention),
            "gate": self.gate,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        attention = keras.saving.deserialize_keras_object(config.pop("attention"))
        return cls(cell, attention, **config)


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionDecoder(keras.layers.Layer):
    """Runs an `AttentionCell` over a whole target sequence.

    Args:
        cell: The `AttentionCell`.

    Call arguments:
        inputs: Step inputs, `(B, T, D)`, or `(B, K, T, D)` for K sequences that
            look at the same memory.
        value: What to look at, `(B, S, V)`.
        initial_state: Dict as `cell.get_initial_state` returns it; zeros if omitted.
        inputs_mask: Boolean `(B, [K,] T)`. A step that is `False` copies the state
            through and returns zero output, context and weights.
        value_mask: Boolean `(B, S)`; see the attention layer.

    Implicit Keras masks are used where no explicit one is given; that of `inputs` is
    passed on with `"output"`, `"context"` and `"weights"`.

    Returns:
        Dict with `"output"` `(B, [K,] T, U)`, `"context"` `(B, [K,] T, V)`,
        `"weights"` `(B, [K,] T, S)`, what else the attention reports, and `"state"`,
        the state after the last step.

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
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2.
    """

    def __init__(self, cell, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(cell, AttentionCell):
            raise ValueError(f"cell must be an AttentionCell. Received: {cell!r}")
        self.cell = cell
        self.supports_masking = True

    def build(self, inputs_shape, value_shape, initial_state_shape=None):
        _check_sequence(inputs_shape, value_shape)
        attention, units = self.cell.attention, _output_units(self.cell.cell)
        if not attention.built:
            attention.build((None, None, units), value_shape)
        if not self.cell.built:
            projection = attention.memory.key_projection
            keys_shape = tuple(value_shape)
            if projection is not None:
                keys_shape = tuple(projection.compute_output_shape(keys_shape))
            memory_shape = {"values": tuple(value_shape), "keys": keys_shape}
            self.cell.build((None, inputs_shape[-1]), None, memory_shape)
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
        if inputs_mask is not None:
            inputs_mask = ops.cast(inputs_mask, "bool")
        _check_sequence(inputs.shape, value.shape, inputs_mask)
        if initial_state is None:
            initial_state = self._zero_state(inputs)
        rank = len(inputs.shape) - 1
        _check_state("initial_state", initial_state, self.cell.cell, rank)
        attention = self.cell.attention
        memory = attention.memory(value, value_mask=value_mask)
        initial_state = self.cell.with_attention_state(initial_state, memory)

        sequence = {}
        if inputs_mask is not None:
            inputs = ops.where(inputs_mask[..., None], inputs, ops.zeros_like(inputs))
            sequence["mask"] = ops.moveaxis(inputs_mask, -1, 0)
        if training:
            sequence["noise"] = self._draw(inputs, memory)
        time = len(inputs.shape) - 2
        inputs = ops.moveaxis(inputs, time, 0)
        split = split_cell(self.cell.cell, inputs, self.compute_dtype)
        sequence["inputs"] = inputs if split is None else split.sequences

        def step(state, now):
            outputs, new_state = self.cell(
                now["inputs"],
                state,
                memory,
                now.get("noise", {}),
                split=split,
                training=training,
            )
            if "mask" in now:
                new_state = tree.map_structure(
                    lambda new, old: _where(now["mask"], new, old), new_state, state
                )
                outputs = tree.map_structure(
                    lambda x: _where(now["mask"], x, ops.zeros_like(x)), outputs
                )
            return new_state, {**outputs, "before": tree.flatten(state["cell"])[0]}

        first_step = (inputs[0], initial_state, memory)
        with self.cell.same_dropout(*first_step, training=training):
            state, outputs = loops.scan(step, initial_state, sequence)
        before = outputs.pop("before")
        if split is not None:
            split.see(outputs["context"], before)
        outputs = tree.map_structure(lambda x: ops.moveaxis(x, 0, time), outputs)
        return {**outputs, "state": state}

    def _draw(self, inputs, memory):
        """Noise for all steps, tensors `(T, B, [K,] ...)`."""
        several = len(inputs.shape) == 4
        noise = self.cell.attention.step.draw(
            memory, ops.shape(inputs)[-2], ops.shape(inputs)[1] if several else 1
        )
        return noise if several else tree.map_structure(lambda x: x[:, :, 0], noise)

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None:
            return None
        step = self.cell.attention.step
        reported = ("output", "context", "weights", *step.weighting.reports)
        state = {"cell": self.cell.cell.get_initial_state(batch_size=1)}
        if step.state_names:
            state["attention"] = step.state_names
        return {
            **dict.fromkeys(reported, previous_mask),
            "state": tree.map_structure(lambda x: None, state),
        }

    def _zero_state(self, inputs):
        """Zero state, `(B, units)` or `(B, K, units)`, for these inputs."""
        leading = ops.shape(inputs)[:-2]
        state = {"cell": self.cell.cell.get_initial_state(batch_size=1)}
        return tree.map_structure(
            lambda x: ops.zeros((*leading, x.shape[-1]), dtype=x.dtype), state
        )

    def get_config(self):
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(keras.saving.deserialize_keras_object(config.pop("cell")), **config)


def _output_units(cell):
    """Units of the topmost cell, whose output asks the question."""
    while hasattr(cell, "cells"):
        cell = cell.cells[-1]
    size = cell.state_size
    return size[0] if isinstance(size, (list, tuple)) else size


def _where(mask, x, otherwise):
    """`ops.where` with a mask `(B, [K])` for tensors `(B, [K,] ...)`."""
    missing = len(x.shape) - len(mask.shape)
    mask = ops.reshape(mask, (*ops.shape(mask), *[1] * missing))
    return ops.where(mask, x, otherwise)


def _check_sequence(inputs_shape, value_shape, inputs_mask=None):
    steps = "(batch, [sequences,] steps"
    _check_rank("inputs", inputs_shape, (3, 4), f"{steps}, depth)")
    _check_rank("value", value_shape, (3,), "(batch, positions, depth)")
    if inputs_mask is not None:
        rank = len(inputs_shape) - 1
        _check_rank("inputs_mask", inputs_mask.shape, (rank,), f"{steps})")


def _check_rank(name, shape, ranks, expected):
    if len(shape) not in ranks:
        raise ValueError(
            f"{name} must have the shape {expected}. Received: {tuple(shape)}"
        )


def _check_memory(memory):
    if not isinstance(memory, dict) or not {"values", "keys"} <= memory.keys():
        raise ValueError(
            "memory must be the dict that attention.memory(value) returns. "
            f"Received: {_shapes(memory)}"
        )


def _check_state(name, state, cell, rank):
    """Whether there is a tensor `(B, [K,] units)` for everything the cell remembers."""
    expected = [(rank, units) for units in tree.flatten(cell.state_size)]
    found = state.get("cell") if isinstance(state, dict) else None
    shapes = [getattr(x, "shape", ()) for x in tree.flatten(found)]
    is_nested = isinstance(found, (list, tuple))
    if not is_nested or [(len(shape), *shape[-1:]) for shape in shapes] != expected:
        raise ValueError(
            f"{name} must be a dict like that of cell.get_initial_state: 'cell' with "
            f"tensors of rank {rank} for units {cell.state_size}. "
            f"Received: {_shapes(state)}"
        )


def _shapes(nested):
    return tree.map_structure(
        lambda x: tuple(x.shape) if hasattr(x, "shape") else x, nested
    )
