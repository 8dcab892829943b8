"""One step of beam search: the continuations of the hypotheses, and the next beam.

Shapes: B rows, K hypotheses of a group, M continuations, N vocabulary size.
"""

from collections.abc import Iterable

from keras import ops

from keras_attention.backends import index_range, vocabulary_mask
from keras_attention.ops.gathering import take_rows
from keras_attention.ops.log_probs import IMPOSSIBLE, is_possible
from keras_attention.search.constraints import FORBIDDEN, Constraint
from keras_attention.search.top_k import top_k_of_sums
from keras_attention.typing import Nested, Tensor, Tensors


def best_continuations(
    unnormalized_scores: Tensor,
    log_probs: Tensor,
    progress: Tensor | None = None,
    penalty: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the best continuations, `(B, M)`, best first.

    M is at most 2 K, so that a full beam remains even if the K best continuations end.

    Args:
        unnormalized_scores: Scores of the hypotheses, `(B, K)`.
        log_probs: Log-probabilities of the next token, `(B, K, N)`.
        progress: Result of `Constraint.progress`, or `None`. With progress, the beam is
            divided: see `RequiredPhrases`.
        penalty: Penalty of each token, `(B, N)`, or `None`. It affects the choice of
            continuations, not their log-probabilities.

    Returns:
        values: Their scores, less the penalty.
        parents: Their hypotheses.
        token_ids: Their last tokens.
        token_log_probs: The log-probabilities of these.
    """
    beam_size, size = log_probs.shape[1:]
    penalized = log_probs if penalty is None else log_probs - penalty[:, None]
    if progress is not None:
        totals = unnormalized_scores[..., None] + penalized
        values, parents, token_ids = _allocate_by_progress(totals, progress)
    else:
        count = min(2 * beam_size, beam_size * size)
        best = top_k_of_sums(unnormalized_scores, penalized, count)
        if penalty is None:
            return best
        values, parents, token_ids, _ = best
    flat = ops.reshape(log_probs, (-1, beam_size * size))
    return values, parents, token_ids, take_rows(flat, parents * size + token_ids)


def _allocate_by_progress(
    totals: Tensor, progress: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuation for every progress, then the second best, etc."""
    beam_size, size = totals.shape[1:]
    wanted = progress["token_ids"]
    exists = wanted >= 0
    # At most K continuations without progress of one hypothesis reach the next beam,
    # and one more ends, so K + 1 suffice.
    others = ops.where(vocabulary_mask(wanted, exists, size), FORBIDDEN, totals)
    values, token_ids = ops.top_k(others, min(beam_size + 1, size))
    unchanged = ops.broadcast_to(
        progress["after_others"][..., None], ops.shape(token_ids)
    )
    wanted = ops.where(exists, wanted, 0)
    wanted_totals = ops.take_along_axis(totals, wanted, axis=-1)
    parts = {
        "values": (values, ops.where(exists, wanted_totals, FORBIDDEN)),
        "token_ids": (ops.cast(token_ids, "int32"), wanted),
        "progress": (unchanged, progress["after"]),
    }
    continuations = {
        name: ops.concatenate(pair, axis=-1) for name, pair in parts.items()
    }
    width = ops.shape(continuations["values"])[-1]
    batch = ops.shape(totals)[0]
    continuations = {
        name: ops.reshape(x, (batch, beam_size * width))
        for name, x in continuations.items()
    }
    order = ops.cast(ops.argsort(-continuations["values"], axis=-1), "int32")
    continuations = {**take_rows(continuations, order), "parents": order // width}
    # Sort key: first the rank among continuations of the same progress, then progress
    # from high to low; impossible ones last.
    count = ops.shape(order)[-1]
    same = (
        continuations["progress"][:, :, None] == continuations["progress"][:, None, :]
    )
    indices = index_range(count)
    better = same & (indices < indices[:, None])
    sort_keys = ops.sum(ops.cast(better, "int32"), axis=-1)
    highest = ops.max(continuations["progress"], axis=-1, keepdims=True, initial=0)
    sort_keys = sort_keys * (highest + 1) + highest - continuations["progress"]
    last = count * (highest + 1)
    sort_keys = ops.where(is_possible(continuations["values"]), sort_keys, last)
    chosen = ops.cast(ops.argsort(sort_keys, axis=-1), "int32")[:, : 2 * beam_size]
    # Each hypothesis has two continuations at least, even if their number is unknown.
    chosen = ops.reshape(chosen, (batch, 2 * beam_size))
    continuations = take_rows(continuations, chosen)
    return continuations["values"], continuations["parents"], continuations["token_ids"]


def expand(
    alive: Nested,
    log_probs: Tensor,
    unnormalized_scores: Tensor,
    *,
    end: int,
    progress: Tensor | None = None,
    penalty: Tensor | None = None,
) -> tuple[Tensors, Nested]:
    """Return the continuations of a beam, and those that form the next beam.

    Args:
        alive: Log-probabilities of the hypotheses, `(B, K)`.
        log_probs: Log-probabilities of the next token, `(B, K, N)`.
        unnormalized_scores: Scores of the hypotheses before the length penalty,
            `(B, K)`.
        end: The end token.
        progress, penalty: As for `best_continuations`.

    Returns:
        continuations: Dict of tensors `(B, M)`, best first: `"parents"`, `"token_ids"`,
            `"token_log_probs"`, `"log_probs"`, `"unnormalized_scores"`, and the boolean
            `"ended"`, whether the hypothesis is finished.
        next_beam: The continuations of the next beam, `(B, K)`.
    """
    beam_size = log_probs.shape[1]
    values, parents, token_ids, token_log_probs = best_continuations(
        unnormalized_scores, log_probs, progress, penalty
    )
    token_log_probs = ops.where(is_possible(values), token_log_probs, FORBIDDEN)
    totals = take_rows(alive, parents) + token_log_probs
    unnormalized_scores = take_rows(unnormalized_scores, parents) + token_log_probs
    indices = ops.arange(token_ids.shape[-1], dtype="int32")
    is_end = token_ids == end
    continuations = {
        "parents": parents,
        "token_ids": token_ids,
        "token_log_probs": token_log_probs,
        "log_probs": totals,
        "unnormalized_scores": unnormalized_scores,
        "ended": is_end & (indices < beam_size) & is_possible(totals),
    }
    # Continuations that do not end come first.
    order = ops.argsort(ops.where(is_end, indices + indices.shape[0], indices), axis=-1)
    next_beam = take_rows(continuations, ops.cast(order, "int32")[:, :beam_size])
    impossible = next_beam["token_ids"] == end
    # The lower bound keeps sums of impossible log-probabilities finite.
    totals = ops.maximum(next_beam["log_probs"], IMPOSSIBLE)
    next_beam["log_probs"] = ops.where(impossible, IMPOSSIBLE, totals)
    return continuations, next_beam


def progress_of(constraints: Iterable[Constraint], state: Nested) -> Tensor | None:
    """Return the progress of hypotheses; `None` if no constraint has one.

    Args:
        constraints: As `order_constraints` returns them.
        state: State of the search, as the step of `constrain` returns it.
    """
    pairs = zip(constraints, state["constraints"], strict=True)
    values = [
        constraint.progress(constraint_state) for constraint, constraint_state in pairs
    ]
    values = [progress for progress in values if progress is not None]
    if len(values) > 1:
        raise ValueError(
            "constraints must contain at most one with a progress, such as "
            f"RequiredPhrases. Received: {len(values)}"
        )
    return values[0] if values else None


def last_token_counts(beam: Nested, size: int) -> Tensor:
    """Return the number of hypotheses of a beam that end in each token, `(B, size)`."""
    exists = ops.cast(is_possible(beam["log_probs"]), "float32")
    chosen = ops.one_hot(beam["token_ids"], size, dtype="float32")
    return ops.sum(exists[..., None] * chosen, axis=1)
