"""Groups of a diverse beam search; a usual beam search has one.

Shapes: B rows, K hypotheses, G groups of K / G hypotheses.
"""

from keras import ops, tree

from keras_attention.typing import Nested, Tensor
from keras_attention.validation import check_not_negative, check_positive_integer


class Groups:
    """The division of a beam into groups of equal size.

    Args:
        beam_size: Number of hypotheses K, checked.
        beam_groups, diversity_penalty: As for `beam_search`.

    Attributes:
        count: Number of groups G.
        size: Number of hypotheses of a group.
        diversity_penalty: As for `beam_search`.
    """

    def __init__(
        self, beam_size: int, beam_groups: int, diversity_penalty: float
    ) -> None:
        beam_groups = check_positive_integer("beam_groups", beam_groups)
        if beam_size % beam_groups:
            raise ValueError(
                f"beam_groups must divide beam_size, {beam_size}. "
                f"Received: {beam_groups}"
            )
        check_not_negative("diversity_penalty", diversity_penalty)
        self.count, self.size = beam_groups, beam_size // beam_groups
        self.diversity_penalty = diversity_penalty

    def select(self, group: int, nested: Nested) -> Nested:
        """Return the hypotheses of one group: `(B, K, ...)` to `(B, size, ...)`."""
        if self.count == 1:
            return nested
        slots = slice(group * self.size, (group + 1) * self.size)
        return tree.map_structure(lambda x: None if x is None else x[:, slots], nested)

    def group_max(self, x: Tensor) -> Tensor:
        """Return the largest number of every group: `(B, K)` to `(B, G)`."""
        # `ops.max` would fail on a batch without rows.
        return ops.top_k(ops.reshape(x, (-1, self.count, self.size)), 1)[0][..., 0]

    def last(self, x: Tensor) -> Tensor:
        """Return the last entry of every group: `(B, K)` to `(B, G)`."""
        return x[:, self.size - 1 :: self.size]
