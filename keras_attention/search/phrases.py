"""Lexical constraints: phrases that every hypothesis contains."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attention.backends import index_range, vocabulary_mask
from keras_attention.search.constraints import (
    FORBIDDEN,
    Constraint,
    SearchSettings,
    SearchStep,
    as_integer,
    as_integers,
)
from keras_attention.search.nested_tensors import check_rows
from keras_attention.sizes import at_least_one
from keras_attention.typing import Nested, Tensor, Tensors
from keras_attention.validation import as_tensor, check_rank, check_tensor, values_of


class RequiredPhrases(Constraint):
    """Lexical constraints: phrases that must appear in all hypotheses of a row.

    A hypothesis does not end before it contains all its phrases, each as consecutive
    tokens, in any order. Phrases may overlap, and equal phrases need to appear once.
    Room is reserved for every missing phrase in full: where phrases share tokens, they
    are demanded earlier than necessary, and must fit into `max_length` and `limit` one
    after the other.

    The phrases are guaranteed: as soon as the remaining tokens are just enough for the
    phrases that are missing and the end token, only tokens that continue a phrase are
    allowed. Until then, a hypothesis may begin a phrase at any time, or abandon it.
    After a `Prefix`, phrases that do not fit into the rest are missing.

    `beam_search` divides its beam by the progress of hypotheses, the number of their
    tokens that belong to phrases. It takes the best continuation for every number, from
    the highest number down, then the second best for every number, and so on. So
    phrases appear where they fit best. A beam width of at least one more than
    the number of tokens in the phrases keeps a hypothesis of every progress. Searches
    with a single hypothesis append phrases that the model does not produce by itself.

    With `begins_at`, a phrase begins after a fixed number of tokens, and there no other
    token is allowed. So a phrase can replace a word of an earlier hypothesis, and the
    search still chooses the words around it.

    Phrases override constraints that do not override: a token that begins or continues
    a missing phrase may be banned or repeat an n-gram. A token to which the model gives
    the probability zero remains impossible.

    Args:
        token_ids: Integers `(B, C, P)`, C phrases of at most P tokens for every row;
            negative ones pad phrases at their ends. Or nested lists: for every row, a
            list of phrases, each a list of tokens.
        not_followed_by: List or tensor of tokens that do not follow a phrase directly
            when it appears for the first time, such as subwords that continue a word.
            They may if they continue a longer phrase, or if no other token fits.
        begins_at: Integers `(B, C)`: number of tokens before each phrase; negative for
            a phrase that may begin everywhere. A phrase that cannot begin there begins
            as soon as it can: after another one is complete, or after a `Prefix`.

    Raises:
        ValueError: If `token_ids` are not integers `(B, C, P)`, padding comes before a
            token, or `not_followed_by` is not a list of tokens. In the search, if they
            have another number of rows, or `end` or a token outside of the vocabulary
            is among them. Also if the phrases of a row and `end` exceed `max_length` or
            `limit`. Values in a graph are not checked, and phrases that do not fit are
            missing.

    Example:

    >>> def counting(token_ids, state):
    ...     logits = 9 * keras.ops.one_hot((token_ids + 1) % 7, 7)
    ...     weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...     return keras.ops.log_softmax(logits), state, weights
    >>> result = beam_search(
    ...     counting, np.zeros((2, 1)), start=0, end=4, max_length=6,
    ...     constraints=[RequiredPhrases([[[3, 3]], []])],
    ... )
    >>> keras.ops.convert_to_numpy(result["token_ids"][:, 0]).tolist()
    [[1, 2, 3, 3, 4, 4], [1, 2, 3, 4, 4, 4]]

    Reference:
        [Post and Vilar, 2018](https://arxiv.org/abs/1804.06609): dynamic beam
        allocation; [Hu et al., 2019](https://aclanthology.org/N19-1090), section 3: the
        order of the continuations.
    """

    overrides = True

    def __init__(
        self,
        token_ids: Tensor,
        *,
        not_followed_by: Iterable[int] = (),
        begins_at: Tensor | None = None,
    ) -> None:
        phrases = _Phrases("RequiredPhrases", token_ids)
        self.phrases, self.values = phrases, phrases.values
        self.token_ids, self.lengths = phrases.token_ids, phrases.lengths
        self.not_followed_by = as_integers("not_followed_by", not_followed_by)
        if begins_at is not None:
            begins_at = as_tensor("begins_at", begins_at)
            check_rank("begins_at", begins_at.shape, (2,), "(batch, phrases)")
            begins_at = at_least_one(ops.cast(begins_at, "int32") + 1, axis=1) - 1
        self.begins_at = begins_at

    def begin(self, search: SearchSettings) -> Nested:
        check_rows("token_ids of RequiredPhrases", self.token_ids, search.batch_size)
        if self.values is not None:
            if (self.values == search.end).any():
                raise ValueError(
                    f"token_ids of RequiredPhrases must not contain end, {search.end}. "
                    f"Received: {self.values.tolist()}"
                )
            counts = (self.values >= 0).sum(axis=(1, 2))
            limits = np.broadcast_to(search.known_limit, counts.shape)
            too_many = np.flatnonzero(counts >= limits)
            if too_many.size:
                row = too_many[0]
                raise ValueError(
                    "the phrases of a row must have fewer tokens than max_length or "
                    f"limit, {limits[row]}. Received: {counts[row]} tokens in row {row}"
                )
        return {
            # active[c, p]: the last p + 1 tokens are the first ones of phrase c.
            "active": ops.zeros(ops.shape(self.token_ids), dtype="bool"),
            "met": self.lengths == 0,
            # Whether each phrase may begin at the next token.
            "may_begin": ops.ones_like(self.lengths, dtype="bool"),
        }

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        self.phrases.check_tokens(size, self.not_followed_by)
        active, complete = self.phrases.advance(state["active"], step)
        newly_met = ops.any(complete & ~state["met"], axis=-1)
        state = {**state, "active": active, "met": state["met"] | complete}
        missing = ops.logical_not(state["met"])
        left = ops.sum(ops.where(missing, self.lengths[:, None], 0), axis=-1)
        # Free tokens left after the next one, if it continues no phrase and all missing
        # phrases and `end` still follow.
        spare = step.remaining - 2 - left
        forcing = (spare < 0) & (left > 0)
        # If negative, only matches of at least `-spare` tokens leave enough room; the
        # longest match is always allowed.
        state["may_begin"] = ops.ones_like(missing)
        if self.begins_at is not None:
            begins_at = self.begins_at[:, None]
            due = step.length[..., None] >= begins_at
            state["may_begin"] = due | forcing[..., None]
        matches = self._matches(state)
        longest_match = ops.max(matches, axis=(2, 3), initial=0)
        needed = ops.where(-spare < longest_match, -spare, longest_match)[
            ..., None, None
        ]
        continues = (matches > 0) & (matches >= needed)
        if self.begins_at is not None:
            fixed = missing & (begins_at >= 0)
            # Free tokens before its place may be equal to the first ones of a phrase.
            begins = step.length[..., None, None] + 1 - matches
            in_place = (matches > 0) & (begins >= begins_at[..., None])
            begun = fixed & ops.any(in_place & (matches > 1), axis=-1)
            # A phrase that has begun comes before another one.
            now = ops.where(ops.any(begun, axis=-1)[..., None], begun, fixed & due)
            is_due = ops.any(now, axis=-1, keepdims=True) & ~forcing[..., None]
            # Of several matches of a phrase, the one that has begun first continues.
            sizes = ops.where(in_place, matches, 0)
            longest = ops.max(sizes, axis=-1, keepdims=True, initial=0)
            in_place = in_place & (sizes == longest) & now[..., None]
            continues = continues & (in_place | ~is_due[..., None])
            log_probs = ops.where(is_due, FORBIDDEN, log_probs)
        if self.not_followed_by:
            excluded = ops.convert_to_tensor(self.not_followed_by, dtype="int32")
            begins = (matches == 1) & ops.any(
                self.token_ids[..., None] == excluded, axis=-1
            )[:, None]
            avoids = (newly_met & ~forcing)[..., None, None]
            continues = continues & ~(begins & avoids)
        token_ids = ops.broadcast_to(self.token_ids[:, None], ops.shape(matches))
        continues = vocabulary_mask(_flat(token_ids), _flat(continues), size)

        log_probs = self.forbid(
            log_probs, (left > 0)[..., None] & (step.vocabulary == step.end)
        )
        if self.not_followed_by:
            excluded = np.isin(np.arange(size), self.not_followed_by)
            log_probs = self.forbid(
                log_probs, ops.logical_and(newly_met[..., None], excluded)
            )
        log_probs = ops.where(forcing[..., None], FORBIDDEN, log_probs)
        return ops.where(continues, step.log_probs, log_probs), state

    def progress(self, state: Nested) -> Tensors:
        missing = ops.logical_not(state["met"])
        wanted, after = self._wanted(state)
        lengths = self.lengths[:, None]
        met = ops.sum(ops.where(missing, 0, lengths), axis=-1)
        # A token may continue several phrases, `same` `(B, K, C, C)`.
        same = (wanted[..., :, None] == wanted[..., None, :]) & missing[..., None, :]
        completes = (after == lengths)[..., None, :]
        gained = ops.where(same & completes, lengths[..., None, :], 0)
        partial = ops.where(same & ~completes, after[..., None, :], 0)
        gained = ops.sum(gained, axis=-1) + ops.max(partial, axis=-1, initial=0)
        order = index_range(ops.shape(same)[-1])
        repeated = ops.any(same & (order < order[:, None]), axis=-1)
        return {
            "token_ids": ops.where(missing & ~repeated, wanted, -1),
            "after": met[..., None] + gained,
            "after_others": met,
        }

    def _matches(self, state: Nested) -> Tensor:
        """Return the length of the match that each token of a phrase would complete.

        Returns:
            `(B, K, C, P)`: p + 1 if token p of a missing phrase would follow its first
            p tokens, otherwise 0.
        """
        first = state["may_begin"][..., None]
        begun = ops.concatenate([first, state["active"][..., :-1]], axis=-1)
        begun = begun & (self.token_ids >= 0)[:, None]
        missing = ops.logical_not(state["met"])[..., None]
        sizes = index_range(ops.shape(begun)[-1]) + 1
        return ops.where(begun & missing, sizes, 0)

    def _wanted(self, state: Nested) -> tuple[Tensor, Tensor]:
        """Return tokens that continue the longest matches of phrases, `(B, K, C)`.

        The second result is the length of the match after each of them, 0 for none.
        """
        matches = self._matches(state)
        after = ops.max(matches, axis=-1, initial=0)
        nearest = ops.cast(ops.argmax(matches, axis=-1), "int32")[..., None]
        token_ids = ops.broadcast_to(self.token_ids[:, None], ops.shape(matches))
        wanted = ops.take_along_axis(token_ids, nearest, axis=-1)[..., 0]
        return wanted, after


class BannedPhrases(Constraint):
    """Phrases that do not appear in the hypotheses of a row.

    No hypothesis contains a phrase as consecutive tokens. `Ban` forbids single tokens
    in all rows.

    Args:
        token_ids: As for `RequiredPhrases`.

    Raises:
        ValueError: If `token_ids` are not integers `(B, C, P)`, or padding comes before
            a token; in the search, if they have another number of rows, or a token is
            not in the vocabulary.

    Example:

    >>> def counting(token_ids, state):
    ...     logits = 9 * keras.ops.one_hot((token_ids + 1) % 7, 7)
    ...     weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...     return keras.ops.log_softmax(logits), state, weights
    >>> result = greedy_search(
    ...     counting, np.zeros((2, 1)), start=0, end=6, max_length=4,
    ...     constraints=[BannedPhrases([[[2, 3]], [[2, 4]]])],
    ... )
    >>> keras.ops.convert_to_numpy(result["token_ids"][:, 0, :2]).tolist()
    [[1, 2], [1, 2]]
    >>> keras.ops.convert_to_numpy(result["token_ids"][:, 0, 2] == 3).tolist()
    [False, True]
    """

    def __init__(self, token_ids: Tensor) -> None:
        self.phrases = _Phrases("BannedPhrases", token_ids)

    def begin(self, search: SearchSettings) -> Nested:
        token_ids = self.phrases.token_ids
        check_rows("token_ids of BannedPhrases", token_ids, search.batch_size)
        return ops.zeros(ops.shape(token_ids), dtype="bool")

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        self.phrases.check_tokens(size)
        state, _ = self.phrases.advance(state, step)
        completes = _shifted(state) & self.phrases.is_last[:, None]
        token_ids = self.phrases.token_ids[:, None]
        token_ids = ops.broadcast_to(token_ids, ops.shape(completes))
        banned = vocabulary_mask(_flat(token_ids), _flat(completes), size)
        return self.forbid(log_probs, banned), state


class _Phrases:
    """Phrases of the rows of a search, and how far hypotheses match them.

    Args:
        name: Name of the constraint, for errors.
        token_ids: As for `RequiredPhrases`.

    Attributes:
        values: The token ids as an array; `None` in a graph, where they are unknown.
        token_ids: The token ids, at least one phrase of one token for every row.
        lengths: Number of tokens of each phrase, `(B, C)`.
        is_last: Whether each token is the last of its phrase, `(B, C, P)`.
    """

    def __init__(self, name: str, token_ids: Any) -> None:
        # A layer of Keras has a dtype, too.
        if not hasattr(token_ids, "shape"):
            token_ids = _padded(name, token_ids)
        check_tensor(f"token_ids of {name}", token_ids)
        dtype = keras.backend.standardize_dtype(token_ids.dtype)
        shape = tuple(token_ids.shape)
        if len(shape) != 3 or "int" not in dtype:
            raise ValueError(
                f"token_ids of {name} must be integers of the shape (batch, "
                f"phrases, tokens). Received: {dtype} of shape {shape}"
            )
        self.name = name
        # In a graph, the values are not known.
        self.values = values_of(token_ids)
        # Backends cannot reduce an axis of size 0; what is added is padding.
        shifted = ops.convert_to_tensor(token_ids, dtype="int32") + 1
        self.token_ids = at_least_one(at_least_one(shifted, axis=1), axis=2) - 1
        self.lengths = ops.sum(ops.cast(self.token_ids >= 0, "int32"), axis=-1)
        positions = index_range(ops.shape(self.token_ids)[-1])
        self.is_last = positions == self.lengths[..., None] - 1
        if self.values is not None:
            valid = self.values >= 0
            if (valid[..., 1:] > valid[..., :-1]).any():
                raise ValueError(
                    f"token_ids of {name} must have their padding after the "
                    f"tokens of a phrase. Received: {self.values.tolist()}"
                )

    def advance(self, active: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matches after the last token, and which phrases it completes.

        This is the Shift-And algorithm for string matching: every prefix of a phrase
        that the hypothesis ends with is tracked, so no occurrence is missed.

        Args:
            active: Boolean `(B, K, C, P)`, `True` at p if the hypothesis ends with the
                first p + 1 tokens of phrase c.
            step: The `SearchStep`.
        """
        # The start is not part of the hypothesis.
        newest = ops.where(step.length == 0, -2, step.token_ids)[..., None, None]
        active = _shifted(active) & (self.token_ids[:, None] == newest)
        return active, ops.any(active & self.is_last[:, None], axis=-1)

    def check_tokens(self, size: int, others: Iterable[int] = ()) -> None:
        """Raise `ValueError` for a token outside of a vocabulary of this size."""
        phrases = [] if self.values is None else self.values.flatten().tolist()
        unknown = [token for token in phrases if token >= size]
        unknown += [x for x in others if not 0 <= x < size]
        if unknown:
            raise ValueError(
                f"the tokens of {self.name} must lie between 0 and {size - 1}. "
                f"Received: {sorted(set(unknown))}"
            )


def _shifted(active: Tensor) -> Tensor:
    """Return whether each token of a phrase would extend a match; a first one does."""
    return ops.concatenate([ops.ones_like(active[..., :1]), active[..., :-1]], axis=-1)


def _flat(x: Tensor) -> Tensor:
    """Reshape `(B, K, C, P)` to `(B, K, C * P)`."""
    *leading, phrases, tokens = ops.shape(x)
    return ops.reshape(x, (*leading, phrases * tokens))


def _padded(name: str, rows: Any) -> np.ndarray:
    """Return nested lists of phrases as an array `(B, C, P)`, padded with -1."""
    try:
        rows = [[list(phrase) for phrase in phrases] for phrases in rows]
    except TypeError:
        raise ValueError(
            f"token_ids of {name} must be, for every row, a list of phrases, "
            f"each a list of tokens. Received: {rows!r}"
        ) from None
    count = max(map(len, rows), default=0)
    length = max((len(x) for phrases in rows for x in phrases), default=0)
    padded = np.full((len(rows), count, length), -1, dtype="int32")
    for row, phrases in enumerate(rows):
        for column, phrase in enumerate(phrases):
            for token in phrase:
                as_integer(f"every token of {name}", token)
            padded[row, column, : len(phrase)] = phrase
    return padded
