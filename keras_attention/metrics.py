"""Metrics that compare attention weights with a reference.

Shapes: B batch, T target steps, S positions.
"""

import math

import keras
from keras import ops

from keras_attention.backends import index_range
from keras_attention.losses.masking import broadcast_sample_weights
from keras_attention.sizes import is_zero
from keras_attention.typing import Dtype, Tensor
from keras_attention.validation import may_be_equal


class _Quotient(keras.metrics.Metric):
    """Base class of metrics that are a quotient of two sums over all batches."""

    def __init__(self, name: str, dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)
        # In half precision, a count by ones stops at 2048 (float16) or 256 (bfloat16).
        dtype = keras.backend.result_type(self.dtype, "float32")
        self.numerator = self.add_variable((), "zeros", dtype=dtype, name="numerator")
        self.denominator = self.add_variable(
            (), "zeros", dtype=dtype, name="denominator"
        )

    def _count(
        self, numerator: Tensor, denominator: Tensor, sample_weight: Tensor
    ) -> None:
        """Add the counts of every row, `(B, ...)`."""
        if sample_weight is not None:
            weight = broadcast_sample_weights(sample_weight, numerator)
            # A row of weight zero may hold NaN.
            numerator, denominator = (
                ops.where(weight == 0, 0.0, weight * x)
                for x in (numerator, denominator)
            )
        self.numerator.assign_add(ops.sum(numerator))
        self.denominator.assign_add(ops.sum(denominator))

    def result(self) -> Tensor:
        return ops.cast(ops.divide_no_nan(self.numerator, self.denominator), self.dtype)


@keras.saving.register_keras_serializable(package="keras_attention")
class AlignmentErrorRate(_Quotient):
    """Alignment error rate of attention against reference word alignments.

        AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    over a whole corpus. `A` links every target word to the source position with the
    largest weight; a word whose weights are all zero has no link. `S` are the sure and
    `P` the possible links of the reference, sure links included. Zero is best; the rate
    of an empty corpus is zero, and that of weights with NaN is NaN.

    Give a `sample_weight` of zero to padding and to tokens without a reference, such as
    the end of a sentence. In `compile`, metrics with sample weights are
    `weighted_metrics`.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; counts are float32 at least.

    Call arguments:
        y_true: Reference, `(B, T, S)`: 2 for a sure link, 1 for a link that is only
            possible, 0 for none. If boolean, `True` is a sure link.
        y_pred: Attention weights, `(B, T, S)`.
        sample_weight: `(B,)` or `(B, T)`, numbers or booleans.

    Raises:
        ValueError: If the shapes of `y_true` and `y_pred` differ, or `sample_weight`
            has another shape.

    Example:

    The link of the first word is sure, that of the second one possible, and that of the
    third one wrong:

    >>> reference = np.array([[[2, 0, 0], [0, 2, 1], [0, 0, 2]]])
    >>> weights = np.array([[[0.8, 0.1, 0.1], [0.1, 0.4, 0.5], [0.0, 0.7, 0.3]]])
    >>> error_rate = AlignmentErrorRate()
    >>> error_rate.update_state(reference, weights)
    >>> round(float(error_rate.result()), 4)  # 1 - (1 + 2) / (3 + 3)
    0.5

    Reference:
        [Och and Ney, 2003](https://aclanthology.org/J03-1002), section 5.
    """

    def __init__(self, name: str = "alignment_error_rate", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        y_true, links = _reference_and_links(y_true, y_pred)
        is_boolean = keras.backend.standardize_dtype(y_true.dtype) == "bool"
        sure = ops.cast(y_true if is_boolean else y_true >= 2, links.dtype)
        possible = ops.cast(y_true if is_boolean else y_true >= 1, links.dtype)
        hits = ops.sum(links * (sure + possible), axis=-1)
        denominator = ops.sum(links + sure, axis=-1)
        self._count(denominator - hits, denominator, sample_weight)


@keras.saving.register_keras_serializable(package="keras_attention")
class PointingAccuracy(_Quotient):
    """Pointing game: share of steps whose largest weight lies inside the object.

        accuracy = hits / maps that are not empty

    A map marks the positions of an object, such as the regions in the box of the object
    that a word names. It is a hit if it includes the position of the largest weight.
    Empty maps do not count; weights that are all zero are never a hit. Without maps,
    the accuracy is zero.

    Args:
        name: Name of the metric.
        dtype: Dtype of the result; counts are float32 at least.

    Call arguments:
        y_true: Maps, boolean `(B, ..., S)`, `True` inside the object.
        y_pred: Attention weights, `(B, ..., S)`.
        sample_weight: `(B,)` or `(B, ...)`, numbers or booleans.

    Raises:
        ValueError: If the shapes of `y_true` and `y_pred` differ, or `sample_weight`
            has another shape.

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

    def __init__(self, name: str = "pointing_accuracy", dtype: Dtype = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        inside, links = _reference_and_links(y_true, y_pred)
        inside = ops.cast(inside, "bool")
        hits = ops.sum(ops.where(inside, links, 0.0), axis=-1)
        filled = ops.any(inside, axis=-1)
        self._count(hits, ops.cast(filled, hits.dtype), sample_weight)


def _reference_and_links(y_true: Tensor, y_pred: Tensor) -> tuple[Tensor, Tensor]:
    """Return the reference, and the largest weight of every row as a one-hot.

    The result is NaN for a row that contains NaN.
    """
    y_true, weights = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    if not may_be_equal(y_true.shape, weights.shape):
        raise ValueError(
            "y_true and y_pred must have the same shape. Received: "
            f"{tuple(y_true.shape)} and {tuple(weights.shape)}"
        )
    if is_zero(weights.shape[-1]):
        return y_true, ops.zeros(ops.shape(weights), "float32")
    positions = index_range(ops.shape(weights)[-1])
    largest = ops.cast(ops.argmax(weights, axis=-1), positions.dtype)
    links = ops.logical_and(positions == largest[..., None], weights > 0)
    is_number = ops.all(ops.equal(weights, weights), axis=-1, keepdims=True)
    return y_true, ops.where(is_number, ops.cast(links, "float32"), math.nan)
