"""Finding sequences: greedy, sampling and beam search over any step function.

A step is all that a model has to offer:

    step(token_ids, state) -> (log_probs, state, weights)

with `token_ids` `(B, K)`, the last token of each of K hypotheses; `log_probs`
`(B, K, N)` over the next token; `weights` `(B, K, S)`, where the step looked; and
`state` any nested structure of tensors `(B, K, ...)`. What all hypotheses share, such
as a memory, stays in the step's closure and is never copied. Shapes inside the loops
never change, so the searches run eagerly, compiled, and inside an exported graph.

Shapes: B batch, K hypotheses, N vocabulary size, L maximum length, S positions.
"""

import keras
from keras import ops, tree

from keras_attention import loops

# Stands for a hypothesis that does not exist; finite, so that sums stay finite.
IMPOSSIBLE = -1e9


def greedy_search(step, state, *, start, end, max_length, banned=()):
    """Take the most probable token at every step.

    The loop ends when every row has produced `end`.

    Args:
        step: Step function (see the module).
        state: Initial state, nested tensors `(B, ...)`.
        start: Token that the first step is given.
        end: Token that ends a sequence.
        max_length: Largest number of tokens, `end` included.
        banned: Tokens that are never produced.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`, for K = 1.
        Scores are log-probabilities.

    Raises:
        ValueError: If `max_length` is not a positive integer, or a banned token is
            not in the vocabulary.
    """

    def most_probable(log_probs, t):
        return ops.argmax(log_probs, axis=-1)

    return _follow(step, state, 1, most_probable, start, end, max_length, banned)


def sample_search(
    step,
    state,
    *,
    start,
    end,
    max_length,
    samples=1,
    temperature=1.0,
    banned=(),
    seed=None,
):
    """Draw every token from the model's distribution.

    Tokens are drawn by inversion: with `u` uniform in [0, 1), the first token at which
    the cumulated probability exceeds `u`. All `u` are drawn before the loop, which
    ends when every row has produced `end`.

    Args:
        step: Step function (see the module).
        state: Initial state, nested tensors `(B, ...)`.
        start: Token that the first step is given.
        end: Token that ends a sequence.
        max_length: Largest number of tokens, `end` included.
        samples: Number of independent samples K of every row.
        temperature: Positive; log-probabilities are divided by it before drawing.
        banned: Tokens that are never produced.
        seed: Integer, `keras.random.SeedGenerator`, or `None`.

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`; the samples
        are in no order. Scores are log-probabilities, at temperature 1.

    Raises:
        ValueError: If `samples` or `max_length` is not a positive integer, the
            temperature is not positive, or a banned token is not in the vocabulary.
    """
    _check_positive("samples", samples)
    _check_positive("max_length", max_length)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive. Received: {temperature}")
    batch = ops.shape(tree.flatten(state)[0])[0]
    draws = keras.random.uniform((max_length, batch, samples, 1), seed=seed)

    def draw(log_probs, t):
        cumulated = ops.cumsum(ops.softmax(log_probs / temperature, axis=-1), axis=-1)
        # Rounding may leave the sum a little off one.
        threshold = ops.take(draws, t, axis=0) * cumulated[..., -1:]
        return ops.sum(ops.cast(cumulated <= threshold, "int32"), axis=-1)

    return _follow(step, state, samples, draw, start, end, max_length, banned)


def _follow(step, state, size, choose, start, end, max_length, banned):
    """Run `size` hypotheses of every row to their end, each on its own.

    `choose(log_probs, t)` returns the next tokens `(B, K)`.
    """
    _check_positive("max_length", max_length)
    state = _spread(state, size)
    batch = ops.shape(tree.flatten(state)[0])[0]
    token_ids = ops.full((batch, size), start, dtype="int32")
    log_probs, _, weights = step(token_ids, state)
    ban = _ban(banned, log_probs)

    def proceed(t, alive, found):
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(alive["done"])))

    def body(t, alive, found):
        done = alive["done"]
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        log_probs = ops.cast(log_probs, "float32") + ban
        token_ids = ops.cast(choose(log_probs, t), "int32")
        gain = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]
        token_ids = ops.where(done, end, token_ids)
        weights = ops.where(done[..., None], 0.0, ops.cast(weights, "float32"))
        found = {
            "token_ids": _write(found["token_ids"], t, token_ids),
            "weights": _write(found["weights"], t, weights),
            "log_probs": found["log_probs"] + ops.where(done, 0.0, gain),
            "lengths": found["lengths"] + ops.cast(ops.logical_not(done), "int32"),
        }
        done = ops.logical_or(done, token_ids == end)
        return t + 1, {"token_ids": token_ids, "state": state, "done": done}, found

    alive = {
        "token_ids": token_ids,
        "state": state,
        "done": ops.zeros((batch, size), dtype="bool"),
    }
    found = {
        "token_ids": ops.full((max_length, batch, size), end, dtype="int32"),
        "weights": ops.zeros((max_length, *ops.shape(weights)), dtype="float32"),
        "log_probs": ops.zeros((batch, size), dtype="float32"),
        "lengths": ops.zeros((batch, size), dtype="int32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    _, _, found = ops.while_loop(
        proceed, body, (t, alive, found), maximum_iterations=max_length
    )
    return {
        "token_ids": ops.moveaxis(found["token_ids"], 0, -1),
        "lengths": found["lengths"],
        "scores": found["log_probs"],
        "log_probs": found["log_probs"],
        "weights": ops.moveaxis(found["weights"], 0, -2),
    }


def beam_search(
    step,
    state,
    *,
    start,
    end,
    max_length,
    beam_size=5,
    length_penalty=1.0,
    banned=(),
):
    """Keep the most probable hypotheses at every step and return the best finished.

    Hypotheses are ranked by

        score = log p(tokens) / length ** length_penalty

    where the length counts the end token: 0 ranks by probability, 1 by the average
    per token. A hypothesis that ends leaves the beam for a pool of the `beam_size`
    best finished ones. A row is done when no unfinished hypothesis can enter its
    pool any more; the loop ends when all rows are done. If fewer than `beam_size`
    have finished at `max_length`, unfinished ones follow behind the finished ones.

    Args:
        step: Step function (see the module).
        state: Initial state, nested tensors `(B, ...)`.
        start: Token that the first step is given.
        end: Token that ends a sequence.
        max_length: Largest number of tokens, `end` included.
        beam_size: Number of hypotheses K that are kept and returned.
        length_penalty: Exponent of the length, not negative.
        banned: Tokens that are never produced.

    Returns:
        Dict of tensors, best hypothesis first:
        `"token_ids"` `(B, K, L)`, filled with `end` behind the last token;
        `"lengths"` `(B, K)`, tokens including `end`; 0 where the vocabulary does not
        allow as many different hypotheses;
        `"scores"` `(B, K)`; `"log_probs"` `(B, K)`, the sum over the tokens;
        `"weights"` `(B, K, L, S)`, where the model looked for each token.

    Raises:
        ValueError: If `beam_size` or `max_length` is not a positive integer, or
            `length_penalty` is negative.
    """
    _check_positive("max_length", max_length)
    _check_positive("beam_size", beam_size)
    if length_penalty < 0:
        raise ValueError(
            f"length_penalty must not be negative. Received: {length_penalty}"
        )
    state = _spread(state, beam_size)
    batch = ops.shape(tree.flatten(state)[0])[0]
    token_ids = ops.full((batch, beam_size), start, dtype="int32")
    log_probs, _, weights = step(token_ids, state)
    ban = _ban(banned, log_probs)
    size = log_probs.shape[-1]
    # Twice the beam, so that enough are left when a whole beam ends at once.
    candidates = min(2 * beam_size, beam_size * size)
    best_divisor = max_length**length_penalty

    def proceed(t, alive, finished, history):
        best = alive["log_probs"][:, 0]
        hope = ops.where(_exists(best), best / best_divisor, IMPOSSIBLE)
        settled = finished["scores"][:, -1] >= hope
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(settled)))

    def body(t, alive, finished, history):
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        log_probs = ops.cast(log_probs, "float32") + ban
        totals = alive["log_probs"][..., None] + log_probs
        totals, flat = ops.top_k(
            ops.reshape(totals, (-1, beam_size * size)), candidates
        )
        flat = ops.cast(flat, "int32")
        parents, token_ids = flat // size, flat % size
        ended = ops.logical_and(token_ids == end, _exists(totals))

        length = ops.cast(t + 1, "float32")
        arrivals = {
            "scores": ops.where(ended, totals / length**length_penalty, IMPOSSIBLE),
            "log_probs": ops.where(ended, totals, IMPOSSIBLE),
            "steps": ops.broadcast_to(t, ops.shape(parents)),
            "parents": parents,
        }
        finished = _concatenate(finished, arrivals)
        _, best = ops.top_k(finished["scores"], beam_size)
        finished = _gather(finished, best)

        totals = ops.where(token_ids == end, IMPOSSIBLE, totals)
        totals, best = ops.top_k(totals, beam_size)
        parents, token_ids = _gather((parents, token_ids), best)
        alive = {
            "token_ids": token_ids,
            # Kept finite: the impossible may not add up.
            "log_probs": ops.maximum(totals, IMPOSSIBLE),
            "state": _gather(state, parents),
        }
        history = {
            "token_ids": _write(history["token_ids"], t, token_ids),
            "parents": _write(history["parents"], t, parents),
            # In the order in which the step was asked, before the beam is reordered.
            "weights": _write(history["weights"], t, ops.cast(weights, "float32")),
        }
        return t + 1, alive, finished, history

    only_first = ops.where(ops.arange(beam_size) == 0, 0.0, IMPOSSIBLE)
    nobody = ops.zeros((batch, beam_size), dtype="int32")
    alive = {
        "token_ids": token_ids,
        "log_probs": ops.broadcast_to(only_first[None], (batch, beam_size)),
        "state": state,
    }
    finished = {
        "scores": ops.full((batch, beam_size), IMPOSSIBLE, dtype="float32"),
        "log_probs": ops.full((batch, beam_size), IMPOSSIBLE, dtype="float32"),
        "steps": nobody,
        "parents": nobody,
    }
    history = {
        "token_ids": ops.zeros((max_length, batch, beam_size), dtype="int32"),
        "parents": ops.zeros((max_length, batch, beam_size), dtype="int32"),
        "weights": ops.zeros((max_length, *ops.shape(weights)), dtype="float32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    t, alive, finished, history = ops.while_loop(
        proceed, body, (t, alive, finished, history), maximum_iterations=max_length
    )
    return _hypotheses(t, alive, finished, history, end, length_penalty)


def _hypotheses(t, alive, finished, history, end, length_penalty):
    """Finished hypotheses, then unfinished ones, each traced back to its start."""
    max_length, _, beam_size = history["token_ids"].shape
    slots = ops.broadcast_to(
        ops.arange(beam_size, dtype="int32"), ops.shape(alive["token_ids"])
    )
    unfinished = {
        "scores": alive["log_probs"] / ops.cast(t, "float32") ** length_penalty,
        "log_probs": alive["log_probs"],
        "steps": ops.broadcast_to(t, ops.shape(slots)),
        "parents": slots,
    }
    pool = _concatenate(finished, unfinished)
    # Both halves are sorted: the first that exist are the best.
    places = ops.arange(2 * beam_size, dtype="int32")
    places = ops.where(_exists(pool["log_probs"]), places, places + 2 * beam_size)
    chosen = _gather(pool, ops.argsort(places, axis=-1)[:, :beam_size])
    exists = _exists(chosen["log_probs"])
    last = ops.where(exists, chosen["steps"], -1)

    def trace(slots, step):
        within = (step["t"] <= last)[..., None]
        token_ids, parents = _gather((step["token_ids"], step["parents"]), slots)
        token_ids = ops.where(step["t"] < last, token_ids, end)
        slots = ops.where(step["t"] < last, parents, slots)
        weights = _gather(step["weights"], slots)
        return slots, (token_ids, ops.where(within, weights, 0.0))

    backwards = {**history, "t": ops.arange(max_length, dtype="int32")}
    backwards = tree.map_structure(lambda x: ops.flip(x, axis=0), backwards)
    _, (token_ids, weights) = loops.scan(trace, chosen["parents"], backwards)
    return {
        "token_ids": ops.moveaxis(ops.flip(token_ids, axis=0), 0, -1),
        "lengths": ops.minimum(last + 1, max_length),
        "scores": chosen["scores"],
        "log_probs": chosen["log_probs"],
        "weights": ops.moveaxis(ops.flip(weights, axis=0), 0, -2),
    }


def _spread(state, size):
    """The same state for every hypothesis: `(B, ...)` to `(B, K, ...)`."""
    return tree.map_structure(lambda x: ops.repeat(x[:, None], size, axis=1), state)


def _exists(log_probs):
    return log_probs > IMPOSSIBLE / 2


def _concatenate(first, second):
    return tree.map_structure(
        lambda *pair: ops.concatenate(pair, axis=1), first, second
    )


def _gather(nested, index):
    """Pick along axis 1: `(B, M, ...)` and `(B, K)` give `(B, K, ...)`."""

    def pick(x):
        batch, size, *rest = ops.shape(x)
        flat = ops.reshape(x, (-1, *rest))
        return ops.take(flat, index + size * ops.arange(batch)[:, None], axis=0)

    return tree.map_structure(pick, nested)


def _write(history, t, now):
    return ops.scatter_update(history, ops.reshape(t, (1, 1)), now[None])


def _ban(banned, log_probs):
    """What to add to log-probabilities `(..., N)` to exclude the banned tokens."""
    size = log_probs.shape[-1]
    wrong = [token for token in banned if not 0 <= token < size]
    if wrong:
        raise ValueError(
            f"banned must hold tokens between 0 and {size - 1}. Received: {wrong}"
        )
    ban = [IMPOSSIBLE if token in set(banned) else 0.0 for token in range(size)]
    return ops.convert_to_tensor(ban, dtype="float32")


def _check_positive(name, number):
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {number!r}")
