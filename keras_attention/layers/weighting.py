"""Base classes of the weightings.

Shapes: B batch, T queries, S scores of a query, N heads.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.layers.base import AttentionPart
from keras_attention.layers.scores import Score
from keras_attention.ops.precision import at_least_float32
from keras_attention.typing import Config
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.validation import check_boolean
from keras_attention.validation import check_positive


class Weighting(AttentionPart):
    """Base of the weightings.

    A custom weighting implements `call`; see `AttentionPart` for its state and
    its noise.

    `build` receives the shape of the scores: `(B, T, S)`, or `(B, N, T, S)` if it takes
    heads. T is `None`, except in a pooling, where it is the number of hops.

    Attributes:
        takes_heads: Whether scores, mask, noise and results may be those of N heads,
            `(B, N, T, ...)`. Otherwise, the queries of all heads are joined,
            `(B, N T, ...)`.
        reports: Names of the outputs other than the weights.
        needs_all_positions: Whether it needs the scores of all positions and takes no
            window.
        allows_scaling: Whether weights may be scaled by a prior or dropped.

    Call arguments:
        scores: Tensor of shape `(B, T, S)`.
        valid: Boolean, broadcastable to the scores: positions that may have weight;
            `None` for all.
        state: Dict of tensors, as `initial_state` returns it.
        noise: Dict of tensors, as `draw` returns it for one step; empty or `None`
            for a deterministic result.
        training: Whether the layer trains.

    Returns:
        outputs: Dict with `"weights"` `(B, T, S)`, in float32 at least, and the
            `reports`, which losses use.
        state: Dict for the next step.
    """

    reports: tuple[str, ...] = ()
    takes_heads = False
    needs_all_positions = False
    allows_scaling = True

    def prepare_score(self, score: Score) -> Score:
        """Return the score for this weighting, given the score of a layer."""
        return score


class TemperatureWeighting(Weighting):
    """Base of the weightings that divide the scores by a temperature.

    Args:
        temperature: Positive; a low one sharpens the weights, a high one flattens them.
        learn_temperature: Whether the temperature is a weight, of which `temperature`
            is the initial value. Its logarithm is learned, so that it stays positive.
            Every head of an attention, and every hop of a pooling, has its own.
    """

    takes_heads = True

    def __init__(
        self,
        temperature: float = 1.0,
        learn_temperature: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive("temperature", temperature)
        check_boolean("learn_temperature", learn_temperature)
        self.temperature = temperature
        self.learn_temperature = learn_temperature
        self.has_temperature = learn_temperature or temperature != 1.0

    def build(self, scores_shape: Shape) -> None:
        if self.learn_temperature:
            self.log_temperature = self.add_weight(
                name="log_temperature",
                shape=_temperatures(scores_shape),
                initializer=keras.initializers.Constant(math.log(self.temperature)),
            )
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        if not self.learn_temperature:
            return
        expected, found = tuple(self.log_temperature.shape), _temperatures(*shapes)
        if expected != found and {*expected, *found} != {1}:
            raise ValueError(
                "layers that share a learned temperature must have the same number of "
                f"heads or hops. Received: temperatures {expected} and {found}"
            )

    def divide_by_temperature(self, scores: Tensor) -> Tensor:
        """Return the scores divided by the temperature."""
        if not self.has_temperature:
            return scores
        scores = at_least_float32(scores)
        if not self.learn_temperature:
            return scores / self.temperature
        return scores / ops.exp(ops.cast(self.log_temperature, scores.dtype))

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "temperature": self.temperature,
            "learn_temperature": self.learn_temperature,
        }


def _temperatures(scores_shape):
    """Return the shape of the temperatures for scores `(B, N or T, ...)`."""
    return (scores_shape[1] or 1, *[1] * len(scores_shape[2:]))
