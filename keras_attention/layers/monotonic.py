"""Monotonic attention, and monotonic chunkwise attention.

Shapes: B batch, T queries, S scores of a query.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_attention.backends import doubling_loop, index_range, softmax, with_upstream
from keras_attention.layers.components import Score, Weighting, build_part
from keras_attention.layers.projections import ConcatenatedProjection
from keras_attention.ops.precision import accumulation_dtype, at_least_float32
from keras_attention.ops.rows import LOWEST, TINY, cumsum, first_candidate, valid_scores
from keras_attention.serialization import config_of, seed_and_generator, serialize_part
from keras_attention.typing import Config, Nested, Seed, Shape, Shapes, Tensor, Tensors
from keras_attention.validation import (
    check_choice,
    check_not_negative,
    check_number,
    check_positive_integer,
)


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
    casts_weights = True

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
        self.selects = "hard" in (mode, inference)
        self.noise = float(noise)
        self.score_bias = float(score_bias)
        self.seed, self.seed_generator = seed_and_generator(seed)

    def build(self, scores_shape: Shape) -> None:
        self.bias = self.add_weight(
            name="score_bias",
            autocast=False,
            shape=(),
            initializer=keras.initializers.Constant(self.score_bias),
        )
        self.built = True

    def initial_state(self, memory: Tensors, queries: int) -> Tensors:
        batch, length = ops.shape(memory["values"])[:2]
        first = ops.equal(index_range(length), 0)
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
        config = config_of(self, "mode inference noise score_bias seed")
        return {**super().get_config(), **config}


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
        if self.chunk_size > MAX_CHUNK_SIZE:
            raise ValueError(
                f"chunk_size must be at most {MAX_CHUNK_SIZE:,}, because every position"
                f" of a chunk is a step of its own. Received: {self.chunk_size:,}"
            )

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


@keras.saving.register_keras_serializable(package="keras_attention")
class ScorePair(Score):
    """A score, and a copy of it with its own weights, for weightings that take two.

    If the score projects its keys, the copy has its own projection, too. The keys are
    then both projections, concatenated.

    Args:
        score: The `Score`.

    Returns:
        Pair of scores, each `(B, T, S)`.
    """

    casts_weights = True

    def __init__(self, score: Score, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first = score
        config = {**score.get_config(), "name": f"{score.name}_copy"}
        self.second = type(score).from_config(config)
        self.takes_coverage = score.takes_coverage
        self.uses_keys = score.uses_keys

    def make_key_projection(self) -> keras.layers.Layer | None:
        if not self._projects_keys:
            return None
        scores = self.first, self.second
        first, second = (x.make_key_projection() for x in scores)  # type: Any, Any
        second.name += "_copy"
        return ConcatenatedProjection(first, second, name="key_projection")

    @property
    def _projects_keys(self) -> bool:
        return type(self.first).make_key_projection is not Score.make_key_projection

    def build(self, query_shape: Shape, keys_shape: Shape) -> None:
        keys_shape = self._keys_of_one(keys_shape)
        for score in (self.first, self.second):
            build_part(score, query_shape, keys_shape)
        self.built = True

    def check_shared(self, *shapes: Shape) -> None:
        query_shape, keys_shape = shapes
        keys_shape = self._keys_of_one(keys_shape)
        for score in (self.first, self.second):
            score.check_shared(query_shape, keys_shape)

    def _keys_of_one(self, keys_shape: Shapes) -> Shape:
        """Return the shape of the keys of one score, given those of the pair."""
        projection = self.make_key_projection()
        if projection is None:
            return keys_shape
        depth = keys_shape[-1]
        key_shape = (*keys_shape[:-1], depth // 2)
        if projection.compute_output_shape(key_shape)[-1] != depth:
            raise ValueError(
                "a weighting with two scores needs two projections of the keys, "
                "concatenated, as with key_projection=True. Received: keys of depth "
                f"{depth}"
            )
        return key_shape

    def call(self, query: Tensor, keys: Tensor, coverage: Tensor = None) -> Any:
        pair = ops.split(keys, 2, axis=-1) if self._projects_keys else [keys, keys]
        options = {"coverage": coverage} if self.takes_coverage else {}
        scores = zip((self.first, self.second), pair, strict=True)
        return tuple(score(query, keys, **options) for score, keys in scores)

    def get_config(self) -> Config:
        return {**super().get_config(), "score": serialize_part(self.first)}


def masked_sigmoid(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the sigmoid of every score, zero with a zero gradient where it is masked.

    Like all weights here, it is in float32, or in float64 for float64 scores.
    """
    scores, valid = valid_scores(scores, mask)
    return ops.where(valid, ops.sigmoid(scores), 0.0)


# Largest chunk of `MochaWeighting`; those of the paper have up to 8 positions.
MAX_CHUNK_SIZE = 1024
# In a file exported by JAX or PyTorch; enough for 2**16 positions.
EXPORTED_ROUNDS = 16


def monotonic_recursive(p: Tensor, previous: Tensor) -> Tensor:
    """Return expected weights of a process that moves until it stops at a position.

        q[j]       = (1 - p[j - 1]) * q[j - 1] + previous[j],  q[0] = previous[0]
        weights[j] = p[j] * q[j]

    The result is exact up to rounding for any `p`, zero and one included. The
    recurrence is solved by doubling (`q` over two positions, four, eight, ...), which
    only adds and multiplies numbers that are not negative. It takes `log2(S)` rounds.
    The second derivative is correct on TensorFlow only.

    Args:
        p: Probability of stopping at a position, `(..., S)`, zero where it is masked.
        previous: Weights of the step before, like `p`; before the first step, one-hot
            at the first position.

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.3.
    """
    p, previous = _both_at_least_float32(p, previous)
    return p * _solve(_shifted(1 - p, 0.0), previous)


def monotonic_parallel(p: Tensor, previous: Tensor) -> Tensor:
    """Return the closed form of `monotonic_recursive`, for moderate `p` only.

        passed[j]  = (1 - p[0]) * ... * (1 - p[j - 1])
        weights[j] = p[j] * passed[j] * sum over k <= j of previous[k] / passed[k]

    As in the paper's implementation, `passed` is at least 1e-10 as a divisor, to stay
    finite. Weights are lost wherever it is smaller: with every `p` at 0.9 and the
    previous position at 30, position 30 gets 9e-21, not 0.9.
    """
    p, previous = _both_at_least_float32(p, previous)
    # Not a product, whose gradient may be infinite where a factor is zero. No value
    # reaches the upper bounds, because at a bound JAX halves the gradient.
    logs = ops.log(ops.clip(_shifted(1 - p, 1.0), TINY, 2.0))
    passed = ops.exp(cumsum(logs))
    return p * passed * cumsum(previous / ops.clip(passed, 1e-10, 2.0))


def monotonic_hard(p: Tensor, previous: Tensor) -> Tensor:
    """Return one-hot weights of the first position with `p > 0.5`, from the last on.

    They have no gradient. A row without such a position is a row of zeros.

    Args:
        p: As in `monotonic_recursive`.
        previous: Choice of the step before, one-hot like `p`; before the first step,
            at the first position.

    Reference:
        [Raffel et al., 2017](https://arxiv.org/abs/1704.00784), section 2.2.
    """
    p, previous = map(ops.stop_gradient, _both_at_least_float32(p, previous))
    reached = cumsum(previous) > 0.5
    return first_candidate(ops.logical_and(reached, p > 0.5), p)


def chunkwise(
    stops: Tensor, scores: Tensor, size: Any, mask: Tensor | None = None
) -> Tensor:
    """Spread every weight of `stops` by a softmax over the chunk that ends there.

        weights[j] = sum over j <= k < j + size of
                     stops[k] * exp(scores[j]) / sum over k - size < l <= k of
                                                 exp(scores[l])

    Each chunk has a softmax of its own, so the result is exact even if the scores of
    distant positions differ by much. It takes `size` times as much memory as `stops`.
    The sum of the weights stays the same. A chunk that begins before the first position
    is shorter.

    Reference:
        [Chiu and Raffel, 2018](https://arxiv.org/abs/1712.05382), section 2.3.
    """
    scores, _ = valid_scores(scores, mask)
    if isinstance(scores.shape[-1], int):
        # A longer chunk has the same positions.
        size = max(min(size, scores.shape[-1]), 1)
    delayed = [scores]
    for _ in range(size - 1):
        delayed.append(_shifted(delayed[-1], LOWEST))
    shares = softmax(ops.stack(delayed, axis=-1))
    parts = ops.cast(stops, shares.dtype)[..., None] * shares
    weights = parts[..., size - 1]
    for n in reversed(range(size - 1)):
        # `parts[k, n]` is the weight of position k - n. It is shifted n times.
        padding = [[0, 0] for _ in weights.shape[1:]] + [[0, 1]]
        weights = ops.pad(weights, padding)[..., 1:] + parts[..., n]
    return weights


def _both_at_least_float32(p: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in float32, or in float64 for float64 `p`."""
    p = at_least_float32(p)
    return p, ops.cast(previous, p.dtype)


def _shifted(x: Tensor, first: Nested) -> Tensor:
    """Shift `x` by one position, with `first` in the first one."""
    padding = [[0, 0] for _ in x.shape[1:]] + [[1, 0]]
    return ops.pad(x, padding, constant_values=first)[..., :-1]


@ops.custom_gradient
def _solve(factor: Tensor, x: Tensor) -> Tensor:
    """Solve `q[j] = factor[j] * q[j - 1] + x[j]` for q; `factor[0]` is zero."""
    q = _solve_by_doubling(factor, x)
    previous = ops.roll(q, 1, axis=-1)

    @with_upstream
    def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
        # The gradient of q[j] is the same recurrence, from the last position back.
        reversed_factor = ops.roll(ops.flip(factor, axis=-1), 1, axis=-1)
        x_gradient = _solve_by_doubling(reversed_factor, ops.flip(upstream, axis=-1))
        x_gradient = ops.flip(x_gradient, axis=-1)
        return x_gradient * previous, x_gradient

    return q, gradient


def _solve_by_doubling(factor: Tensor, q: Tensor) -> Tensor:
    """Solve the recurrence of `_solve` by doubling, without an explicit gradient."""

    # Entries that wrap around are multiplied by factor[0], which is zero.
    def double(delayed: Tensor, factor: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        return factor * delayed(factor), q + factor * delayed(q)

    return doubling_loop(double, factor, q, EXPORTED_ROUNDS)
