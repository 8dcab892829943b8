import collections
import functools
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from keras import ops, tree

from keras_attention.search import beam_search, greedy_search, sample_search

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, BEAM, LENGTH, POSITIONS, VOCABULARY = 2, 3, 5, 7, 11
START, END = 1, 2
HISTORIES = 1009
EXACT_BEAM = 53
PENALTY = 0.7
BANNED = (0, 3, VOCABULARY - 1)

BACKEND = keras.backend.backend()
only_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="about graphs of TensorFlow"
)

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


def random_state(seed, batch=BATCH, vocabulary=VOCABULARY):
    """Each row begins with another code, so that it speaks another language."""
    codes = np.random.default_rng(seed).permutation(HISTORIES)[:batch]
    rows = np.arange(batch)[:, None]
    return {
        "code": codes.astype("int32"),
        "seen": np.broadcast_to(-1 - rows, (batch, POSITIONS)).astype("int32"),
        "offset": np.zeros((batch, vocabulary), "float32"),
    }


def make_step(table):
    """A step whose answer depends on all tokens so far, and that shows them.

    The whole history is one code, which selects a row of the table; the row's own
    offset is added. The weights are the last tokens that the step was given, so
    that they betray a hypothesis that got the state of another.
    """

    def step(token_ids, state):
        code = (state["code"] * table.shape[-1] + token_ids) % HISTORIES
        log_probs = ops.take(table, code, axis=0) + state["offset"]
        seen = ops.concatenate([state["seen"][..., 1:], token_ids[..., None]], axis=-1)
        state = {"code": code, "seen": seen, "offset": state["offset"]}
        return log_probs, state, ops.cast(seen, "float32")

    return step


def code_after(table, state, row, tokens):
    code = int(state["code"][row])
    for token in (START, *tokens):
        code = (code * table.shape[-1] + token) % HISTORIES
    return code


def next_log_probs(table, state, row, tokens):
    """What `make_step` answers after these tokens, without tensors."""
    code = code_after(table, state, row, tokens)
    return np.float64(table[code]) + state["offset"][row]


def log_prob(table, state, row, tokens):
    return sum(
        next_log_probs(table, state, row, tokens[:t])[token]
        for t, token in enumerate(tokens)
    )


def compiled(function):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def to_tensors(nested):
    return tree.map_structure(ops.convert_to_tensor, nested)


def to_numpy(result):
    return tree.map_structure(ops.convert_to_numpy, result)


def eagerly(function):
    return function


# Compilation costs more than all the searches: tests share what they can.
@functools.cache
def ready(search, how, **options):
    return how(
        lambda table, state: search(
            make_step(table), state, start=START, end=END, **options
        )
    )


def run_greedy(table, state, *, max_length=LENGTH, how=compiled, **options):
    run = ready(greedy_search, how, max_length=max_length, **options)
    return to_numpy(run(*to_tensors((table, state))))


def run_beam(table, state, *, max_length=LENGTH, how=compiled, **options):
    options = {"beam_size": BEAM, "length_penalty": PENALTY, **options}
    run = ready(beam_search, how, max_length=max_length, **options)
    return to_numpy(run(*to_tensors((table, state))))


def run_sample(table, state, *, max_length=LENGTH, how=compiled, **options):
    options = {"samples": BEAM, "seed": 1, **options}
    run = ready(sample_search, how, max_length=max_length, **options)
    return to_numpy(run(*to_tensors((table, state))))


def hypotheses(result, row):
    """The tokens of a row's hypotheses, best first, each as long as it is."""
    pairs = zip(result["token_ids"][row], result["lengths"][row], strict=True)
    return [tuple(map(int, tokens[:length])) for tokens, length in pairs]


def assert_sound(
    result,
    table,
    state,
    length_penalty=PENALTY,
    beam_size=BEAM,
    max_length=LENGTH,
    drawn=False,
):
    """What holds for every search, whichever hypotheses it found."""
    batch = len(state["code"])
    assert result["token_ids"].shape == (batch, beam_size, max_length)
    assert result["weights"].shape == (batch, beam_size, max_length, POSITIONS)
    assert {key: str(value.dtype) for key, value in result.items()} == {
        "token_ids": "int32",
        "lengths": "int32",
        "scores": "float32",
        "log_probs": "float32",
        "token_log_probs": "float32",
        "weights": "float32",
    }
    for row in range(batch):
        found = hypotheses(result, row)
        existing = [tokens for tokens in found if tokens]
        if not drawn:
            assert len(set(existing)) == len(existing), "a hypothesis came twice"
            ended = [tokens[-1] == END for tokens in existing]
            assert ended == sorted(ended, reverse=True), "unfinished before finished"
        assert found == existing + [()] * (beam_size - len(existing))
        for place, tokens in enumerate(found):
            np.testing.assert_array_equal(
                result["token_ids"][row, place, len(tokens) :], END
            )
            np.testing.assert_array_equal(
                result["weights"][row, place],
                expected_weights(tokens, state["seen"][row], max_length),
            )
            gains = [
                next_log_probs(table, state, row, tokens[:t])[token]
                for t, token in enumerate(tokens)
            ]
            np.testing.assert_allclose(
                result["token_log_probs"][row, place],
                [*gains, *[0.0] * (max_length - len(tokens))],
                rtol=1e-5,
            )
            if not tokens:
                continue
            assert END not in tokens[:-1]
            assert tokens[-1] == END or len(tokens) == max_length
            total = log_prob(table, state, row, tokens)
            np.testing.assert_allclose(
                result["log_probs"][row, place], total, rtol=1e-5
            )
            np.testing.assert_allclose(
                result["scores"][row, place],
                total / len(tokens) ** length_penalty,
                rtol=1e-5,
            )


def expected_weights(tokens, seen, max_length):
    """For each token what the step had seen of it, then zeros."""
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


def all_hypotheses(table, state, row, length_penalty, max_length=LENGTH):
    """Every sequence there is: the finished, best first, then the unfinished."""
    others = [token for token in range(table.shape[-1]) if token != END]
    finished = [
        (*tokens, END)
        for length in range(max_length)
        for tokens in itertools.product(others, repeat=length)
    ]
    unfinished = list(itertools.product(others, repeat=max_length))

    def score(tokens):
        return log_prob(table, state, row, tokens) / len(tokens) ** length_penalty

    return [
        *sorted(finished, key=score, reverse=True),
        *sorted(unfinished, key=score, reverse=True),
    ]


def is_allowed(
    tokens, token, row, *, banned=(), min_length=0, no_repeat_ngrams=None, prefix=None
):
    """Whether the token may follow these, as the constraints are told."""
    length, n = len(tokens), no_repeat_ngrams
    if prefix and length < len(prefix[row]) and prefix[row][length] >= 0:
        return token == prefix[row][length]
    if token in banned or (token == END and length + 1 < min_length):
        return False
    longer = (*tokens, token)
    grams = [longer[i : i + n] for i in range(length + 2 - n)] if n else []
    return not grams or grams[-1] not in grams[:-1]


def plain_beam_search(
    table, state, row, *, beam_size, length_penalty, form="power", **constraints
):
    """The search as its docstring tells it, for one row, and never stopping early.

    Hypotheses are pairs of tokens and log-probability. The second result is the
    smallest difference that decided anything.
    """
    closest = math.inf

    def best(hypotheses, count, score=lambda hypothesis: hypothesis[1]):
        nonlocal closest
        hypotheses = sorted(hypotheses, key=score, reverse=True)
        scores = [score(hypothesis) for hypothesis in hypotheses[: count + 1]]
        closest = min([closest, *(a - b for a, b in itertools.pairwise(scores))])
        return hypotheses[:count]

    def penalized(hypothesis):
        length = len(hypothesis[0])
        base = length if form == "power" else (5 + length) / 6
        return hypothesis[1] / base**length_penalty

    alive, finished = [((), 0.0)], []
    for _ in range(LENGTH):
        candidates = [
            ((*tokens, token), total + gain)
            for tokens, total in alive
            for token, gain in enumerate(next_log_probs(table, state, row, tokens))
            if is_allowed(tokens, token, row, **constraints)
        ]
        going = [candidate for candidate in candidates if candidate[0][-1] != END]
        candidates = best(candidates, beam_size)
        ended = [candidate for candidate in candidates if candidate[0][-1] == END]
        finished = best(finished + ended, beam_size, penalized)
        alive = best(going, beam_size)
    found = (finished + best(alive, beam_size, penalized))[:beam_size]
    return [tokens for tokens, _ in found], closest


def plain_greedy_search(table, state, row, **constraints):
    tokens, closest = [], math.inf
    while len(tokens) < LENGTH and END not in tokens:
        log_probs = next_log_probs(table, state, row, tokens)
        for token in range(table.shape[-1]):
            if not is_allowed(tokens, token, row, **constraints):
                log_probs[token] = -np.inf
        tokens.append(int(np.argmax(log_probs)))
        second, first = np.sort(log_probs)[-2:]
        closest = min(closest, first - second)
    return tuple(tokens), closest


def random_language(seed, sharpness, hurry):
    """A table, and a state whose rows are in a hurry to end, or reluctant."""
    state = random_state(seed)
    for row in range(BATCH):
        state["offset"][row] = min(-hurry[row], 0.0)
        state["offset"][row, END] = min(hurry[row], 0.0)
    return random_table(seed, sharpness=sharpness), state


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


def step_worked_by_hand(token_ids, state):
    # Tokens, rows and columns: end, A, B, start.
    table = np.array(
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.4, 0.25, 0.35, 0.0],
            [0.9, 0.05, 0.05, 0.0],
            [0.0, 0.6, 0.4, 0.0],
        ],
        "float32",
    )
    log_probs = ops.log(ops.take(table, token_ids, axis=0))
    return log_probs, state, ops.ones((*ops.shape(token_ids), POSITIONS))


def test_greedy_worked_by_hand():
    @compiled
    def run(state):
        return greedy_search(step_worked_by_hand, state, start=3, end=0, max_length=3)

    result = to_numpy(run(ops.zeros((1, 2))))

    assert hypotheses(result, 0) == [(1, 0)]
    np.testing.assert_allclose(result["scores"], [[math.log(0.6 * 0.4)]], rtol=1e-6)


def test_beam_worked_by_hand():
    # The best begins with the less probable token. "A end" has probability .24 and
    # "A B end" .189, but that is more per token.
    @compiled
    def run(state):
        return beam_search(
            step_worked_by_hand,
            state,
            start=3,
            end=0,
            max_length=3,
            beam_size=2,
            length_penalty=1,
        )

    result = to_numpy(run(ops.zeros((1, 2))))

    assert hypotheses(result, 0) == [(2, 0), (1, 2, 0)]
    totals = np.log([[0.4 * 0.9, 0.6 * 0.35 * 0.9]])
    np.testing.assert_allclose(result["log_probs"], totals, rtol=1e-6)
    np.testing.assert_allclose(result["scores"], totals / [2, 3], rtol=1e-6)


@pytest.mark.parametrize("length_penalty", [0, 0.7, 1])
def test_wide_beam_finds_what_enumeration_finds(length_penalty):
    # 31 finished and 32 unfinished sequences exist, and at most 16 are alive when
    # the last of three tokens is chosen: nothing is ever dropped before the end.
    table, state = random_table(3, vocabulary=3), random_state(3, vocabulary=3)
    options = {"beam_size": EXACT_BEAM, "length_penalty": length_penalty}

    result = run_beam(table, state, **options)

    assert_sound(result, table, state, **options)
    for row in range(BATCH):
        expected = all_hypotheses(table, state, row, length_penalty)
        assert hypotheses(result, row) == expected[:EXACT_BEAM]


@pytest.mark.parametrize(
    ("beam_size", "length_penalty"), [(2, 1.0), (BEAM, PENALTY), (5, 0.0)]
)
@few_examples
@hypothesis.given(language=languages)
def test_narrow_beam_equals_a_plain_beam_search(beam_size, length_penalty, language):
    table, state = language
    options = {"beam_size": beam_size, "length_penalty": length_penalty}
    expected = [plain_beam_search(table, state, row, **options) for row in range(BATCH)]
    hypothesis.assume(min(closest for _, closest in expected) > 1e-4)

    result = run_beam(table, state, **options)

    assert_sound(result, table, state, **options)
    for row in range(BATCH):
        assert hypotheses(result, row) == expected[row][0]


@few_examples
@hypothesis.given(language=languages)
def test_greedy_equals_a_plain_loop(language):
    table, state = language
    expected = [plain_greedy_search(table, state, row) for row in range(BATCH)]
    hypothesis.assume(min(closest for _, closest in expected) > 1e-4)

    result = run_greedy(table, state)

    assert_sound(result, table, state, beam_size=1, length_penalty=0)
    for row in range(BATCH):
        assert hypotheses(result, row) == [expected[row][0]]


def test_an_end_counts_only_among_the_best_of_its_step():
    table, state = random_table(2), random_state(2)
    a, b, c = 3, 4, 5
    for row in range(BATCH):
        first = table[code_after(table, state, row, ())]
        first[:] = -30.0
        first[[a, b, c, END]] = -1.0, -1.1, -1.2, -1.3
        for token in (a, b, c):
            then = table[code_after(table, state, row, (token,))]
            then[:], then[END] = -30.0, -1.0

    narrow = run_beam(table, state)
    wide = run_beam(table, state, beam_size=4)

    # By their scores, -2 / 2 ** .7 and so on, the end at once is the third of all.
    for row in range(BATCH):
        assert hypotheses(narrow, row) == [(a, END), (b, END), (c, END)]
        assert hypotheses(wide, row) == [(a, END), (b, END), (END,), (c, END)]


@pytest.mark.parametrize("ends", ["certain or impossible", "at random"])
def test_beam_of_one_without_length_penalty_is_greedy(ends):
    lengths = set()
    for seed in range(5):
        table, state = random_table(seed), random_state(seed)
        if ends == "certain or impossible":
            table[:, END] = np.where(np.arange(HISTORIES) % 3 == 0, 0.0, -np.inf)

        greedy = run_greedy(table, state)
        beam = run_beam(table, state, beam_size=1, length_penalty=0)

        assert_agree(beam, greedy)
        lengths.update(greedy["lengths"].flatten())
    assert len(lengths) > 2, "the example is too easy"


def test_samples_carry_their_own_log_probabilities_and_weights():
    table, state = random_table(5), random_state(5)
    state["offset"][0, np.arange(VOCABULARY) != END] = -3.0
    never_ends(state, 1)

    result = run_sample(table, state)

    assert_sound(result, table, state, length_penalty=0, drawn=True)
    np.testing.assert_array_equal(result["lengths"][1], LENGTH)
    assert (result["lengths"][0] < LENGTH).any()


def test_sequences_are_drawn_as_often_as_they_are_probable():
    table, state = random_table(7, sharpness=1.0), random_state(7)
    state["offset"][:, [4, VOCABULARY - 2]] = -np.inf
    count, temperature, max_length = 10007, 0.5, 2

    result = run_sample(
        table,
        state,
        samples=count,
        temperature=temperature,
        max_length=max_length,
        banned=BANNED,
    )

    def probabilities(row, tokens):
        log_probs = next_log_probs(table, state, row, tokens)
        log_probs[list(BANNED)] = -np.inf
        odds = np.exp(log_probs / temperature)
        return odds / odds.sum()

    for row in range(BATCH):
        drawn = collections.Counter(hypotheses(result, row))
        first = probabilities(row, ())
        for token in range(VOCABULARY):
            if token == END:
                expected = {(END,): first[END]}
            else:
                second = first[token] * probabilities(row, (token,))
                expected = {(token, other): p for other, p in enumerate(second)}
            for tokens, p in expected.items():
                # Five standard deviations, and what a rare sequence may add.
                tolerance = 5 * math.sqrt(count * p) + 5 if p else 0
                assert abs(drawn[tokens] - count * p) <= tolerance, tokens
    # Log-probabilities are not those of the sharpened distribution.
    some = {key: value[:, :29] for key, value in result.items()}
    assert_sound(some, table, state, 0, 29, max_length, drawn=True)


def test_rows_and_samples_are_drawn_independently():
    table, state = random_table(11, sharpness=0.5), random_state(11)
    state["code"][:] = state["code"][0]
    never_ends(state, 0)
    never_ends(state, 1)

    result = run_sample(table, state)

    samples = {*hypotheses(result, 0), *hypotheses(result, 1)}
    assert len(samples) == BATCH * BEAM


def test_a_seed_generator_goes_on_and_can_be_repeated():
    table, state = random_table(17, sharpness=0.5), random_state(17)
    never_ends(state, 0)
    never_ends(state, 1)

    generator, same = keras.random.SeedGenerator(1), keras.random.SeedGenerator(1)
    first, second, again = (
        run_sample(table, state, seed=seed, how=eagerly)["token_ids"]
        for seed in (generator, generator, same)
    )

    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("how", ["banned", "impossible", "improbable"])
def test_without_an_end_the_hypotheses_are_as_long_as_allowed(how):
    table, state = random_table(7), random_state(7)
    state["offset"][:, END] = {"banned": 0.0, "impossible": -np.inf}.get(how, -1e4)
    banned = (END,) if how == "banned" else ()

    beam = run_beam(table, state, banned=banned)
    greedy = run_greedy(table, state, banned=banned)

    for result in (beam, greedy):
        np.testing.assert_array_equal(result["lengths"], LENGTH)
        assert END not in result["token_ids"]
    assert_sound(beam, table, state)
    assert_sound(greedy, table, state, beam_size=1, length_penalty=0)


def test_rows_that_end_and_rows_that_do_not_share_a_batch():
    table, state = random_table(11), random_state(11)
    never_ends(state, 0)
    ends_at_once(state, 1)

    beam = run_beam(table, state)
    greedy = run_greedy(table, state)

    assert_sound(beam, table, state)
    assert_sound(greedy, table, state, beam_size=1, length_penalty=0)
    np.testing.assert_array_equal(beam["lengths"], [[LENGTH] * BEAM, [1, 2, 2]])
    np.testing.assert_array_equal(greedy["lengths"], [[LENGTH], [1]])


def test_unfinished_hypotheses_fill_up_behind_finished_ones():
    table, state = random_table(13), random_state(13)
    # The end comes third as the first token, and not at all as a later one.
    table[:, END] = -np.inf
    for row in range(BATCH):
        first = table[code_after(table, state, row, ())]
        first[END] = -20.0
        first[END + 1 :] = -50.0

    result = run_beam(table, state)

    assert_sound(result, table, state)
    np.testing.assert_array_equal(result["lengths"], [[1, LENGTH, LENGTH]] * BATCH)
    assert (result["scores"][:, 0] < result["scores"][:, 1]).all()
    assert (result["scores"][:, 1] > result["scores"][:, 2]).all()


def test_a_vocabulary_too_small_for_the_beam_leaves_places_empty():
    # With one token beside the end there is one sequence of every length, and one
    # that does not end.
    table, state = random_table(17, vocabulary=3), random_state(17, vocabulary=3)
    state["offset"][:, 0] = -np.inf

    result = run_beam(table, state, beam_size=EXACT_BEAM)

    assert_sound(result, table, state, beam_size=EXACT_BEAM)
    for row in range(BATCH):
        found = hypotheses(result, row)
        finished = {(*[1] * length, END) for length in range(LENGTH)}
        assert set(found[:LENGTH]) == finished
        assert found[LENGTH] == (1,) * LENGTH
    np.testing.assert_array_equal(result["lengths"][:, LENGTH + 1 :], 0)
    assert np.isfinite(result["scores"]).all()
    existing, missing = np.split(result["scores"], [LENGTH + 1], axis=1)
    assert (missing < existing.min()).all()


def test_with_a_single_step_the_best_tokens_come_back():
    table, state = random_table(19), random_state(19)
    options = {"max_length": 1}

    beam = run_beam(table, state, **options)
    greedy = run_greedy(table, state, **options)

    assert_sound(beam, table, state, **options)
    assert_sound(greedy, table, state, beam_size=1, length_penalty=0, **options)
    for row in range(BATCH):
        order = np.argsort(-next_log_probs(table, state, row, ()))
        assert hypotheses(greedy, row) == [(order[0],)]
        # Where the end is among the best, it is finished and so comes first.
        finished = [token for token in order[:BEAM] if token == END]
        best = [*finished, *(token for token in order if token != END)]
        assert hypotheses(beam, row) == [(token,) for token in best[:BEAM]]


def test_an_end_at_the_first_step_is_a_hypothesis_of_one_token():
    table, state = random_table(23), random_state(23)
    for row in range(BATCH):
        ends_at_once(state, row)

    beam = run_beam(table, state)
    greedy = run_greedy(table, state)

    assert_sound(beam, table, state)
    assert_sound(greedy, table, state, beam_size=1, length_penalty=0)
    np.testing.assert_array_equal(beam["lengths"], [[1, 2, 2]] * BATCH)
    np.testing.assert_array_equal(greedy["lengths"], [[1]] * BATCH)


def test_a_long_hypothesis_that_begins_badly_may_still_win():
    table = np.full((HISTORIES, VOCABULARY), -20.0, "float32")
    state = random_state(29)
    a, b, c, *path = 3, 4, 5, 6, 7, 8, END
    for row in range(BATCH):
        first, after_b, after_c = (
            table[code_after(table, state, row, tokens)] for tokens in ((), (b,), (c,))
        )
        first[[END, a, b, c]] = -1.5, -4.0, -1.0, -1.2
        after_b[END], after_c[END] = -1.5, -1.5
        # After A there is no doubt any more.
        for length, token in enumerate(path):
            table[code_after(table, state, row, (a, *path[:length])), token] = 0.0

    result = run_beam(table, state)

    # After two steps the pool is full, and -4 / 2 ** .7 would not get into it.
    assert_sound(result, table, state)
    for row in range(BATCH):
        assert hypotheses(result, row) == [(a, *path), (END,), (b, END)]


def test_banned_tokens_never_appear():
    table, state = random_table(31), random_state(31)
    # The banned are by far the most probable, so that they would appear.
    state["offset"][:] = -20.0
    state["offset"][:, BANNED] = 0.0

    beam = run_beam(table, state, banned=BANNED)
    greedy = run_greedy(table, state, banned=BANNED)

    assert not np.isin(beam["token_ids"], BANNED).any()
    assert_sound(beam, table, state)
    for row in range(BATCH):
        expected, _ = plain_greedy_search(table, state, row, banned=BANNED)
        assert hypotheses(greedy, row) == [expected]
    assert_sound(greedy, table, state, beam_size=1, length_penalty=0)


def test_a_banned_token_is_a_token_of_probability_zero():
    table, state = random_table(37), random_state(37)

    with_ban = run_beam(table, state, banned=BANNED)
    state["offset"][:, BANNED] = -np.inf
    with_zeros = run_beam(table, state)

    tree.map_structure(np.testing.assert_array_equal, with_ban, with_zeros)


@pytest.mark.parametrize("run", [run_greedy, run_sample, run_beam])
def test_banned_tokens_do_not_appear_even_where_no_other_is_possible(run):
    table, state = random_table(41), random_state(41)
    state["offset"][:] = -np.inf
    state["offset"][:, BANNED] = 0.0

    result = run(table, state, banned=BANNED)

    assert not np.isin(result["token_ids"], BANNED).any()


# Few words, so that they come twice where nothing forbids it.
FEW_WORDS = 5
CONSTRAINTS = {
    "min_length": {"min_length": 4},
    "no token twice": {"no_repeat_ngrams": 1},
    "no pair twice": {"no_repeat_ngrams": 2},
    "prefix": {"prefix": ((3, -1, 4), (0, 0, -1))},
    "all": {
        "banned": (0, 3),
        "min_length": 3,
        "no_repeat_ngrams": 1,
        "prefix": ((3,), (-1,)),
    },
}


@pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS.keys())
def test_constraints_hold_for_every_hypothesis(constraints):
    different = 0
    for seed in range(7):
        table = random_table(seed, vocabulary=FEW_WORDS, sharpness=1.0)
        state = random_state(seed, vocabulary=FEW_WORDS)
        state["offset"][:, :3] = -2.0
        options = {"beam_size": BEAM, "length_penalty": PENALTY}
        plain = [
            plain_beam_search(table, state, row, **options, **constraints)
            for row in range(BATCH)
        ]
        plain_greedy = [
            plain_greedy_search(table, state, row, **constraints)
            for row in range(BATCH)
        ]
        closest = [closest for _, closest in plain + plain_greedy]
        assert min(closest) > 1e-5, "the example decides by rounding"

        beam = run_beam(table, state, **options, **constraints)
        greedy = run_greedy(table, state, **constraints)
        drawn = run_sample(table, state, samples=BEAM, **constraints)

        assert_sound(beam, table, state)
        assert_sound(greedy, table, state, beam_size=1, length_penalty=0)
        assert_sound(drawn, table, state, length_penalty=0, drawn=True)
        for row in range(BATCH):
            found = plain[row][0]
            assert hypotheses(beam, row) == found + [()] * (BEAM - len(found))
            assert hypotheses(greedy, row) == [plain_greedy[row][0]]
            for tokens in hypotheses(drawn, row):
                for t, token in enumerate(tokens):
                    assert is_allowed(tokens[:t], token, row, **constraints)
            free = plain_beam_search(table, state, row, **options)
            different += free[0] != found
    assert different >= 5, "the example is too easy"


def test_long_ngrams_never_come_twice():
    table, state = random_table(3), random_state(3)

    assert_agree(
        run_beam(table, state, no_repeat_ngrams=LENGTH), run_beam(table, state)
    )


def test_gnmt_length_penalty_worked_by_hand():
    # After one token (5 + 1) / 6 = 1, after seven 2.
    table, state = np.full((HISTORIES, VOCABULARY), -20.0, "float32"), random_state(3)
    path = 3, 4, 5, 6, 7, 8, END
    for row in range(BATCH):
        first = table[code_after(table, state, row, ())]
        first[[END, path[0]]] = -1.0, -1.5
        for t, token in enumerate(path[1:], 1):
            table[code_after(table, state, row, path[:t]), token] = 0.0

    options = {"max_length": 7, "length_penalty_form": "gnmt"}
    one = run_beam(table, state, length_penalty=1.0, **options)
    none = run_beam(table, state, length_penalty=0.0, **options)

    np.testing.assert_allclose(one["scores"][:, :2], [[-0.75, -1.0]] * BATCH)
    np.testing.assert_allclose(none["scores"][:, :2], [[-1.0, -1.5]] * BATCH)
    for row in range(BATCH):
        assert hypotheses(one, row)[:2] == [path, (END,)]
        assert hypotheses(none, row)[:2] == [(END,), path]


@few_examples
@hypothesis.given(language=languages)
def test_gnmt_beam_equals_a_plain_beam_search(language):
    table, state = language
    options = {"beam_size": BEAM, "length_penalty": 1.5}
    expected = [
        plain_beam_search(table, state, row, form="gnmt", **options)
        for row in range(BATCH)
    ]
    hypothesis.assume(min(closest for _, closest in expected) > 1e-4)

    result = run_beam(table, state, length_penalty_form="gnmt", **options)

    for row in range(BATCH):
        assert hypotheses(result, row) == expected[row][0]


@pytest.mark.parametrize("run", [run_greedy, run_sample, run_beam])
@pytest.mark.parametrize("neighbour", ["other", "quick", "endless", "broken"])
def test_a_row_does_not_feel_its_neighbour(run, neighbour):
    table, state = random_table(49), random_state(49)
    before = run(table, state)
    if neighbour == "other":
        state["code"][1] += 1
    elif neighbour == "quick":
        ends_at_once(state, 1)
    elif neighbour == "endless":
        never_ends(state, 1)
    else:
        state["offset"][1] = np.nan

    after = run(table, state)

    for key, value in before.items():
        np.testing.assert_array_equal(after[key][0], value[0], err_msg=key)


def test_rows_may_change_places():
    table, state = random_table(47), random_state(47)

    result = run_beam(table, state)
    swapped = run_beam(table, tree.map_structure(lambda x: x[::-1].copy(), state))

    for key, value in result.items():
        np.testing.assert_array_equal(swapped[key], value[::-1], err_msg=key)


def test_nested_state_of_several_ranks_and_dtypes_moves_together():
    # The step answers in half precision, which must not be the precision of sums.
    table = random_table(53).astype("float16").astype("float32")
    plain, plain_state = make_step(table), random_state(53)

    def push(register, now):
        now = ops.cast(now, register.dtype)
        return ops.concatenate([register[:, :, 1:], now[:, :, None]], axis=2)

    def step(token_ids, state):
        log_probs, plain_state, weights = plain(token_ids, state["plain"])
        one_hot, [pairs] = state["registers"]
        one_hot = push(one_hot, ops.one_hot(token_ids, VOCABULARY, dtype="bool"))
        pairs = push(pairs, ops.stack([token_ids, -token_ids], axis=-1))
        looks = [
            weights,
            ops.argmax(ops.cast(one_hot, "int32"), axis=-1),
            pairs[..., 0],
            -pairs[..., 1],
        ]
        looks = ops.concatenate([ops.cast(look, "float16") for look in looks], axis=-1)
        state = {"plain": plain_state, "registers": (one_hot, [pairs])}
        return ops.cast(log_probs, "float16"), state, looks

    plain_state["seen"][:] = 0
    state = {
        "plain": plain_state,
        "registers": (
            np.zeros((BATCH, POSITIONS, VOCABULARY), "bool"),
            [np.zeros((BATCH, POSITIONS, 2), "float16")],
        ),
    }

    @compiled
    def run(state):
        return beam_search(
            step,
            state,
            start=START,
            end=END,
            max_length=LENGTH,
            beam_size=BEAM,
            length_penalty=PENALTY,
        )

    result = to_numpy(run(to_tensors(state)))

    for look in np.split(result["weights"], 4, axis=-1):
        assert_sound({**result, "weights": look}, table, plain_state)


@pytest.mark.parametrize("run", [run_greedy, run_sample, run_beam])
def test_eager_and_compiled_searches_agree(run):
    table, state = random_table(59), random_state(59)
    never_ends(state, 1)

    assert_agree(run(table, state, how=eagerly), run(table, state))


def under_xla(function):
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


@only_tensorflow
@pytest.mark.parametrize("run", [run_greedy, run_beam])
def test_xla_changes_nothing(run):
    table, state = random_table(61), random_state(61)
    options = {"no_repeat_ngrams": 2, "min_length": 3, "prefix": ((3, -1), (-1, 5))}

    assert_agree(
        run(table, state, how=under_xla, **options), run(table, state, **options)
    )


@only_tensorflow
def test_samples_compile_under_xla():
    # With random numbers of its own: a seed means something else there.
    table, state = random_table(61), random_state(61)

    result = run_sample(table, state, how=under_xla)

    assert_sound(result, table, state, length_penalty=0, drawn=True)


@only_tensorflow
@pytest.mark.parametrize(
    ("run", "beam_size"), [(run_greedy, 1), (run_sample, BEAM), (run_beam, BEAM)]
)
def test_a_graph_takes_any_batch_and_knows_all_other_dimensions(run, beam_size):
    import tensorflow as tf

    table, state = random_table(67), random_state(67, batch=2 * BATCH)
    graphs = []

    def for_any_batch(function):
        signature = (
            tf.TensorSpec(table.shape, "float32"),
            {
                "code": tf.TensorSpec((None,), "int32"),
                "seen": tf.TensorSpec((None, POSITIONS), "int32"),
                "offset": tf.TensorSpec((None, VOCABULARY), "float32"),
            },
        )
        graphs.append(tf.function(function, input_signature=signature))
        return graphs[0]

    for batch in (BATCH, 2 * BATCH):
        part = {key: value[:batch] for key, value in state.items()}
        options = {"no_repeat_ngrams": 2, "min_length": 3}
        result = run(table, part, how=for_any_batch, **options)
        assert_agree(result, run(table, part, how=eagerly, **options))
    shapes = {
        key: tuple(value.shape)
        for key, value in graphs[0].get_concrete_function().structured_outputs.items()
    }
    assert shapes == {
        "token_ids": (None, beam_size, LENGTH),
        "lengths": (None, beam_size),
        "scores": (None, beam_size),
        "log_probs": (None, beam_size),
        "token_log_probs": (None, beam_size, LENGTH),
        "weights": (None, beam_size, LENGTH, POSITIONS),
    }


class Searcher(keras.Model):
    def __init__(self, table):
        super().__init__()
        self.table = table
        self.built = True

    def call(self, state):
        return beam_search(
            make_step(self.table),
            state,
            start=START,
            end=END,
            max_length=LENGTH,
            beam_size=BEAM,
            length_penalty=PENALTY,
        )


def test_a_model_that_searches_predicts():
    table, state = random_table(71), random_state(71, batch=2 * BATCH)

    result = Searcher(table).predict(state, batch_size=BATCH, verbose=0)

    assert_sound(result, table, state)
    for rows in (slice(0, BATCH), slice(BATCH, 2 * BATCH)):
        expected = run_beam(table, {key: value[rows] for key, value in state.items()})
        assert_agree({key: value[rows] for key, value in result.items()}, expected)


@pytest.mark.parametrize(
    ("search", "options", "needed"),
    [
        (greedy_search, {}, {-50.0: 1}),
        # The first step finishes one hypothesis, the second fills the pool, unless no
        # other hypothesis is left that could enter it.
        (beam_search, {"beam_size": BEAM, "length_penalty": 0}, {-50.0: 2, -np.inf: 1}),
    ],
)
def test_the_loop_ends_when_all_rows_are_done(search, options, needed):
    table, calls = random_table(73), []
    plain = make_step(table)

    def step(token_ids, state):
        if BACKEND == "jax":
            import jax

            jax.debug.callback(lambda: calls.append("at run time"))
        else:
            calls.append("eagerly")
        return plain(token_ids, state)

    # TensorFlow is left eager here: a graph would call the step once, to trace it.
    @(compiled if BACKEND == "jax" else eagerly)
    def run(state):
        return search(step, state, start=START, end=END, max_length=13, **options)

    def count_steps(state):
        calls.clear()
        to_numpy(run(to_tensors(state)))
        if BACKEND == "jax":
            import jax

            jax.effects_barrier()
        return len(calls)

    for others, steps in needed.items():
        quick, mixed = random_state(73), random_state(73)
        ends_at_once(quick, 0, others)
        ends_at_once(quick, 1, others)
        ends_at_once(mixed, 0, others)
        never_ends(mixed, 1)

        # Only the difference counts: a search may ask once more, for shapes.
        assert count_steps(mixed) - count_steps(quick) == 13 - steps


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        (run_beam, {"beam_size": 0}, "beam_size must be.* Received: 0"),
        (run_beam, {"beam_size": 2.5}, "beam_size must be.* Received: 2.5"),
        (run_beam, {"length_penalty": -0.7}, "length_penalty must.* -0.7"),
        (run_beam, {"max_length": 0}, "max_length must be.* Received: 0"),
        (run_greedy, {"max_length": -5}, "max_length must be.* Received: -5"),
        (run_beam, {"banned": (3, 11)}, r"between 0 and 10\..*: \[11\]"),
        (run_greedy, {"banned": (-1, 3)}, r"between 0 and 10\..*: \[-1\]"),
        (run_beam, {"length_penalty_form": "wu"}, "'power' or 'gnmt'.*: 'wu'"),
        (run_greedy, {"min_length": 6}, "between 0 and max_length, 5. .*: 6"),
        (run_sample, {"min_length": -1}, "between 0 and max_length, 5. .*: -1"),
        (run_beam, {"no_repeat_ngrams": 0}, "no_repeat_ngrams must be .*: 0"),
        (run_beam, {"prefix": (3, 4)}, r"prefix must have.*: \(2,\)"),
        (run_beam, {"prefix": ((3,) * 6,) * 2}, r"at most 5 tokens.*: \(2, 6\)"),
    ],
)
def test_wrong_arguments_are_named_with_what_came(run, options, message):
    table, state = random_table(79), random_state(79)

    with pytest.raises(ValueError, match=message):
        run(table, state, how=eagerly, **options)
