"""Scores by which beam search ranks hypotheses."""

import numbers
from typing import Any

import numpy as np
from keras import ops

from keras_attention.ops.gathering import take_rows
from keras_attention.ops.log_probs import is_possible
from keras_attention.search.nested_tensors import check_rows
from keras_attention.typing import Nested, Tensor
from keras_attention.validation import (
    check_choice,
    check_mask,
    check_not_negative,
    may_be_equal,
)

# Lower bound of the coverage of a position, so that its logarithm stays finite.
MIN_COVERAGE = 1e-10


class Ranking:
    """Length and coverage penalties of beam search; see `beam_search`.

    Args:
        max_length: Largest number of tokens.
        length_penalty, length_penalty_form, coverage_penalty, coverage_mask: As for
            `beam_search`.
    """

    def __init__(
        self,
        max_length: int,
        length_penalty: float,
        length_penalty_form: str,
        coverage_penalty: float,
        coverage_mask: Tensor | None,
    ) -> None:
        check_not_negative("length_penalty", length_penalty)
        check_not_negative("coverage_penalty", coverage_penalty)
        check_choice("length_penalty_form", length_penalty_form, ("power", "gnmt"))
        self.length_penalty = length_penalty
        self.length_penalty_form = length_penalty_form
        self.coverage_penalty = coverage_penalty
        if not self._is_representable(max_length):
            raise ValueError(
                "length_penalty must be so small that the divisor of "
                f"{max_length} tokens is finite in float32. Received: {length_penalty}"
            )
        if coverage_mask is not None:
            coverage_mask = ops.convert_to_tensor(coverage_mask)
        self.coverage_mask = coverage_mask

    def unnormalized_scores(
        self, log_probs: Tensor, coverage: Tensor, length: Any
    ) -> Tensor:
        """Return scores before the division by the length penalty, `(B, K)`.

        They rank hypotheses of the same length. Without a coverage penalty, they are
        the log-probabilities.

        Args:
            log_probs: `(B, K)`.
            coverage: Sum of the attention weights over time, `(B, K, S)`.
            length: `(B,)`.
        """
        if not self.coverage_penalty:
            return log_probs
        # `ops.clip` takes its bounds in the default precision.
        coverage = ops.minimum(ops.maximum(coverage, MIN_COVERAGE), 1.0)
        logs = ops.log(coverage)
        if self.coverage_mask is not None:
            counts = ops.cast(self.coverage_mask, "bool")
            logs = ops.where(counts[:, None], logs, 0.0)
        penalty = self.coverage_penalty * ops.sum(logs, axis=-1)
        return log_probs + self.length_divisor(length) * penalty

    def length_divisor(self, length: Any) -> Tensor:
        """Return the divisor of log-probabilities, `(B, 1)` for lengths `(B,)`."""
        if not isinstance(length, numbers.Real):
            length = ops.cast(length, "float32")[:, None]
        if self.length_penalty_form == "gnmt":
            length = (5 + length) / 6
        return length**self.length_penalty

    def check_coverage_mask(self, positions: Any, batch_size: int) -> None:
        """Raise `ValueError` for a mask of another shape, or an additive mask."""
        if self.coverage_mask is None:
            return
        shape = tuple(self.coverage_mask.shape)
        if not may_be_equal(shape[1:], (positions,)):
            wanted = f", with {positions} positions" if type(positions) is int else ""
            raise ValueError(
                f"coverage_mask must have the shape (batch, positions){wanted}. "
                f"Received: {shape}"
            )
        check_rows("coverage_mask", self.coverage_mask, batch_size)
        check_mask("coverage_mask", self.coverage_mask, shape)

    def _is_representable(self, length: Any) -> bool:
        """Return whether the divisor of this length is finite in float32."""
        try:
            divisor = self.length_divisor(float(length))
        except OverflowError:
            return False
        return divisor <= float(np.finfo("float32").max)


def best_first(pool: Nested, count: Any) -> Nested:
    """Return the best hypotheses: finished, then alive, each sorted by score.

    Impossible hypotheses come last.

    Args:
        pool: Dict of tensors `(B, M)`: `"scores"`, `"log_probs"`, `"is_alive"`, 0 or
            1, and any others.
        count: Number of hypotheses to return.
    """
    pool = take_rows(pool, ops.argsort(-pool["scores"], axis=-1))
    size = pool["scores"].shape[-1]
    ranks = ops.arange(size, dtype="int32") + size * pool["is_alive"]
    ranks = ops.where(is_possible(pool["log_probs"]), ranks, ranks + 2 * size)
    return take_rows(pool, ops.argsort(ranks, axis=-1)[:, :count])
