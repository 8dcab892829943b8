"""Greedy search and sampling, whose hypotheses are independent of each other."""

from collections.abc import Iterable

import keras
from keras import ops

from keras_attention.ops.sampling import invert
from keras_attention.search.constraints import (
    IMPOSSIBLE,
    Constraint,
    is_possible,
)
from keras_attention.search.nested import batch_of, spread, write
from keras_attention.search.step import (
    checks_keywords,
    constrain,
    weights_of_any_step,
)
from keras_attention.typing import Nested, Seed, Step, Tensors
from keras_attention.validation import check_positive_integer

# The lowest temperature that is positive in float32 on every backend.
MIN_TEMPERATURE = 1e-37
# Below this temperature, exp(IMPOSSIBLE / temperature) is zero in float32.
HIGH_TEMPERATURE = 1e6


@checks_keywords
def greedy_search(
    step: Step,
    state: Nested,
    *,
    start: int,
    end: int,
    max_length: int,
    constraints: Iterable[Constraint] = (),
) -> Tensors:
    """Greedy search: the most probable token at every step.

    The loop ends when every row has produced `end`, or when no token is possible. In
    that case there is no hypothesis: its length is 0 and its score -1e9, as in a beam
    search.

    Args:
        step, state, start, end, max_length, constraints: As for `beam_search`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`, for K = 1.
        Scores are log-probabilities.

    Raises:
        ValueError: If `max_length` is not a positive integer, `start` or `end` is no
            token of the vocabulary, or a constraint cannot be met, such as a banned
            token that is not in the vocabulary.
        TypeError: For an unknown or missing keyword argument.
    """

    def most_probable(log_probs, t):
        return ops.argmax(log_probs, axis=-1)

    return _search_independently(
        step, state, 1, most_probable, start, end, max_length, constraints
    )


@checks_keywords
def sample_search(
    step: Step,
    state: Nested,
    *,
    start: int,
    end: int,
    max_length: int,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: Seed = None,
    constraints: Iterable[Constraint] = (),
) -> Tensors:
    """Sampling: every token is drawn from the distribution of the model.

    Tokens are drawn by inversion: the first token whose cumulative probability exceeds
    `u`, uniform in [0, 1). All `u` are drawn before the loop. The loop ends as in
    `greedy_search`. A token of probability zero is not drawn at any temperature.

    The temperature applies first, then `top_k`, then `top_p`, which keeps the nucleus
    of the remaining distribution: the smallest set of tokens whose probability reaches
    `top_p`. The nucleus always holds the most probable token. The tokens that are left
    are drawn in proportion to their probabilities.

    Args:
        step, state, start, end, max_length, constraints: As for `beam_search`.
        samples: Number of independent samples K for every row.
        temperature: Softmax temperature, positive. Near zero, the most probable token
            is drawn. Values below 1e-37 count as 1e-37.
        top_k: Number of most probable tokens to sample from; `None` for all.
        top_p: Probability of the nucleus, in `(0, 1]`; `None` for all tokens.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`; samples are not
        sorted. Scores are log-probabilities of the model, at temperature 1 and before
        `top_k` and `top_p`.

    Raises:
        ValueError: If `samples`, `max_length` or `top_k` is not a positive integer,
            the temperature is not positive, `top_p` is not above 0 and at most 1,
            `start` or `end` is no token of the vocabulary, or a constraint cannot be
            met.
        TypeError: For an unknown or missing keyword argument.

    Reference:
        [Fan et al., 2018](https://arxiv.org/abs/1805.04833), section 5.4: top-k
        sampling; [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section
        3.1: nucleus (top-p) sampling.
    """
    check_positive_integer("samples", samples)
    check_positive_integer("max_length", max_length)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive. Received: {temperature}")
    if top_k is not None:
        check_positive_integer("top_k", top_k)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1. Received: {top_p}")
    temperature = max(temperature, MIN_TEMPERATURE)
    draws = keras.random.uniform(
        (max_length, batch_of(state), samples, 1), dtype="float32", seed=seed
    )

    def draw(log_probs, t):
        uniform = ops.take(draws, t, axis=0)
        if top_k is None and top_p is None:
            return invert(odds_of(log_probs), uniform)
        size = log_probs.shape[-1]
        log_probs, token_ids = ops.top_k(log_probs, min(top_k or size, size))
        odds = odds_of(log_probs)
        if top_p is not None:
            sums = ops.cumsum(odds, axis=-1)
            better = ops.pad(sums[..., :-1], ((0, 0), (0, 0), (1, 0)))
            odds = ops.where(better < top_p * sums[..., -1:], odds, 0.0)
        place = invert(odds, uniform)[..., None]
        return ops.take_along_axis(token_ids, place, axis=-1)[..., 0]

    def odds_of(log_probs):
        best = ops.max(log_probs, axis=-1, keepdims=True)
        odds = ops.exp((log_probs - best) / temperature)
        if temperature < HIGH_TEMPERATURE:
            return odds
        return ops.where(is_possible(log_probs), odds, 0.0)

    return _search_independently(
        step, state, samples, draw, start, end, max_length, constraints
    )


def _search_independently(
    step, state, size, choose, start, end, max_length, constraints
):
    """Extend `size` hypotheses of every row, independently, until all have ended.

    `choose(log_probs, t)` returns the next tokens `(B, K)`.
    """
    check_positive_integer("max_length", max_length)
    step, state = constrain(
        step, state, constraints, start=start, end=end, max_length=max_length
    )
    state = spread(state, size)
    batch = batch_of(state)
    weights = weights_of_any_step(step, state)

    def proceed(t, alive, found):
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(alive["done"])))

    def body(t, alive, found):
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        token_ids = ops.cast(choose(log_probs, t), "int32")
        gain = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]
        exists = ops.logical_and(ops.logical_not(alive["done"]), is_possible(gain))
        token_ids = ops.where(exists, token_ids, end)
        weights = ops.where(exists[..., None], ops.cast(weights, "float32"), 0.0)
        now = {
            "token_ids": token_ids,
            "log_probs": ops.where(exists, gain, 0.0),
            "weights": weights,
            "exists": ops.cast(exists, "int32"),
        }
        running = ops.logical_not(alive["done"])
        alive = {
            "token_ids": token_ids,
            "state": state,
            "done": token_ids == end,
            "exists": ops.logical_or(alive["done"], exists) & alive["exists"],
            "finite": alive["finite"] & ops.all(state["finite"] | ~running, axis=1),
        }
        return t + 1, alive, write(found, t, now)

    alive = {
        "token_ids": ops.full((batch, size), start, dtype="int32"),
        "state": state,
        "done": ops.zeros((batch, size), dtype="bool"),
        "exists": ops.ones((batch, size), dtype="bool"),
        "finite": ops.ones((batch,), dtype="bool"),
    }
    found = {
        "token_ids": ops.full((max_length, batch, size), end, dtype="int32"),
        "log_probs": ops.zeros((max_length, batch, size), dtype="float32"),
        "weights": ops.zeros((max_length, *ops.shape(weights)), dtype="float32"),
        "exists": ops.zeros((max_length, batch, size), dtype="int32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    _, alive, found = ops.while_loop(
        proceed, body, (t, alive, found), maximum_iterations=max_length
    )
    exists = alive["exists"]
    total = ops.where(exists, ops.sum(found["log_probs"], axis=0), IMPOSSIBLE)

    def existing(x, otherwise):
        mask = ops.reshape(exists, (*ops.shape(exists), *[1] * (len(x.shape) - 3)))
        return ops.where(mask, x, otherwise)

    return {
        "token_ids": ops.moveaxis(existing(found["token_ids"], end), 0, -1),
        "lengths": ops.where(exists, ops.sum(found["exists"], axis=0), 0),
        "scores": total,
        "log_probs": total,
        "token_log_probs": ops.moveaxis(existing(found["log_probs"], 0.0), 0, -1),
        "weights": ops.moveaxis(existing(found["weights"], 0.0), 0, -2),
        "finite": alive["finite"],
    }
