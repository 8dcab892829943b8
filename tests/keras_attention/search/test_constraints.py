import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.search.reference import (
    BANNED,
    BATCH,
    BEAM,
    END,
    LENGTH,
    PENALTY,
    REQUIRED,
    START,
    VOCABULARY,
    assert_agree,
    assert_sound,
    compiled,
    eagerly,
    hypotheses,
    is_allowed,
    language,
    make_step,
    plain_beam_search,
    plain_greedy_search,
    run_beam,
    run_greedy,
    run_sample,
    to_tensors,
)


@pytest.mark.parametrize(
    ("hold", "how"),
    [
        (iter, eagerly),
        (lambda x: ops.convert_to_tensor(x, "int32"), eagerly),
        (lambda x: ops.convert_to_tensor(x, "int32"), compiled),
    ],
)
def test_banned_tokens_may_come_from_anything_that_holds_them(hold, how):
    result = searched(ka.greedy_search, [ka.Ban(hold(BANNED))], how=how)

    assert_agree(result, searched(ka.greedy_search, [ka.Ban(list(BANNED))]))


@pytest.mark.parametrize("banned", [np.int64(3), np.array(3), "tensor"])
def test_a_banned_token_alone_is_an_error(banned):
    banned = ops.convert_to_tensor(3, dtype="int32") if banned == "tensor" else banned

    with pytest.raises(ValueError, match=r"of Ban must be a list of tokens.*3"):
        ka.Ban(banned)


@pytest.mark.parametrize("token", [-1, VOCABULARY, VOCABULARY + 1])
def test_a_banned_token_outside_of_the_vocabulary_is_an_error(token):
    message = f"of Ban must lie between 0 and {VOCABULARY - 1}.*{token}"
    with pytest.raises(ValueError, match=message):
        searched(ka.greedy_search, [ka.Ban([token])])


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


@pytest.mark.parametrize("n, allowed", [(1, (2,)), (2, (1, 2)), (1, ())])
def test_allowed_tokens_may_repeat(n, allowed):
    # The model produces the tokens 2, 1, 2, 1 and so on, and likes 0 next.
    preferred = np.full((FEW_WORDS, FEW_WORDS), -9.0, "float32")
    preferred[:, 0], preferred[2, 1], preferred[1, 2], preferred[0, 1] = -1, 0, 0, -2

    def step(token_ids, state):
        weights = ops.zeros((*token_ids.shape, 1))
        return ops.take(preferred, token_ids, axis=0), state, weights

    constraints = [ka.Ban([FEW_WORDS - 1]), ka.NoRepeatNgrams(n, allowed)]
    options = {"start": 2, "end": FEW_WORDS - 1, "max_length": 4}
    result = ka.greedy_search(
        step, np.zeros((1, 1), "float32"), constraints=constraints, **options
    )
    tokens = numpy(result)["token_ids"][0, 0].tolist()
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    repeated = {gram[-1] for i, gram in enumerate(grams) if gram in grams[:i]}
    assert repeated <= set(allowed)
    assert bool(repeated) == bool(allowed)


@pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS.keys())
def test_constraints_hold_for_every_hypothesis(constraints):
    different = 0
    for seed in range(3):
        table, state = language(seed, FEW_WORDS, sharpness=1.0)
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
            sequence = plain[row][0]
            assert hypotheses(beam, row) == sequence + [()] * (BEAM - len(sequence))
            assert hypotheses(greedy, row) == plain_greedy[row][0]
            for tokens in hypotheses(drawn, row):
                for t, token in enumerate(tokens):
                    assert is_allowed(tokens[:t], token, row, **constraints)
            free = plain_beam_search(table, state, row, **options)
            different += free[0] != sequence
    assert different >= 2, "the example is too easy"


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64"])
def test_a_prefix_may_hold_integers_of_any_kind(dtype):
    prefix = np.array([[3], [4]], dtype)

    result = searched(ka.beam_search, [ka.Prefix(prefix)])

    assert (result["token_ids"][:, :, 0] == prefix).all()


def few_words(seed):
    """A language in which each word comes once and none ends a sequence."""
    options = {"no_repeat_ngrams": 1, "banned": (END,)}
    return *language(seed, FEW_WORDS, sharpness=1.0), options


@pytest.mark.parametrize("run", [run_greedy, run_sample, run_beam])
def test_no_hypothesis_exists_if_no_further_token_is_allowed(run):
    table, state, options = few_words(5)

    result = run(table, state, max_length=LENGTH + 2, **options)

    np.testing.assert_array_equal(result["lengths"], 0)


@pytest.mark.parametrize("run", [run_greedy, run_sample, run_beam])
@pytest.mark.parametrize("nothing_is", ["allowed", "possible"])
def test_no_hypothesis_exists_if_no_first_token_is_possible(run, nothing_is):
    table, state, _ = few_words(7)
    state["offset"][0] = -np.inf if nothing_is == "possible" else 0.0
    banned = range(FEW_WORDS) if nothing_is == "allowed" else ()

    result = run(table, state, banned=banned)

    np.testing.assert_array_equal(result["lengths"][0], 0)
    np.testing.assert_array_equal(result["token_ids"][0], END)
    np.testing.assert_array_equal(result["scores"][0], np.float32(-1e9))
    assert (result["lengths"][1] > 0).all() == (nothing_is == "possible")


def test_long_ngrams_never_come_twice():
    table, state = language(3)

    assert_agree(
        run_beam(table, state, no_repeat_ngrams=LENGTH), run_beam(table, state)
    )


class NoRepeatedToken(ka.Constraint):
    """The same as `NoRepeatNgrams(1)`, by a state that marks all tokens so far."""

    def begin(self, search):
        return {"seen": ops.zeros((search.batch_size, VOCABULARY), dtype="bool")}

    def mask(self, log_probs, state, step):
        newest = ops.equal(step.token_ids[..., None], step.vocabulary)
        newest = ops.logical_and(newest, step.length[..., None] > 0)
        seen = ops.logical_or(state["seen"], newest)
        return self.forbid(log_probs, seen), {"seen": seen}


def searched(search, constraints, how=eagerly, **options):
    options = {**REQUIRED, "constraints": constraints, **options}
    run = how(lambda table, state: search(make_step(table), state, **options))
    return numpy(run(*to_tensors(language(3, sharpness=0.5))))


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search])
def test_the_state_of_a_constraint_follows_its_hypothesis(search):
    result = searched(search, [NoRepeatedToken()])

    assert_agree(result, searched(search, [ka.NoRepeatNgrams(1)]))
    assert not np.array_equal(result["token_ids"], searched(search, [])["token_ids"])


def test_a_prefix_overrides_constraints_that_follow_it():
    prefix = np.array([[3, END, 3], [END, 4, 4]])
    others = [ka.Ban([3]), ka.MinLength(3), ka.NoRepeatNgrams(1)]

    result = searched(ka.greedy_search, [ka.Prefix(prefix), *others])

    assert result["token_ids"][0, 0, :2].tolist() == [3, END]
    assert result["token_ids"][1, 0, 0] == END
    assert_agree(result, searched(ka.greedy_search, [*others, ka.Prefix(prefix)]))


@pytest.mark.parametrize(
    "constraints",
    [ka.Ban([3]), [3], 5, [ka.Ban]],
    ids=["alone", "token", "number", "class"],
)
def test_constraints_of_another_type_are_named(constraints):
    with pytest.raises(ValueError, match=r"a list of Constraint objects.*\. Received"):
        searched(ka.greedy_search, constraints)


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search, ka.sample_search])
def test_a_wrong_keyword_is_named_with_those_of_the_search(search):
    name = search.__name__
    valid = {"beam_search": "beam_size", "sample_search": "top_k"}.get(name, "start")

    with pytest.raises(
        TypeError, match=f"{name} has no argument banned. Its .*{valid}"
    ):
        search(None, None, **REQUIRED, banned=(3,))
    with pytest.raises(TypeError, match=f"{name} needs the argument end, max_length"):
        search(None, None, start=START)


def test_a_constraint_must_define_mask():
    with pytest.raises(NotImplementedError):
        searched(ka.greedy_search, [ka.Constraint()])


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search])
def test_a_minimum_length_may_differ_from_row_to_row(search):
    result = searched(search, [ka.MinLength(np.array([2, LENGTH]))])

    for row, min_length in enumerate((2, LENGTH)):
        same = searched(search, [ka.MinLength(min_length)])
        np.testing.assert_array_equal(result["token_ids"][row], same["token_ids"][row])
        assert (result["lengths"][row] >= min_length).all()


@pytest.mark.parametrize(
    ("min_length", "limit", "message"),
    [
        (np.array([2, 9]), None, r"between 0 and max_length or limit, 5. .*: \[2 9\]"),
        (np.array([2, 3, 4]), None, "min_length must have 2 rows.*: 3"),
        (np.array([[2], [3]]), None, r"one for every row.*int64 of shape \(2, 1\)"),
        (np.array([2.5, 3.0]), None, "must be an integer, or one.*float64"),
        (3, 2, "between 0 and max_length or limit, .*: 3"),
        (3, np.array([4, 2]), "between 0 and max_length or limit, .*: 3"),
    ],
)
def test_wrong_minimum_lengths_are_named(min_length, limit, message):
    with pytest.raises(ValueError, match=message):
        searched(ka.greedy_search, [ka.MinLength(min_length)], limit=limit)


def test_rows_of_a_prefix_have_one_length():
    with pytest.raises(ValueError, match=r"of Prefix must have .*\[\[1\], \[2, 3\]\]"):
        ka.Prefix([[1], [2, 3]])


class EndsInTime(ka.Constraint):
    """A hypothesis ends at its limit at the latest."""

    def mask(self, log_probs, state, step):
        is_last = (step.remaining == 1)[..., None]
        return self.forbid(log_probs, is_last & (step.vocabulary != step.end)), state


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search])
def test_a_constraint_receives_the_number_of_remaining_tokens(search):
    for limit in (None, np.array([3, 4])):
        result = searched(search, [ka.MinLength(3), EndsInTime()], limit=limit)
        for row, longest in enumerate((LENGTH, LENGTH) if limit is None else limit):
            for tokens in hypotheses(result, row):
                assert not tokens or tokens[-1] == END
                assert len(tokens) <= longest


COPIED = (4, 7, 9)


@pytest.mark.parametrize(
    ("search", "how"),
    [
        (ka.beam_search, eagerly),
        (ka.beam_search, compiled),
        (ka.greedy_search, compiled),
        (ka.sample_search, eagerly),
    ],
)
def test_required_tokens_occur_exactly_once_and_the_others_never(search, how):
    required = np.array([[True, False, True], [False, True, False]])
    longest = LENGTH + 4

    result = searched(
        search, [ka.ExactlyOnce(COPIED, required)], how=how, max_length=longest
    )

    free = searched(search, [], max_length=longest)
    assert not np.array_equal(result["token_ids"], free["token_ids"])
    for row in range(BATCH):
        for tokens in hypotheses(result, row):
            assert tokens and (tokens[-1] == END or len(tokens) == longest)
            counts = [tokens.count(token) for token in COPIED]
            assert counts == required[row].astype(int).tolist()


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search])
def test_a_short_hypothesis_begins_with_the_required_tokens(search):
    # There is room for the required tokens and the end alone.
    required = np.array([[True, False, True], [False, True, False]])

    result = searched(
        search, [ka.ExactlyOnce(COPIED, required)], limit=np.array([3, 2])
    )

    assert {frozenset(x[:2]) for x in hypotheses(result, 0)} == {frozenset({4, 9})}
    assert {x[0] for x in hypotheses(result, 1)} == {7}


@pytest.mark.parametrize(
    ("token_ids", "required", "message"),
    [
        ([4, 4], np.ones((BATCH, 2), bool), r"must be different.*\[4, 4\]"),
        ([4.5], np.ones((BATCH, 1), bool), "must be an integer"),
        ([4, 5], np.ones((BATCH, 3), bool), r"for 2 tokens. Received: \(2, 3\)"),
        ([4, 5], np.ones((BATCH, 2, 1), bool), r"Received: \(2, 2, 1\)"),
        ([4], np.ones((BATCH + 1, 1), bool), "must have 2 rows"),
        ([END], np.ones((BATCH, 1), bool), f"must not contain end, {END}"),
        ([VOCABULARY], np.ones((BATCH, 1), bool), f"between 0 and 10.*{VOCABULARY}"),
    ],
)
def test_wrong_arguments_of_exactly_once_are_named(token_ids, required, message):
    with pytest.raises(ValueError, match=message):
        searched(ka.greedy_search, [ka.ExactlyOnce(token_ids, required)])


def loops(tokens, n, times):
    """Return whether an n-gram of up to n tokens follows itself more than `times`."""
    return any(
        tokens[i : i + size] * (times + 1) == tokens[i : i + size * (times + 1)]
        for size in range(1, n + 1)
        for i in range(len(tokens))
    )


@pytest.mark.parametrize("search", [ka.beam_search, ka.greedy_search])
@pytest.mark.parametrize("how", [eagerly, compiled])
@pytest.mark.parametrize("cycle", [(3,), (3, 5), (3, 5, 6), (3, 3, 5)])
def test_an_ngram_does_not_follow_itself_more_often_than_allowed(search, how, cycle):
    # The model repeats the cycle, which it can tell from the number of tokens.
    def step(token_ids, state):
        preferred = ops.one_hot(ops.take(np.array(cycle), state % len(cycle)), 9)
        log_probs = ops.log_softmax(5.0 * preferred - 9.0 * ops.one_hot(END, 9))
        return log_probs, state + 1, ops.ones((*token_ids.shape, 1))

    def run(constraints):
        state = np.zeros((BATCH,), "int32")
        options = {"start": START, "end": END, "max_length": 23}
        searching = how(
            lambda state: search(step, state, constraints=constraints, **options)
        )
        outputs = numpy(searching(ops.convert_to_tensor(state)))
        return [tuple(x) for x in outputs["token_ids"][:, 0].tolist()]

    assert all(loops(tokens, len(cycle), 3) for tokens in run([]))
    assert not any(loops(tokens, 3, 3) for tokens in run([ka.NoLoops(3, 3)]))
    # A shorter window does not see a longer n-gram.
    if len(cycle) == 3 and len(set(cycle)) == 3:
        assert any(loops(tokens, 3, 3) for tokens in run([ka.NoLoops(2, 3)]))


@pytest.mark.parametrize("arguments", [{"n": 0}, {"times": -1}, {"times": 1.5}])
def test_wrong_arguments_of_no_loops_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} of NoLoops must be a positive"):
        ka.NoLoops(**arguments)
