"""Input feeding: the vector that a decoder step passes to the next one."""

from keras import ops
from keras import tree

from keras_attention.decoder.states import query_units
from keras_attention.layers.recurrent import output_units
from keras_attention.validation import shapes_of


def feedback_units(cell, memory=None):
    """Return the depth of the fed-back vector, or `None` if it is not known.

    Args:
        cell: The `AttentionCell`.
        memory: Memory of its attention, for a cell that is not built.
    """
    depth = cell.context_depth
    if depth is None and memory is not None:
        memory_shapes = tree.map_structure(lambda x: tuple(x.shape), memory)
        depth = cell.step.context_depth(query_units(cell), memory_shapes)
    if cell.attentional_layer is None:
        return depth
    width = getattr(cell.attentional_layer, "units", None)
    if width is None and depth is not None:
        input_shape = (None, depth + output_units(cell.cell))
        width = cell.attentional_layer.compute_output_shape(input_shape)[-1]
    return width


def initial_feedback(cell, output, memory):
    """Return the fed-back vector before the first step, zeros.

    Args:
        cell, memory: As in `feedback_units`.
        output: Output state of the RNN cell, `(B, [K,] U)`.
    """
    units = feedback_units(cell, memory)
    if units is None:
        raise ValueError(
            "memory must be given unless the cell is built: the depth of the context "
            "that is fed back is not known yet. "
            f"Received: memory={shapes_of(memory)}"
        )
    return ops.zeros((*ops.shape(output)[:-1], units), cell.compute_dtype)
