"""Beam search over lists that are longer than a batch."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from keras import ops, tree

from keras_attention.search.beam import Beam
from keras_attention.search.constraints import Constraint
from keras_attention.search.limits import check_limit
from keras_attention.search.step import check_keywords
from keras_attention.typing import Nested, Step, Tensor, Tensors
from keras_attention.validation import check_mask, check_positive_integer


class BeamSearchQueue:
    """Beam search over a list of any length, with continuous batching.

    A search of a batch ends when all its rows are done. Here, the next row of the list
    takes the place of a row that is done. The search runs in rounds at a fixed batch
    size. A round ends when an eighth of its rows are done or a row has `max_length`
    tokens. Once the list no longer fills all places, a round ends when all its rows are
    done or one has `max_length` tokens. The result of each row is that of
    `beam_search`.

    Args:
        make_step: Function `(memory) -> step`, which returns a step function (see
            `keras_attention.search`) for a memory, nested tensors `(batch_size, ...)`
            that all hypotheses of a row share.
        batch_size: Number of rows that are searched together.
        compiler: Function that compiles functions of nested tensors, such as
            `tf.function` or `jax.jit`; `None` runs eagerly. Each function is compiled
            once.
        constraints: List of `Constraint` objects for all rows, or a function
            `(memory) -> constraints` for those that differ from row to row, such as
            `lambda memory: [Prefix(memory["prefix"])]`.
        **options: Further options of `beam_search`, except the call arguments below.

    Call arguments:
        memory: Nested arrays `(R, ...)` for the R rows of the list.
        state: Initial state, nested arrays `(R, ...)`.
        coverage_mask: Boolean `(R, S)`, as for `beam_search`.
        limit: Integers `(R,)`, as for `beam_search`.

    Returns:
        Dict of NumPy arrays: the result of `beam_search` for all rows, in their order.

    Raises:
        ValueError: If `batch_size` is not a positive integer, arrays differ in the
            number of rows, or as in `beam_search`.
        TypeError: For an unknown or missing option.

    Example:

    Five rows, two at a time; each row counts to its own number:

    >>> def make_step(last):
    ...     def step(token_ids, state):
    ...         following = keras.ops.where(token_ids < last[:, None], token_ids + 1, 9)
    ...         logits = 20 * keras.ops.one_hot(following, 10)
    ...         weights = keras.ops.ones((*token_ids.shape, 3)) / 3
    ...         return keras.ops.log_softmax(logits), state, weights
    ...     return step
    >>> search = BeamSearchQueue(
    ...     make_step, batch_size=2, start=0, end=9, max_length=8, beam_size=3
    ... )
    >>> last = np.array([2, 6, 1, 3, 1], "int32")
    >>> result = search(last, np.zeros((5, 1)))
    >>> result["lengths"][:, 0].tolist()
    [3, 7, 2, 4, 2]
    """

    def __init__(
        self,
        make_step: Callable[[Nested], Step],
        *,
        batch_size: int,
        compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        constraints: Iterable[Constraint]
        | Callable[[Nested], Iterable[Constraint]] = (),
        **options: Any,
    ) -> None:
        batch_size = check_positive_integer("batch_size", batch_size)
        check_keywords("BeamSearchQueue", options, Beam)
        self.make_step = make_step
        self.batch_size = batch_size
        # Every round reads them again, so an iterator would be used up.
        self.constraints = constraints if callable(constraints) else list(constraints)
        self.options = options
        compiler = compiler or (lambda function: function)
        self._begin = compiler(lambda rows: self._beam(rows).begin())
        self._run_round = compiler(self._round)

    def __call__(
        self,
        memory: Nested,
        state: Nested,
        *,
        coverage_mask: Tensor | None = None,
        limit: Tensor | None = None,
    ) -> Tensors:
        # Inside a compiled function, the values are not known.
        if limit is not None:
            check_limit(limit)
        rows = {"memory": memory, "state": state}
        by_row = {"coverage_mask": coverage_mask, "limit": limit}
        rows = tree.map_structure(ops.convert_to_tensor, rows)
        rows |= {
            name: ops.convert_to_tensor(x)
            for name, x in by_row.items()
            if x is not None
        }
        check_mask("coverage_mask", rows.get("coverage_mask"), (None, None))
        counts = sorted({x.shape[0] for x in tree.flatten(rows)})
        if len(counts) != 1:
            raise ValueError(
                "memory, state and the other arguments must have the same number of "
                f"rows. Received: {counts}"
            )
        (count,) = counts
        if not count:
            beam = self._beam(rows)
            return tree.map_structure(
                ops.convert_to_numpy, beam.hypotheses(beam.begin())
            )
        queue = iter(range(count))
        hypotheses: list[Any] = [None] * count
        # Row of the list that is searched in each slot; -1 for none.
        row_of_slot = np.full(self.batch_size, -1)
        free, carry, unfinished_rows = row_of_slot < 0, None, count
        while unfinished_rows:
            row_of_slot[free] = [next(queue, -1) for _ in range(free.sum())]
            active = row_of_slot >= 0
            # A slot without a row repeats the first row, and its result is dropped.
            index = np.maximum(row_of_slot, 0).astype("int32")
            batch = tree.map_structure(lambda x, i=index: ops.take(x, i, axis=0), rows)
            if carry is None:
                carry = self._begin(batch)
            enough = max(self.batch_size // 8, 1)
            unfinished = self.batch_size - enough if active.all() else 0
            arguments = free, active, np.int32(unfinished)
            carry, done, results = self._run_round(
                batch, carry, *map(ops.convert_to_tensor, arguments)
            )
            free = ops.convert_to_numpy(done)
            results = tree.map_structure(ops.convert_to_numpy, results)
            for slot in np.flatnonzero(free & active):
                # Copies: a view would keep the results of the whole batch in memory.
                hypothesis = {name: x[slot].copy() for name, x in results.items()}
                hypotheses[row_of_slot[slot]] = hypothesis
                unfinished_rows -= 1
        return {name: np.stack([x[name] for x in hypotheses]) for name in hypotheses[0]}

    def _beam(self, rows: Nested) -> Beam:
        options = {**self.options, **rows}
        memory, state = options.pop("memory"), options.pop("state")
        constraints = (
            self.constraints(memory) if callable(self.constraints) else self.constraints
        )
        step = self.make_step(memory)
        return Beam(step, state, constraints=constraints, **options)

    def _round(
        self,
        rows: Nested,
        carry: Nested,
        fresh: Nested,
        active: Tensor,
        unfinished: int,
    ) -> tuple[Nested, Tensor, Tensors]:
        beam = self._beam(rows)
        carry = beam.restart(carry, fresh)
        carry = beam.run(carry, active=active, unfinished=unfinished)
        return carry, carry["done"], beam.hypotheses(carry)
