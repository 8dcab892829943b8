"""Greedy search and sampling, whose hypotheses are independent of each other."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops

from keras_attention.ops.log_probs import is_possible
from keras_attention.ops.sampling import sample_by_inversion
from keras_attention.search.constraints import Constraint
from keras_attention.search.independent_hypotheses import search_independently
from keras_attention.search.limits import checked_limit
from keras_attention.search.nested_tensors import batch_of, repeat_for_hypotheses
from keras_attention.search.step import checks_keywords, constrain, weights_shape
from keras_attention.search.top_k import argmax
from keras_attention.typing import Nested, Seed, Step, Tensor, Tensors
from keras_attention.validation import (
    MAX_FLOAT32,
    check_fraction,
    check_number,
    check_positions,
    check_positive_integer,
    check_seed,
)

# The lowest temperature that is positive in float32 on every backend.
MIN_TEMPERATURE = 1e-37
# From this temperature on, impossible tokens are masked, because
# exp(IMPOSSIBLE / temperature) may exceed zero in float32.
UNSAFE_TEMPERATURE = 1e6


@checks_keywords
def greedy_search(
    step: Step,
    state: Nested,
    *,
    start: int,
    end: int,
    max_length: int,
    limit: int | Tensor | None = None,
    constraints: Iterable[Constraint] = (),
    positions: int | Tensor | None = None,
) -> Tensors:
    """Greedy search: the most probable token at every step.

    A row ends when it has produced `end`, or when no token is possible. In the latter
    case it has no hypothesis: the length is 0 and the score -1e9, as in a beam search.
    The loop ends when all rows have ended.

    Args:
        step, state, start, end, max_length, limit, constraints, positions: As for
            `beam_search`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`, for K = 1.
        Scores are log-probabilities.

    Raises:
        ValueError: If `max_length` is not a positive integer, `limit` has a wrong shape
            or value, or `start` or `end` is no token of the vocabulary. If the step
            attends to another number of positions than `positions`, or a constraint
            cannot be met, such as a banned token that is not in the vocabulary.
        TypeError: For an unknown or missing keyword argument.
    """

    def most_probable(log_probs: Tensor, t: Any) -> Tensor:
        return argmax(log_probs)

    return _search(
        step,
        state,
        1,
        most_probable,
        start=start,
        end=end,
        max_length=max_length,
        limit=limit,
        constraints=constraints,
        positions=positions,
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
    min_p: float | None = None,
    seed: Seed = None,
    limit: int | Tensor | None = None,
    constraints: Iterable[Constraint] = (),
    positions: int | Tensor | None = None,
) -> Tensors:
    """Sampling: every token is drawn from the distribution of the model.

    Tokens are drawn by inversion: the first token whose cumulative probability exceeds
    `u`, uniform in [0, 1). All `u` are drawn before the loop. The loop ends as in
    `greedy_search`. A token of probability zero is not drawn at any temperature.

    The temperature applies first, then `top_k`, then `top_p`, which keeps the nucleus
    of the remaining distribution: the smallest set of tokens whose probability reaches
    `top_p`. The nucleus always holds the most probable token. Last, `min_p` removes
    tokens that are less than `min_p` times as probable as the most probable one. The
    tokens that are left are drawn in proportion to their probabilities.

    Args:
        step, state, start, end, max_length, limit, constraints, positions: As for
            `beam_search`.
        samples: Number of independent samples K for every row.
        temperature: Softmax temperature, positive. Near zero, the most probable token
            is drawn. Values below 1e-37 count as 1e-37.
        top_k: Number of most probable tokens to sample from; `None` for all.
        top_p: Probability of the nucleus, in `(0, 1]`; `None` for all tokens.
        min_p: Minimum probability of a token relative to the most probable one, in
            `[0, 1]`; `None` for all tokens.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`; samples are not
        sorted. Scores are log-probabilities of the model, at temperature 1 and before
        `top_k`, `top_p` and `min_p`.

    Raises:
        ValueError: If `samples`, `max_length` or `top_k` is not a positive integer, the
            temperature is not positive, `top_p` is not above 0 and at most 1, or
            `min_p` is not between 0 and 1. If `limit` has a wrong shape or value, or
            `start` or `end` is no token of the vocabulary. If the step attends to
            another number of positions than `positions`, or a constraint cannot be met.
        TypeError: For an unknown or missing keyword argument.

    Reference:
        [Fan et al., 2018](https://arxiv.org/abs/1805.04833), section 5.4: top-k
        sampling; [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), section
        3.1: nucleus (top-p) sampling; [Nguyen et al.,
        2024](https://arxiv.org/abs/2407.01082), section 3.2: min-p sampling.
    """
    samples = check_positive_integer("samples", samples)
    max_length = check_positive_integer("max_length", max_length)
    largest = sys.float_info.max
    check_number("temperature", temperature, "positive", lambda x: x > 0, largest)
    if top_k is not None:
        top_k = check_positive_integer("top_k", top_k)
    if top_p is not None:
        check_number("top_p", top_p, "above 0 and at most 1", lambda x: 0 < x <= 1)
    if min_p is not None:
        check_fraction("min_p", min_p)
    seed = check_seed(seed)
    temperature = min(max(float(temperature), MIN_TEMPERATURE), MAX_FLOAT32)
    draws = keras.random.uniform(
        (max_length, batch_of(state), samples, 1), dtype="float32", seed=seed
    )

    def draw(log_probs: Tensor, t: Any) -> Tensor:
        uniform = ops.take(draws, t, axis=0)
        if top_k is None and top_p is None:
            ratios = without_improbable(ratios_to_best(log_probs))
            return sample_by_inversion(ratios, uniform)
        size = log_probs.shape[-1]
        log_probs, token_ids = ops.top_k(log_probs, min(top_k or size, size))
        ratios = ratios_to_best(log_probs)
        if top_p is not None:
            sums = ops.cumsum(ratios, axis=-1)
            sums_before = ops.pad(sums[..., :-1], ((0, 0), (0, 0), (1, 0)))
            ratios = ops.where(sums_before < top_p * sums[..., -1:], ratios, 0.0)
        index = sample_by_inversion(without_improbable(ratios), uniform)[..., None]
        return ops.take_along_axis(token_ids, index, axis=-1)[..., 0]

    def ratios_to_best(log_probs: Tensor) -> Tensor:
        # Probabilities divided by that of the most probable token.
        best = ops.max(log_probs, axis=-1, keepdims=True)
        ratios = ops.exp((log_probs - best) / temperature)
        if temperature >= UNSAFE_TEMPERATURE:
            ratios = ops.where(is_possible(log_probs), ratios, 0.0)
        return ratios

    def without_improbable(ratios: Tensor) -> Tensor:
        # The ratio of the most probable token is 1.
        return ops.where(ratios >= min_p, ratios, 0.0) if min_p else ratios

    return _search(
        step,
        state,
        samples,
        draw,
        start=start,
        end=end,
        max_length=max_length,
        limit=limit,
        constraints=constraints,
        positions=positions,
    )


def _search(
    step: Step,
    state: Nested,
    size: int | None,
    choose: Callable[..., Any],
    *,
    max_length: int,
    limit: Any,
    constraints: Iterable[Constraint],
    positions: int | None,
    **tokens: Any,
) -> Tensors:
    """Search with `choose(log_probs, t)`, which returns the next tokens `(B, K)`."""
    max_length = check_positive_integer("max_length", max_length)
    positions = check_positions(positions)
    limit = checked_limit(limit, max_length, batch_of(state))
    options = {"max_length": max_length, "limit": limit, **tokens}
    step, state = constrain(step, state, constraints, positions=positions, **options)
    state = repeat_for_hypotheses(state, size)
    shape = weights_shape(step, state, positions)

    def extend(token_ids: Tensor, state: Nested, t: Any) -> tuple[Nested, Nested]:
        log_probs, state, weights = step(token_ids, state)
        token_ids = ops.cast(choose(log_probs, t), "int32")
        chosen = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)
        extension = {
            "token_ids": token_ids,
            "log_probs": chosen[..., 0],
            "weights": weights,
            "finite": state["finite"],
        }
        return extension, state

    return search_independently(extend, state, shape, **options)
