"""One step of a recurrent decoder with attention.

Shapes: B batch, S positions, D step input, U cell units, V depth of what is read. An
extra axis K after B holds several sequences that look at the same memory, such as the
captions of one image or the hypotheses of a beam.
"""

from contextlib import contextmanager

import keras
from keras import ops, tree

from keras_attention.layers.base import BaseAttention
from keras_attention.layers.parts import (
    check_choice,
    check_positive_integer,
    check_rank,
    deserialize_parts,
    project_rows,
    serialize_part,
    stay_frozen,
)
from keras_attention.layers.recurrent import check_cell, first_state
from keras_attention.layers.self_attention import SelfAttention

ORDERS = ("previous", "current")


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionCell(keras.layers.Layer):
    """One step of a decoder: an RNN cell, attention, and the order in which they run.

    With `order="previous"` the previous state asks, and what is read enters the cell in
    the same step (Bahdanau):

        context[t] = attention(h[t-1], memory)
        h[t], ...  = cell([input[t]; context[t]], h[t-1], ...)

    With `order="current"` the cell runs first, and its new state asks (Luong):

        h[t], ...  = cell(input[t], h[t-1], ...)
        context[t] = attention(h[t], memory)

    Bahdanau's previous state has not read `input[t]`, the word before the one that is
    looked for. Where there are several things to say, and words before it have chosen
    one, attention may still look at another. With the input in the query, it knows:

        context[t] = attention([h[t-1]; input[t]], memory)

    Where there is an attentional vector, the output is it, otherwise `h[t]`:

        output[t]  = tanh(W_attentional [context[t]; h[t]])

    With input feeding, every input becomes `[input[t]; output[t-1]]`, or
    `[input[t]; context[t-1]]` where there is no attentional vector; zeros come first.
    A gate multiplies the context with `sigmoid(w_gate . query[t] + b_gate)`, where the
    query is what asks.

    There is no hidden state between calls: a cell with dropout draws another mask at
    every step, unless within `same_dropout`. Layers for the attentional vector and for
    the gate should draw nothing, as dropout does: inside of a loop JAX cannot.

    Args:
        cell: Keras RNN cell, such as `keras.layers.GRUCell(256)`, or a
            `keras.layers.StackedRNNCells`, whose topmost state asks.
        attention: Attention layer of this package, or a list of several. Each of
            several has a memory of its own; their contexts are concatenated. Of a
            `SelfAttention` the heads ask together, and `"weights"` is their mean.
        order: `"previous"` or `"current"`: the state that asks.
        input_in_query: Whether the input of the step asks beside the previous state;
            the current one has read it.
        input_feeding: Whether the cell is told the result of the previous step.
        attentional_vector: Width of the attentional vector, which then has a tanh and
            no bias, or the layer that computes it, such as
            `keras.layers.Dense(512, use_bias=False)`. `None` for none.
        gate: Whether a learned scalar in (0, 1) scales the context (Show, Attend
            and Tell, section 4.2.1), or the layer that computes it.

    Call arguments:
        inputs: Input of this step, `(B, D)` or `(B, K, D)`.
        state: Dict of states, each `(B, ...)` or `(B, K, ...)`: what
            `get_initial_state` or the previous step returned. `"cell"` is that of the
            cell, `"attention"`, if there is any, that of the attention, and
            `"fed"`, with input feeding, what is fed.
        memory: Dict that `attention.memory(value, ...)` returned, for batch B; for
            several attentions a list of dicts.
        noise: Dict as `draw` returns it, for one step; drawn if omitted in training.
        training: Whether the step trains.

    Returns:
        outputs: Dict with `"output"`, `"cell_output"` `(B, U)`, the output of the cell,
            `"query"`, what asked, `"context"` `(B, V)`, `"weights"`
            `(B, S)`, and what else the attention reports, each with the axis K if the
            inputs have it. For several attentions, `"weights"` and the reports are
            lists.
        state: Dict for the next step.

    Raises:
        ValueError: If `cell` is no Keras RNN cell, or `attention` no attention layer
            of this package; if another argument is none of its choices; if the input is
            to be in the query beside the current state; if `inputs`, `state` or
            `memory` is not as above.

    Examples:

    Bahdanau's step:

    >>> cell = AttentionCell(keras.layers.GRUCell(32), AdditiveAttention(16))
    >>> memory = cell.attention.memory(np.zeros((8, 49, 64), "float32"))
    >>> state = cell.get_initial_state(batch_size=8)
    >>> outputs, state = cell(np.zeros((8, 10), "float32"), state, memory)
    >>> tuple(outputs["context"].shape)
    (8, 64)

    Luong's:

    >>> cell = AttentionCell(
    ...     keras.layers.LSTMCell(32),
    ...     LuongAttention("general"),
    ...     order="current",
    ...     input_feeding=True,
    ...     attentional_vector=24,
    ... )
    >>> state = cell.get_initial_state(batch_size=8)
    >>> memory = cell.attention.memory(np.zeros((8, 49, 64), "float32"))
    >>> outputs, state = cell(np.zeros((8, 10), "float32"), state, memory)
    >>> tuple(outputs["output"].shape), tuple(outputs["cell_output"].shape)
    ((8, 24), (8, 32))

    Reference:
        [Bahdanau et al., 2015](https://arxiv.org/abs/1409.0473), appendix A.2.2;
        [Luong et al., 2015](https://arxiv.org/abs/1508.04025), sections 3 and 3.3;
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), section 3.1.2. In
        [Sennrich et al., 2017](https://arxiv.org/abs/1703.04357), section 3, the state
        that asks has read the input, too.
    """

    def __init__(
        self,
        cell,
        attention,
        *,
        order="previous",
        input_in_query=False,
        input_feeding=False,
        attentional_vector=None,
        gate=False,
        **kwargs,
    ):
        # States and noise keep their precision whatever the layer computes in.
        super().__init__(autocast=False, **kwargs)
        check_cell("cell", cell)
        self.has_several = isinstance(attention, (list, tuple))
        attention = list(attention) if self.has_several else attention
        _check_attention(attention)
        check_choice("order", order, ORDERS)
        if input_in_query and order != "previous":
            raise ValueError(
                "input_in_query is for order='previous': the current state has read "
                f"the input. Received: order={order!r}"
            )
        self.cell = cell
        self.attention = attention
        self.order = order
        self.input_in_query = input_in_query
        self.input_feeding = input_feeding
        self.attentional_vector = attentional_vector
        self.gate = gate
        self.attentional_layer = self.context_gate = None
        if isinstance(attentional_vector, keras.layers.Layer):
            self.attentional_layer = attentional_vector
        elif attentional_vector is not None:
            check_positive_integer("attentional_vector", attentional_vector)
            self.attentional_layer = keras.layers.Dense(
                attentional_vector,
                activation="tanh",
                use_bias=False,
                dtype=self.dtype_policy,
                name="attentional_vector",
            )
        if isinstance(gate, keras.layers.Layer):
            self.context_gate = gate
        elif not isinstance(gate, bool):
            raise ValueError(f"gate must be a boolean or a layer. Received: {gate!r}")
        elif gate:
            self.context_gate = keras.layers.Dense(
                1, activation="sigmoid", dtype=self.dtype_policy, name="context_gate"
            )
        self._shares_dropout = False
        self._input_depth = self._context_depth = None

    @property
    def attentions(self):
        """The attention layers, one or several, as a list."""
        return self.attention if self.has_several else [self.attention]

    @property
    def sequential(self):
        """Whether a step must know where the steps before it have looked."""
        return (
            self.order == "previous"
            or self.input_feeding
            or any(attention.step.state_names for attention in self.attentions)
        )

    def build(self, inputs_shape, state_shape=None, memory_shape=None):
        check_rank("inputs", inputs_shape, (2, 3), "(batch, [sequences,] depth)")
        self.check_memory(memory_shape)
        memory_shapes = self._listed(memory_shape)
        self._input_depth = inputs_shape[-1]
        query_units = self._query_units()
        self._context_depth = context_depth = self._depth_of_context(memory_shapes)
        for attention, shape in zip(self.attentions, memory_shapes, strict=True):
            if not attention.step.built:
                attention.step.build((None, 1, query_units), shape)
        if self.context_gate is not None and not self.context_gate.built:
            self.context_gate.build((None, query_units))
        if self.attentional_layer is not None and not self.attentional_layer.built:
            self.attentional_layer.build(
                (None, context_depth + _output_units(self.cell))
            )
        if not self.cell.built:
            depth = inputs_shape[-1]
            depth += context_depth if self.order == "previous" else 0
            depth += self._fed_units() if self.input_feeding else 0
            self.cell.build((None, depth))
        stay_frozen(self)
        self.built = True

    def _query_units(self):
        if self.order == "current":
            return _output_units(self.cell)
        units = _topmost_units(self.cell)
        if not self.input_in_query:
            return units
        return None if self._input_depth is None else units + self._input_depth

    def _depth_of_context(self, memory_shapes):
        units = self._query_units()
        pairs = zip(self.attentions, memory_shapes, strict=True)
        depths = [a.step.context_depth(units, shape) for a, shape in pairs]
        return None if None in depths else sum(depths)

    def _fed_units(self, memory=None):
        """Depth of what is fed back."""
        depth = self._context_depth
        if depth is None and memory is not None:
            memories = self._listed(memory)
            depth = self._depth_of_context(
                [{"values": one["values"].shape} for one in memories]
            )
        if self.attentional_layer is None:
            return depth
        width = getattr(self.attentional_layer, "units", None)
        if width is None and depth is not None:
            joined = (None, depth + _output_units(self.cell))
            width = self.attentional_layer.compute_output_shape(joined)[-1]
        return width

    def get_initial_state(self, batch_size, memory=None):
        """State before the first step of `batch_size` sequences.

        Args:
            batch_size: Number of rows B.
            memory: Dict that `attention.memory(value, ...)` returned, or the list of
                several; needed where the attention remembers something about every
                position, or where the context is fed to a cell not yet built.
        """
        state = {"cell": first_state(self.cell, batch_size)}
        return self.complete_state(state, memory)

    def complete_state(self, state, memory=None):
        """A state of the cell with all else that a first step must be given.

        Args:
            state: Dict with `"cell"`, tensors `(B, U)` or `(B, K, U)`; what else it
                holds stays as it is.
            memory: As for `get_initial_state`.
        """
        state = dict(state)
        output = tree.flatten(state["cell"])[0]
        if self.input_feeding and "fed" not in state:
            units = self._fed_units(memory)
            if units is None:
                raise ValueError(
                    "memory must be given, or the cell be built before: how deep the "
                    "context is that is fed is not known yet. "
                    f"Received: memory={shapes(memory)}"
                )
            shape = (*ops.shape(output)[:-1], units)
            state["fed"] = ops.zeros(shape, self.compute_dtype)
        remembers = any(attention.step.state_names for attention in self.attentions)
        if remembers and "attention" not in state:
            if memory is None:
                raise ValueError(
                    "memory must be given: this attention starts with a state for "
                    f"every position. Received: memory={shapes(memory)}"
                )
            several = len(output.shape) == 3
            queries = ops.shape(output)[1] if several else 1
            first = [
                attention.step.initial_state(one, queries)
                for attention, one in zip(
                    self.attentions, self._listed(memory), strict=True
                )
            ]
            first = first if several else tree.map_structure(lambda x: x[:, 0], first)
            state["attention"] = first if self.has_several else first[0]
        return state

    def draw(self, memory, steps, queries=1):
        """Noise for some steps of training, tensors `(steps, B, queries, ...)`.

        To be called outside of any loop.
        """
        noise = [
            attention.step.draw(one, steps, queries)
            for attention, one in zip(
                self.attentions, self._listed(memory), strict=True
            )
        ]
        return noise if self.has_several else noise[0]

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

    def call(self, inputs, state, memory, noise=None, training=None):
        check_rank("inputs", inputs.shape, (2, 3), "(batch, [sequences,] depth)")
        check_state("state", state, self.cell, len(inputs.shape))
        self.check_memory(memory, inputs)
        state = self.complete_state(state, memory)
        outputs, new_state = self.run(inputs, state, memory, noise, training=training)
        return self.complete(outputs), new_state

    def run(
        self,
        inputs,
        state,
        memory,
        noise=None,
        split=None,
        later=None,
        asking=None,
        training=None,
    ):
        """A step but for what `complete` adds, which may wait until after a loop.

        Args:
            later: Dict of tensors `(B, [K,] V)`, added to what the attention of that
                number reads; see `SplitReading`.
            asking: The input as it is in the query, if `inputs` are a split's.
            split: What runs instead of the cell, on its part of `inputs`; how a decoder
                computes the products of all steps at once.
        """
        added = [state["fed"]] if self.input_feeding else []
        if self.order == "previous":
            query = _topmost_state(state["cell"])
            if self.input_in_query:
                asking = inputs if asking is None else asking
                query = joined([query, ops.cast(asking, query.dtype)])
            found, attention_state = self._look(
                query, state, memory, noise, later, training
            )
            outputs = {**found, "query": query}
            added.append(found["context"])
        cell_output, cell_state = self.run_cell(
            inputs, added, state["cell"], split, training
        )
        if self.order == "current":
            outputs, attention_state = self._look(
                cell_output, state, memory, noise, later, training
            )
        outputs = {**outputs, "cell_output": cell_output}
        new_state = {"cell": cell_state}
        if "attention" in state:
            new_state["attention"] = attention_state
        if self.input_feeding:
            fed = outputs["context"]
            if self.attentional_layer is not None:
                outputs["output"] = fed = self.combine(outputs)
            new_state["fed"] = ops.cast(fed, state["fed"].dtype)
        return outputs, new_state

    def run_cell(self, inputs, added, state, split=None, training=None):
        """Output and new state of the cell alone.

        Args:
            inputs: As in the call; for a `split`, its part of a sequence.
            added: List of tensors `(B, [K,] ...)` that follow the inputs.
            state: State of the cell, nested tensors `(B, [K,] ...)`.
            split: See `run`.
        """
        if split is None:
            inputs = joined([ops.cast(inputs, self.compute_dtype), *added])
            arguments = inputs, state
        else:
            arguments = inputs, joined(added), state
        leading = ops.shape(tree.flatten(arguments)[0])[:-1]
        several = len(tree.flatten(state)[0].shape) == 3
        if several:
            # Keras cells know one batch axis only.
            arguments = _map(lambda x: ops.reshape(x, (-1, x.shape[-1])), arguments)
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
            found = _map(lambda x: ops.reshape(x, (*leading, x.shape[-1])), found)
        return found

    def look(self, query, memory, state=None, noise=None, later=None, training=None):
        """What queries `(B, T, U)` find; dict of outputs, and the attention's state."""
        memories = self._listed(memory)
        states = [{} for _ in memories] if state is None else self._listed(state)
        noises = [None for _ in memories] if noise is None else self._listed(noise)
        found, new_states = [], []
        for attention, *arguments in zip(
            self.attentions, memories, states, noises, strict=True
        ):
            memory, state, noise = arguments
            outputs, new_state = attention.step(
                query, memory, state, noise=noise, training=training
            )
            found.append(dict(outputs))
            new_states.append(new_state)
        contexts = [outputs.pop("context") for outputs in found]
        for i, more in (later or {}).items():
            contexts[i] = contexts[i] + more
        context = joined([ops.cast(x, self.compute_dtype) for x in contexts])
        if self.context_gate is not None:
            gate = project_rows(self.context_gate, query)
            context = ops.cast(gate, self.compute_dtype) * context
        reports = self._by_name(found)
        new_state = new_states if self.has_several else new_states[0]
        return {**reports, "context": context}, new_state

    def reports(self, what):
        """`what` in the place of everything that the attentions report."""
        names = [("weights", *a.step.reports) for a in self.attentions]
        return self._by_name([dict.fromkeys(some, what) for some in names])

    def _by_name(self, found):
        """Dict of what attentions report; of lists, if there are several."""
        if not self.has_several:
            return found[0]
        names = {name: None for outputs in found for name in outputs}
        return {name: [x[name] for x in found if name in x] for name in names}

    def _look(self, query, state, memory, noise, later, training):
        """`look` for queries `(B, U)` or `(B, K, U)`."""
        several = len(query.shape) == 3
        arguments = query, state.get("attention"), noise, later
        if not several:
            # One sequence of several.
            arguments = _map(lambda x: x[:, None], arguments)
        query, *arguments = arguments
        found = self.look(query, memory, *arguments, training)
        return found if several else _map(lambda x: x[:, 0], found)

    def complete(self, outputs):
        """Outputs of `run`, for one step or for all, with those it left for later."""
        outputs = {"query": outputs["cell_output"], **outputs}
        if self.attentional_layer is None:
            outputs["output"] = outputs["cell_output"]
        elif "output" not in outputs:
            outputs["output"] = self.combine(outputs)
        return outputs

    def combine(self, outputs):
        """The attentional vector."""
        both = joined([outputs["context"], outputs["cell_output"]])
        vector = project_rows(self.attentional_layer, both)
        # On PyTorch, Keras multiplies float64 in float32.
        return ops.cast(vector, self.compute_dtype)

    def _listed(self, x):
        return x if self.has_several else [x]

    def check_memory(self, memory, inputs=None):
        """Raise `ValueError` for a memory not as in the call, or of another batch."""
        memories = self._listed(memory)
        is_memory = isinstance(memories, (list, tuple)) and all(
            isinstance(one, dict) and {"values", "keys"} <= one.keys()
            for one in memories
        )
        if not is_memory or len(memories) != len(self.attentions):
            expected = "the dict that attention.memory(value) returns"
            if self.has_several:
                expected = f"a list of {len(self.attentions)} of these: {expected}"
            raise ValueError(f"memory must be {expected}. Received: {shapes(memory)}")
        if inputs is None:
            return
        batches = {one["values"].shape[0] for one in memories} | {inputs.shape[0]}
        if len(batches - {None}) > 1:
            raise ValueError(
                "inputs and what is attended to must have the same batch size. "
                f"Received: inputs {tuple(inputs.shape)}, values "
                f"{shapes([one['values'] for one in memories])}"
            )

    def get_config(self):
        attention = [serialize_part(attention) for attention in self.attentions]
        parts = {"attentional_vector": self.attentional_vector, "gate": self.gate}
        return {
            **super().get_config(),
            "cell": keras.saving.serialize_keras_object(self.cell),
            "attention": attention if self.has_several else attention[0],
            "order": self.order,
            "input_in_query": self.input_in_query,
            "input_feeding": self.input_feeding,
            **{
                name: serialize_part(part)
                if isinstance(part, keras.layers.Layer)
                else part
                for name, part in parts.items()
            },
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        cell = keras.saving.deserialize_keras_object(config.pop("cell"))
        attention = keras.saving.deserialize_keras_object(config.pop("attention"))
        return cls(cell, attention, **deserialize_parts(config))


def check_state(name, state, cell, rank):
    """Whether there is a tensor `(B, [K,] units)` for everything the cell remembers."""
    expected = [(rank, units) for units in tree.flatten(cell.state_size)]
    found = state.get("cell") if isinstance(state, dict) else None
    found_shapes = [getattr(x, "shape", ()) for x in tree.flatten(found)]
    is_nested = isinstance(found, (list, tuple))
    is_known = is_nested and state.keys() <= {"cell", "attention", "fed"}
    if not is_known or [(len(s), *s[-1:]) for s in found_shapes] != expected:
        raise ValueError(
            f"{name} must be a dict like that of cell.get_initial_state: 'cell' with "
            f"tensors of rank {rank} for units {cell.state_size}, and no more than "
            f"'attention' and 'fed'. Received: {shapes(state)}"
        )


def shapes(nested):
    """The shapes of tensors, for an error."""
    return tree.map_structure(
        lambda x: tuple(x.shape) if hasattr(x, "shape") else x, nested
    )


def _map(function, nested):
    return tree.map_structure(lambda x: None if x is None else function(x), nested)


def joined(tensors):
    """Tensors side by side; `None` for none."""
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return ops.concatenate(tensors, axis=-1)


def _topmost_state(cell_state):
    """The topmost cell's output state, `(B, [K,] U)`."""
    while isinstance(cell_state[-1], (list, tuple)):
        cell_state = cell_state[-1]
    return cell_state[0]


def _topmost_units(cell):
    """Depth of the topmost cell's output state."""
    while hasattr(cell, "cells"):
        cell = cell.cells[-1]
    size = cell.state_size
    return size[0] if isinstance(size, (list, tuple)) else size


def _output_units(cell):
    return getattr(cell, "output_size", None) or _topmost_units(cell)


def _check_attention(attention):
    attentions = attention if isinstance(attention, list) else [attention]
    wrong = [x for x in attentions if not isinstance(x, BaseAttention)]
    if wrong or not attentions:
        raise ValueError(
            "attention must be an attention layer of keras_attention, such as "
            f"AdditiveAttention(256), or a list of them. Received: {attention!r}"
        )
    for one in attentions:
        if isinstance(one, SelfAttention) and (one.causal or one.dropout):
            raise ValueError(
                "A SelfAttention in a decoder looks at all of another sequence, and "
                "draws nothing in a loop: it must not be causal, and have no dropout. "
                f"Received: causal={one.causal}, dropout={one.dropout}"
            )
