"""Lexical constraints, against all sequences of tiny vocabularies."""

import itertools
import math
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.arrays import numpy
from attention_testing.combinations import quick_first
from attention_testing.models import compiled, needs_tensorflow
from attention_testing.search.reference import (
    BEAM,
    END,
    START,
    eagerly,
    finished_hypotheses,
    hypotheses,
    language,
    log_prob,
    make_step,
    next_log_probs,
    quickly,
    random_state,
    random_table,
    run_beam,
    to_tensors,
)

# All sequences of four tokens are few.
SMALL, LENGTH = 4, 6
# Overlapping phrases, one that overlaps with itself, and a row without any.
PHRASES = [[[3, 3, 0], [0, 1]], []]
SEARCHES = {
    "greedy": ka.greedy_search,
    "sample": partial(ka.sample_search, samples=BEAM, seed=1),
    "beam": partial(ka.beam_search, beam_size=BEAM),
    "groups": partial(ka.beam_search, beam_size=4, beam_groups=2),
}


def contains(tokens, phrase):
    n = len(phrase)
    return any(
        tuple(tokens[i : i + n]) == tuple(phrase) for i in range(len(tokens) - n + 1)
    )


def constrained(name, constraints, state, *, seed=3, how=eagerly, **options):
    """The result of a search with constraints."""
    search = SEARCHES[name] if isinstance(name, str) else name
    options = {"start": START, "end": END, "max_length": LENGTH, **options}

    def find(table, state):
        return search(make_step(table), state, constraints=constraints, **options)

    table = random_table(seed, state["offset"].shape[-1])
    return numpy(how(find)(*to_tensors((table, state))))


def searched(name, phrases, *, seed=3, others=(), size=SMALL, **options):
    table, state = random_table(seed, size), random_state(seed, len(phrases), size)
    made = [ka.RequiredPhrases(phrases), *others]
    return constrained(name, made, state, seed=seed, **options), table, state


def rows(count):
    return random_state(3, count, SMALL)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("seed", quick_first([3, 5]))
def test_every_hypothesis_contains_its_phrases_and_ends(name, seed):
    # One token remains free: the phrases have three and two tokens, and the end one.
    result, table, state = searched(name, PHRASES, seed=seed, max_length=7)

    for row, phrases in enumerate(PHRASES):
        pairs = zip(hypotheses(result, row), result["log_probs"][row], strict=True)
        for tokens, total in pairs:
            assert tokens or phrases
            if tokens:
                assert all(contains(tokens, phrase) for phrase in phrases), tokens
                assert total == pytest.approx(log_prob(table, state, row, tokens), 1e-5)
    assert result["lengths"][0, 0] > 0
    if name in ("beam", "groups"):
        assert hypotheses(result, 0)[0][-1] == END


def test_a_beam_of_all_hypotheses_finds_the_best_of_all_sequences():
    phrases, length = [[[3, 0], [1]]], 5
    options = {"max_length": length, "beam_size": 300, "length_penalty": 0}
    result, table, state = searched(ka.beam_search, phrases, **options)

    finished = finished_hypotheses(SMALL, length)
    allowed = [x for x in finished if all(contains(x, p) for p in phrases[0])]
    allowed.sort(key=lambda x: -log_prob(table, state, 0, x))

    assert hypotheses(result, 0)[: len(allowed)] == allowed


class Plain:
    """The phrases of a row, as the docstring of `RequiredPhrases` describes them."""

    def __init__(self, phrases, max_length):
        self.phrases, self.max_length = phrases, max_length

    def missing(self, tokens):
        return [p for p in self.phrases if not contains(tokens, p)]

    def longest(self, tokens, phrase):
        sizes = range(len(phrase), 0, -1)
        return next((n for n in sizes if tokens[-n:] == phrase[:n]), 0)

    def progress(self, tokens, token):
        left = self.missing(tokens)
        after = {p: self.longest(tokens, p) + 1 for p in left}
        wanted = [p for p, n in after.items() if p[n - 1] == token]
        done = [p for p in self.phrases if p not in left]
        done += [p for p in wanted if after[p] == len(p)]
        partial = [after[p] for p in wanted if p not in done]
        return sum(map(len, done)) + max(partial, default=0)

    def allows(self, tokens, token):
        left = self.missing(tokens)
        spare = self.max_length - len(tokens) - 2 - sum(map(len, left))
        if not left or (token != END and spare >= 0):
            return True
        # A token may continue a match that is not the longest one.
        matches = {
            n + 1
            for p in left
            for n in range(len(p))
            if p[n] == token and tokens[len(tokens) - n :] == p[:n]
        }
        longest_match = max(self.longest(tokens, p) for p in left) + 1
        return token != END and max(matches, default=0) >= min(-spare, longest_match)


def plain_allocation(table, state, row, phrases, *, beam_size, max_length):
    """Dynamic beam allocation for one row, as its docstring defines it, with lists.

    Returns the finished hypotheses, and the smallest gap between two scores.
    """
    plain, closest = Plain(phrases, max_length), math.inf
    alive, finished = [((), 0.0)], []
    for _ in range(max_length):
        candidates = [
            (plain.progress(tokens, token), total + gain, (*tokens, token))
            for tokens, total in alive
            for token, gain in enumerate(next_log_probs(table, state, row, tokens))
            if plain.allows(tokens, token)
        ]
        candidates.sort(key=lambda x: (-x[0], -x[1]))
        ordered = []
        for value, same in itertools.groupby(candidates, key=lambda x: x[0]):
            same = list(same)
            closest = min([closest, *-np.diff([x[1] for x in same])])
            ordered += [(turn, -value, x) for turn, x in enumerate(same)]
        ordered = [x[2] for x in sorted(ordered, key=lambda x: x[:2])]
        finished += [x[1:] for x in ordered[:beam_size] if x[2][-1] == END]
        finished = sorted(finished, key=lambda x: -x[0])[:beam_size]
        going = [x for x in ordered if x[2][-1] != END][:beam_size]
        alive = [(tokens, total) for _, total, tokens in going]
    return [tokens for _, tokens in finished], closest


@pytest.mark.parametrize("seed", quick_first([2, 1, 3, 4, 5]))
def test_the_beam_is_divided_by_progress(seed):
    phrases = [[(3, 3, 0), (0, 1)], [(1,), (1, 4)]]
    sizes = {"max_length": 8, "beam_size": BEAM}
    options = {"seed": seed, "size": 5, "length_penalty": 0, **sizes}
    actual, table, state = searched(ka.beam_search, phrases, **options)

    for row in range(2):
        plain = plain_allocation(table, state, row, phrases[row], **sizes)
        expected, closest = plain
        if closest > 1e-4:
            assert hypotheses(actual, row)[: len(expected)] == expected


def test_rows_without_phrases_are_those_of_a_search_without_the_constraint():
    table, state = language(3)
    result, *_ = searched("beam", [[[3]], []], size=table.shape[-1], max_length=5)

    plain = run_beam(table, state, length_penalty=1.0)
    for name, values in plain.items():
        np.testing.assert_array_equal(result[name][1], values[1], err_msg=name)


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_phrases_override_constraints_that_do_not_override(name):
    others = [ka.Ban([3]), ka.NoRepeatNgrams(1), ka.MinLength(5)]
    result, *_ = searched(name, [[[3, 3, 0]]], others=others, max_length=7)

    tokens = hypotheses(result, 0)[0]
    assert contains(tokens, (3, 3, 0)) and len(tokens) >= 5


@pytest.mark.parametrize("reverse", [False, True])
def test_a_prefix_overrides_phrases_in_any_order(reverse):
    constraints = [ka.RequiredPhrases([[[3, 0]]]), ka.Prefix(np.array([[1, 3]]))]

    result = constrained(
        ka.beam_search, constraints[::-1] if reverse else constraints, rows(1)
    )

    for tokens in filter(None, hypotheses(result, 0)):
        assert tokens[:2] == (1, 3) and contains(tokens, (3, 0))


def test_a_phrase_begins_although_no_room_is_left_for_it():
    # After the prefix, two tokens are left, and the phrase and the end are three.
    constraints = [ka.RequiredPhrases([[[0, 3]]]), ka.Prefix(np.array([[1, 1]]))]
    result = constrained("greedy", constraints, rows(1), max_length=4)
    assert result["token_ids"][0, 0].tolist() == [1, 1, 0, 3]


def test_phrases_fit_into_the_limit_of_their_row():
    limit = np.array([4, 6], "int32")
    result, *_ = searched("beam", [[[3, 3, 0]], [[0, 1]]], limit=limit)

    assert hypotheses(result, 0)[0] == (3, 3, 0, END)
    assert contains(hypotheses(result, 1)[0], (0, 1))


def test_some_tokens_do_not_follow_a_phrase_directly():
    state = rows(1)
    # Without the option, every token is followed by 1.
    state["offset"][0, 1] = 20.0
    state["offset"][0, END] = -20.0

    def following(not_followed_by):
        required = ka.RequiredPhrases([[[3, 0]]], not_followed_by=not_followed_by)
        tokens = hypotheses(constrained(ka.beam_search, [required], state), 0)[0]
        return tokens[tokens.index(3) + 2 :]

    assert following(())[0] == 1
    for prefix in ([1], np.array([1]), ops.convert_to_tensor([1], dtype="int32")):
        tokens = following(prefix)
        assert tokens[0] != 1 and 1 in tokens


@pytest.mark.parametrize("name", SEARCHES)
def test_a_phrase_does_not_follow_another_directly_while_tokens_remain(name):
    def hypotheses_with(phrases, not_followed_by):
        required = ka.RequiredPhrases([phrases], not_followed_by=not_followed_by)
        result = constrained(name, [required], rows(1))
        tokens = list(filter(None, hypotheses(result, 0)))
        assert tokens and all(contains(x, p) for x in tokens for p in phrases)
        return tokens

    for tokens in hypotheses_with([[0], [3]], [3]):
        assert tokens[tokens.index(0) + 1] != 3
    # The phrases have as many tokens as there are.
    assert {
        tokens[-1] for tokens in hypotheses_with([[0], [3], [1, 1, 1]], [0, 1, 3])
    } == {END}


def test_a_longer_phrase_continues_after_a_shorter_one():
    required = ka.RequiredPhrases([[[0], [0, 3, 1]]], not_followed_by=[3])

    result = constrained(ka.beam_search, [required], rows(1))

    assert any(tokens[:3] == (0, 3, 1) for tokens in hypotheses(result, 0))


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_a_token_that_the_model_rules_out_leaves_no_hypothesis(name):
    state = rows(2)
    state["offset"][:, 3] = -np.inf, np.nan

    result = constrained(name, [ka.RequiredPhrases([[[3]], [[3]]])], state)

    assert (result["lengths"] == 0).all()
    assert result["finite"].tolist() == [True, False]


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_no_rows_give_no_rows(name):
    result, *_ = searched(name, np.zeros((0, 2, 3), "int32"), how=quickly)

    assert result["token_ids"].shape[0] == 0


def beam_of(table, state, *constraints):
    options = {"start": START, "end": END, "max_length": 7, "beam_size": BEAM}
    return ka.beam_search(make_step(table), state, constraints=constraints, **options)


@needs_tensorflow
@pytest.mark.parametrize(
    ("jit_compile", "sizes"), [(False, (None, None, None)), (True, (2, 2, 3))]
)
@pytest.mark.exhaustive
def test_a_graph_takes_phrases_of_any_sizes(jit_compile, sizes):
    table = random_table(3, SMALL)

    def search(phrases, code):
        seen = ops.zeros((ops.size(code), 7), "int32")
        offset = ops.zeros((ops.size(code), SMALL))
        state = {"code": code, "seen": seen, "offset": offset}
        return beam_of(table, state, ka.RequiredPhrases(phrases))

    signature = [keras.KerasTensor(x, "int32") for x in (sizes, sizes[:1])]
    search = compiled(search, signature, xla=jit_compile)
    phrases = np.full((2, 2, 3), -1, "int32")
    phrases[0, 0], phrases[0, 1, :2] = PHRASES[0]
    others = [phrases[:, 1:, :2], phrases[:, :0], phrases[..., :0]]
    for token_ids in (phrases, *([] if 2 in sizes else others)):
        expected, _, state = searched("beam", token_ids, max_length=7)
        actual = numpy(search(token_ids, state["code"]))
        np.testing.assert_array_equal(actual["token_ids"], expected["token_ids"])


@pytest.mark.exhaustive
def test_phrases_of_a_queue_follow_their_rows():
    phrases = np.array([[[3, 0]], [[1, -1]], [[0, 1]]], "int32")
    table, state = to_tensors((random_table(3, SMALL), random_state(3, 3, SMALL)))
    constraints = {"constraints": lambda memory: [ka.RequiredPhrases(memory)]}
    options = {"start": START, "end": END, "max_length": LENGTH, **constraints}
    queue = ka.BeamSearchQueue(lambda memory: make_step(table), batch_size=2, **options)
    actual = queue(phrases, state)

    expected, *_ = searched(ka.beam_search, phrases, beam_size=5)
    np.testing.assert_array_equal(actual["token_ids"], expected["token_ids"])


@pytest.mark.parametrize(
    ("phrases", "options", "message"),
    [
        ([[3, 0]], {}, "for every row, a list of phrases.*: "),
        ([[[3.5]]], {}, "every token of RequiredPhrases must be an integer.*3.5"),
        (np.zeros((1, 2), "int32"), {}, r"\(batch, phrases, tokens\).*\(1, 2\)"),
        (np.zeros((1, 1, 2, 3), "int32"), {}, r"phrases, tokens\).*\(1, 1, 2, 3\)"),
        (np.zeros((1, 2, 3)), {}, r"must be integers.*float"),
        (np.array([[[-1, 3]]]), {}, r"padding after the tokens.*\[\[\[-1, 3\]\]\]"),
        ([[[3, END]]], {}, f"must not contain end, {END}"),
        ([[[4]]], {}, r"between 0 and 3. Received: \[4\]"),
        ([[[3, 0] * 3]], {}, r"max_length or limit, 6\. .*: 6 tokens in row 0"),
        ([[[3]], []], {}, "of RequiredPhrases must have 1 rows.*: 2"),
        ([[[3]]], {"not_followed_by": 3}, "not_followed_by must be a list.*: 3"),
        ([[[3]]], {"not_followed_by": [9]}, r"between 0 and 3. Received: \[9\]"),
    ],
)
def test_wrong_phrases_are_named(phrases, options, message):
    with pytest.raises(ValueError, match=message):
        constrained("greedy", [ka.RequiredPhrases(phrases, **options)], rows(1))


@pytest.mark.parametrize("limit", [3, np.array([5, 3])])
def test_phrases_that_exceed_a_limit_are_an_error(limit):
    phrases = [[[3]], [[3, 3, 0]]]
    with pytest.raises(ValueError, match=r"or limit, 3. Received: 3 tokens in row 1"):
        searched("beam", phrases, limit=limit)


def test_two_constraints_with_a_progress_are_refused():
    with pytest.raises(ValueError, match=r"one with a progress.*Received: 2"):
        searched("beam", [[[3]]], others=[ka.RequiredPhrases([[[0]]])])


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_a_phrase_begins_after_a_number_of_tokens(name):
    # Both phrases of the second row are due at once; those of the third may begin
    # everywhere.
    phrases = [[[3, 3, 0], [1]], [[3, 0], [0, 3]], [[3], [1]]]
    begins_at = np.array([[1, 5], [1, 1], [-1, -1]])
    required = ka.RequiredPhrases(phrases, begins_at=begins_at)

    result = constrained(name, [required], rows(3), max_length=14)

    first, second, third = (hypotheses(result, row) for row in range(3))
    assert first[0] and second[0] and third[0]
    for tokens in filter(None, first):
        # By chance, the free token may be the first one of the phrase.
        assert (3, 3, 0) in (tokens[1:4], tokens[:3])
        assert 1 in tokens[:6]
    for tokens in filter(None, second):
        assert contains(tokens[:4], (3, 0)) and contains(tokens[:4], (0, 3))
    for tokens in filter(None, third):
        assert 3 in tokens and 1 in tokens


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("seed", quick_first([3, 5]))
def test_no_hypothesis_contains_a_banned_phrase(name, seed):
    state = random_state(seed, 2, SMALL)

    def find(banned):
        constraints = [ka.BannedPhrases(banned), ka.MinLength(4)]
        result = constrained(name, constraints, state, seed=seed)
        return [list(filter(None, hypotheses(result, row))) for row in range(2)]

    free = find([[], []])
    # The first phrase is what the search finds, and the second overlaps with itself.
    phrases = [list(free[0][0][:2]), [3, 3, 0]]
    assert END not in phrases[0]
    banned, other = find([phrases, []])
    assert banned and not any(contains(x, p) for x in banned for p in phrases)
    assert other == free[1]
    # A phrase that is required overrides.
    both = [ka.BannedPhrases([[[3, 0]], []]), ka.RequiredPhrases([[[3, 0]], []])]
    result = constrained(name, both, state, seed=seed)
    assert all(contains(x, (3, 0)) for x in filter(None, hypotheses(result, 0)))


@needs_tensorflow
def test_a_graph_of_one_row_takes_any_number_of_phrases():
    table = random_table(3, SMALL)
    sizes = [(1, None, None), (1, None), (1, None, None)]

    def search(phrases, begins_at, banned):
        required = ka.RequiredPhrases(phrases, begins_at=begins_at)
        return beam_of(table, to_tensors(rows(1)), required, ka.BannedPhrases(banned))

    run = compiled(search, [keras.KerasTensor(x, "int32") for x in sizes])
    for count in (1, 2, 0):
        phrases = np.array([[[3, 0], [1, -1]][:count]], "int32").reshape(1, count, 2)
        begins = np.array([[2, 0][:count]], "int32")
        outputs = numpy(run(phrases, begins, np.full((1, 1, 1), 3, "int32")))
        tokens = hypotheses(outputs, 0)[0]
        assert tokens.count(3) == (count > 0)
        assert not count or tokens[2:4] == (3, 0)
        assert count < 2 or tokens[0] == 1
