"""Whether attention looks in the right place.

Shapes: B batch, T target steps, S positions.
"""

import keras
from keras import ops

from keras_attention.sample_weights import broadcast_sample_weights


class _Share(keras.metrics.Metric):
    """Base of metrics that are a share of counts, over everything seen so far."""

    def __init__(self, name, dtype=None):
        super().__init__(name=name, dtype=dtype)
        # In half precision, counting by ones stops at 2048 or 256.
        dtype = keras.backend.result_type(self.dtype, "float32")
        self.part = self.add_variable((), "zeros", dtype=dtype, name="part")
        self.whole = self.add_variable((), "zeros", dtype=dtype, name="whole")

    def _count(self, part, whole, sample_weight):
        """Add the counts of every row, `(B, ...)`."""
        if sample_weight is not None:
            weight = broadcast_sample_weights(sample_weight, part)
            part, whole = weight * part, weight * whole
        self.part.assign_add(ops.sum(part))
        self.whole.assign_add(ops.sum(whole))

    def merge_state(self, metrics):
        """Add what other metrics of the same kind have counted."""
        for metric in metrics:
            self.part.assign_add(metric.part)
            self.whole.assign_add(metric.whole)

    def result(self):
        return ops.cast(ops.divide_no_nan(self.part, self.whole), self.dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class AlignmentErrorRate(_Share):
    """How far attention is from the word alignments that people drew.

        AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    over a whole corpus. `A` links every target word to the source position that it
    looked at most; a word that looked nowhere, its weights all zero, has no link.
    `S` are the sure and `P` the possible links of the reference; sure links are
    possible, too. Zero is best, and what an empty corpus gets.

    Padding, and tokens that nobody aligned, such as the end of a sentence, belong under
    a `sample_weight` of zero. In `compile`, list the metric under `weighted_metrics`
    if there are sample weights.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; it is counted in float32 at least.

    Call arguments:
        y_true: Reference, `(B, T, S)`: 2 for a sure link, 1 for one that is possible
            only, 0 for none. Booleans are sure links.
        y_pred: Attention weights, `(B, T, S)`.
        sample_weight: `(B,)` or `(B, T)`, booleans included.

    Raises:
        ValueError: If the shapes of `y_true` and `y_pred` differ, or that of
            `sample_weight` does not fit.

    Example:

    The first word is right, the second one is at least possible, and the third one
    misses its sure link:

    >>> reference = np.array([[[2, 0, 0], [0, 2, 1], [0, 0, 2]]])
    >>> weights = np.array([[[0.8, 0.1, 0.1], [0.1, 0.4, 0.5], [0.0, 0.7, 0.3]]])
    >>> error_rate = AlignmentErrorRate()
    >>> error_rate.update_state(reference, weights)
    >>> round(float(error_rate.result()), 4)  # 1 - (1 + 2) / (3 + 3)
    0.5

    Reference:
        [Och and Ney, 2003](https://aclanthology.org/J03-1002), section 5.
    """

    def __init__(self, name="alignment_error_rate", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, links = _reference_and_links(y_true, y_pred)
        is_boolean = keras.backend.standardize_dtype(y_true.dtype) == "bool"
        sure = ops.cast(y_true if is_boolean else y_true >= 2, links.dtype)
        possible = ops.cast(y_true if is_boolean else y_true >= 1, links.dtype)
        hits = ops.sum(links * (sure + possible), axis=-1)
        whole = ops.sum(links + sure, axis=-1)
        self._count(whole - hits, whole, sample_weight)


@keras.saving.register_keras_serializable(package="keras_attention")
class PointingAccuracy(_Share):
    """How often attention points into the object that it should look at.

        accuracy = hits / maps that are not empty

    A hit is a map, such as the regions that the box of a word's object covers, with the
    position of the largest weight inside. Rows with an empty map are not counted;
    weights that are all zero point nowhere and hit nothing. Without any map to count,
    the accuracy is zero.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; it is counted in float32 at least.

    Call arguments:
        y_true: What is inside the object, boolean `(B, ..., S)`.
        y_pred: Attention weights, `(B, ..., S)`.
        sample_weight: `(B,)` or `(B, ...)`, booleans included.

    Raises:
        ValueError: If the shapes of `y_true` and `y_pred` differ, or that of
            `sample_weight` does not fit.

    Example:

    One map is hit, one is missed and one is empty:

    >>> inside = np.array([[[1, 1, 0], [0, 0, 1], [0, 0, 0]]], "bool")
    >>> weights = np.array([[[0.2, 0.7, 0.1], [0.5, 0.2, 0.3], [0.0, 0.5, 0.5]]])
    >>> accuracy = PointingAccuracy()
    >>> accuracy.update_state(inside, weights)
    >>> float(accuracy.result())
    0.5

    Reference:
        [Zhang et al., 2016](https://arxiv.org/abs/1608.00507), section 4.1.
    """

    def __init__(self, name="pointing_accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        inside, links = _reference_and_links(y_true, y_pred)
        inside = ops.cast(ops.cast(inside, "bool"), links.dtype)
        hits = ops.sum(links * inside, axis=-1)
        self._count(hits, ops.max(inside, axis=-1), sample_weight)


def _reference_and_links(y_true, y_pred):
    """The reference as it is, and the largest weight of every row as a one-hot."""
    y_true, weights = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    if len(y_true.shape) != len(weights.shape) or any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(y_true.shape, weights.shape, strict=True)
    ):
        raise ValueError(
            "y_true and y_pred must have the same shape. Received: "
            f"{tuple(y_true.shape)} and {tuple(weights.shape)}"
        )
    positions = ops.arange(ops.shape(weights)[-1], dtype="int32")
    largest = ops.cast(ops.argmax(weights, axis=-1), positions.dtype)
    links = ops.logical_and(positions == largest[..., None], weights > 0)
    return y_true, ops.cast(links, "float32")
