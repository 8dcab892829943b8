"""States and queries of a decoder step: shapes and checks.

Shapes: B batch, K sequences that attend to the same memory, D depth, U cell units.
"""

from functools import partial

from keras import ops
from keras import tree

from keras_attention.layers.recurrent import output_units
from keras_attention.layers.recurrent import topmost_units
from keras_attention.validation import shapes_of


def add_sequence_axis(nested):
    """Return tensors `(B, ...)` of one sequence as those of K = 1 sequences."""
    return tree.map_structure(partial(ops.expand_dims, axis=1), nested)


def remove_sequence_axis(nested):
    """Return tensors `(B, 1, ...)` of K = 1 sequences as those of one sequence."""
    return tree.map_structure(partial(ops.squeeze, axis=1), nested)


def as_rows(nested):
    """Return tensors `(B, K, D)` as `(B * K, D)`."""
    rows = []
    for x in tree.flatten(nested):
        rows.append(ops.reshape(x, (-1, x.shape[-1])))
    return tree.pack_sequence_as(nested, rows)


def as_sequences(nested, leading):
    """Return tensors `(B * K, D)` as `(B, K, D)`, for the leading sizes B and K."""
    sequences = []
    for x in tree.flatten(nested):
        sequences.append(ops.reshape(x, (*leading, x.shape[-1])))
    return tree.pack_sequence_as(nested, sequences)


def joined(tensors):
    """Concatenate tensors along the last axis; `None` for an empty list."""
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return ops.concatenate(tensors, axis=-1)


def topmost_state(cell_state):
    """Return the output state of the topmost cell, `(B, [K,] U)`."""
    while isinstance(cell_state[-1], (list, tuple)):
        cell_state = cell_state[-1]
    return cell_state[0]


def query_units(cell):
    """Return the depth of the query of an `AttentionCell`, or `None` if not known."""
    if cell.order == "current":
        return output_units(cell.cell)
    units = topmost_units(cell.cell)
    if not cell.input_in_query:
        return units
    return None if cell.input_depth is None else units + cell.input_depth


def initial_attention_state(step, output, memory):
    """Return the state of an attention before the first step.

    Args:
        step: Step of the attention.
        output: Output state of the RNN cell, `(B, [K,] U)`.
        memory: Memory of the attention; required.
    """
    if memory is None:
        raise ValueError(
            "memory must be given: the initial state of this attention depends on it. "
            f"Received: memory={shapes_of(memory)}"
        )
    if len(output.shape) == 3:
        return step.initial_state(memory, ops.shape(output)[1])
    return remove_sequence_axis(step.initial_state(memory))


def check_state(name, state, cell, rank):
    """Raise `ValueError` unless there is a tensor for every state of the cell."""
    expected = [(rank, units) for units in tree.flatten(cell.state_size)]
    found = state.get("cell") if isinstance(state, dict) else None
    found_units = [
        (len(x.shape), *x.shape[-1:]) if hasattr(x, "shape") else x
        for x in tree.flatten(found)
    ]
    is_nested = isinstance(found, (list, tuple))
    is_known = is_nested and state.keys() <= {"cell", "attention", "fed"}
    if not is_known or found_units != expected:
        raise ValueError(
            f"{name} must be a dict like that of cell.get_initial_state: 'cell' with "
            f"tensors of rank {rank} for units {cell.state_size}, and optionally "
            f"'attention' and 'fed'. Received: {shapes_of(state)}"
        )
