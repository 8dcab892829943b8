"""What no hypothesis may do, as a step around a step; see the package."""

import operator
from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_attention.layers.parts import check_positive_integer, may_be_equal
from keras_attention.search.nested import batch_of, check_rows, values_of

# Stands for a hypothesis that does not exist; finite, so that sums stay finite.
IMPOSSIBLE = -1e9
# Below what is merely impossible, which may be all that is left.
FORBIDDEN = 2 * IMPOSSIBLE


def constrain(
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
    check_integer("end", end)
    check_integer("min_length", min_length)
    if not 0 <= min_length <= max_length:
        raise ValueError(
            f"min_length must be between 0 and max_length, {max_length}. "
            f"Received: {min_length}"
        )
    if not isinstance(banned, Iterable):
        raise ValueError(f"banned must be a list of tokens. Received: {banned!r}")
    banned = tuple(banned)
    for token in banned:
        check_integer("every token of banned", token)
    state = {"model": state, "length": ops.zeros((batch_of(state),), dtype="int32")}
    if no_repeat_ngrams is not None:
        check_positive_integer("no_repeat_ngrams", no_repeat_ngrams)
    # Longer ones cannot come twice.
    no_repetitions = no_repeat_ngrams is not None and no_repeat_ngrams < max_length
    if no_repetitions:
        # The last token comes last, behind -1 for those that are not there yet.
        state["tokens"] = ops.full((batch_of(state), max_length), -1, dtype="int32")
    if prefix is not None:
        prefix, highest = _checked_prefix(prefix, max_length)
        check_rows("prefix", prefix, state)
        rest = ((0, 0), (0, max_length - prefix.shape[1]))
        prefix = ops.pad(prefix, rest, constant_values=-1)

    def constrained(token_ids, state):
        log_probs, model_state, weights = ask(step, token_ids, state["model"])
        log_probs = ops.maximum(ops.cast(log_probs, "float32"), IMPOSSIBLE)
        allowed = log_probs
        size, length = log_probs.shape[-1], state["length"]
        new_state = {"model": model_state, "length": length + 1}
        if not 0 <= end < size:
            raise ValueError(
                f"end must be a token between 0 and {size - 1}. Received: {end}"
            )
        wrong = [token for token in banned if not 0 <= token < size]
        if wrong:
            raise ValueError(
                f"banned must hold tokens between 0 and {size - 1}. Received: {wrong}"
            )
        if prefix is not None and highest >= size:
            raise ValueError(
                f"prefix must hold tokens below {size}, or negative numbers. "
                f"Received: {highest}"
            )
        vocabulary = ops.arange(size, dtype="int32")
        if banned:
            most = np.where(np.isin(np.arange(size), banned), FORBIDDEN, np.inf)
            allowed = ops.minimum(allowed, most.astype("float32"))
        if min_length:
            too_short = (length + 1 < min_length)[..., None]
            ends = ops.logical_and(too_short, vocabulary == end)
            allowed = ops.where(ends, FORBIDDEN, allowed)
        if no_repetitions:
            # The start is not a part of the hypothesis.
            now = ops.where(length == 0, -1, token_ids)[..., None]
            tokens = ops.concatenate([state["tokens"][..., 1:], now], axis=-1)
            new_state["tokens"] = tokens
            repetitions = _repetitions(tokens, no_repeat_ngrams, size)
            allowed = ops.where(repetitions, FORBIDDEN, allowed)
        if prefix is not None:
            forced = ops.take_along_axis(prefix, length, axis=1)[..., None]
            only = ops.where(vocabulary == forced, log_probs, FORBIDDEN)
            allowed = ops.where(forced < 0, allowed, only)
        return allowed, new_state, weights

    return constrained, state


def ask(step, token_ids, state):
    """What a step returns; `ValueError` if it is not what the package says."""
    answer = step(token_ids, state)
    count = len(answer) if isinstance(answer, (tuple, list)) else 1
    if count != 3:
        raise ValueError(
            "step must return three things, log_probs, state and weights. "
            f"Received: {count}"
        )
    log_probs, _, weights = answer
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
    return answer


def _checked_prefix(prefix, max_length):
    """A prefix as int32 `(B, P)`, and its highest token; -1 where none is known."""
    # Of a list, Keras on JAX may make floats.
    prefix = prefix if hasattr(prefix, "dtype") else np.asarray(prefix)
    kind, tokens = keras.backend.standardize_dtype(prefix.dtype), values_of(prefix)
    prefix = ops.convert_to_tensor(prefix, dtype="int32")
    if len(prefix.shape) != 2 or prefix.shape[1] > max_length:
        raise ValueError(
            "prefix must have the shape (batch, tokens), with at most "
            f"{max_length} tokens. Received: {tuple(prefix.shape)}"
        )
    # Of nothing, the type says nothing.
    if "int" not in kind and prefix.shape[1]:
        raise ValueError(f"prefix must hold integers. Received: {kind}")
    highest = -1 if tokens is None else np.max(tokens.astype("int64"), initial=-1)
    return prefix, int(highest)


def check_integer(name, value):
    """Raise `ValueError` for what is no integer, of whatever type."""
    try:
        operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer. Received: {value!r}") from None


def _repetitions(tokens, n, size):
    """Which of `size` tokens would repeat n tokens of `(B, K, L)`: `(B, K, size)`."""
    batch, beam_size, length = ops.shape(tokens)
    followers = tokens[..., n - 1 :]
    follows = followers >= 0
    for i in range(n - 1):
        one, other = tokens[..., i : i + length - n + 1], tokens[..., i - n + 1]
        follows = ops.logical_and(follows, one == other[..., None])
    rows = batch * beam_size
    firsts = size * ops.arange(rows, dtype="int32")[:, None]
    # One place more, for what does not count.
    places = ops.where(
        ops.reshape(follows, (rows, -1)),
        ops.reshape(followers, (rows, -1)) + firsts,
        rows * size,
    )
    places = ops.reshape(places, (-1, 1))
    found = ops.scatter_update(
        ops.zeros((rows * size + 1,), dtype="bool"),
        places,
        ops.ones_like(places[:, 0], dtype="bool"),
    )
    return ops.reshape(found[:-1], (batch, beam_size, size))


def is_possible(log_probs):
    return log_probs > IMPOSSIBLE / 2
