"""Base of the replaceable parts of an attention.

Shapes: B batch, T queries, S positions.
"""

import keras


class AttentionPart(keras.layers.Layer):
    """Base of scores, windows, weightings and coverage.

    A part keeps nothing between calls. Its state is a dict of tensors `(B, T, ...)`,
    with one entry for each of T sequences of queries, which it takes and returns; noise
    is an argument, too. So the same part runs for all queries at once, in a loop, and
    one step at a time.

    Attributes:
        state_names: Names of the tensors in its state.
        sequential: Whether a query needs the state that the query before it returned,
            so that queries must be handled one after the other.
    """

    state_names = ()
    sequential = False

    def __init__(self, **kwargs):
        # States and noise keep their precision whatever the layer computes in.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def initial_state(self, memory, queries):
        """State before the first query: a dict of tensors `(B, queries, ...)`.

        Args:
            memory: Dict that `AttentionMemory` returned.
            queries: Number of sequences of queries of one row.
        """
        return {}

    def state_of_all(self, memory, queries):
        """States that the successive queries of one sequence start with.

        Used for parts that are not sequential.
        """
        return self.initial_state(memory, queries)

    def draw(self, shape):
        """Noise for training: a dict of tensors with the first three axes of `shape`.

        Args:
            shape: `(steps, B, T, scores)`.
        """
        return {}

    def compute_mask(self, inputs, previous_mask):
        return None


def exact_dtype(layer):
    """The dtype of sums and states: float32, or float64 if the layer computes in it."""
    return "float64" if layer.compute_dtype == "float64" else "float32"
