"""Constraints on the hypotheses of a search."""

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention import backends
from keras_attention.backends import take, vocabulary_mask
from keras_attention.ops.log_probs import IMPOSSIBLE
from keras_attention.ops.precision import at_most
from keras_attention.search.nested_tensors import check_rows
from keras_attention.typing import Nested, Tensor, Tensors
from keras_attention.validation import check_positive_integer, check_tensor, values_of

# Less than IMPOSSIBLE, so that a search prefers impossible tokens to forbidden ones.
FORBIDDEN = 2 * IMPOSSIBLE


@dataclasses.dataclass
class SearchSettings:
    """Settings of one search, as a constraint sees them.

    Attributes:
        batch_size: Number of rows B; a tensor in a graph that takes any batch.
        end: The end token.
        max_length: Maximum number of tokens, `end` included.
        limit: Maximum number of tokens of this call, at most `max_length`: a number, or
            one for every row, `(B,)`.
    """

    batch_size: int | Tensor
    end: int
    max_length: int
    limit: int | Tensor

    @property
    def known_limit(self) -> Any:
        """The values of the limit; `max_length` in a graph, where they are unknown."""
        values = values_of(self.limit)
        return self.max_length if values is None else values


@dataclasses.dataclass
class SearchStep:
    """One step of a search, as a constraint sees it.

    Attributes:
        token_ids: Last token of every hypothesis, `(B, K)`; the start token at first.
        length: Number of tokens of every hypothesis, `(B, K)`.
        remaining: Maximum number of tokens that may follow, `(B, K)`; not positive for
            a row that is done.
        log_probs: Log-probabilities of the model before any constraint, `(B, K, N)`.
        weights: Attention weights of the step, `(B, K, S)`.
        vocabulary: All tokens, `(N,)`.
        end: The end token.
    """

    token_ids: Tensor
    length: Tensor
    remaining: Tensor
    log_probs: Tensor
    weights: Tensor
    vocabulary: Tensor
    end: int


class Constraint:
    """Base class of constraints, which rule out next tokens of a hypothesis.

    A search calls `begin` once, then `mask` at every step. A constraint may keep a
    state of its own for each hypothesis; the search carries it along. Constraints apply
    in the order of their list; those with `overrides = True` apply after all others,
    and a `Prefix` comes last.

    A subclass defines `mask`, and `begin` if it has a state or arguments to check.

    Example:

    Limit how often a token may occur, with a state that counts:

    >>> class AtMost(Constraint):
    ...     def __init__(self, token, times):
    ...         self.token, self.times = token, times
    ...
    ...     def begin(self, search):
    ...         return keras.ops.zeros((search.batch_size,), dtype="int32")
    ...
    ...     def mask(self, log_probs, state, step):
    ...         state = state + keras.ops.cast(step.token_ids == self.token, "int32")
    ...         used_up = (state >= self.times)[..., None]
    ...         is_token = step.vocabulary == self.token
    ...         return self.forbid(log_probs, used_up & is_token), state
    >>> def constant(token_ids, state):
    ...     log_probs = keras.ops.log(np.array([0.1, 0.2, 0.4, 0.3], "float32"))
    ...     log_probs = keras.ops.broadcast_to(log_probs, (*token_ids.shape, 4))
    ...     return log_probs, state, log_probs
    >>> result = greedy_search(
    ...     constant, np.zeros((1, 1)), start=0, end=1, max_length=5,
    ...     constraints=[AtMost(2, times=2), AtMost(3, times=1)],
    ... )
    >>> keras.ops.convert_to_numpy(result["token_ids"]).tolist()
    [[[2, 2, 3, 1, 1]]]
    """

    #: Whether the constraint applies after those that do not override.
    overrides = False

    def begin(self, search: SearchSettings) -> Nested:
        """Return the initial state, nested tensors `(B, ...)`; `{}` for none.

        Args:
            search: `SearchSettings` with the attributes `batch_size`, `end`,
                `max_length` and `limit`.

        Raises:
            ValueError: If the search cannot meet the constraint.
        """
        return {}

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        """Return log-probabilities with tokens forbidden, and the next state.

        Args:
            log_probs: Log-probabilities of the next token, `(B, K, N)`, masked by the
                constraints that were applied before.
            state: State of this constraint, nested tensors `(B, K, ...)`.
            step: `SearchStep` with the attributes `token_ids`, `length`, `remaining`,
                `log_probs`, `weights`, `vocabulary` and `end`.

        Returns:
            log_probs: `(B, K, N)`, see `forbid`.
            state: Of the same structure, shapes and dtypes as before.
        """
        raise NotImplementedError

    def progress(self, state: Nested) -> Tensors | None:
        """Return how much of the constraint each hypothesis has met; `None` by default.

        Beam search divides its beam among hypotheses of different progress; see
        `RequiredPhrases`. At most one constraint of a search may have a progress.

        Args:
            state: State of this constraint after `mask`.

        Returns:
            Dict of integers: `"token_ids"` `(B, K, C)`, different next tokens that make
            progress, -1 for none; `"after"` `(B, K, C)`, the progress after each of
            them; `"after_others"` `(B, K)`, that after any other token.
        """
        return None

    @staticmethod
    def forbid(log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Return `log_probs` with `FORBIDDEN` where the mask `tokens` is `True`."""
        return ops.where(tokens, FORBIDDEN, log_probs)


class Ban(Constraint):
    """Tokens that are never produced.

    Args:
        token_ids: List or tensor of tokens.

    Raises:
        ValueError: If a token is not an integer, or, in the search, not in the
            vocabulary.
    """

    def __init__(self, token_ids: Iterable[int]) -> None:
        self.token_ids = as_integers("token_ids of Ban", token_ids)

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        unknown = [token for token in self.token_ids if not 0 <= token < size]
        if unknown:
            raise ValueError(
                f"token_ids of Ban must lie between 0 and {size - 1}. "
                f"Received: {unknown}"
            )
        banned = np.isin(np.arange(size), self.token_ids)
        upper_bound = np.where(banned, FORBIDDEN, np.inf).astype("float32")
        return ops.minimum(log_probs, upper_bound), state


class MinLength(Constraint):
    """Minimum number of tokens, `end` included.

    For a minimum relative to the source length, pass one number for every row:
    `MinLength(source_lengths * 4 // 5)`.

    Args:
        min_length: Integer, not negative and at most `max_length` and `limit` of the
            search, or one for every row, `(B,)`. In a graph, larger values leave all
            hypotheses unfinished.

    Raises:
        ValueError: If `min_length` is no integer, or, in the search, out of range or
            not one for every row.
    """

    def __init__(self, min_length: int | Tensor) -> None:
        if hasattr(min_length, "shape") and len(min_length.shape):
            check_tensor("min_length", min_length)
            dtype = ops.dtype(min_length)
            if "int" not in dtype or len(min_length.shape) != 1:
                raise ValueError(
                    "min_length must be an integer, or one for every row, (batch,). "
                    f"Received: {dtype} of shape {tuple(min_length.shape)}"
                )
        else:
            as_integer("min_length", min_length)
        self.min_length = min_length

    def begin(self, search: SearchSettings) -> Nested:
        if hasattr(self.min_length, "shape") and len(self.min_length.shape):
            check_rows("min_length", self.min_length, search.batch_size)
        values, longest = values_of(self.min_length), search.known_limit
        if values is not None and not np.all((values >= 0) & (values <= longest)):
            raise ValueError(
                f"min_length must be between 0 and max_length or limit, {longest}. "
                f"Received: {self.min_length}"
            )
        return {}

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        min_length = ops.convert_to_tensor(self.min_length, dtype="int32")
        min_length = ops.reshape(min_length, (-1, 1))
        too_short = (step.length + 1 < min_length)[..., None]
        # A mask of the vocabulary would take longer than the copy of two parts.
        before, end, after = (
            log_probs[..., : step.end],
            log_probs[..., step.end : step.end + 1],
            log_probs[..., step.end + 1 :],
        )
        parts = before, self.forbid(end, too_short), after
        return ops.concatenate(parts, axis=-1), state


class NoRepeatNgrams(Constraint):
    """N-gram blocking: no n-gram occurs twice in a hypothesis.

    Args:
        n: Positive integer, number of tokens of an n-gram.
        allowed: List or tensor of tokens that may complete an n-gram once more. With
            n = 1, these are the tokens that may occur several times.

    Raises:
        ValueError: If `n` is not a positive integer, or a token is not an integer.

    Reference:
        [Paulus et al., 2018](https://arxiv.org/abs/1705.04304), section 2.5.
    """

    def __init__(self, n: int, allowed: Iterable[int] = ()) -> None:
        self.n = check_positive_integer("n of NoRepeatNgrams", n)
        self.allowed = as_integers("allowed of NoRepeatNgrams", allowed)

    def begin(self, search: SearchSettings) -> Nested:
        # The newest token comes last; -1 stands for tokens that do not exist yet.
        return ops.full((search.batch_size, search.max_length), -1, dtype="int32")

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        if self.n >= state.shape[-1]:
            # Two such n-grams do not fit into a hypothesis.
            return log_probs, state
        # The start is not part of the hypothesis.
        newest = ops.where(step.length == 0, -1, step.token_ids)[..., None]
        tokens = ops.concatenate([state[..., 1:], newest], axis=-1)
        size = log_probs.shape[-1]
        followers, follows = _followers(tokens, self.n)
        if len(self.allowed):
            others = ops.convert_to_tensor(~np.isin(np.arange(size), self.allowed))
            follows = follows & take(others, ops.maximum(followers, 0))
        return self.forbid(log_probs, vocabulary_mask(followers, follows, size)), tokens


class NoLoops(Constraint):
    """Loop blocking: no n-gram follows itself more than a number of times.

    A loop of one token is 7 7 7 7 7, and one of two tokens 7 8 7 8 7 8 7 8 7 8. Other
    repetitions are allowed, unlike with `NoRepeatNgrams`.

    Args:
        n: Positive integer, maximum number of tokens of an n-gram.
        times: Positive integer, how often an n-gram may occur in a row.

    Raises:
        ValueError: If `n` or `times` is not a positive integer.
    """

    def __init__(self, n: int = 4, times: int = 4) -> None:
        self.n = check_positive_integer("n of NoLoops", n)
        self.times = check_positive_integer("times of NoLoops", times)

    def begin(self, search: SearchSettings) -> Nested:
        # The newest token comes last; -1 stands for tokens that do not exist yet.
        shape = search.batch_size, self.n * (self.times + 1) - 1
        return ops.full(shape, -1, dtype="int32")

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        # The start is not part of the hypothesis.
        newest = ops.where(step.length == 0, -1, step.token_ids)[..., None]
        tokens = ops.concatenate([state[..., 1:], newest], axis=-1)
        length = tokens.shape[-1]
        repeated = []
        for n in range(1, self.n + 1):
            # The next token would complete n * times equal pairs at this distance.
            begin = length - (n * (self.times + 1) - 1)
            later, earlier = tokens[..., begin + n :], tokens[..., begin:-n]
            equal = ops.logical_and(later == earlier, later >= 0)
            repeated.append(ops.all(equal, axis=-1, keepdims=True))
        # In the order of their distance, the nearest first.
        candidates = ops.flip(tokens[..., length - self.n :], axis=-1)
        # An n-gram of one token that may occur once is compared with no other token.
        exists = candidates >= 0
        where = ops.logical_and(ops.concatenate(repeated, axis=-1), exists)
        return forbid_tokens(log_probs, candidates, where), tokens


class ExactlyOnce(Constraint):
    """Tokens that a hypothesis contains exactly once, or not at all.

    No hypothesis ends before it has all required tokens, unless `max_length` or `limit`
    leave no room for them.

    Args:
        token_ids: List of M different tokens.
        required: Booleans `(B, M)`: which of them the hypotheses of each row contain;
            the others do not occur in them.

    Raises:
        ValueError: If a token is not an integer, or occurs twice, or, in the search, is
            not in the vocabulary or is `end`; or if `required` has another shape.
    """

    def __init__(self, token_ids: Iterable[int], required: Tensor) -> None:
        self.token_ids = as_integers("token_ids of ExactlyOnce", token_ids)
        if len(set(self.token_ids)) < len(self.token_ids):
            raise ValueError(
                "token_ids of ExactlyOnce must be different. "
                f"Received: {list(self.token_ids)}"
            )
        self.required = ops.convert_to_tensor(required, dtype="bool")
        shape = tuple(self.required.shape)
        if len(shape) != 2 or shape[1] not in (None, len(self.token_ids)):
            raise ValueError(
                "required of ExactlyOnce must have the shape (batch, tokens), for "
                f"{len(self.token_ids)} tokens. Received: {shape}"
            )

    def begin(self, search: SearchSettings) -> Nested:
        check_rows("required of ExactlyOnce", self.required, search.batch_size)
        if search.end in self.token_ids:
            raise ValueError(
                f"token_ids of ExactlyOnce must not contain end, {search.end}"
            )
        return self.required

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        unknown = [token for token in self.token_ids if not 0 <= token < size]
        if unknown:
            raise ValueError(
                f"token_ids of ExactlyOnce must lie between 0 and {size - 1}. "
                f"Received: {unknown}"
            )
        tokens = ops.convert_to_tensor(self.token_ids, dtype="int32")
        waiting = ops.logical_and(state, step.token_ids[..., None] != tokens)
        count = ops.sum(ops.cast(waiting, "int32"), axis=-1, keepdims=True)
        # The rest of the hypothesis has room for the waiting tokens and `end` alone.
        is_full = (count > 0) & (step.remaining[..., None] <= count + 1)
        # The end and the tokens that do not wait, and all others of a full hypothesis.
        ends = ops.broadcast_to(step.end, ops.shape(count))
        ours = ops.broadcast_to(tokens, ops.shape(waiting))
        forbidden = ops.concatenate([count > 0, ops.logical_not(waiting)], axis=-1)
        candidates = ops.concatenate([ends, ours], axis=-1)
        if backends.traces_for_litert():
            # LiteRT adds faster than it selects. The sums are exact, because a waiting
            # token of a full hypothesis gets minus and plus the same.
            penalties = ops.where(forbidden, FORBIDDEN, 0.0)
            of_full = ops.where(is_full, FORBIDDEN, 0.0)
            exemptions = ops.where(ops.logical_and(is_full, waiting), -FORBIDDEN, 0.0)
            exemptions = ops.concatenate([ops.zeros_like(of_full), exemptions], axis=-1)
            offsets = (
                backends.scatter_tokens(candidates, penalties + exemptions, size)
                + of_full
            )
            return log_probs + offsets, waiting
        others = np.ones(size, bool)
        others[list(self.token_ids)] = False
        log_probs = self.forbid(log_probs, ops.logical_and(is_full, others))
        return forbid_tokens(log_probs, candidates, forbidden), waiting


class Prefix(Constraint):
    """Fixed first tokens of all hypotheses of a row.

    A prefix overrides all other constraints, wherever it is in their list.

    Args:
        token_ids: Integers `(B, P)`; a negative one leaves its position free.

    Raises:
        ValueError: If `token_ids` are not integers `(B, P)`, or, in the search, if they
            have another number of rows, exceed `max_length`, or are not in the
            vocabulary.
    """

    overrides = True

    def __init__(self, token_ids: Tensor) -> None:
        # Keras on JAX may turn a list of integers into floats.
        # A layer of Keras has a dtype, too.
        if not hasattr(token_ids, "shape"):
            token_ids = _as_array(token_ids)
        check_tensor("token_ids of Prefix", token_ids)
        dtype = keras.backend.standardize_dtype(token_ids.dtype)
        values = values_of(token_ids)
        self.token_ids = ops.convert_to_tensor(token_ids, dtype="int32")
        shape = tuple(self.token_ids.shape)
        if len(shape) != 2:
            raise ValueError(
                "token_ids of Prefix must have the shape (batch, tokens). "
                f"Received: {shape}"
            )
        # An empty prefix may have any dtype.
        if "int" not in dtype and shape[1]:
            raise ValueError(f"token_ids of Prefix must be integers. Received: {dtype}")
        self.length = shape[1]
        # In a graph, the values are not known.
        self.highest = -1
        if values is not None:
            self.highest = int(np.max(values.astype("int64"), initial=-1))

    def begin(self, search: SearchSettings) -> Nested:
        if self.length > search.max_length:
            raise ValueError(
                f"token_ids of Prefix must have at most {search.max_length} tokens. "
                f"Received: {tuple(self.token_ids.shape)}"
            )
        check_rows("token_ids of Prefix", self.token_ids, search.batch_size)
        return {}

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        if self.highest >= size:
            raise ValueError(
                f"token_ids of Prefix must be below {size}, or negative. "
                f"Received: {self.highest}"
            )
        # Positions after the prefix are free.
        token_ids = ops.pad(self.token_ids, ((0, 0), (0, 1)), constant_values=-1)
        position = at_most(step.length, self.length)
        forced = ops.take_along_axis(token_ids, position, axis=1)[..., None]
        only = self.forbid(step.log_probs, step.vocabulary != forced)
        return ops.where(forced < 0, log_probs, only), state


def _as_array(token_ids: Any) -> np.ndarray:
    """Return a prefix as an array; `ValueError` if its rows differ in length."""
    try:
        array = np.asarray(token_ids)
        check_tensor("token_ids of Prefix", array)
        return array
    except ValueError:
        raise ValueError(
            "token_ids of Prefix must have the shape (batch, tokens), where negative "
            f"tokens pad shorter rows. Received: {token_ids!r}"
        ) from None


def as_integer(name: str, value: Any) -> int:
    """Return an integer of any type as `int`; `ValueError` if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer. Received: {value!r}") from None


def as_integers(name: str, token_ids: Any) -> tuple[int, ...]:
    """Return a list or a tensor of tokens as a tuple of `int`.

    On JAX, the elements of a tensor have no known value inside a loop.

    Raises:
        ValueError: If it is neither, or a token is not an integer.
    """
    values = token_ids
    if hasattr(token_ids, "shape"):
        values = values_of(token_ids)
        values = None if values is None else values.tolist()
    if not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of tokens. Received: {token_ids!r}")
    return tuple(as_integer(f"every token in {name}", token) for token in values)


def _followers(tokens: np.ndarray, n: int) -> tuple[Tensor, Tensor]:
    """Return the last token of each n-gram, and whether it would repeat that n-gram.

    Args:
        tokens: Tokens of the hypotheses, `(B, K, L)`, the newest last.
        n: Number of tokens of an n-gram.

    Returns:
        The tokens and the mask, both `(B, K, L - n + 1)`.
    """
    length = ops.shape(tokens)[-1]
    followers = tokens[..., n - 1 :]
    follows = followers >= 0
    for i in range(n - 1):
        ngram_token = tokens[..., i : i + length - n + 1]
        last_token = tokens[..., i - n + 1]
        follows = ops.logical_and(follows, ngram_token == last_token[..., None])
    return followers, follows


def forbid_tokens(log_probs: Tensor, token_ids: Tensor, where: Tensor) -> Tensor:
    """Return log-probabilities `(B, K, N)` with tokens forbidden where a mask is true.

    The tokens and the mask are `(B, K, M)`.
    """
    return backends.forbid_tokens(log_probs, token_ids, where, FORBIDDEN)
