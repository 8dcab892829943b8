"""Coverage: the sum of earlier weights of every position.

Shapes: B batch, T queries, S positions.
"""

import keras
from keras import ops

from keras_attention.layers.base import AttentionPart
from keras_attention.ops.precision import accumulation_dtype


@keras.saving.register_keras_serializable(package="keras_attention")
class Coverage(AttentionPart):
    """Sum of the weights of all earlier queries.

    Call arguments:
        weights: Tensor of shape `(B, T, S)`.
        state: Dict with `"total"`, the sum so far, `(B, T, S)`.

    Returns:
        State for the next step.

    Reference:
        [Tu et al., 2016](https://arxiv.org/abs/1601.04811), section 3.1;
        [See et al., 2017](https://arxiv.org/abs/1704.04368), equation 10.
    """

    state_names = ("total",)
    sequential = True

    def initial_state(self, memory, queries):
        batch, length = ops.shape(memory["values"])[:2]
        return {
            "total": ops.zeros(
                (batch, queries, length), accumulation_dtype(self.compute_dtype)
            )
        }

    def call(self, weights, state):
        return {"total": state["total"] + ops.cast(weights, state["total"].dtype)}
