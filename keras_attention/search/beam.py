"""Beam search."""

from keras import ops, tree

from keras_attention import loops
from keras_attention.layers.parts import check_positive_integer
from keras_attention.search.constraints import IMPOSSIBLE, constrain, is_possible
from keras_attention.search.nested import batch_of, concatenate, gather, spread, write


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
    check_positive_integer("max_length", max_length)
    check_positive_integer("beam_size", beam_size)
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

    step, state = constrain(step, state, end, max_length, **constraints)
    state = spread(state, beam_size)
    batch = batch_of(state)
    token_ids = ops.full((batch, beam_size), start, dtype="int32")
    log_probs, _, weights = step(token_ids, state)
    size = log_probs.shape[-1]
    # Twice the beam, so that enough go on when a whole beam ends at once.
    candidates = min(2 * beam_size, beam_size * size)
    may_end = ops.arange(candidates) < beam_size

    def proceed(t, alive, finished, history):
        best = alive["log_probs"][:, 0]
        # Sums only fall, and nothing is divided by more.
        hope = ops.where(is_possible(best), best / divisor(max_length), IMPOSSIBLE)
        settled = finished["scores"][:, -1] >= hope
        return ops.logical_and(t < max_length, ops.logical_not(ops.all(settled)))

    def body(t, alive, finished, history):
        log_probs, state, weights = step(alive["token_ids"], alive["state"])
        totals = alive["log_probs"][..., None] + log_probs
        totals, flat = ops.top_k(
            ops.reshape(totals, (-1, beam_size * size)), candidates
        )
        flat = ops.cast(flat, "int32")
        gains = gather(ops.reshape(log_probs, (-1, beam_size * size)), flat)
        parents, token_ids = flat // size, flat % size
        ended = ops.logical_and(token_ids == end, may_end)
        ended = ops.logical_and(ended, is_possible(totals))

        length = ops.cast(t + 1, "float32")
        arrivals = {
            "scores": ops.where(ended, totals / divisor(length), IMPOSSIBLE),
            "log_probs": ops.where(ended, totals, IMPOSSIBLE),
            "gains": gains,
            "steps": ops.broadcast_to(t, ops.shape(parents)),
            "parents": parents,
        }
        finished = concatenate(finished, arrivals)
        _, best = ops.top_k(finished["scores"], beam_size)
        finished = gather(finished, best)

        totals = ops.where(token_ids == end, IMPOSSIBLE, totals)
        totals, best = ops.top_k(totals, beam_size)
        going = {"token_ids": token_ids, "parents": parents, "gains": gains}
        going = gather(going, best)
        alive = {
            "token_ids": going["token_ids"],
            # Kept finite: the impossible may not add up.
            "log_probs": ops.maximum(totals, IMPOSSIBLE),
            "state": gather(state, going["parents"]),
        }
        # Weights are in the order in which the step was asked, not that of the beam.
        now = {"going": going, "weights": ops.cast(weights, "float32")}
        history = write(history, t, now)
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
    pool = concatenate(finished, unfinished)
    # Both halves are sorted: the first that exist are the best.
    places = ops.arange(2 * beam_size, dtype="int32")
    places = ops.where(is_possible(pool["log_probs"]), places, places + 2 * beam_size)
    chosen = gather(pool, ops.argsort(places, axis=-1)[:, :beam_size])
    exists = is_possible(chosen["log_probs"])
    last = ops.where(exists, chosen["steps"], -1)

    def trace(slots, step):
        before, within = step["t"] < last, step["t"] <= last
        going = gather(step["going"], slots)
        # The end of a hypothesis is not in the history of those that went on.
        token_ids = ops.where(before, going["token_ids"], end)
        gains = ops.where(before, going["gains"], chosen["gains"])
        slots = ops.where(before, going["parents"], slots)
        weights = gather(step["weights"], slots)
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
