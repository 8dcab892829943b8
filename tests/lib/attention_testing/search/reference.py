"""A toy language for tests of searches, and searches without tensors."""

import functools
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
from keras import ops, tree

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.models import compiled

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, BEAM, LENGTH, POSITIONS, VOCABULARY = 2, 3, 5, 7, 11
START, END = 1, 2
# Arguments that every search needs.
REQUIRED = {"start": START, "end": END, "max_length": LENGTH}
HISTORIES = 1009
# Of a vocabulary of three, 63 sequences exist: some places stay empty.
EXACT_BEAM = 67
PENALTY = 0.7
BANNED = (0, 3, VOCABULARY - 1)
# Two positions of seven are padding in the first row, one in the second.
MASK = ((True,) * 5 + (False,) * 2, (False,) + (True,) * 6)

BACKEND = keras.backend.backend()

few_examples = hypothesis.settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.filter_too_much],
)


def random_table(seed, vocabulary=VOCABULARY, sharpness=2.0):
    """Log-probabilities `(HISTORIES, vocabulary)` of the token after each history."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(HISTORIES, vocabulary))
    normalizer = np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))
    return (logits - normalizer).astype("float32")


def language(seed, vocabulary=VOCABULARY, *, sharpness=2.0, batch=BATCH):
    """Return a table and a state."""
    table = random_table(seed, vocabulary, sharpness)
    return table, random_state(seed, batch, vocabulary)


def random_state(seed, batch=BATCH, vocabulary=VOCABULARY):
    """Return a state whose rows begin with different codes: different languages."""
    codes = np.random.default_rng(seed).permutation(HISTORIES)[:batch]
    rows = np.arange(batch)[:, None]
    return {
        "code": codes.astype("int32"),
        "seen": np.broadcast_to(-1 - rows, (batch, POSITIONS)).astype("int32"),
        "offset": np.zeros((batch, vocabulary), "float32"),
    }


# Attention weights after each history: sparse, some exactly zero.
ATTENTION = np.random.default_rng(1).dirichlet(np.full(POSITIONS, 0.3), size=HISTORIES)
ATTENTION = np.where(ATTENTION < 0.01, 0.0, ATTENTION).astype("float32")


def make_step(table, attention=None):
    """Return a step whose result depends on all tokens so far.

    The whole history is one code, which selects a row of the table, to which the offset
    of the batch row is added. If `attention` is omitted, the weights are the last
    tokens that the step received, so that they reveal a hypothesis with the state of
    another.
    """

    def step(token_ids, state):
        code = (state["code"] * table.shape[-1] + token_ids) % HISTORIES
        log_probs = ops.take(table, code, axis=0) + state["offset"]
        seen = ops.concatenate([state["seen"][..., 1:], token_ids[..., None]], axis=-1)
        state = {"code": code, "seen": seen, "offset": state["offset"]}
        weights = seen if attention is None else ops.take(attention, code, axis=0)
        return log_probs, state, ops.cast(weights, "float32")

    return step


def code_after(table, state, row, tokens):
    code = int(state["code"][row])
    for token in (START, *tokens):
        code = (code * table.shape[-1] + token) % HISTORIES
    return code


def next_log_probs(table, state, row, tokens):
    """Return the log-probabilities of `make_step`, without tensors."""
    code = code_after(table, state, row, tokens)
    return np.float64(table[code]) + state["offset"][row]


def token_log_probs(table, state, row, tokens):
    return [
        next_log_probs(table, state, row, tokens[:t])[token]
        for t, token in enumerate(tokens)
    ]


def log_prob(table, state, row, tokens):
    return sum(token_log_probs(table, state, row, tokens))


def score(
    table,
    state,
    row,
    tokens,
    log_prob,
    *,
    length_penalty=PENALTY,
    length_penalty_form="power",
    coverage_penalty=0.0,
    coverage_mask=None,
):
    """Return the score of beam search, as its docstring defines it."""
    length = len(tokens)
    base = length if length_penalty_form == "power" else (5 + length) / 6
    result = log_prob / base**length_penalty
    if coverage_penalty:
        codes = [code_after(table, state, row, tokens[:t]) for t in range(length)]
        attended = np.sum(ATTENTION[codes], axis=0, dtype="float64")
        for position in range(POSITIONS):
            if coverage_mask is None or coverage_mask[row][position]:
                covered = min(max(attended[position], 1e-10), 1.0)
                result += coverage_penalty * math.log(covered)
    return result


def to_tensors(nested):
    return tree.map_structure(ops.convert_to_tensor, nested)


def eagerly(function):
    return function


# A trace costs as much as two eager searches, but on JAX a loop always compiles.
quickly = compiled if BACKEND == "jax" else eagerly


CONSTRAINTS = {
    "banned": ka.Ban,
    "min_length": ka.MinLength,
    "no_repeat_ngrams": ka.NoRepeatNgrams,
    "prefix": ka.Prefix,
}


@functools.cache
def make_run(search, how, **options):
    """Return a function that runs the search, with attention weights for coverage."""
    attention = ATTENTION if options.get("coverage_penalty") else None
    names = [name for name in options if name in CONSTRAINTS]
    named = {name: options.pop(name) for name in names}
    options = {"start": START, "end": END, **options}

    def find(table, state):
        constraints = [CONSTRAINTS[name](x) for name, x in named.items()]
        step = make_step(table, attention)
        return search(step, state, constraints=constraints, **options)

    return how(find)


def runner(name, search, **defaults):
    """Return a function that runs the search eagerly, or as `how` says."""

    def run(table, state, *, how=quickly, **options):
        options = {"max_length": LENGTH, **defaults, **options}
        return numpy(make_run(search, how, **options)(*to_tensors((table, state))))

    run.__name__ = name
    return run


run_greedy = runner("greedy", ka.greedy_search)
run_beam = runner("beam", ka.beam_search, beam_size=BEAM, length_penalty=PENALTY)
run_sample = runner("sample", ka.sample_search, samples=BEAM, seed=1)


def hypotheses(result, row):
    """Return the tokens of the hypotheses of a row, best first, without padding."""
    pairs = zip(result["token_ids"][row], result["lengths"][row], strict=True)
    return [tuple(map(int, tokens[:length])) for tokens, length in pairs]


RESULT_DTYPES = {
    **dict.fromkeys(("token_ids", "lengths"), "int32"),
    **dict.fromkeys(("scores", "log_probs", "token_log_probs", "weights"), "float32"),
    "finite": "bool",
}


def assert_sound(
    result,
    table,
    state,
    length_penalty=PENALTY,
    beam_size=BEAM,
    max_length=LENGTH,
    drawn=False,
    early_stopping=False,
    **penalties,
):
    """Assert the properties of every search result."""
    batch = len(state["code"])
    assert result["token_ids"].shape == (batch, beam_size, max_length)
    assert result["weights"].shape == (batch, beam_size, max_length, POSITIONS)
    dtypes = {key: str(value.dtype) for key, value in result.items()}
    assert dtypes == RESULT_DTYPES
    penalties = {"length_penalty": length_penalty, **penalties}
    for row in range(batch):
        sequences = hypotheses(result, row)
        existing = [tokens for tokens in sequences if tokens]
        if not drawn:
            assert len(set(existing)) == len(existing), "a hypothesis came twice"
            ended = [tokens[-1] == END for tokens in existing]
            assert ended == sorted(ended, reverse=True), "unfinished before finished"
        assert sequences == existing + [()] * (beam_size - len(existing))
        for rank, tokens in enumerate(sequences):
            hypothesis = {
                name: x[row, rank] for name, x in result.items() if x.ndim > 1
            }
            assert_sound_hypothesis(hypothesis, table, state, row, tokens, **penalties)


def assert_sound_hypothesis(result, table, state, row, tokens, **penalties):
    """Assert the properties of one hypothesis; `tokens` are those without padding."""
    length, max_length = len(tokens), len(result["token_ids"])
    np.testing.assert_array_equal(result["token_ids"][length:], END)
    if penalties.get("coverage_penalty"):
        codes = [code_after(table, state, row, tokens[:t]) for t in range(length)]
        weights = np.zeros((max_length, POSITIONS), "float32")
        weights[:length] = ATTENTION[codes]
    else:
        weights = expected_weights(tokens, state["seen"][row], max_length)
    np.testing.assert_array_equal(result["weights"], weights)
    gains = token_log_probs(table, state, row, tokens)
    padded = [*gains, *[0.0] * (max_length - length)]
    np.testing.assert_allclose(result["token_log_probs"], padded, rtol=1e-5)
    if not tokens:
        assert result["scores"] == result["log_probs"] == np.float32(-1e9)
        return
    assert END not in tokens[:-1]
    assert tokens[-1] == END or length == max_length
    total = sum(gains)
    np.testing.assert_allclose(result["log_probs"], total, rtol=1e-5)
    expected = score(table, state, row, tokens, total, **penalties)
    np.testing.assert_allclose(result["scores"], expected, rtol=1e-5)


def expected_weights(tokens, seen, max_length):
    """Return the weights of `make_step` for each token, then zeros."""
    weights = np.zeros((max_length, POSITIONS))
    for t in range(len(tokens)):
        weights[t] = [*seen, START, *tokens[:t]][-POSITIONS:]
    return weights


def assert_agree(first, second):
    assert first.keys() == second.keys()
    for key in ("token_ids", "lengths", "weights"):
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
    for key in ("scores", "log_probs", "token_log_probs"):
        np.testing.assert_allclose(first[key], second[key], rtol=1e-6, err_msg=key)


def finished_hypotheses(vocabulary, max_length=LENGTH):
    """Return every sequence that ends."""
    others = [token for token in range(vocabulary) if token != END]
    lengths = [itertools.product(others, repeat=n) for n in range(max_length)]
    return [(*tokens, END) for tokens in itertools.chain(*lengths)]


def all_hypotheses(table, state, row, **penalties):
    """Return every sequence: the finished, best first, then the unfinished."""
    finished = finished_hypotheses(table.shape[-1])
    others = [tokens[-2] for tokens in finished if len(tokens) == 2]
    unfinished = list(itertools.product(others, repeat=LENGTH))

    def rank(tokens):
        total = log_prob(table, state, row, tokens)
        return score(table, state, row, tokens, total, **penalties)

    return [x for part in (finished, unfinished) for x in sorted(part, key=rank)[::-1]]


def is_allowed(
    tokens, token, row, *, banned=(), min_length=0, no_repeat_ngrams=None, prefix=None
):
    """Return whether a token may follow the tokens so far, without tensors."""
    length, n = len(tokens), no_repeat_ngrams
    if prefix and length < len(prefix[row]) and prefix[row][length] >= 0:
        return token == prefix[row][length]
    if token in banned or (token == END and length + 1 < min_length):
        return False
    longer = (*tokens, token)
    grams = [longer[i : i + n] for i in range(length + 2 - n)] if n else []
    return not grams or grams[-1] not in grams[:-1]


PENALTIES = {
    "length_penalty",
    "length_penalty_form",
    "coverage_penalty",
    "coverage_mask",
}


def plain_beam_search(
    table,
    state,
    row,
    *,
    beam_size,
    beam_groups=1,
    diversity_penalty=0.0,
    early_stopping=False,
    **options,
):
    """Beam search for one row as its docstring defines it, up to `max_length`.

    Hypotheses are pairs of tokens and log-probability. The second result is the
    smallest gap between two scores that were compared.
    """
    penalties = {name: x for name, x in options.items() if name in PENALTIES}
    constraints = {name: x for name, x in options.items() if name not in PENALTIES}
    closest, size = math.inf, beam_size // beam_groups

    def score_of(tokens, total):
        return score(table, state, row, tokens, total, **penalties)

    def best(hypotheses, count, chosen=()):
        """The best, less a penalty for tokens that earlier groups have chosen."""
        nonlocal closest
        scored = [
            (score_of(x, total - diversity_penalty * chosen.count(x[-1])), (x, total))
            for x, total in hypotheses
            if total > -math.inf
        ]
        scored.sort(reverse=True)
        pairs = itertools.pairwise(scored[: count + 1])
        closest = min([closest, *(a[0] - b[0] for a, b in pairs)])
        return [x for _, x in scored[:count]]

    groups = [{"alive": [((), 0.0)], "finished": []} for _ in range(beam_groups)]
    for _ in range(LENGTH):
        chosen = []
        for group in groups:
            candidates = [
                ((*tokens, token), total + gain)
                for tokens, total in group["alive"]
                for token, gain in enumerate(next_log_probs(table, state, row, tokens))
                if is_allowed(tokens, token, row, **constraints)
            ]
            going = [x for x in candidates if x[0][-1] != END]
            candidates = best(candidates, size, chosen)
            if not early_stopping or len(group["finished"]) < size:
                ended = [x for x in candidates if x[0][-1] == END]
                group["finished"] = best(group["finished"] + ended, size)
            group["alive"] = best(going, size, chosen)
            chosen += [tokens[-1] for tokens, _ in group["alive"]]
    finished = []
    for group in groups:
        finished += (group["finished"] + best(group["alive"], size))[:size]
    finished.sort(key=lambda x: (x[0][-1] != END, -score_of(*x)))
    return [tokens for tokens, _ in finished], closest


def plain_greedy_search(table, state, row, **constraints):
    options = {"beam_size": 1, "early_stopping": True, "length_penalty": 0.0}
    return plain_beam_search(table, state, row, **options, **constraints)


def random_language(seed, sharpness, hurry):
    """Return a table and a state whose rows favour an early or a late end."""
    table, state = language(seed, sharpness=sharpness)
    for row in range(BATCH):
        state["offset"][row] = min(-hurry[row], 0.0)
        state["offset"][row, END] = min(hurry[row], 0.0)
    return table, state


languages = st.builds(
    random_language,
    seed=st.integers(0, 10**6),
    sharpness=st.sampled_from([0.5, 1.0, 3.0]),
    hurry=st.tuples(*[st.sampled_from([-50.0, -3.0, 0.0, 2.0, 4.0])] * BATCH),
)


def never_ends(state, row):
    state["offset"][row, END] = -np.inf


def ends_at_once(state, row, others=-50.0):
    state["offset"][row] = others
    state["offset"][row, END] = 0.0
