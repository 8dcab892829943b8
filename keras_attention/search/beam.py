"""Finding sequences: greedy, sampling and beam search over any step function.

A step is all that a model has to offer:

    step(token_ids, state) -> (log_probs, state, weights)

with `token_ids` `(B, K)`, the last token of each of K hypotheses; `log_probs`
`(B, K, N)` over the next token; `weights` `(B, K, S)`, where the step looked; and
`state` any nested structure of tensors `(B, K, ...)`. What all hypotheses share, such
as a memory, stays in the step's closure and is never copied. Shapes inside the loops
never change, so the searches run eagerly, compiled, and inside an exported graph.

Every search takes the same constraints, by keyword; scores stay those of the model:

    banned: Tokens that are never produced.
    min_length: Smallest number of tokens, `end` included.
    no_repeat_ngrams: No sequence of so many tokens comes twice in a hypothesis.
    prefix: First tokens of all hypotheses of a row, integers `(B, P)`, negative where
        the search is free. Stronger than the other constraints.

Shapes: B batch, K hypotheses, N vocabulary size, L maximum length, S positions.
"""

import keras
import numpy as np
from keras import ops, tree

from keras_attention import loops

# Stands for a hypothesis that does not exist; finite, so that sums stay finite.
IMPOSSIBLE = -1e9
# Below what is merely impossible, which may be all that is left.
FORBIDDEN = 2 * IMPOSSIBLE


def greedy_search(step, state, *, start, end, max_length, **constraints):
    """Take the most probable token at every step.

    The loop ends when every row has produced `end`.

    Args:
        step: Step function (see the module).
        state: Initial state, nested tensors `(B, ...)`.
        start: Token that the first step is given.
        end: Token that ends a sequence.
        max_length: Largest number of tokens, `end` included.
        **constraints: `banned`, `min_length`, `no_repeat_ngrams`, `prefix` (see the
            module).

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`, for K = 1.
        Scores are log-probabilities.

    Raises:
        ValueError: If `max_length` is not a positive integer, or a constraint cannot
            be met, such as a banned token that is not in the vocabulary.
    """

    def most_probable(log_probs, t):
        return ops.argmax(log_probs, axis=-1)

    return _follow(step, state, 1, most_probable, start, end, max_length, constraints)


def sample_search(
    step,
    state,
    *,
    start,
    end,
    max_length,
    samples=1,
    temperature=1.0,
    seed=None,
    **constraints,
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
        seed: Integer, `keras.random.SeedGenerator`, or `None`.
        **constraints: `banned`, `min_length`, `no_repeat_ngrams`, `prefix` (see the
            module).

    Returns:
        Dict of tensors, with the same keys and shapes as `beam_search`; the samples
        are in no order. Scores are log-probabilities, at temperature 1.

    Raises:
        ValueError: If `samples` or `max_length` is not a positive integer, the
            temperature is not positive, or a constraint cannot be met.
    """
    _check_positive("samples", samples)
    _check_positive("max_length", max_length)
    if not temperature > 0:
        raise ValueError(f"temperature must be positive. Received: {temperature}")
    draws = keras.random.uniform((max_length, _batch(state), samples, 1), seed=seed)

    def draw(log_probs, t):
        cumulated = ops.cumsum(ops.softmax(log_probs / temperature, axis=-1), axis=-1)
        # Rounding may leave the sum a little off one.
        threshold = ops.take(draws, t, axis=0) * cumulated[..., -1:]
        return ops.sum(ops.cast(cumulated <= threshold, "int32"), axis=-1)

    return _follow(step, state, samples, draw, start, end, max_length, constraints)


def _follow(step, state, size, choose, start, end, max_length, constraints):
    """Run `size` hypotheses of every row to their end, each on its own.

    `choose(log_probs, t)` returns the next tokens `(B, K)`.
    """
    _check_positive("max_length", max_length)
    step, state = _constrain(step, state, end, max_length, **constraints)
    state = _spread(state, size)
    batch = _batch(state)
    token_ids = ops.full((batch, size), start, dtype="int32")
    _, _, weights = step(token_ids, state)

    def proceed(t, alive, found):
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(alive["done"])))

    def body(t, alive, found):
        done = alive["done"]
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        token_ids = ops.cast(choose(log_probs, t), "int32")
        gain = ops.take_along_axis(log_probs, token_ids[..., None], axis=-1)[..., 0]
        token_ids = ops.where(done, end, token_ids)
        weights = ops.where(done[..., None], 0.0, ops.cast(weights, "float32"))
        now = {
            "token_ids": token_ids,
            "log_probs": ops.where(done, 0.0, gain),
            "weights": weights,
            "exists": ops.cast(ops.logical_not(done), "int32"),
        }
        found = _write(found, t, now)
        done = ops.logical_or(done, token_ids == end)
        return t + 1, {"token_ids": token_ids, "state": state, "done": done}, found

    alive = {
        "token_ids": token_ids,
        "state": state,
        "done": ops.zeros((batch, size), dtype="bool"),
    }
    found = {
        "token_ids": ops.full((max_length, batch, size), end, dtype="int32"),
        "log_probs": ops.zeros((max_length, batch, size), dtype="float32"),
        "weights": ops.zeros((max_length, *ops.shape(weights)), dtype="float32"),
        "exists": ops.zeros((max_length, batch, size), dtype="int32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    _, _, found = ops.while_loop(
        proceed, body, (t, alive, found), maximum_iterations=max_length
    )
    total = ops.sum(found["log_probs"], axis=0)
    return {
        "token_ids": ops.moveaxis(found["token_ids"], 0, -1),
        "lengths": ops.sum(found["exists"], axis=0),
        "scores": total,
        "log_probs": total,
        "token_log_probs": ops.moveaxis(found["log_probs"], 0, -1),
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
    length_penalty_form="power",
    **constraints,
):
    """Keep the most probable hypotheses at every step and return the best finished.

    Hypotheses are ranked by

        score = log p(tokens) / length ** length_penalty                ("power")
        score = log p(tokens) / ((5 + length) / 6) ** length_penalty    ("gnmt")

    where the length counts the end token: 0 ranks by probability, and 1, in the first
    form, by the average per token. At every step, the continuations of all hypotheses
    compete. Those among the `beam_size` best that end leave the beam for a pool of
    the `beam_size` best finished ones; the best that do not end go on. So a beam of
    one without length penalty is greedy search. A row is done when no unfinished
    hypothesis can enter its pool any more; the loop ends when all rows are done. If
    fewer than `beam_size` have finished at `max_length`, unfinished ones follow behind
    them.

    Args:
        step: Step function (see the module).
        state: Initial state, nested tensors `(B, ...)`.
        start: Token that the first step is given.
        end: Token that ends a sequence.
        max_length: Largest number of tokens, `end` included.
        beam_size: Number of hypotheses K that are kept and returned.
        length_penalty: Exponent of the length, not negative.
        length_penalty_form: `"power"` or `"gnmt"`.
        **constraints: `banned`, `min_length`, `no_repeat_ngrams`, `prefix` (see the
            module).

    Returns:
        Dict of tensors, best hypothesis first:
        `"token_ids"` `(B, K, L)`, filled with `end` behind the last token;
        `"lengths"` `(B, K)`, tokens including `end`; 0 where the vocabulary does not
        allow as many different hypotheses;
        `"scores"` `(B, K)`; `"log_probs"` `(B, K)`, the sum over the tokens;
        `"token_log_probs"` `(B, K, L)`, zero behind the last token;
        `"weights"` `(B, K, L, S)`, where the model looked for each token.

    Raises:
        ValueError: If `beam_size` or `max_length` is not a positive integer,
            `length_penalty` is negative, its form is unknown, or a constraint cannot
            be met.

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7, for `"gnmt"`.
    """
    _check_positive("max_length", max_length)
    _check_positive("beam_size", beam_size)
    if length_penalty < 0:
        raise ValueError(
            f"length_penalty must not be negative. Received: {length_penalty}"
        )
    if length_penalty_form not in ("power", "gnmt"):
        raise ValueError(
            "length_penalty_form must be 'power' or 'gnmt'. "
            f"Received: {length_penalty_form!r}"
        )

    def divisor(length):
        length = length if length_penalty_form == "power" else (5 + length) / 6
        return length**length_penalty

    step, state = _constrain(step, state, end, max_length, **constraints)
    state = _spread(state, beam_size)
    batch = _batch(state)
    token_ids = ops.full((batch, beam_size), start, dtype="int32")
    log_probs, _, weights = step(token_ids, state)
    size = log_probs.shape[-1]
    # Twice the beam, so that enough go on when a whole beam ends at once.
    candidates = min(2 * beam_size, beam_size * size)
    may_end = ops.arange(candidates) < beam_size

    def proceed(t, alive, finished, history):
        best = alive["log_probs"][:, 0]
        # Sums only fall, and nothing is divided by more.
        hope = ops.where(_exists(best), best / divisor(max_length), IMPOSSIBLE)
        settled = finished["scores"][:, -1] >= hope
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(settled)))

    def body(t, alive, finished, history):
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        totals = alive["log_probs"][..., None] + log_probs
        totals, flat = ops.top_k(
            ops.reshape(totals, (-1, beam_size * size)), candidates
        )
        flat = ops.cast(flat, "int32")
        gains = _gather(ops.reshape(log_probs, (-1, beam_size * size)), flat)
        parents, token_ids = flat // size, flat % size
        ended = ops.logical_and(token_ids == end, may_end)
        ended = ops.logical_and(ended, _exists(totals))

        length = ops.cast(t + 1, "float32")
        arrivals = {
            "scores": ops.where(ended, totals / divisor(length), IMPOSSIBLE),
            "log_probs": ops.where(ended, totals, IMPOSSIBLE),
            "gains": gains,
            "steps": ops.broadcast_to(t, ops.shape(parents)),
            "parents": parents,
        }
        finished = _concatenate(finished, arrivals)
        _, best = ops.top_k(finished["scores"], beam_size)
        finished = _gather(finished, best)

        totals = ops.where(token_ids == end, IMPOSSIBLE, totals)
        totals, best = ops.top_k(totals, beam_size)
        going = {"token_ids": token_ids, "parents": parents, "gains": gains}
        going = _gather(going, best)
        alive = {
            "token_ids": going["token_ids"],
            # Kept finite: the impossible may not add up.
            "log_probs": ops.maximum(totals, IMPOSSIBLE),
            "state": _gather(state, going["parents"]),
        }
        # Weights are in the order in which the step was asked, not that of the beam.
        now = {"going": going, "weights": ops.cast(weights, "float32")}
        history = _write(history, t, now)
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
        "gains": ops.zeros((batch, beam_size), dtype="float32"),
        "steps": nobody,
        "parents": nobody,
    }
    places = (max_length, batch, beam_size)
    history = {
        "going": {
            "token_ids": ops.zeros(places, dtype="int32"),
            "parents": ops.zeros(places, dtype="int32"),
            "gains": ops.zeros(places, dtype="float32"),
        },
        "weights": ops.zeros((max_length, *ops.shape(weights)), dtype="float32"),
    }
    t = ops.convert_to_tensor(0, dtype="int32")
    t, alive, finished, history = ops.while_loop(
        proceed, body, (t, alive, finished, history), maximum_iterations=max_length
    )
    return _hypotheses(t, alive, finished, history, end, divisor)


def _hypotheses(t, alive, finished, history, end, divisor):
    """Finished hypotheses, then unfinished ones, each traced back to its start."""
    max_length, _, beam_size = history["going"]["token_ids"].shape
    slots = ops.broadcast_to(
        ops.arange(beam_size, dtype="int32"), ops.shape(alive["token_ids"])
    )
    unfinished = {
        "scores": alive["log_probs"] / divisor(ops.cast(t, "float32")),
        "log_probs": alive["log_probs"],
        "gains": ops.zeros_like(alive["log_probs"]),
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
        before, within = step["t"] < last, step["t"] <= last
        going = _gather(step["going"], slots)
        # The end of a hypothesis is not in the history of those that went on.
        token_ids = ops.where(before, going["token_ids"], end)
        gains = ops.where(before, going["gains"], chosen["gains"])
        slots = ops.where(before, going["parents"], slots)
        weights = _gather(step["weights"], slots)
        outputs = {
            "token_ids": token_ids,
            "gains": ops.where(within, gains, 0.0),
            "weights": ops.where(within[..., None], weights, 0.0),
        }
        return slots, outputs

    backwards = {**history, "t": ops.arange(max_length, dtype="int32")}
    backwards = tree.map_structure(lambda x: ops.flip(x, axis=0), backwards)
    _, found = loops.scan(trace, chosen["parents"], backwards)
    found = tree.map_structure(lambda x: ops.flip(x, axis=0), found)
    return {
        "token_ids": ops.moveaxis(found["token_ids"], 0, -1),
        "lengths": ops.minimum(last + 1, max_length),
        "scores": chosen["scores"],
        "log_probs": chosen["log_probs"],
        "token_log_probs": ops.moveaxis(found["gains"], 0, -1),
        "weights": ops.moveaxis(found["weights"], 0, -2),
    }


def _constrain(
    step,
    state,
    end,
    max_length,
    *,
    banned=(),
    min_length=0,
    no_repeat_ngrams=None,
    prefix=None,
):
    """The same step and state, but tokens that break a constraint are `FORBIDDEN`.

    What the constraints must know of a hypothesis becomes a part of its state.
    """
    if not 0 <= min_length <= max_length:
        raise ValueError(
            f"min_length must be between 0 and max_length, {max_length}. "
            f"Received: {min_length}"
        )
    state = {"model": state, "length": ops.zeros((_batch(state),), dtype="int32")}
    if no_repeat_ngrams is not None:
        _check_positive("no_repeat_ngrams", no_repeat_ngrams)
    # Longer ones cannot come twice.
    no_repetitions = no_repeat_ngrams is not None and no_repeat_ngrams < max_length
    if no_repetitions:
        # The last token comes last, behind -1 for those that are not there yet.
        state["tokens"] = ops.full((_batch(state), max_length), -1, dtype="int32")
    if prefix is not None:
        prefix = ops.convert_to_tensor(prefix, dtype="int32")
        if len(prefix.shape) != 2 or prefix.shape[1] > max_length:
            raise ValueError(
                "prefix must have the shape (batch, tokens), with at most "
                f"{max_length} tokens. Received: {tuple(prefix.shape)}"
            )
        rest = ((0, 0), (0, max_length - prefix.shape[1]))
        prefix = ops.pad(prefix, rest, constant_values=-1)

    def constrained(token_ids, state):
        log_probs, model_state, weights = step(token_ids, state["model"])
        log_probs = ops.maximum(ops.cast(log_probs, "float32"), IMPOSSIBLE)
        size, length = log_probs.shape[-1], state["length"]
        new_state = {"model": model_state, "length": length + 1}
        wrong = [token for token in banned if not 0 <= token < size]
        if wrong:
            raise ValueError(
                f"banned must hold tokens between 0 and {size - 1}. Received: {wrong}"
            )
        vocabulary = ops.arange(size, dtype="int32")
        forbidden = ops.convert_to_tensor(np.isin(np.arange(size), list(banned)))
        if min_length:
            too_short = ops.where(length + 1 < min_length, end, -1)[..., None]
            forbidden = ops.logical_or(forbidden, vocabulary == too_short)
        if no_repetitions:
            # The start is not a part of the hypothesis.
            now = ops.where(length == 0, -1, token_ids)[..., None]
            tokens = ops.concatenate([state["tokens"][..., 1:], now], axis=-1)
            new_state["tokens"] = tokens
            repetitions = _repetitions(tokens, no_repeat_ngrams, size)
            forbidden = ops.logical_or(forbidden, repetitions)
        if prefix is not None:
            forced = ops.take_along_axis(prefix, length, axis=1)[..., None]
            forbidden = ops.where(forced < 0, forbidden, vocabulary != forced)
        return ops.where(forbidden, FORBIDDEN, log_probs), new_state, weights

    return constrained, state


def _repetitions(tokens, n, size):
    """Which of `size` tokens would repeat n tokens of `(B, K, L)`: `(B, K, size)`."""
    batch, beam_size, length = ops.shape(tokens)
    followers = tokens[..., n - 1 :]
    follows = followers >= 0
    for i in range(n - 1):
        one, other = tokens[..., i : i + length - n + 1], tokens[..., i - n + 1]
        follows = ops.logical_and(follows, one == other[..., None])
    rows = batch * beam_size
    # One place more, for what does not count.
    places = ops.reshape(ops.where(follows, followers, size), (rows, -1))
    places = places + (size + 1) * ops.arange(rows, dtype="int32")[:, None]
    places = ops.reshape(places, (-1, 1))
    found = ops.scatter_update(
        ops.zeros((rows * (size + 1),), dtype="int32"),
        places,
        ops.ones_like(places[:, 0]),
    )
    return ops.reshape(found, (batch, beam_size, size + 1))[..., :size] > 0


def _batch(nested):
    return ops.shape(tree.flatten(nested)[0])[0]


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
    """Put what is `now` into the place t of a nested history `(L, ...)`."""

    def write(past, x):
        return ops.scatter_update(past, ops.reshape(t, (1, 1)), x[None])

    return tree.map_structure(write, history, now)


def _check_positive(name, number):
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {number!r}")
