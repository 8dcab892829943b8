"""Weightings: functions from scores to weights, as parts of an attention.

Shapes: B batch, T queries, S scores of a query, N heads. A mask is boolean and
broadcastable to the scores, `True` marks a valid position; without one, every position
is valid. Masked scores, whatever their value, affect neither a result nor a gradient.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.backends import in_descending_order, softmax
from keras_attention.layers.components import Weighting, get_part
from keras_attention.layers.monotonic import MochaWeighting, MonotonicWeighting
from keras_attention.ops.masks import masked_softmax
from keras_attention.ops.precision import accumulation_dtype, at_least_float32
from keras_attention.ops.rows import (
    LOWEST,
    TINY,
    cumsum,
    first_candidate,
    row_max,
    subtract_max,
)
from keras_attention.serialization import config_of, seed_and_generator
from keras_attention.typing import Config, Dtype, Nested, Seed, Shape, Tensor, Tensors
from keras_attention.validation import (
    check_boolean,
    check_choice,
    check_fraction,
    check_positive,
)


class TemperatureWeighting(Weighting):
    """Base of the weightings that divide the scores by a temperature.

    Args:
        temperature: Positive; a low one sharpens the weights, a high one flattens them.
        learn_temperature: Whether the temperature is a weight, of which `temperature`
            is the initial value. Its logarithm is learned, so that it stays positive.
            Every head of an attention, and every hop of a pooling, has its own.
    """

    takes_heads = True
    casts_weights = True

    def __init__(
        self,
        temperature: float = 1.0,
        learn_temperature: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive("temperature", temperature)
        check_boolean("learn_temperature", learn_temperature)
        self.temperature = float(temperature)
        self.learn_temperature = learn_temperature
        self.has_temperature = learn_temperature or temperature != 1.0

    def build(self, scores_shape: Shape) -> None:
        if self.learn_temperature:
            self.log_temperature = self.add_weight(
                name="log_temperature",
                autocast=False,
                shape=_temperatures(scores_shape),
                initializer=keras.initializers.Constant(math.log(self.temperature)),
            )
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        if not self.learn_temperature:
            return
        expected, actual = tuple(self.log_temperature.shape), _temperatures(*shapes)
        if expected != actual and {*expected, *actual} != {1}:
            raise ValueError(
                "layers that share a learned temperature must have the same number of "
                f"heads or hops. Received: temperatures {expected} and {actual}"
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
            **config_of(self, "temperature learn_temperature"),
        }


def _temperatures(scores_shape: Shape) -> tuple[int, ...]:
    """Return the shape of the temperatures for scores `(B, N or T, ...)`."""
    return (scores_shape[1] or 1, *[1] * len(scores_shape[2:]))


class _DeterministicWeighting(TemperatureWeighting):
    """A deterministic function of the scores, divided by a temperature."""

    def call(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        state: Nested = None,
        noise: Nested = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Tensors]:
        if self.has_temperature:
            scores = self.divide_by_temperature(scores)
        return {"weights": self.normalize(scores, valid)}, {}


def softmax_weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the softmax of scores `(..., S)`, exactly zero at masked positions.

    Like all weights and logarithms here, it is in float32, or in float64 for float64
    scores. Where there is a mask, a row with no valid position is a row of zeros with
    zero gradients, and a score of minus infinity counts as not valid. Without a mask,
    the weights of a row of minus infinity are NaN.
    """
    input_dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, "float64" if input_dtype == "float64" else "float32")
    return softmax(scores) if mask is None else masked_softmax(scores, mask)


def log_softmax_weights(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the logarithm of `softmax_weights`, exact where the weights underflow.

    Masked positions hold `LOWEST`: it is finite, and its exponential is zero.
    """
    scores, valid = subtract_max(scores, mask)
    total = ops.sum(ops.where(valid, ops.exp(scores), 0.0), axis=-1, keepdims=True)
    logs = scores - ops.log(ops.where(total > 0, total, 1.0))
    return ops.where(valid, logs, LOWEST)


@keras.saving.register_keras_serializable(package="keras_attention")
class SoftmaxWeighting(_DeterministicWeighting):
    """Softmax: weights in proportion to `exp(score / temperature)`.

    Args:
        temperature: Positive; a low one sharpens the weights, a high one flattens them.
        learn_temperature: Whether to learn it, starting from `temperature`.
    """

    normalize = staticmethod(softmax_weights)


def masked_sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the projection of the valid scores onto the simplex.

        weights[s] = max(scores[s] - threshold, 0),  with the threshold for which
                                                     the weights sum to one

    Gradients are exact, and one-sided where a score equals the threshold. A row with no
    valid position is a row of zeros with zero gradients. This is algorithm 1 of Martins
    and Astudillo.
    """
    scores, valid = subtract_max(scores, mask)
    scores, ordered, rank = _sorted(scores)
    # Of the thresholds for the best k scores, the largest is that of the support.
    thresholds = (cumsum(ordered) - 1) / rank
    support = _above(row_max(thresholds), scores, valid)
    # Recomputed from the support, the threshold carries the gradient.
    count, deviation = _deviation(scores, support)
    return ops.where(support, ops.relu(deviation + 1 / count), 0.0)


@keras.saving.register_keras_serializable(package="keras_attention")
class SparsemaxWeighting(_DeterministicWeighting):
    """Sparsemax: the point of the simplex nearest to `scores / temperature`.

    Positions whose score is far below the best weigh exactly zero.

    Args:
        temperature: Positive; small ones leave fewer positions.
        learn_temperature: Whether to learn it, starting from `temperature`.

    Reference:
        [Martins and Astudillo, 2016](https://arxiv.org/abs/1602.02068), section 2.
    """

    selects = True
    normalize = staticmethod(masked_sparsemax)


def masked_entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return sparse weights between softmax and sparsemax: entmax with alpha = 1.5.

        weights[s] = max(scores[s] / 2 - threshold, 0)^2,  with the threshold for which
                                                           the weights sum to one

    Gradients are exact, and a row with no valid position is a row of zeros with zero
    gradients. This is algorithm 2 of Peters et al.
    """
    scores, valid = subtract_max(scores, mask)
    scores, ordered, rank = _sorted(scores / 2)
    mean = cumsum(ordered) / rank
    spread = cumsum(ops.square(ordered)) - rank * ops.square(mean)
    thresholds = mean - ops.sqrt(ops.clip(1 - spread, 0.0, 1.0) / rank)
    # The threshold for the best k scores is valid if score k is not below it. The
    # largest valid threshold is that of the support; for k = 1, it is -1.
    thresholds = ops.where(thresholds <= ordered, thresholds, -1.0)
    support = _above(row_max(thresholds), scores, valid)
    # Recomputed from the support, the threshold carries the gradient, and the spread
    # is free of cancellation.
    count, deviation = _deviation(scores, support)
    spread = ops.sum(ops.square(deviation), axis=-1, keepdims=True)
    root = deviation + ops.sqrt((1 - spread) / count)
    return ops.where(support, ops.square(ops.relu(root)), 0.0)


@keras.saving.register_keras_serializable(package="keras_attention")
class EntmaxWeighting(_DeterministicWeighting):
    """1.5-entmax, half way between softmax and sparsemax: smooth, yet sparse.

    Args:
        temperature: Positive; small ones leave fewer positions.
        learn_temperature: Whether to learn it, starting from `temperature`.

    Reference:
        [Peters et al., 2019](https://arxiv.org/abs/1905.05702), section 3.
    """

    selects = True
    normalize = staticmethod(masked_entmax15)


def _sorted(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return clipped scores, the same in descending order, and their ranks from 1."""
    # Scores below -1 get no weight, and squares of the lowest would overflow. No score
    # reaches the upper bound, because at a bound JAX halves the gradient.
    scores = ops.clip(scores, -2.0, 1.0)
    ordered = in_descending_order(ops.stop_gradient(scores))
    return scores, ordered, cumsum(ops.ones_like(ordered))


def _above(threshold: Tensor, scores: Tensor, valid: Tensor) -> Tensor:
    """Return which valid scores exceed the threshold; `True` for NaN."""
    # Not `scores > threshold`, because NaN must propagate to the weights.
    return ops.logical_and(valid, ops.logical_not(scores <= threshold))


def _deviation(scores: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Return the size of the support (at least 1), and deviations from its mean."""
    count = ops.sum(ops.cast(support, scores.dtype), axis=-1, keepdims=True)
    count = ops.where(count > 0, count, 1.0)
    # The second pass removes the rounding error of the first.
    for _ in range(2):
        total = ops.sum(ops.where(support, scores, 0.0), axis=-1, keepdims=True)
        scores = scores - total / count
    return count, ops.where(support, scores, 0.0)


@keras.saving.register_keras_serializable(package="keras_attention")
class HardWeighting(TemperatureWeighting):
    """Hard attention: one position, drawn from the softmax of the scores.

        choice[t] ~ softmax(scores[t] / temperature)
        weights   = one-hot(choice)

    In training, the position is drawn (Gumbel-max). With a probability of
    `soft_probability`, all queries of an example use the softmax itself instead, which
    stabilises the training. The `estimator` decides how the scores learn:

    - `"score-function"`: no gradient passes through the choice. A loss such as
      `ReinforceLoss` uses its log-probability and the entropy.
    - `"straight-through"`: the gradient is that of the softmax of the noisy scores, of
      which the largest was chosen (Gumbel-softmax).

    Beside the weights, a step reports:

    - `"probabilities"` `(B, T, S)`, the softmax; `(B, T, W)` in a window of W places.
    - `"log_probability"` `(B, T)` of the choice; zero if the example uses the softmax.
    - `"entropy"` `(B, T)` of the softmax.
    - `"sampled"` `(B, T)`, boolean; `False` if the example uses the softmax.

    Args:
        estimator: `"score-function"` or `"straight-through"`.
        inference: Weights outside of training: `"argmax"`, the most probable position;
            `"expectation"`, the softmax.
        soft_probability: Probability, for each example, of using the softmax in
            training.
        temperature: Positive; scores are divided by it.
        learn_temperature: Whether to learn it, starting from `temperature`.
        relaxation: Positive; temperature of the Gumbel-softmax, which divides the noisy
            scores in addition to `temperature`.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Reference:
        [Xu et al., 2015](https://arxiv.org/abs/1502.03044), section 4.1;
        [Jang et al., 2017](https://arxiv.org/abs/1611.01144), section 2.2.
    """

    reports = ("probabilities", "log_probability", "entropy", "sampled")
    allows_scaling = False
    selects = True

    def __init__(
        self,
        estimator: str = "score-function",
        *,
        inference: str = "argmax",
        soft_probability: float = 0.0,
        temperature: float = 1.0,
        learn_temperature: bool = False,
        relaxation: float = 1.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(temperature, learn_temperature, **kwargs)
        check_choice("estimator", estimator, ("score-function", "straight-through"))
        check_choice("inference", inference, ("argmax", "expectation"))
        check_fraction("soft_probability", soft_probability)
        check_positive("relaxation", relaxation)
        self.estimator = estimator
        self.inference = inference
        self.soft_probability = soft_probability
        self.relaxation = float(relaxation)
        self.seed, self.seed_generator = seed_and_generator(seed)

    def draw(self, shape: Shape) -> Nested:
        dtype, seed = accumulation_dtype(self.compute_dtype), self.seed_generator
        steps, batch, queries, _ = shape
        coin = keras.random.uniform((1, batch, queries, 1), dtype=dtype, seed=seed)
        return {
            "uniform": keras.random.uniform(shape, dtype=dtype, seed=seed),
            "soft": ops.repeat(coin < self.soft_probability, steps, axis=0),
        }

    def call(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        state: Nested = None,
        noise: Nested = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Tensors]:
        scores = ops.cast(scores, accumulation_dtype(self.compute_dtype))
        scores = self.divide_by_temperature(scores)
        probabilities = relaxed = softmax_weights(scores, valid)
        if noise:
            soft = noise["soft"]
            chosen = masked_gumbel_max(scores, noise["uniform"], valid)
            relaxed = masked_gumbel_softmax(
                scores, noise["uniform"], valid, temperature=self.relaxation
            )
        else:
            is_soft = self.inference == "expectation"
            rows = ops.sum(scores, axis=-1, keepdims=True)
            soft = ops.full_like(rows, is_soft, dtype="bool")
            chosen = masked_hardmax(scores, valid)
        sampled = ops.logical_not(soft)[..., 0]
        log_probabilities = log_probability(scores, chosen, valid)
        if self.estimator == "straight-through":
            chosen = straight_through(chosen, relaxed)
        return {
            "weights": ops.where(soft, probabilities, chosen),
            "probabilities": probabilities,
            "log_probability": ops.where(sampled, log_probabilities, 0.0),
            "entropy": entropy(scores, valid),
            "sampled": sampled,
        }, {}

    def get_config(self) -> Config:
        config = config_of(self, "estimator inference soft_probability relaxation seed")
        return {**super().get_config(), **config}


def masked_hardmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return one-hot weights of the best valid position; the first wins a tie.

    They have no gradient. A row with no valid position is a row of zeros.
    """
    scores, valid = subtract_max(scores, mask)
    scores = ops.stop_gradient(ops.where(valid, scores, LOWEST))
    return first_candidate(scores >= 0, scores)


def masked_gumbel_max(
    scores: Tensor, uniform: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return one-hot weights of a position drawn from `softmax_weights`.

        choice = argmax over s of scores[s] - log(-log(uniform[s]))

    `uniform` is noise in `[0, 1)`, like the scores, drawn in float32 at least. The
    weights have no gradient.

    Reference:
        [Maddison et al., 2014](https://arxiv.org/abs/1411.0030), section 2.
    """
    return masked_hardmax(_perturbed(scores, uniform, mask))


def masked_gumbel_softmax(
    scores: Tensor,
    uniform: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: Tensor = 1.0,
) -> Tensor:
    """Return a relaxation of `masked_gumbel_max`, closer to it at a low temperature.

        weights = softmax((scores[s] - log(-log(uniform[s]))) / temperature)

    Reference:
        [Jang et al., 2017](https://arxiv.org/abs/1611.01144), section 2;
        [Maddison et al., 2017](https://arxiv.org/abs/1611.00712), section 3.
    """
    return softmax_weights(_perturbed(scores, uniform, mask) / temperature, mask)


def log_probability(
    scores: Tensor, choice: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the logarithm `(...)` of the `softmax_weights` of a choice, one-hot.

    It is zero where the choice is a row of zeros (no valid position), and `LOWEST` for
    a masked position. No gradient flows into the choice.
    """
    logs = log_softmax_weights(scores, mask)
    return ops.sum(ops.stop_gradient(ops.cast(choice, logs.dtype)) * logs, axis=-1)


def entropy(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the entropy `(...)` of `softmax_weights`, in nats.

        entropy = -sum over s of weights[s] * log(weights[s])

    It is zero, with a zero gradient, for a row with no valid position.
    """
    logs = log_softmax_weights(scores, mask)
    return -ops.sum(ops.exp(logs) * logs, axis=-1)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """Return the exact value of `hard` with the gradient of `soft`, which is finite.

    Reference:
        [Bengio et al., 2013](https://arxiv.org/abs/1308.3432), section 4.
    """
    # A number minus itself is exactly zero; soft + (hard - soft) would be rounded.
    hard = ops.stop_gradient(ops.cast(hard, soft.dtype))
    return hard + (soft - ops.stop_gradient(soft))


def _perturbed(scores: Tensor, uniform: Tensor, mask: Tensor) -> Tensor:
    """Return scores plus Gumbel noise, `LOWEST` at masked positions."""
    # Once the maximum is subtracted, large scores do not round the noise away.
    scores, valid = subtract_max(scores, mask)
    exponential = -ops.log(ops.cast(uniform, scores.dtype))
    noisy = scores - ops.log(ops.clip(exponential, TINY, 100.0))
    return ops.where(valid, noisy, LOWEST)


WEIGHTINGS = {
    "softmax": SoftmaxWeighting,
    "sparsemax": SparsemaxWeighting,
    "entmax": EntmaxWeighting,
    "hard": HardWeighting,
    "monotonic": MonotonicWeighting,
    "mocha": MochaWeighting,
}


def is_plain_softmax(weighting: Weighting) -> bool:
    """Return whether a weighting is a softmax without a temperature."""
    return type(weighting) is SoftmaxWeighting and not weighting.has_temperature


def get_weighting(identifier: Any, dtype: Dtype) -> Weighting:
    """Return the weighting for a name, a config, or a weighting."""
    example = "a weighting such as HardWeighting()"
    return get_part("weighting", identifier, WEIGHTINGS, Weighting, example, dtype)
