"""Checks of step functions, and constraints as wrappers of a step function."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from keras import ops, tree

from keras_attention.ops.log_probs import finite_log_probs
from keras_attention.search.constraints import (
    Constraint,
    Prefix,
    SearchSettings,
    SearchStep,
    as_integer,
)
from keras_attention.search.nested_tensors import batch_of
from keras_attention.typing import Nested, Step, Tensor, Tensors
from keras_attention.validation import check_tensor, may_be_equal

Search = TypeVar("Search", bound=Callable[..., Any])


def constrain(
    step: Step,
    state: Nested,
    constraints: Iterable[Constraint],
    *,
    start: int,
    end: int,
    max_length: int,
    limit: Tensor | None = None,
    positions: int | None = None,
) -> tuple[Step, Nested]:
    """Wrap a step function and its state so that tokens obey the constraints.

    The first call of the wrapped step raises `ValueError` if `start` or `end` is no
    token of the vocabulary.

    Args:
        step, state, constraints, start, end, max_length, positions: As for
            `beam_search`.
        limit: As `checked_limit` returns it; `max_length` if `None`.

    Returns:
        step: Step function whose log-probabilities are float32, at least `IMPOSSIBLE`,
            and `FORBIDDEN` for tokens that break a constraint. NaN and plus infinity
            become `IMPOSSIBLE`.
        state: The state of the model, the length, the state of each constraint, and
            `"finite"`, `(B,)`: whether the last step had neither NaN nor plus infinity.
    """
    start, end = as_integer("start", start), as_integer("end", end)
    limit = max_length if limit is None else limit
    constraints = order_constraints(constraints)
    batch_size = batch_of(state)
    for x in tree.flatten(state):
        check_tensor("state", x)
    state = {
        "model": state,
        "length": ops.zeros((batch_size,), dtype="int32"),
        "finite": ops.ones((batch_size,), dtype="bool"),
        "constraints": [
            constraint.begin(SearchSettings(batch_size, end, max_length, limit))
            for constraint in constraints
        ],
    }

    def constrained(token_ids: Tensor, state: Nested) -> tuple[Tensor, Nested, Tensor]:
        log_probs, model_state, weights = call_step(step, token_ids, state["model"])
        if positions is not None and not may_be_equal(weights.shape[-1:], (positions,)):
            raise ValueError(
                f"step must return weights of {positions} positions, as the argument "
                f"positions says. Received: {weights.shape[-1]}"
            )
        log_probs, finite = finite_log_probs(ops.cast(log_probs, "float32"))
        size, length = log_probs.shape[-1], state["length"]
        _check_token("start", start, size)
        _check_token("end", end, size)
        vocabulary = ops.arange(size, dtype="int32")
        limits = limit if isinstance(limit, int) else ops.reshape(limit, (-1, 1))
        remaining = limits - length
        now = SearchStep(
            token_ids, length, remaining, log_probs, weights, vocabulary, end
        )
        states = []
        for constraint, constraint_state in zip(
            constraints, state["constraints"], strict=True
        ):
            log_probs, constraint_state = constraint.mask(
                log_probs, constraint_state, now
            )
            states.append(constraint_state)
        state = {
            "model": model_state,
            "length": length + 1,
            "finite": finite,
            "constraints": states,
        }
        return log_probs, state, weights

    return constrained, state


def weights_shape(step: Step, state: Nested, positions: int | None = None) -> Any:
    """Return the shape `(B, K, S)` of the weights of a step, as `ops.shape` does.

    If S is unknown, this calls the step with token 0, which every embedding table has.
    This call also checks `start` before the model sees it.

    Args:
        step: As `constrain` returns it.
        state: As `constrain` returns it, for K hypotheses.
        positions: S, if it is known.
    """
    length = state["length"]
    if positions is None:
        _, _, weights = step(ops.zeros_like(length), state)
        return ops.shape(weights)
    return (*ops.shape(length), positions)


def _check_token(name: str, token: Any, size: Any) -> None:
    """Raise `ValueError` for a token outside of a vocabulary of this size."""
    if not 0 <= token < size:
        raise ValueError(
            f"{name} must be a token between 0 and {size - 1}. Received: {token}"
        )


def order_constraints(
    constraints: Iterable[Constraint],
) -> list[Constraint]:
    """Return a list of constraints in the order in which they apply.

    Raises:
        ValueError: If they are not a list of `Constraint` objects.
    """
    try:
        listed = list(constraints)
        valid = all(isinstance(constraint, Constraint) for constraint in listed)
    except TypeError:
        valid = False
    if not valid:
        raise ValueError(
            "constraints must be a list of Constraint objects, such as [Ban([0])]. "
            f"Received: {constraints!r}"
        )
    # Overriding constraints come last, and a prefix after them; the sort is stable, so
    # the order of the list is kept otherwise.
    return sorted(listed, key=lambda x: (x.overrides, isinstance(x, Prefix)))


def call_step(
    step: Step, token_ids: Tensor, state: Nested
) -> tuple[Tensor, Nested, Tensor]:
    """Call a step function, and raise `ValueError` if a result has a wrong shape."""
    outputs = step(token_ids, state)
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    if count != 3:
        raise ValueError(
            "step must return three values, log_probs, state and weights. "
            f"Received: {count}"
        )
    log_probs, _, weights = outputs
    for name, x, last in (
        ("log_probs", log_probs, "vocabulary"),
        ("weights", weights, "positions"),
    ):
        shape = tuple(x.shape) if hasattr(x, "shape") else None
        leading = tuple(token_ids.shape)
        if shape is None or not may_be_equal(shape[:-1], leading):
            raise ValueError(
                f"step must return {name} of the shape (batch, hypotheses, {last}), "
                f"for token_ids {leading}. Received: {shape}"
            )
    return outputs


def check_keywords(
    name: str, keywords: Iterable[str], function: Callable[..., Any]
) -> None:
    """Raise `TypeError` for unknown or missing keywords of a search.

    Args:
        name: Name of the search, for the message.
        keywords: Keywords of the caller.
        function: Function whose keyword-only parameters are those of the search.
    """
    parameters = inspect.signature(function).parameters.values()
    known = {x.name: x.default for x in parameters if x.kind is x.KEYWORD_ONLY}
    unknown = [keyword for keyword in keywords if keyword not in known]
    if unknown:
        raise TypeError(
            f"{name} has no argument {', '.join(unknown)}. "
            f"Its keyword arguments are: {', '.join(known)}"
        )
    required = [keyword for keyword, x in known.items() if x is inspect.Parameter.empty]
    missing = [keyword for keyword in required if keyword not in keywords]
    if missing:
        raise TypeError(f"{name} needs the argument {', '.join(missing)}")


def checks_keywords(search: Search) -> Search:
    """Decorate a search with `check_keywords`."""

    @functools.wraps(search)
    def checked(step: Step, state: Nested, **options: Any) -> Tensors:
        check_keywords(search.__name__, options, search)
        return search(step, state, **options)

    return cast(Search, checked)
