"""Beam search."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from keras import ops, tree

from keras_attention import loops
from keras_attention.ops.gathering import take_rows
from keras_attention.ops.log_probs import IMPOSSIBLE, is_possible
from keras_attention.ops.masks import where_rows
from keras_attention.ops.precision import at_most
from keras_attention.search.constraints import Constraint
from keras_attention.search.expansion import expand, last_token_counts, progress_of
from keras_attention.search.groups import Groups
from keras_attention.search.limits import checked_limit
from keras_attention.search.nested_tensors import (
    batch_of,
    concatenate,
    join_hypotheses,
    repeat_for_hypotheses,
    split_hypotheses,
    take_hypotheses,
    take_steps,
    write,
)
from keras_attention.search.ranking import Ranking, best_first
from keras_attention.search.step import (
    check_keywords,
    constrain,
    order_constraints,
    weights_shape,
)
from keras_attention.sizes import is_one
from keras_attention.typing import Nested, Step, Tensor, Tensors
from keras_attention.validation import (
    check_boolean,
    check_positions,
    check_positive_integer,
)

# Largest beam width. The memory of a search grows with it.
MAX_BEAM_SIZE = 10_000


def beam_search(step: Step, state: Nested, **options: Any) -> Tensors:
    """Beam search over a step function.

    Hypotheses are ranked by

        score = log p(tokens) / penalty(length) + coverage
        penalty(length) = length ** length_penalty                      ("power")
        penalty(length) = ((5 + length) / 6) ** length_penalty          ("gnmt")
        coverage = coverage_penalty
                   * sum over s of log min(sum over t of weights[t, s], 1)

    where the length includes the end token. With a length penalty of 0, the score is
    the log-probability; with 1, in the form `"power"`, the mean log-probability of a
    token. The coverage term lowers the score of hypotheses that attended little to some
    position. Attention of less than 1e-10 to a position counts as 1e-10, so a position
    costs at most 23.1 times `coverage_penalty`.

    At every step, the continuations of all hypotheses of a row are ranked together.
    Continuations among the best `beam_size` whose last token is `end` are finished; a
    pool keeps the `beam_size` best finished hypotheses of the row. The `beam_size` best
    unfinished continuations form the next beam. A beam of one without length penalty is
    greedy search.

    A row is done when no unfinished hypothesis can enter its pool any more, or, with
    `early_stopping`, when the pool is full. The loop ends when all rows are done. If
    fewer than `beam_size` hypotheses have finished at `max_length`, the best unfinished
    ones fill the remaining places.

    With `beam_groups` G above 1, this is diverse beam search: G groups of `beam_size /
    G` hypotheses, each with a beam and a pool of its own. At every step, the groups
    choose tokens one after the other. The diversity penalty lowers the score of a token
    once for every hypothesis of an earlier group that has chosen it at this step (the
    Hamming similarity). The penalty affects the choice only: scores and
    log-probabilities in the result are those of the model. Different groups may find
    the same hypothesis.

    Args:
        step: Step function, see `keras_attention.search`.
        state: Initial state, nested tensors `(B, ...)`; the step receives it as
            `(B, K, ...)`, repeated for K hypotheses.
        start: Token that the first step receives, between 0 and N - 1. A model that
            never produces it may give it the log-probability minus infinity.
        end: Token that ends a sequence, between 0 and N - 1.
        max_length: Maximum number of tokens L, `end` included.
        beam_size: Beam width K: number of hypotheses that are kept and returned.
        beam_groups: Number of groups G of a diverse beam search; it divides
            `beam_size`.
        diversity_penalty: Factor of the Hamming similarity of groups, not negative.
        length_penalty: Exponent of the length, not negative.
        length_penalty_form: `"power"` or `"gnmt"`.
        coverage_penalty: Factor of the coverage term, not negative. At 0, the search
            does not track coverage.
        coverage_mask: Boolean `(B, S)`, `True` for positions that should be covered;
            `None` for all.
        early_stopping: Whether a row is done when `beam_size` hypotheses have finished.
            Otherwise, with a length penalty, most searches run until `max_length`,
            because a longer hypothesis may still have a better score.
        limit: Maximum number of tokens of this call, if less than `max_length`: a
            positive integer, or one for each row, `(B,)`. In a graph, it may be a
            tensor; values below 1 count as 1 there.
        constraints: List of `Constraint` objects, such as `Ban` and `RequiredPhrases`.
        positions: Number of positions S that the step attends to. If it is `None`, the
            search learns it from one more call of the step, and a graph of the search
            takes longer to trace. With a number, the step is first called inside the
            loop. On JAX, its layers must then be built before, by a call of your own;
            and a `start` outside of the vocabulary reaches your model before the
            search refuses it.

    Returns:
        Dict of tensors, the finished hypotheses of a row before the unfinished ones,
        each with the best score first:
        `"token_ids"` `(B, K, L)`, padded with `end` after the last token;
        `"lengths"` `(B, K)`, number of tokens including `end`; 0 for a hypothesis that
        does not exist, where fewer than `beam_size` different ones are possible;
        `"scores"` `(B, K)`;
        `"log_probs"` `(B, K)`, the sum over the tokens;
        `"token_log_probs"` `(B, K, L)`, zero after the last token;
        `"weights"` `(B, K, L, S)`, attention weights of the step that chose each token;
        `"finite"` `(B,)`, `False` if a log-probability of a step was NaN or plus
        infinity. Such tokens count as impossible.

    Raises:
        ValueError: If `beam_size` or `max_length` is not a positive integer,
            `beam_size` exceeds 10,000, or `beam_groups` does not divide it. If a
            penalty is negative or infinite, the length penalty of `max_length` tokens
            exceeds float32, or `length_penalty_form` is unknown. If `coverage_mask` or
            `limit` has a wrong shape or value, or `start` or `end` is no token of the
            vocabulary. If the step attends to another number of positions than
            `positions`, or a constraint cannot be met.
        TypeError: For an unknown or missing keyword argument.

    Example:

    >>> def counting(token_ids, state):
    ...     logits = 9 * keras.ops.one_hot((token_ids + 1) % 5, 5)
    ...     weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...     return keras.ops.log_softmax(logits), state, weights
    >>> result = beam_search(counting, np.zeros((2, 1)), start=0, end=4, max_length=6)
    >>> keras.ops.convert_to_numpy(result["token_ids"][:, 0]).tolist()
    [[1, 2, 3, 4, 4, 4], [1, 2, 3, 4, 4, 4]]

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7, equation 14:
        `"gnmt"` and the coverage penalty; [Vijayakumar et al.,
        2018](https://arxiv.org/abs/1610.02424), section 3: diverse beam search.
    """
    check_keywords("beam_search", options, Beam)
    beam = Beam(step, state, **options)
    return beam.hypotheses(beam.run(beam.begin()))


class Beam:
    """Beam search in three parts, so that a caller may stop between two steps.

        carry = beam.begin()
        carry = beam.run(carry)
        hypotheses = beam.hypotheses(carry)

    The carry is a nested dict of tensors: `"t"` `(B,)`, the number of steps of every
    row; the booleans `"done"` and `"finite"`, `(B,)`; `"alive"`, `"finished"` and
    `"coverage"`, `(B, K, ...)`; and `"history"` `(L, B, K, ...)`, from which hypotheses
    are traced back. Rows count their steps independently, so one row may restart while
    others continue. Arguments are those of `beam_search`.
    """

    def __init__(
        self,
        step: Step,
        state: Nested,
        *,
        start: int,
        end: int,
        max_length: int,
        beam_size: int = 5,
        beam_groups: int = 1,
        diversity_penalty: float = 0.5,
        length_penalty: float = 1.0,
        length_penalty_form: str = "power",
        coverage_penalty: float = 0.0,
        coverage_mask: Tensor | None = None,
        early_stopping: bool = False,
        limit: int | Tensor | None = None,
        constraints: Iterable[Constraint] = (),
        positions: int | Tensor | None = None,
    ) -> None:
        max_length = check_positive_integer("max_length", max_length)
        beam_size = check_positive_integer(
            "beam_size", beam_size, maximum=MAX_BEAM_SIZE
        )
        self.groups = Groups(beam_size, beam_groups, diversity_penalty)
        self.ranking = Ranking(
            max_length,
            length_penalty,
            length_penalty_form,
            coverage_penalty,
            coverage_mask,
        )
        self.positions = check_positions(positions)
        self.limit = checked_limit(limit, max_length, batch_of(state))
        self.constraints = order_constraints(constraints)
        self.step, state = constrain(
            step,
            state,
            self.constraints,
            start=start,
            end=end,
            max_length=max_length,
            limit=self.limit,
            positions=self.positions,
        )
        self.state = repeat_for_hypotheses(state, beam_size)
        # Integers of NumPy would have 64 bits. `constrain` has checked both.
        self.start, self.end = int(start), int(end)
        self.max_length, self.beam_size = max_length, beam_size
        check_boolean("early_stopping", early_stopping)
        self.early_stopping = early_stopping

    def begin(self) -> Tensors:
        """Return the carry before the first step."""
        shape = weights_shape(self.step, self.state, self.positions)
        self.ranking.check_coverage_mask(shape[-1], batch_of(self.state))
        first = self._first()
        batch = batch_of(first)
        history_shape = (self.max_length, batch, self.beam_size)
        history = {
            "alive": {
                "token_ids": ops.zeros(history_shape, dtype="int32"),
                "parents": ops.zeros(history_shape, dtype="int32"),
                "token_log_probs": ops.zeros(history_shape, dtype="float32"),
            },
            "weights": ops.zeros((self.max_length, *shape), dtype="float32"),
        }
        coverage = {}
        if self.ranking.coverage_penalty:
            coverage = ops.zeros(shape, dtype="float32")
        return {**first, "coverage": coverage, "history": history}

    def restart(self, carry: Tensors, rows: Tensor) -> Tensors:
        """Return the carry with the rows of a mask `(B,)` reset to the start."""
        # Entries of the history after step `t` are never read.
        first = {
            **self._first(),
            "coverage": tree.map_structure(ops.zeros_like, carry["coverage"]),
        }
        others = {name: carry[name] for name in first}
        return {**where_rows(rows, first, others), "history": carry["history"]}

    def _first(self) -> Tensors:
        """Return the parts of the first carry that need no call of the step."""
        batch, beam_size = batch_of(self.state), self.beam_size
        # At the start, the hypotheses are equal: only the first of each group exists.
        log_probs = np.full((1, beam_size), IMPOSSIBLE, dtype="float32")
        log_probs[:, :: self.groups.size] = 0.0
        log_probs = ops.convert_to_tensor(log_probs, dtype="float32")
        zeros = ops.zeros((batch, beam_size), dtype="int32")
        slots = ops.broadcast_to(
            ops.arange(beam_size, dtype="int32"), (batch, beam_size)
        )
        impossible = ops.full((batch, beam_size), IMPOSSIBLE, dtype="float32")
        return {
            "t": ops.zeros((batch,), dtype="int32"),
            "done": ops.zeros((batch,), dtype="bool"),
            "finite": ops.ones((batch,), dtype="bool"),
            "alive": {
                "token_ids": ops.full((batch, beam_size), self.start, dtype="int32"),
                "log_probs": ops.broadcast_to(log_probs, (batch, beam_size)),
                "parents": slots,
                "state": self.state,
            },
            "finished": {
                "scores": impossible,
                "log_probs": impossible,
                "token_log_probs": ops.zeros((batch, beam_size), dtype="float32"),
                "steps": zeros,
                "parents": zeros,
            },
        }

    def _done(self, carry: Nested) -> Tensor:
        """Return whether each row is done, `(B,)`, with all its groups."""
        # No score can exceed `bound`: log-probabilities never increase, the divisor is
        # largest at `max_length`, and coverage adds at most zero.
        best = self.groups.group_max(carry["alive"]["log_probs"])
        divisor = self.ranking.length_divisor(self.max_length)
        bound = ops.where(is_possible(best), best / divisor, IMPOSSIBLE)
        settled = self.groups.last(carry["finished"]["scores"]) >= bound
        settled = ops.all(ops.logical_or(settled, self._stopped(carry)), axis=1)
        return ops.logical_or(settled, carry["t"] >= self.limit)

    def _stopped(self, carry: Nested) -> Tensor:
        """Return whether early stopping has ended each group, `(B, beam_groups)`."""
        last = self.groups.last(carry["finished"]["log_probs"])
        return ops.logical_and(is_possible(last), self.early_stopping)

    def run(
        self,
        carry: Tensors,
        *,
        active: Tensor | None = None,
        unfinished: int | Tensor = 0,
    ) -> Tensors:
        """Run steps until at most `unfinished` of the active rows are not done.

        The loop also ends when any row, active or not, has `max_length` tokens.
        """

        def proceed(carry: Nested) -> Tensor:
            waiting = ops.logical_not(carry["done"])
            if active is not None:
                waiting = ops.logical_and(waiting, active)
            return ops.logical_and(
                ops.sum(ops.cast(waiting, "int32")) > unfinished,
                ops.all(carry["t"] < self.max_length),
            )

        (carry,) = ops.while_loop(
            proceed,
            lambda carry: (self._next(carry),),
            (_with_state(carry, join_hypotheses),),
            maximum_iterations=self.max_length,
        )
        split = functools.partial(split_hypotheses, size=self.beam_size)
        return _with_state(carry, split)

    def _next(self, carry: Nested) -> Nested:
        """Return the carry after one more step.

        The state of both is `(B * K, ...)`, as the layers of a step join these axes.
        LiteRT would copy a cache in order to reshape it. It is that of the parents: in
        the copy that a step takes of it, LiteRT can write to caches in place.
        """
        t, alive, coverage = carry["t"], carry["alive"], carry["coverage"]
        log_probs, state, weights = self.step(
            alive["token_ids"], take_hypotheses(alive["state"], alive["parents"])
        )
        # The step may return NaN where a hypothesis does not exist or a row is done.
        ignored = ~is_possible(alive["log_probs"]) | carry["done"][:, None]
        finite = carry["finite"] & ops.all(state["finite"] | ignored, axis=1)
        weights = ops.cast(weights, "float32")
        # In a graph, the number of positions may be unknown for the weights alone.
        coverage = tree.map_structure(
            lambda x: ops.reshape(x + weights, ops.shape(x)), coverage
        )
        beam = {
            "alive": alive["log_probs"],
            "log_probs": log_probs,
            "unnormalized_scores": self.ranking.unnormalized_scores(
                alive["log_probs"], coverage, t + 1
            ),
            "progress": progress_of(self.constraints, state),
        }
        next_beam, finished = self._expanded(beam, carry)
        # The weights are those of the parents, in the order before the selection.
        names = ("token_ids", "parents", "token_log_probs")
        entry = {"alive": {name: next_beam[name] for name in names}, "weights": weights}
        after = {
            "t": t + 1,
            "finite": finite,
            "alive": {
                "token_ids": next_beam["token_ids"],
                "log_probs": next_beam["log_probs"],
                "parents": next_beam["parents"],
                "state": join_hypotheses(state),
            },
            "finished": finished,
            "coverage": take_rows(coverage, next_beam["parents"]),
            "history": write(carry["history"], t, entry),
        }
        after = self._limited(carry, after)
        return {**after, "done": self._done(after)}

    def _expanded(self, beam: Nested, carry: Nested) -> Nested:
        """Return the next beam and the finished hypotheses, group by group."""
        stopped = self._stopped(carry)
        counts: list[Tensor] = []
        results = []
        for group in range(self.groups.count):
            group_beam = self.groups.select(group, beam)
            penalty = self.groups.diversity_penalty * sum(counts) if counts else None
            continuations, next_beam = expand(
                **group_beam, end=self.end, penalty=penalty
            )
            if self.groups.count > 1:
                counts.append(
                    last_token_counts(next_beam, group_beam["log_probs"].shape[-1])
                )
                for part in (continuations, next_beam):
                    part["parents"] = part["parents"] + group * self.groups.size
            # A group that has stopped ignores the further steps of other rows.
            ended = continuations["ended"] & ~stopped[:, group : group + 1]
            finished = self.groups.select(group, carry["finished"])
            finished = self._finished(continuations, ended, finished, carry["t"])
            results.append((next_beam, finished))
        return functools.reduce(concatenate, results)

    def _finished(
        self, continuations: Nested, ended: Tensor, finished: Nested, t: Any
    ) -> Nested:
        """Return the best finished hypotheses of a group, old ones and new ones."""
        divisor = self.ranking.length_divisor(t + 1)
        parents = continuations["parents"]
        scores = continuations["unnormalized_scores"] / divisor
        arrivals = {
            "scores": ops.where(ended, scores, IMPOSSIBLE),
            "log_probs": ops.where(ended, continuations["log_probs"], IMPOSSIBLE),
            "token_log_probs": continuations["token_log_probs"],
            "steps": ops.broadcast_to(t[:, None], ops.shape(parents)),
            "parents": parents,
        }
        finished = concatenate(finished, arrivals)
        _, best = ops.top_k(finished["scores"], self.groups.size)
        return take_rows(finished, best)

    def _limited(self, before: Nested, after: Nested) -> Nested:
        """Return the carry after a step; rows at their limit keep their hypotheses."""
        if isinstance(self.limit, int) or is_one(before["done"].shape[0]):
            # The loop ends at the limit, for all rows.
            return after

        def limited_parts(carry: Nested) -> Nested:
            return carry["finished"], carry["coverage"], carry["alive"]["log_probs"]

        below_limit = before["t"] < self.limit
        finished, coverage, log_probs = where_rows(
            below_limit, limited_parts(after), limited_parts(before)
        )
        alive = {**after["alive"], "log_probs": log_probs}
        return {**after, "alive": alive, "finished": finished, "coverage": coverage}

    def _best_of_all(self, carry: Nested) -> Nested:
        """Return the best hypotheses of each group, the best of the row first.

        Finished ones come first. Where there are too few, the others have the
        log-probability `IMPOSSIBLE`.
        """
        alive = carry["alive"]
        length = at_most(carry["t"], self.limit)
        t = length[:, None]
        slots = ops.broadcast_to(
            ops.arange(self.beam_size, dtype="int32"), ops.shape(alive["token_ids"])
        )
        scores = self.ranking.unnormalized_scores(
            alive["log_probs"], carry["coverage"], length
        )
        # Finished hypotheses have one more token, the end.
        finished = {
            **carry["finished"],
            "lengths": carry["finished"]["steps"] + 1,
            "is_alive": ops.zeros_like(slots),
        }
        alive = {
            "scores": scores / self.ranking.length_divisor(length),
            "log_probs": alive["log_probs"],
            "token_log_probs": ops.zeros_like(alive["log_probs"]),
            "steps": ops.broadcast_to(t, ops.shape(slots)),
            "parents": slots,
            "lengths": ops.broadcast_to(t, ops.shape(slots)),
            "is_alive": ops.ones_like(slots),
        }
        best = []
        for group in range(self.groups.count):
            pool = concatenate(*self.groups.select(group, (finished, alive)))
            best.append(best_first(pool, self.groups.size))
        return best_first(functools.reduce(concatenate, best), self.beam_size)

    def hypotheses(self, carry: Tensors) -> Tensors:
        """Return the result of the search, traced back from the last tokens."""
        chosen = self._best_of_all(carry)
        exists = is_possible(chosen["log_probs"])
        lengths = ops.where(exists, chosen["lengths"], 0)

        history, steps = carry["history"], ops.arange(self.max_length, dtype="int32")

        def trace(slots: Nested, step: Nested) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            before = step["t"] < chosen["steps"]
            parents = ops.where(before, take_rows(step["parents"], slots), slots)
            return parents, (slots, parents)

        backwards = {"t": steps, "parents": history["alive"]["parents"]}
        backwards = tree.map_structure(lambda x: ops.flip(x, axis=0), backwards)
        _, traced = loops.scan(trace, chosen["parents"], backwards)
        # The slot of each hypothesis after each step, and that before it, `(L, B, K)`.
        slots, parents = (ops.flip(x, axis=0) for x in traced)
        t = steps[:, None, None]
        within, before = t < lengths, t < ops.minimum(lengths, chosen["steps"])
        # The history holds alive hypotheses only, without the end token.
        alive = take_steps(history["alive"], slots)
        token_log_probs = ops.where(
            before, alive["token_log_probs"], chosen["token_log_probs"]
        )
        outputs = {
            "token_ids": ops.where(before, alive["token_ids"], self.end),
            "token_log_probs": ops.where(within, token_log_probs, 0.0),
            "weights": ops.where(
                within[..., None], take_steps(history["weights"], parents), 0.0
            ),
        }
        return {
            **{name: ops.moveaxis(x, 0, 2) for name, x in outputs.items()},
            "lengths": lengths,
            "scores": ops.where(exists, chosen["scores"], IMPOSSIBLE),
            "log_probs": chosen["log_probs"],
            "finite": carry["finite"],
        }


def _with_state(carry: Nested, function: Callable[[Nested], Nested]) -> Nested:
    """Return a carry whose state is what a function makes of it."""
    alive = {**carry["alive"], "state": function(carry["alive"]["state"])}
    return {**carry, "alive": alive}


# The options of beam search are listed once, in `Beam`.
_signature = inspect.signature(Beam).replace(return_annotation=Tensors)
beam_search.__signature__ = _signature  # type: ignore[attr-defined]
