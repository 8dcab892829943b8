"""What the replaceable parts of an attention have in common.

Shapes: B batch, T queries, S positions.
"""

import keras
from keras import ops


class AttentionPart(keras.layers.Layer):
    """A score, a window, a weighting or a coverage: one choice among several.

    A part keeps nothing between calls. What it has to remember from one query to the
    next is a dict of tensors `(B, T, ...)`, one entry for each of T sequences of
    queries, which it takes and returns; noise is given to it, too. So the same part
    runs for all queries at once, in a loop, and one step at a time.

    Attributes:
        state_names: Names of the tensors in its state.
        sequential: Whether a query needs the state that the query before it left
            behind, so that queries have to come one after the other.
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
        """States in which the queries of one sequence find a part in turn.

        Only asked of parts that are not sequential.
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


def project_rows(dense, x):
    """Apply a `Dense` layer to the last axis of `x` as to the rows of one matrix.

    On more than two axes Keras' own product does not compile under XLA inside a loop
    over a batch of unknown size.
    """
    if len(x.shape) == 2:
        return dense(x)
    rows = dense(ops.reshape(x, (-1, x.shape[-1])))
    return ops.reshape(rows, (*ops.shape(x)[:-1], rows.shape[-1]))


def exact_dtype(layer):
    """The dtype of sums and states: float32, or float64 if the layer computes in it."""
    return "float64" if layer.compute_dtype == "float64" else "float32"


def fresh(initializer):
    """A copy of an initializer that draws anew: Keras warns where one is used twice."""
    clone = getattr(initializer, "clone", None)
    return clone() if clone else initializer


def check_positive_integer(name, value, *, optional=False):
    """Raise `ValueError` for an argument that is no positive integer, or `None`."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        either = " or None" if optional else ""
        raise ValueError(
            f"{name} must be a positive integer{either}. Received: {value!r}"
        )


def check_choice(name, value, choices):
    """Raise `ValueError` for an argument that is none of its choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}. "
            f"Received: {value!r}"
        )


def may_be_equal(shape, other):
    """Whether two shapes differ in no size that is known."""
    return len(shape) == len(other) and all(
        a == b or a is None or b is None for a, b in zip(shape, other, strict=True)
    )


def check_rank(name, shape, ranks, expected):
    """Raise `ValueError` for a shape that has none of these numbers of axes."""
    if len(shape) not in ranks:
        raise ValueError(
            f"{name} must have the shape {expected}. Received: {tuple(shape)}"
        )


def check_mask(name, mask, *shapes, broadcasts=False):
    """Raise `ValueError` for a mask that is known to have none of these shapes.

    Nor may it be a list: Keras does not count these among the tensors of a call, and
    gives what it knows of the masks to other arguments then.

    Args:
        broadcasts: Whether any axis of the mask may be of size 1.
    """
    if mask is None:
        return
    if not hasattr(mask, "shape"):
        raise ValueError(f"{name} must be a tensor or an array. Received: {mask!r}")
    found = tuple(mask.shape)
    sizes = [None if broadcasts and size == 1 else size for size in found]
    if not any(may_be_equal(sizes, shape) for shape in shapes):
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{name} must have the shape {expected}. Received: {found}")


def sample_weights(given, weighed):
    """Weights of rows as Keras takes them, for every entry of a tensor `(B, ...)`.

    Args:
        given: Tensor `(B,)`, `(B, ...)`, or with one more axis of size 1.
        weighed: What they weigh, in the dtype of the result.

    Raises:
        ValueError: If the shape does not fit.
    """
    weights, rank = ops.cast(given, weighed.dtype), len(weighed.shape)
    if len(weights.shape) == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while len(weights.shape) < rank:
        weights = weights[..., None]
    check_mask("sample_weight", weights, weighed.shape, broadcasts=True)
    return weights


def stay_frozen(layer):
    """Freeze what was made since a layer was frozen: Keras freezes what there is."""
    if not layer.trainable:
        # TensorFlow ignores an assignment that changes nothing.
        layer.trainable = True
        layer.trainable = False


def serialize_part(part):
    """A layer for the config of the layer that it is part of, and that builds it."""
    if part is None:
        return None
    config = keras.saving.serialize_keras_object(part)
    config.pop("build_config", None)
    return config


def deserialize_parts(config):
    """A config with the layers that `serialize_part` had written into it."""
    return {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, dict) and "registered_name" in value and name != "dtype"
        else value
        for name, value in config.items()
    }
