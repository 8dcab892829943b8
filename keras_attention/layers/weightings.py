"""Weightings: functions from scores to weights, as parts of an attention.

Shapes: B batch, T queries, S scores of a query.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.layers.base import set_dtype_policy
from keras_attention.layers.scores import Score
from keras_attention.layers.scores import ScorePair
from keras_attention.layers.weighting import TemperatureWeighting
from keras_attention.layers.weighting import Weighting
from keras_attention.ops.choices import entropy
from keras_attention.ops.choices import log_probability
from keras_attention.ops.choices import masked_gumbel_max
from keras_attention.ops.choices import masked_gumbel_softmax
from keras_attention.ops.choices import masked_hardmax
from keras_attention.ops.choices import straight_through
from keras_attention.ops.monotonic import chunkwise
from keras_attention.ops.monotonic import monotonic_hard
from keras_attention.ops.monotonic import monotonic_parallel
from keras_attention.ops.monotonic import monotonic_recursive
from keras_attention.ops.precision import accumulation_dtype
from keras_attention.ops.weightings import masked_entmax15
from keras_attention.ops.weightings import masked_sigmoid
from keras_attention.ops.weightings import masked_softmax
from keras_attention.ops.weightings import masked_sparsemax
from keras_attention.serialization import seed_and_generator
from keras_attention.serialization import serialize_seed
from keras_attention.typing import Config
from keras_attention.typing import Nested
from keras_attention.typing import Seed
from keras_attention.typing import Shape
from keras_attention.typing import Tensor
from keras_attention.typing import Tensors
from keras_attention.validation import check_choice
from keras_attention.validation import check_fraction
from keras_attention.validation import check_not_negative
from keras_attention.validation import check_number
from keras_attention.validation import check_positive
from keras_attention.validation import check_positive_integer


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


@keras.saving.register_keras_serializable(package="keras_attention")
class SoftmaxWeighting(_DeterministicWeighting):
    """Softmax: weights in proportion to `exp(score / temperature)`.

    Args:
        temperature: Positive; a low one sharpens the weights, a high one flattens them.
        learn_temperature: Whether to learn it, starting from `temperature`.
    """

    normalize = staticmethod(masked_softmax)


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

    normalize = staticmethod(masked_sparsemax)


@keras.saving.register_keras_serializable(package="keras_attention")
class EntmaxWeighting(_DeterministicWeighting):
    """1.5-entmax, half way between softmax and sparsemax: smooth, yet sparse.

    Args:
        temperature: Positive; small ones leave fewer positions.
        learn_temperature: Whether to learn it, starting from `temperature`.

    Reference:
        [Peters et al., 2019](https://arxiv.org/abs/1905.05702), section 3.
    """

    normalize = staticmethod(masked_entmax15)


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
        self.relaxation = relaxation
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
        probabilities = relaxed = masked_softmax(scores, valid)
        if noise:
            soft = noise["soft"]
            chosen = masked_gumbel_max(scores, noise["uniform"], valid)
            relaxed = masked_gumbel_softmax(
                scores, noise["uniform"], valid, temperature=self.relaxation
            )
        else:
            shape = (*ops.shape(scores)[:-1], 1)
            soft = ops.full(shape, self.inference == "expectation", dtype="bool")
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
        return {
            **super().get_config(),
            "estimator": self.estimator,
            "inference": self.inference,
            "soft_probability": self.soft_probability,
            "relaxation": self.relaxation,
            "seed": serialize_seed(self.seed),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MonotonicWeighting(Weighting):
    """Monotonic attention: every query starts where the previous one stopped.

        p[t, s]       = sigmoid(scores[t, s] + bias + noise)
        weights[t, s] = p[t, s] * sum over r <= s of
                        weights[t-1, r] * product over r <= k < s of (1 - p[t, k])

    The weight is the probability of stopping at `s`, for a process that starts where
    the previous query stopped (the first starts at position 0) and stops at each
    position with probability `p`. Weights may sum to less than one, because the process
    may pass the last position. The recursive mode has a correct second derivative on
    TensorFlow only.

    Args:
        mode: How the expected weights are computed: `"recursive"`, exact, or
            `"parallel"`, the paper's cumulative products, which lose weights where the
            product of `1 - p` is below 1e-10. `"hard"` stops at the first position with
            `p > 0.5` and gives no gradient to the scores.
        inference: `"expectation"`, as in training, or `"hard"`.
        noise: Standard deviation of the Gaussian noise that is added to the scores in
            training, so that the model learns probabilities near 0 and 1.
        score_bias: Initial value of the bias; a negative one makes early stops
            improbable.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), sections 2.2 to 2.4.
    """

    state_names = ("previous",)
    sequential = True
    needs_all_positions = True

    def __init__(
        self,
        mode: str = "recursive",
        *,
        inference: str = "expectation",
        noise: float = 1.0,
        score_bias: float = -2.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mode", mode, ("recursive", "parallel", "hard"))
        check_choice("inference", inference, ("expectation", "hard"))
        check_not_negative("noise", noise)
        check_number("score_bias", score_bias, "a finite number", math.isfinite)
        self.mode = mode
        self.inference = inference
        self.noise = noise
        self.score_bias = score_bias
        self.seed, self.seed_generator = seed_and_generator(seed)

    def build(self, scores_shape: Shape) -> None:
        self.bias = self.add_weight(
            name="score_bias",
            shape=(),
            initializer=keras.initializers.Constant(self.score_bias),
        )
        self.built = True

    def initial_state(self, memory: Tensors, queries: int) -> Tensors:
        batch, length = ops.shape(memory["values"])[:2]
        first = ops.equal(ops.arange(length, dtype="int32"), 0)
        first = ops.cast(first, accumulation_dtype(self.compute_dtype))
        return {"previous": ops.broadcast_to(first, (batch, queries, length))}

    def draw(self, shape: Shape) -> Nested:
        if not self.noise:
            return {}
        noise = keras.random.normal(
            shape,
            stddev=self.noise,
            dtype=accumulation_dtype(self.compute_dtype),
            seed=self.seed_generator,
        )
        return {"normal": noise}

    def call(
        self,
        scores: Tensor,
        valid: Tensor | None = None,
        state: Nested = None,
        noise: Nested = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Tensors]:
        scores = ops.cast(scores, accumulation_dtype(self.compute_dtype))
        scores = scores + ops.cast(self.bias, scores.dtype)
        if noise:
            scores = scores + noise["normal"]
        p = masked_sigmoid(scores, valid)
        if self.mode == "hard" or (self.inference == "hard" and not training):
            weights = monotonic_hard(p, state["previous"])
        elif self.mode == "parallel":
            weights = monotonic_parallel(p, state["previous"])
        else:
            weights = monotonic_recursive(p, state["previous"])
        return {"weights": weights}, {"previous": weights}

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "mode": self.mode,
            "inference": self.inference,
            "noise": self.noise,
            "score_bias": self.score_bias,
            "seed": serialize_seed(self.seed),
        }


@keras.saving.register_keras_serializable(package="keras_attention")
class MochaWeighting(MonotonicWeighting):
    """Monotonic chunkwise attention (MoChA): a softmax over a small chunk.

    Monotonic attention decides where a query stops, and a softmax of other scores,
    `chunk_scores`, distributes the weight over the `chunk_size` positions that end
    there:

        stops[t]      = the weights of `MonotonicWeighting`
        weights[t, j] = sum over j <= k < j + chunk_size of stops[t, k] *
                        exp(chunk_scores[t, j]) /
                        sum over k - chunk_size < l <= k of exp(chunk_scores[t, l])

    `scores` is a pair: the scores of the layer, and the chunk scores. The latter are
    those of a copy of the layer's score with its own weights and key projection.

    Args:
        chunk_size: Positive integer, number of positions of a chunk.
        inference: `"hard"`, one chunk, or `"expectation"`, as in training.
        **options: Further options of `MonotonicWeighting`.

    Reference:
        [Chiu and Raffel, 2018](https://arxiv.org/abs/1712.05382), section 2.3.
    """

    def __init__(
        self, chunk_size: int = 2, *, inference: str = "hard", **options: Any
    ) -> None:
        super().__init__(inference=inference, **options)
        self.chunk_size = check_positive_integer("chunk_size", chunk_size)

    def prepare_score(self, score: Score) -> Score:
        return score if isinstance(score, ScorePair) else ScorePair(score, name="score")

    def call(
        self,
        scores: tuple[Tensor, Tensor],
        valid: Tensor | None = None,
        state: Nested = None,
        noise: Nested = None,
        training: bool | None = None,
    ) -> tuple[Tensors, Tensors]:
        scores, chunk_scores = scores
        outputs, state = super().call(scores, valid, state, noise, training)
        chunk_scores = ops.cast(chunk_scores, accumulation_dtype(self.compute_dtype))
        weights = chunkwise(outputs["weights"], chunk_scores, self.chunk_size, valid)
        return {"weights": weights}, state

    def get_config(self) -> Config:
        return {**super().get_config(), "chunk_size": self.chunk_size}


WEIGHTINGS = {
    "softmax": SoftmaxWeighting,
    "sparsemax": SparsemaxWeighting,
    "entmax": EntmaxWeighting,
    "hard": HardWeighting,
    "monotonic": MonotonicWeighting,
    "mocha": MochaWeighting,
}


def is_plain_softmax(weighting):
    """Return whether a weighting is a softmax without a temperature."""
    plain = type(weighting) is SoftmaxWeighting and weighting.temperature == 1
    return plain and not weighting.learn_temperature


def get_weighting(identifier, dtype=None):
    """Return the weighting for a name, a config, or a weighting."""
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, Weighting):
        if dtype is not None:
            set_dtype_policy(identifier, dtype)
        return identifier
    if not isinstance(identifier, str) or identifier not in WEIGHTINGS:
        raise ValueError(
            f"weighting must be one of {', '.join(map(repr, WEIGHTINGS))}, or a "
            f"weighting such as HardWeighting(). Received: {identifier!r}"
        )
    return WEIGHTINGS[identifier](dtype=dtype, name="weighting")
