"""Causal mask: a query sees no position after its own.

Shapes: B batch, T queries, S positions, W positions in a window.
"""

from typing import Any

import keras

from keras_attention.layers.base import StepCounter
from keras_attention.typing import Tensor
from keras_attention.typing import Tensors


@keras.saving.register_keras_serializable(package="keras_attention")
class CausalMask(StepCounter):
    """Mask of the positions up to and including that of the query.

    Call arguments:
        positions: Integers, `(S,)`, or `(B, T, W)` in a window.
        state: Dict with `"step"` `(B, T)`, the number of earlier queries.

    Returns:
        mask: Boolean `(B, T, S)`, or `(B, T, W)` in a window.
        state: Dict for the next step.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # There are no weights to build, and only causal attention calls this layer.
        self.built = True

    def call(self, positions: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        step = state["step"]
        return positions <= step[..., None], {"step": step + 1}
