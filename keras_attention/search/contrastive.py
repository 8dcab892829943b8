"""Contrastive search."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from keras import ops, tree

from keras_attention.ops.gathering import take_rows
from keras_attention.ops.log_probs import is_possible
from keras_attention.search.constraints import Constraint
from keras_attention.search.independent_hypotheses import search_independently
from keras_attention.search.limits import checked_limit
from keras_attention.search.nested_tensors import batch_of, repeat_for_hypotheses, write
from keras_attention.search.step import checks_keywords, constrain, weights_shape
from keras_attention.search.top_k import argmax
from keras_attention.typing import Nested, Step, Tensor, Tensors
from keras_attention.validation import (
    check_fraction,
    check_positive_integer,
    check_rank,
)


@checks_keywords
def contrastive_search(
    step: Step,
    state: Nested,
    *,
    hidden: Callable[[Nested], Tensor],
    start: int,
    end: int,
    max_length: int,
    top_k: int = 4,
    degeneration_penalty: float = 0.6,
    limit: int | Tensor | None = None,
    constraints: Iterable[Constraint] = (),
) -> Tensors:
    """Contrastive search: probable tokens that do not repeat the context.

    Of the `top_k` most probable tokens, each step takes the one with the largest

        (1 - alpha) * p(token) - alpha * max over j of cos(h(token), h[j])

    where alpha is the degeneration penalty, `h(token)` is the hidden state of the model
    after this token, and `h[j]` are those after the start token and after each token of
    the hypothesis. To know `h(token)`, a step of the model runs for all candidates
    together, on `top_k` hypotheses. With an alpha of 0, this is greedy search. The loop
    ends as in `greedy_search`.

    Args:
        step, state, start, end, max_length, limit, constraints: As for `beam_search`.
        hidden: Function from the state that `step` returns to the hidden states
            `(B, K, D)` of the last tokens. For a recurrent decoder, the state of its
            cell. A step function may put any other tensor into its state.
        top_k: Number of candidates.
        degeneration_penalty: Weight alpha of the similarity, in `[0, 1]`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`, for K = 1.
        Scores are log-probabilities.

    Raises:
        ValueError: If `top_k` or `max_length` is not a positive integer,
            `degeneration_penalty` is not between 0 and 1, `hidden` does not return
            `(B, K, D)`, or as in `greedy_search`.
        TypeError: For an unknown or missing keyword argument.

    Example:

    A model that would repeat its last token forever:

    >>> def repeating(token_ids, state):
    ...     logits = 2 * keras.ops.one_hot(token_ids, 5) - 0.1 * np.arange(5.0)
    ...     weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...     state = keras.ops.one_hot(token_ids, 5)
    ...     return keras.ops.log_softmax(logits), state, weights
    >>> result = contrastive_search(
    ...     repeating, np.zeros((1, 5), "float32"), hidden=lambda state: state,
    ...     start=0, end=4, max_length=3,
    ... )
    >>> keras.ops.convert_to_numpy(result["token_ids"]).tolist()
    [[[1, 2, 3]]]

    Reference:
        [Su et al., 2022](https://arxiv.org/abs/2202.06417), section 4.2, equation 5.
    """
    top_k = check_positive_integer("top_k", top_k)
    max_length = check_positive_integer("max_length", max_length)
    alpha = degeneration_penalty
    check_fraction("degeneration_penalty", alpha)
    limit = checked_limit(limit, max_length, batch_of(state))
    options = {"start": start, "end": end, "max_length": max_length}
    step, state = constrain(step, state, constraints, limit=limit, **options)
    lookahead = _Lookahead(step, hidden, max_length)
    first = lookahead.begin(repeat_for_hypotheses(state, 1), int(start))
    size = min(top_k, first["log_probs"].shape[-1])

    def extend(token_ids: Tensor, ahead: Nested, t: Any) -> tuple[Nested, Nested]:
        log_probs, candidates = ops.top_k(ahead["log_probs"][:, 0], size)
        candidates = ops.cast(candidates, "int32")
        after = lookahead.after(candidates, ahead["state"])
        similarity = _largest_cosine(after["hidden"], ahead["past"], t)
        scores = (1 - alpha) * ops.exp(log_probs) - alpha * similarity
        # The worst score of a possible token is -1.
        scores = ops.where(is_possible(log_probs), scores, -2.0)
        best = argmax(scores)[:, None]
        token_ids, token_log_probs, after = take_rows(
            (candidates, log_probs, after), best
        )
        extension = {
            "token_ids": token_ids,
            "log_probs": token_log_probs,
            "weights": ahead["weights"],
            "finite": ahead["state"]["finite"],
        }
        past = write(ahead["past"], t + 1, after.pop("hidden")[:, 0])
        return extension, {**after, "past": past}

    shape = ops.shape(first["weights"])
    return search_independently(extend, first, shape, limit=limit, **options)


class _Lookahead:
    """Runs the step for candidate tokens, and normalises their hidden states.

    Args:
        step: As `constrain` returns it.
        hidden, max_length: As for `contrastive_search`.
    """

    def __init__(
        self, step: Step, hidden: Callable[[Nested], Tensor], max_length: int
    ) -> None:
        self.step, self.hidden, self.max_length = step, hidden, max_length

    def begin(self, state: Nested, start: int) -> Tensors:
        """Return the results after the start token, and the hidden states so far."""
        # This step checks the start token before the model receives it.
        weights_shape(self.step, state)
        token_ids = ops.full(ops.shape(state["length"]), start, dtype="int32")
        after = self.after(token_ids, state)
        hidden = after.pop("hidden")[:, 0]
        zeros = ops.zeros((self.max_length + 1, *ops.shape(hidden)), dtype="float32")
        return {**after, "past": write(zeros, 0, hidden)}

    def after(self, token_ids: Tensor, state: Nested) -> Tensors:
        """Return the results after candidates `(B, K)` of one hypothesis."""
        size = token_ids.shape[1]
        state = tree.map_structure(lambda x: ops.repeat(x, size, axis=1), state)
        log_probs, state, weights = self.step(token_ids, state)
        hidden = self.hidden(state["model"])
        check_rank("hidden", hidden.shape, (3,), "(batch, hypotheses, depth)")
        return {
            "log_probs": log_probs,
            "state": state,
            "weights": ops.cast(weights, "float32"),
            "hidden": _normalized(ops.cast(hidden, "float32")),
        }


def _normalized(x: Tensor) -> Tensor:
    """Return vectors divided by their norms; zeros stay zeros."""
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, 1e-24))


def _largest_cosine(hidden: Tensor, past: Tensor, t: Any) -> Tensor:
    """Return the largest cosine similarity with the past, `(B, K)`; 1 for NaN.

    Args:
        hidden: Normalised vectors `(B, K, D)`.
        past: Normalised vectors `(L + 1, B, D)`, valid up to `t`.
    """
    cosine = ops.einsum("bkd,lbd->bkl", hidden, past)
    valid = ops.arange(past.shape[0], dtype="int32") <= t
    cosine = ops.where(valid, cosine, -math.inf)
    # `NaN < 1` is false.
    return ops.max(ops.where(cosine < 1, cosine, 1.0), axis=-1, initial=-1.0)
