"""Ensembles: the average of several models as a step function."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from keras import ops

from keras_attention.ops.log_probs import IMPOSSIBLE, is_impossible
from keras_attention.search.step import call_step
from keras_attention.typing import Nested, Step, Tensor
from keras_attention.validation import check_choice


def ensemble_step(
    steps: Iterable[Step],
    *,
    weights: Iterable[float] | None = None,
    combine: str = "probabilities",
) -> Step:
    """Step function of an ensemble of models, for any of the searches.

    With model weights w that sum to one, the next token has the distribution

        p(n) = sum over m of w[m] * p[m](n)               ("probabilities")
        p(n) = product over m of p[m](n) ** w[m] / Z  ("log-probabilities")

    The first is the arithmetic mean, in which a token that one model rules out remains
    possible. The second is the geometric mean, normalised by the sum Z, in which such a
    token is impossible.

    Args:
        steps: List of step functions (see `keras_attention.search`) over the same
            vocabulary and the same positions.
        weights: Positive number for each step, divided by their sum; equal weights
            if `None`.
        combine: `"probabilities"` or `"log-probabilities"`.

    Returns:
        A step function. Its state is the list of the states of `steps`; its attention
        weights are their mean, with the weights of the models.

    Raises:
        ValueError: If there are no steps, `weights` are not one positive number for
            each, or `combine` is unknown; in the search, if there is not one state for
            each step, or vocabularies or positions differ.

    Example:

    >>> def counting(by):
    ...     def step(token_ids, state):
    ...         logits = 9 * keras.ops.one_hot((token_ids + by) % 7, 7)
    ...         weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...         return keras.ops.log_softmax(logits), state, weights
    ...     return step
    >>> step = ensemble_step([counting(by=1), counting(by=2)], weights=[1, 2])
    >>> state = [np.zeros((1, 1)), np.zeros((1, 1))]
    >>> result = greedy_search(step, state, start=0, end=6, max_length=5)
    >>> keras.ops.convert_to_numpy(result["token_ids"]).tolist()
    [[[2, 4, 6, 6, 6]]]

    Reference:
        [Sutskever et al., 2014](https://arxiv.org/abs/1409.3215), section 3.6:
        translation by an ensemble.
    """
    steps = list(steps)
    check_choice("combine", combine, ("probabilities", "log-probabilities"))
    if not steps:
        raise ValueError("steps must hold at least one step. Received: []")
    shares = _shares([1.0] * len(steps) if weights is None else weights, len(steps))

    def step(token_ids: Tensor, state: Nested) -> tuple[Tensor, Nested, Tensor]:
        if len(state) != len(steps):
            raise ValueError(
                f"state must be a list of {len(steps)} states, one for each step. "
                f"Received: {len(state)}"
            )
        results = [
            call_step(member, token_ids, member_state)
            for member, member_state in zip(steps, state, strict=True)
        ]
        log_probs, states, attention = map(list, zip(*results, strict=True))
        for name, tensors in (("vocabulary", log_probs), ("positions", attention)):
            sizes = [x.shape[-1] for x in tensors]
            if len({size for size in sizes if size is not None}) > 1:
                raise ValueError(
                    f"steps must agree in the size of their {name}. Received: {sizes}"
                )
        log_probs = [ops.cast(x, "float32") for x in log_probs]
        mean = _arithmetic if combine == "probabilities" else _geometric
        attention = [
            share * ops.cast(x, "float32")
            for share, x in zip(shares, attention, strict=True)
        ]
        # A loop needs the structure that it started with, a tuple or a list.
        joint_state = tuple(states) if isinstance(state, tuple) else states
        return mean(log_probs, shares), joint_state, sum(attention)

    return step


def _shares(weights: Any, count: int) -> list[float]:
    """Return weights divided by their sum; `ValueError` if they are not positive."""
    try:
        weights = list(weights)
        valid = len(weights) == count and all(0 < x < math.inf for x in weights)
    except TypeError:
        # They are no list, or not all of them are numbers.
        valid = False
    if not valid:
        raise ValueError(
            f"weights must be {count} positive numbers, one for each step. "
            f"Received: {weights}"
        )
    return [float(weight) / sum(weights) for weight in weights]


def _arithmetic(log_probs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    # It is finite if all are minus infinity, whose difference would be NaN. NaN itself
    # is kept, and the search reports it.
    largest = functools.reduce(ops.maximum, log_probs, IMPOSSIBLE)
    pairs = zip(shares, log_probs, strict=True)
    return largest + ops.log(sum(share * ops.exp(x - largest) for share, x in pairs))


def _geometric(log_probs: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    log_probs = [ops.where(is_impossible(x), -math.inf, x) for x in log_probs]
    joint = sum(share * x for share, x in zip(shares, log_probs, strict=True))
    numbers = ops.where(joint < math.inf, joint, -math.inf)
    normalizer = ops.logsumexp(numbers, axis=-1, keepdims=True)
    # Where no token is possible, the normalizer is -inf.
    return ops.where(is_impossible(joint), IMPOSSIBLE, joint - normalizer)
