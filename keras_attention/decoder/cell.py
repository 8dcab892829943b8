"""One step of a recurrent decoder with attention.

Shapes: B batch, K sequences that attend to the same memory (the captions of an image,
the hypotheses of a beam), S positions, D step input, U cell units, V context.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
from keras import ops, tree

from keras_attention.backends import project_rows
from keras_attention.decoder.joint_attention import (
    JointMemory,
    JointStep,
    check_attention,
)
from keras_attention.decoder.sentinel import (
    VisualSentinel,
    attend_with_sentinel,
    check_parts,
)
from keras_attention.layers import recurrent
from keras_attention.layers.attention import BaseAttention
from keras_attention.layers.components import check_memory, freeze_new_weights
from keras_attention.serialization import CompositeLayer, config_of
from keras_attention.typing import Config, Dtype, Nested, Shapes, Tensor, Tensors
from keras_attention.validation import (
    as_integer,
    check_boolean,
    check_choice,
    check_positive_integer,
    check_rank,
    shapes_of,
)


@keras.saving.register_keras_serializable(package="keras_attention")
class AttentionCell(CompositeLayer):
    """One step of a decoder: an RNN cell, attention, and the order in which they run.

    With `order="previous"` the previous state is the query, and the context is an input
    of the cell in the same step (Bahdanau):

        context[t] = attention(h[t-1], memory)
        h[t], ...  = cell([input[t]; context[t]], h[t-1], ...)

    With `order="current"` the cell runs first, and its new state is the query (Luong):

        h[t], ...  = cell(input[t], h[t-1], ...)
        context[t] = attention(h[t], memory)

    Bahdanau's previous state has not read `input[t]`, the embedding of the word that
    was generated last. With `input_in_query=True` the query contains it, so attention
    can depend on that word:

        context[t] = attention([h[t-1]; input[t]], memory)

    The output is the attentional vector, or `h[t]` without one:

        output[t]  = tanh(W_attentional [context[t]; h[t]])

    With input feeding, every input becomes `[input[t]; output[t-1]]`, or
    `[input[t]; context[t-1]]` without an attentional vector; the first step receives
    zeros. A gate multiplies the context by `sigmoid(w_gate . query[t] + b_gate)`.

    With a visual sentinel (adaptive attention), the cell state `m[t]` of an LSTM
    competes with the values for attention, as one more position of `memory`:

        sentinel[t] = sigmoid(W_x input[t] + W_h h[t-1]) * tanh(m[t])
        weights[t]; beta[t] = softmax([scores[t]; score(h[t], W_s sentinel[t])])
        context[t]  = beta[t] sentinel[t] + sum over s of weights[t, s] * value[s]

    The weights then sum to `1 - beta[t]`; the output `"sentinel"` is `beta[t]`.

    The layer keeps nothing between calls: a cell with dropout draws a new mask at every
    step, except within `same_dropout`. JAX cannot draw random numbers inside a loop.
    There, `attentional_vector` must have no dropout if it is fed back, and `gate` must
    have none if steps run one after the other (`order="previous"`, input feeding, or an
    attention with a state).

    Args:
        cell: Keras RNN cell, such as `keras.layers.GRUCell(256)`, or a
            `keras.layers.StackedRNNCells`, whose topmost state is the query.
        attention: Attention layer of this package, or a list of several, each with its
            own memory; their contexts are concatenated. For a `MultiHeadAttention`,
            `"weights"` is the mean over its heads.
        order: `"previous"` or `"current"`: which state is the query.
        input_in_query: Whether the query is `[h[t-1]; input[t]]`; only for
            `order="previous"`.
        input_feeding: Whether the result of the previous step is an input of the cell.
        attentional_vector: Width of the attentional vector, computed by a dense layer
            with tanh and without bias; or the layer that computes it, such as
            `keras.layers.Dense(512, use_bias=False)`. `None` for no such vector.
        gate: Whether a learned scalar in (0, 1) scales the context (Show, Attend
            and Tell, section 4.2.1), or the layer that computes it.
        sentinel: Whether attention includes a visual sentinel; only for one LSTM cell,
            `order="current"`, and one attention other than `MultiHeadAttention`, whose
            weights are neither hard nor monotonic, without window, coverage or location
            score. If the values have another depth than U, the context contains
            `W_v sentinel[t]` instead of the sentinel.

    Call arguments:
        inputs: Input of this step, `(B, D)` or `(B, K, D)`.
        state: Dict of states, each `(B, ...)` or `(B, K, ...)`, as returned by
            `get_initial_state` or by the previous step. `"cell"` is the list of states
            of the cell, or a tensor for a cell with one state, as
            `keras.layers.GRU(..., return_state=True)` returns it. `"attention"` is the
            state of the attention, if it has one. With input feeding, `"feedback"` is
            the result of the previous step.
        memory: Dict that `attention.memory(value, ...)` returned, for batch B; for
            several attentions a list of dicts.
        noise: Dict as `draw` returns it, for one step; drawn if omitted in training.
        training: Whether the step trains.

    Returns:
        outputs: Dict with `"output"`, `"cell_output"` `(B, U)`, the output of the cell,
            `"query"`, `"context"` `(B, V)`, `"weights"` `(B, S)`, and the additional
            outputs of the attention (its `reports`), each with the axis K if the inputs
            have it. For several attentions, `"weights"` and the additional outputs are
            lists. With a sentinel also `"sentinel"`, its weight `(B,)`.
        state: Dict for the next step.

    Raises:
        ValueError: If `cell` is no Keras RNN cell, or `attention` no attention layer of
            this package. If another argument has an invalid value, or `input_in_query`
            or `sentinel` cannot be combined with the others. On JAX, if
            `attentional_vector` or `gate` has dropout inside the loop. If `inputs`,
            `state` or `memory` has another shape.

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
        [Sennrich et al., 2017](https://arxiv.org/abs/1703.04357), section 3, the
        query has read the input, too. Adaptive attention is that of
        [Lu et al., 2017](https://arxiv.org/abs/1612.01887), section 2.3.
    """

    def __init__(
        self,
        cell: keras.layers.Layer,
        attention: BaseAttention | Sequence[BaseAttention],
        *,
        order: str = "previous",
        input_in_query: bool = False,
        input_feeding: bool = False,
        attentional_vector: int | keras.layers.Layer | None = None,
        gate: bool | keras.layers.Layer = False,
        sentinel: bool = False,
        **kwargs: Any,
    ) -> None:
        # States and noise keep their precision in every dtype policy.
        super().__init__(autocast=False, **kwargs)
        # The mask of an embedded word ends here: a step has nothing to mask.
        self.supports_masking = True
        recurrent.check_cell("cell", cell)
        self.has_several = isinstance(attention, (list, tuple))
        attentions: Any = list(attention) if self.has_several else attention
        check_attention(attentions)
        check_choice("order", order, ("previous", "current"))
        check_boolean("input_in_query", input_in_query)
        if input_in_query and order != "previous":
            raise ValueError(
                "input_in_query needs order='previous': the current state depends on "
                f"the input already. Received: order={order!r}"
            )
        check_boolean("input_feeding", input_feeding)
        self.cell = cell
        self.attention = attentions
        self.order = order
        self.input_in_query = input_in_query
        self.input_feeding = input_feeding
        self.gate = gate
        self.attentional_layer: Any = _attentional_layer(
            attentional_vector, self.dtype_policy
        )
        self.attentional_vector = as_integer(attentional_vector) or attentional_vector
        self.context_gate = _context_gate(gate, self.dtype_policy)
        check_boolean("sentinel", sentinel)
        self.sentinel, self.visual_sentinel = sentinel, None
        if sentinel:
            check_parts(cell, attentions, order)
            self.visual_sentinel = VisualSentinel(
                dtype=self.dtype_policy, name="visual_sentinel"
            )
        self._has_attention_state = bool(self.step.state_names)
        if self.sequential:
            recurrent.check_loop_layer("gate", self.context_gate)
        if input_feeding:
            recurrent.check_loop_layer("attentional_vector", self.attentional_layer)
        self.has_dropout = recurrent.has_dropout(cell)
        self._shares_dropout = False
        self.input_depth = self.context_depth = None

    def call(
        self,
        inputs: Tensor,
        state: Tensors,
        memory: Nested,
        noise: Nested = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Tensors]:
        if len(inputs.shape) not in (2, 3):
            check_rank("inputs", inputs.shape, (2, 3), "(batch, [sequences,] depth)")
        check_state("state", state, self.cell, len(inputs.shape))
        check_memory(memory, self.attention, inputs)
        state = self.complete_state(state, memory)
        # Keras takes and returns the only state of a cell as a tensor, too.
        is_list = isinstance(state["cell"], (list, tuple))
        state["cell"] = state["cell"] if is_list else [state["cell"]]
        single = len(inputs.shape) == 2
        if single:
            inputs, state = add_sequence_axis((inputs, state))
        attend = partial(
            self.step.call,
            memory=memory,
            state=state.get("attention", {}),
            noise=noise,
            training=training,
        )
        run_cell = partial(self.run_cell, inputs, state["cell"], training=training)
        read = partial(self.read, attend)
        outputs, new_state = self.equations(inputs, state, read, run_cell)
        if not is_list:
            new_state["cell"] = new_state["cell"][0]
        results = self.complete(outputs), new_state
        return remove_sequence_axis(results) if single else results

    def equations(
        self,
        inputs: Tensor,
        state: Tensors,
        read: Callable[..., Any],
        run_cell: Callable[..., Any],
    ) -> tuple[Tensors, Tensors]:
        """Run the equations of one step; every tensor is `(B, K, ...)`.

        Args:
            inputs: Input of this step, for the query and the sentinel; the cell gets it
                through `run_cell`.
            state: Dict of states, as in the call.
            read: Function `(query, *sources) -> (outputs, state)`: the method `read`,
                or one that postpones it.
            run_cell: Function `added -> (output, state)`, which runs the cell on its
                input concatenated with the tensors in the list `added`.

        Returns:
            outputs: Dict of outputs, without those that `complete` adds.
            state: Dict for the next step.
        """
        feedback = [state["feedback"]] if self.input_feeding else []
        if self.order == "previous":
            query = topmost_state(state["cell"])
            if self.input_in_query:
                query = joined([query, ops.cast(inputs, query.dtype)])
            outputs, attention_state = read(query)
            cell_output, cell_state = run_cell([*feedback, outputs["context"]])
            outputs = {**outputs, "query": query}
        else:
            cell_output, cell_state = run_cell(feedback)
            states = [state["cell"][0], cell_state[-1]]
            sources = [[inputs, *feedback], states] if self.sentinel else []
            outputs, attention_state = read(cell_output, *sources)
        outputs = {**outputs, "cell_output": cell_output}
        new_state = {"cell": cell_state}
        if "attention" in state:
            new_state["attention"] = attention_state
        if self.input_feeding:
            result = outputs["context"]
            if self.attentional_layer is not None:
                result = outputs["output"] = self.combine(outputs)
            new_state["feedback"] = ops.cast(result, state["feedback"].dtype)
        return outputs, new_state

    def read(
        self,
        attend: Callable[..., Any],
        query: Tensor,
        *sources: Any,
        zeros: Tensor | None = None,
    ) -> tuple[Tensors, Nested]:
        """Attend, add the sentinel and scale by the gate, for the queries of any steps.

        Args:
            attend: Function `(query, **options) -> (outputs, state)` of the attention.
            query: Tensor `(B, K, depth)`.
            *sources: With a sentinel, the lists of its inputs and of its states.
            zeros: Zeros that are added to the context; their gradient gives that of the
                values.
        """
        if self.visual_sentinel is None:
            outputs, state = attend(query)
        else:
            outputs, state = attend_with_sentinel(
                self.visual_sentinel, attend, query, *sources
            )
        context = ops.cast(outputs["context"], self.compute_dtype)
        if zeros is not None:
            context = context + zeros
        if self.context_gate is not None:
            gate = project_rows(self.context_gate, query)
            context = ops.cast(gate, self.compute_dtype) * context
        return {**outputs, "context": context}, state

    def combine(self, outputs: Tensors) -> Tensor:
        """Return the attentional vector of context and cell output."""
        both = joined([outputs["context"], outputs["cell_output"]])
        vector = project_rows(self.attentional_layer, both)
        # On PyTorch, Keras multiplies float64 in float32.
        return ops.cast(vector, self.compute_dtype)

    def complete(self, outputs: Tensors) -> Tensors:
        """Add `"query"` and `"output"` to outputs of `equations`, for any steps."""
        outputs = {"query": outputs["cell_output"], **outputs}
        if self.attentional_layer is None:
            outputs["output"] = outputs["cell_output"]
        elif "output" not in outputs:
            outputs["output"] = self.combine(outputs)
        return outputs

    def run_cell(
        self,
        inputs: Tensor,
        state: Nested,
        added: list[Tensor],
        training: bool | None = None,
    ) -> tuple[Tensor, Nested]:
        """Run the RNN cell on `inputs` and `added`, joined tensors `(B, K, ...)`."""
        inputs = ops.cast(inputs, self.compute_dtype)
        inputs = ops.concatenate([inputs, *added], axis=-1) if added else inputs
        leading = ops.shape(inputs)[:2]
        try:
            # Keras cells have a single batch axis.
            inputs, rows = as_rows((inputs, state))
            results = recurrent.call_cell(self.cell, inputs, rows, training=training)
        finally:
            if self.has_dropout and not self._shares_dropout:
                recurrent.reset_dropout_masks(self.cell)
        output, new_state = as_sequences(results, leading)
        return output, tree.pack_sequence_as(state, tree.flatten(new_state))

    @property
    def attentions(self) -> list[BaseAttention]:
        """The attention layers, one or several, as a list."""
        return self.attention if self.has_several else [self.attention]

    @property
    def memory(self) -> Any:
        """The memory of the attention, or the `JointMemory` of several."""
        if not self.has_several:
            return self.attention.memory
        return JointMemory([attention.memory for attention in self.attention])

    @property
    def step(self) -> Any:
        """The step of the attention, or the `JointStep` of several."""
        if not self.has_several:
            return self.attention.step
        steps = [attention.step for attention in self.attention]
        return JointStep(steps, self.compute_dtype)

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of further outputs: the reports of the attention, and `"sentinel"`."""
        return (*self.step.reports, *(["sentinel"] if self.sentinel else []))

    @property
    def sequential(self) -> bool:
        """Whether a step depends on the attention of the steps before it."""
        return (
            self.order == "previous" or self.input_feeding or self._has_attention_state
        )

    def compute_mask(self, inputs: Tensor, previous_mask: Nested) -> Any:
        return None

    def build(
        self,
        inputs_shape: Shapes,
        state_shape: Shapes = None,
        memory_shape: Shapes = None,
    ) -> None:
        check_rank("inputs", inputs_shape, (2, 3), "(batch, [sequences,] depth)")
        check_memory(memory_shape, self.attention)
        self.input_depth = inputs_shape[-1]
        query_depth = self._query_units()
        context_depth = self.step.context_depth(query_depth, memory_shape)
        self.context_depth = context_depth
        if not self.step.built:
            self.step.build((None, 1, query_depth), memory_shape)
        if self.context_gate is not None and not self.context_gate.built:
            self.context_gate.build((None, query_depth))
        if self.attentional_layer is not None and not self.attentional_layer.built:
            self.attentional_layer.build(
                (None, context_depth + recurrent.output_units(self.cell))
            )
        depth = inputs_shape[-1]
        depth += context_depth if self.order == "previous" else 0
        depth += self._feedback_units() if self.input_feeding else 0
        if not self.cell.built:
            self.cell.build((None, depth))
        if self.visual_sentinel is not None and not self.visual_sentinel.built:
            self.visual_sentinel.build(depth, query_depth, memory_shape)
        freeze_new_weights(self)
        self.built = True

    def get_initial_state(self, batch_size: int, memory: Nested = None) -> Tensors:
        """Return the state before the first step of `batch_size` sequences.

        Args:
            batch_size: Number of rows B.
            memory: Dict that `attention.memory(value, ...)` returned, or the list of
                several; required if the attention has a state, or if the context is
                fed to a cell that is not built yet.
        """
        state = {"cell": recurrent.initial_cell_state(self.cell, batch_size)}
        return self.complete_state(state, memory)

    def complete_state(self, state: Tensors, memory: Nested = None) -> Tensors:
        """Return a state in which every missing entry has its initial value.

        Args:
            state: Dict with `"cell"`, a list of tensors `(B, U)` or `(B, K, U)`, or a
                tensor for a cell with one state; other entries are kept.
            memory: As for `get_initial_state`.
        """
        if not isinstance(state, dict) or "cell" not in state:
            check_state("state", state, self.cell, 2, 3)
        state = dict(state)
        if self.input_feeding and "feedback" not in state:
            units = self._feedback_units(memory)
            if units is None:
                raise ValueError(
                    "memory must be given unless the cell is built: the depth of the "
                    "context that is fed back is not known yet. "
                    f"Received: memory={shapes_of(memory)}"
                )
            leading = ops.shape(topmost_state(state["cell"]))[:-1]
            state["feedback"] = ops.zeros((*leading, units), self.compute_dtype)
        if self._has_attention_state and "attention" not in state:
            if memory is None:
                raise ValueError(
                    "memory must be given: the initial state of this attention depends "
                    "on it. Received: memory=None"
                )
            _, *sequences, _ = ops.shape(topmost_state(state["cell"]))
            initial = self.step.initial_state(memory, *sequences)
            state["attention"] = initial if sequences else remove_sequence_axis(initial)
        return state

    def _query_units(self) -> Any:
        """Return the depth of the query, or `None` if it is not known."""
        if self.order == "current":
            return recurrent.output_units(self.cell)
        units = recurrent.topmost_units(self.cell)
        if not self.input_in_query:
            return units
        return None if self.input_depth is None else units + self.input_depth

    def _feedback_units(self, memory: Tensors | None = None) -> int | None:
        """Return the depth of the fed-back vector, or `None` if it is not known.

        A cell that is not built needs the memory of its attention.
        """
        depth = self.context_depth
        if depth is None and memory is not None:
            memory_shapes = tree.map_structure(lambda x: tuple(x.shape), memory)
            depth = self.step.context_depth(self._query_units(), memory_shapes)
        if self.attentional_layer is None:
            return depth
        width = getattr(self.attentional_layer, "units", None)
        if width is None and depth is not None:
            input_shape = (None, depth + recurrent.output_units(self.cell))
            width = self.attentional_layer.compute_output_shape(input_shape)[-1]
        return width

    def draw(self, memory: Nested, steps: int, queries: int = 1) -> Nested:
        """Draw noise for training, tensors `(steps, B, queries, ...)`.

        Call it outside of any loop.
        """
        return self.step.draw(memory, steps, queries)

    @contextmanager
    def same_dropout(
        self, *first_step: Nested, training: bool | None
    ) -> Iterator[None]:
        """Use one dropout mask for all steps in the context, drawn before any loop.

        Keras cells cache their dropout mask. A mask that is drawn inside a compiled
        loop cannot be used outside, and a mask that stays in the cache would be used
        for the next sequence, too.

        Args:
            *first_step: The call arguments of any step; only their shapes matter.
            training: Whether the steps train. Some Keras cells draw masks in inference,
                too, and do not use them.
        """
        recurrent.reset_dropout_masks(self.cell)
        self._shares_dropout = True
        try:
            if self.has_dropout:
                self(*first_step, training=training)
            yield
        finally:
            self._shares_dropout = False
            recurrent.reset_dropout_masks(self.cell)

    def get_config(self) -> Config:
        config = config_of(
            self,
            "cell attention order input_in_query input_feeding attentional_vector gate "
            "sentinel",
        )
        return {**super().get_config(), **config}


def add_sequence_axis(nested: Nested) -> Nested:
    """Return tensors `(B, ...)` of one sequence as those of K = 1 sequences."""
    return tree.map_structure(partial(ops.expand_dims, axis=1), nested)


def remove_sequence_axis(nested: Nested) -> Nested:
    """Return tensors `(B, 1, ...)` of K = 1 sequences as those of one sequence."""
    return tree.map_structure(partial(ops.squeeze, axis=1), nested)


def as_rows(nested: Nested) -> Nested:
    """Return tensors `(B, K, D)` as `(B * K, D)`; `None` stays."""
    rows = []
    for x in tree.flatten(nested):
        rows.append(x if x is None else ops.reshape(x, (-1, x.shape[-1])))
    return tree.pack_sequence_as(nested, rows)


def as_sequences(nested: Nested, leading: Any) -> Nested:
    """Return tensors `(B * K, D)` as `(B, K, D)`, for the leading sizes B and K."""
    sequences = []
    for x in tree.flatten(nested):
        sequences.append(ops.reshape(x, (*leading, x.shape[-1])))
    return tree.pack_sequence_as(nested, sequences)


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """Concatenate tensors along the last axis; `None` for an empty list."""
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return ops.concatenate(tensors, axis=-1)


def topmost_state(cell_state: Nested) -> Tensor:
    """Return the output state of the topmost cell, `(B, [K,] U)`."""
    if not isinstance(cell_state, (list, tuple)):
        return cell_state
    while isinstance(cell_state[-1], (list, tuple)):
        cell_state = cell_state[-1]
    return cell_state[0]


def check_state(
    name: str, state: Nested, cell: keras.layers.Layer, *ranks: Any
) -> None:
    """Raise `ValueError` unless there is a tensor for every state of the cell."""
    names = {"cell", "attention", "feedback"}
    is_known = isinstance(state, dict) and state.keys() <= names
    cell_state = state.get("cell") if is_known else None
    tensors, expected = tree.flatten(cell_state), tree.flatten(cell.state_size)
    fits = isinstance(cell_state, (list, tuple)) or hasattr(cell_state, "shape")
    fits = fits and len(tensors) == len(expected)
    for x, units in zip(tensors, expected, strict=False):
        shape: Any = getattr(x, "shape", ())
        fits = fits and len(shape) in ranks and shape[-1] == units
    if not fits:
        raise ValueError(
            f"{name} must be a dict like that of cell.get_initial_state: 'cell' with "
            f"tensors of rank {' or '.join(map(str, ranks))} for units "
            f"{cell.state_size}, and optionally 'attention' and 'feedback'. "
            f"Received: {shapes_of(state)}"
        )


def _attentional_layer(
    width: int | keras.layers.Layer | None, dtype: Dtype
) -> keras.layers.Layer | None:
    """Return the layer for an attentional vector of a width; `None` and layers stay."""
    if width is None or isinstance(width, keras.layers.Layer):
        return width
    return keras.layers.Dense(
        check_positive_integer("attentional_vector", width),
        activation="tanh",
        use_bias=False,
        dtype=dtype,
        name="attentional_vector",
    )


def _context_gate(
    gate: bool | keras.layers.Layer, dtype: Dtype
) -> keras.layers.Layer | None:
    """Return the layer that computes the gate, or `None`; a layer stays."""
    if isinstance(gate, keras.layers.Layer):
        return gate
    if not isinstance(gate, bool):
        raise ValueError(f"gate must be a boolean or a layer. Received: {gate!r}")
    if not gate:
        return None
    return keras.layers.Dense(1, activation="sigmoid", dtype=dtype, name="context_gate")
