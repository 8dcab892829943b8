"""Lexical constraints: phrases that every hypothesis contains."""

from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_attention.search.constraints import (
    FORBIDDEN,
    Constraint,
    SearchSettings,
    SearchStep,
    as_integer,
    as_integers,
    mark,
)
from keras_attention.search.nested_tensors import check_rows
from keras_attention.sizes import at_least_one, index_range
from keras_attention.typing import Nested, Tensor, Tensors
from keras_attention.validation import values_of


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

    With a `source_mask`, a phrase replaces what the model would say for its source:
    it begins where the largest attention weight is on its
    source, and there no other token is allowed; or where the model would end the
    hypothesis. The token that was most probable there is forbidden directly after the
    phrase, and while the attention is on the source again.

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
        source_mask: Boolean `(B, C, S)`: the positions of the source that each phrase
            translates. A phrase without any may begin everywhere.

    Raises:
        ValueError: If `token_ids` are not integers `(B, C, P)`, padding comes before a
            token, or `not_followed_by` is not a list of tokens; in the search, if they
            have another number of rows, `end` or a token outside of the vocabulary is
            among them, or the phrases of a row and `end` exceed `max_length` or
            `limit`. Values in a graph are not checked, and phrases that do not fit are
            missing.

    Example:

    >>> def counting(token_ids, state):
    ...     logits = 9 * keras.ops.one_hot((token_ids + 1) % 7, 7)
    ...     weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...     return keras.ops.log_softmax(logits), state, weights
    >>> found = beam_search(
    ...     counting, np.zeros((2, 1)), start=0, end=4, max_length=6,
    ...     constraints=[RequiredPhrases([[[3, 3]], []])],
    ... )
    >>> keras.ops.convert_to_numpy(found["token_ids"][:, 0]).tolist()
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
        source_mask: Tensor | None = None,
    ) -> None:
        if not hasattr(token_ids, "dtype"):
            token_ids = _padded(token_ids)
        dtype = keras.backend.standardize_dtype(token_ids.dtype)
        shape = tuple(token_ids.shape)
        if len(shape) != 3 or "int" not in dtype:
            raise ValueError(
                "token_ids of RequiredPhrases must be integers of the shape (batch, "
                f"phrases, tokens). Received: {dtype} of shape {shape}"
            )
        # In a graph, the values are not known.
        self.values = values_of(token_ids)
        # Backends cannot reduce an axis of size 0; what is added is padding.
        shifted = ops.convert_to_tensor(token_ids, dtype="int32") + 1
        self.token_ids = at_least_one(at_least_one(shifted, axis=1), axis=2) - 1
        self.lengths = ops.sum(ops.cast(self.token_ids >= 0, "int32"), axis=-1)
        if self.values is not None:
            valid = self.values >= 0
            if (valid[..., 1:] > valid[..., :-1]).any():
                raise ValueError(
                    "token_ids of RequiredPhrases must have their padding after the "
                    f"tokens of a phrase. Received: {self.values.tolist()}"
                )
        self.not_followed_by = as_integers("not_followed_by", not_followed_by)
        self.source_mask = source_mask
        if source_mask is not None:
            source_mask = at_least_one(ops.cast(source_mask, "int32"), axis=1)
            self.source_mask = ops.cast(source_mask, "bool")

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
            # The most probable token where each phrase was last due, -1 for none.
            "replaced": ops.full_like(self.lengths, -1),
        }

    def mask(
        self, log_probs: Tensor, state: Nested, step: SearchStep
    ) -> tuple[Tensor, Nested]:
        size = log_probs.shape[-1]
        self._check_tokens(size)
        state, just_met = self._advanced(state, step)
        newly_met = ops.any(just_met, axis=-1)
        missing = ops.logical_not(state["met"])
        left = ops.sum(ops.where(missing, self.lengths[:, None], 0), axis=-1)
        # Free tokens left after the next one, if it continues no phrase and all missing
        # phrases and `end` still follow.
        spare = step.remaining - 2 - left
        forcing = (spare < 0) & (left > 0)
        # If negative, only matches of at least `-spare` tokens leave enough room; the
        # longest match is always allowed.
        state["may_begin"] = ops.ones_like(state["met"])
        if self.source_mask is not None:
            guided = ops.any(self.source_mask, axis=-1)[:, None]
            attended = self._attended(step)
            best = ops.cast(ops.argmax(step.log_probs, axis=-1), "int32")[..., None]
            # The token that a phrase has replaced does not translate its source again.
            repeats = (attended & state["met"]) | (just_met & guided)
            is_word = (state["replaced"] >= 0) & (state["replaced"] != step.end)
            repeats = repeats & is_word
            log_probs = self.forbid(log_probs, mark(state["replaced"], repeats, size))
            begins = attended & missing & ~ops.any(state["active"], axis=-1)
            state["replaced"] = ops.where(begins, best, state["replaced"])
            # A model that would end the hypothesis has nothing to attend to.
            due = (attended | (best == step.end)) & guided
            state["may_begin"] = due | ~guided | forcing[..., None]
        matches = self._matches(state)
        most = ops.max(matches, axis=(2, 3), initial=0)
        needed = ops.where(-spare < most, -spare, most)[..., None, None]
        continues = (matches > 0) & (matches >= needed)
        if self.source_mask is not None:
            begun = ops.any(matches > 1, axis=-1) & guided
            due = (due & missing) | begun
            due_now = ops.any(due, axis=-1) & ~forcing
            continues = continues & (due | ~due_now[..., None])[..., None]
            log_probs = ops.where(due_now[..., None], FORBIDDEN, log_probs)
        if self.not_followed_by:
            excluded = ops.convert_to_tensor(self.not_followed_by, dtype="int32")
            begins = (matches == 1) & ops.any(
                self.token_ids[..., None] == excluded, axis=-1
            )[:, None]
            avoids = (newly_met & ~forcing)[..., None, None]
            continues = continues & ~(begins & avoids)
        token_ids = ops.broadcast_to(self.token_ids[:, None], ops.shape(matches))
        continues = mark(_flat(token_ids), _flat(continues), size)

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

    def _advanced(self, state, step):
        """Return the state after the last token, and where it completed a phrase.

        This is the Shift-And algorithm for string matching: every prefix of a phrase
        that the hypothesis ends with is tracked, so no occurrence is missed.
        """
        # The start is not part of the hypothesis.
        newest = ops.where(step.length == 0, -2, step.token_ids)[..., None, None]
        active = _shifted(state["active"]) & (self.token_ids[:, None] == newest)
        places = index_range(ops.shape(active)[-1])
        last = places == self.lengths[..., None] - 1
        complete = ops.any(active & last[:, None], axis=-1)
        newly_met = complete & ~state["met"]
        return {**state, "active": active, "met": state["met"] | complete}, newly_met

    def _attended(self, step):
        """Return whether the largest weight is on the source of each phrase."""
        peak = ops.argmax(step.weights, axis=-1)[..., None]
        by_position = ops.transpose(self.source_mask, (0, 2, 1))
        attended = ops.take_along_axis(by_position, peak, axis=1)
        attends = ops.any(step.weights > 0, axis=-1, keepdims=True)
        return attended & attends

    def _matches(self, state):
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

    def _wanted(self, state):
        """Return tokens that continue the longest matches of phrases, `(B, K, C)`.

        The second result is the length of the match after each of them, 0 for none.
        """
        matches = self._matches(state)
        after = ops.max(matches, axis=-1, initial=0)
        place = ops.cast(ops.argmax(matches, axis=-1), "int32")[..., None]
        token_ids = ops.broadcast_to(self.token_ids[:, None], ops.shape(matches))
        wanted = ops.take_along_axis(token_ids, place, axis=-1)[..., 0]
        return wanted, after

    def _check_tokens(self, size):
        """Raise `ValueError` for a token outside of a vocabulary of this size."""
        phrases = [] if self.values is None else self.values.flatten().tolist()
        unknown = [token for token in phrases if token >= size]
        unknown += [x for x in self.not_followed_by if not 0 <= x < size]
        if unknown:
            raise ValueError(
                f"the tokens of RequiredPhrases must lie between 0 and {size - 1}. "
                f"Received: {sorted(set(unknown))}"
            )


def _shifted(active):
    """Return whether each token of a phrase would extend a match; a first one does."""
    return ops.concatenate([ops.ones_like(active[..., :1]), active[..., :-1]], axis=-1)


def _flat(x):
    """Reshape `(B, K, C, P)` to `(B, K, C * P)`."""
    *leading, phrases, tokens = ops.shape(x)
    return ops.reshape(x, (*leading, phrases * tokens))


def _padded(rows):
    """Return nested lists of phrases as an array `(B, C, P)`, padded with -1."""
    try:
        rows = [[list(phrase) for phrase in phrases] for phrases in rows]
    except TypeError:
        raise ValueError(
            "token_ids of RequiredPhrases must be, for every row, a list of phrases, "
            f"each a list of tokens. Received: {rows!r}"
        ) from None
    count = max(map(len, rows), default=0)
    length = max((len(x) for phrases in rows for x in phrases), default=0)
    padded = np.full((len(rows), count, length), -1, dtype="int32")
    for row, phrases in enumerate(rows):
        for place, phrase in enumerate(phrases):
            for token in phrase:
                as_integer("every token of RequiredPhrases", token)
            padded[row, place, : len(phrase)] = phrase
    return padded
