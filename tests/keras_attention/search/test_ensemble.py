import keras
import numpy as np
import pytest
from keras import ops, tree

from attention_testing.arrays import numpy
from attention_testing.search.reference import (
    ATTENTION,
    BATCH,
    BEAM,
    END,
    EXACT_BEAM,
    LENGTH,
    REQUIRED,
    START,
    VOCABULARY,
    code_after,
    expected_weights,
    finished_hypotheses,
    hypotheses,
    language,
    make_step,
    next_log_probs,
    quickly,
    random_state,
    random_table,
    run_greedy,
    to_tensors,
)
from keras_attention import beam_search, ensemble_step, greedy_search

SHARES = 0.75, 0.25


def together(table, state, *, weights=None, combine="probabilities", search, **options):
    """Search with two models of different languages and attention weights."""

    @quickly
    def run(tables, states):
        steps = [make_step(tables[0]), make_step(tables[1], ATTENTION)]
        step = ensemble_step(steps, weights=weights, combine=combine)
        return search(step, states, **REQUIRED, **options)

    return numpy(run(to_tensors(table), to_tensors(state)))


def plain_next(tables, states, combine, row, tokens):
    """The average over the models, without tensors."""
    models = zip(SHARES, tables, states, strict=True)
    shared = [(share, next_log_probs(*model, row, tokens)) for share, *model in models]
    with np.errstate(divide="ignore"):
        if combine == "probabilities":
            return np.log(sum(share * np.exp(x) for share, x in shared))
        product = np.prod([np.exp(x) ** share for share, x in shared], axis=0)
        return np.log(product / product.sum())


def two_languages(vocabulary=VOCABULARY):
    tables = [random_table(seed, vocabulary) for seed in (3, 5)]
    return tables, [random_state(seed, vocabulary=vocabulary) for seed in (3, 5)]


COMBINE = pytest.mark.parametrize("combine", ["probabilities", "log-probabilities"])


@COMBINE
def test_wide_beam_finds_what_enumeration_of_the_average_finds(combine):
    tables, states = two_languages(vocabulary=3)
    # The end is impossible: in row 1 for one model, in row 0 at first for both.
    states[0]["offset"][1, 0] = -np.inf
    for table, state in zip(tables, states, strict=True):
        table[code_after(table, state, 0, ()), END] = -np.inf
    # Weights are divided by their sum.
    options = {"search": beam_search, "beam_size": EXACT_BEAM, "length_penalty": 0.0}
    result = together(tables, states, weights=(3, 1), combine=combine, **options)

    for row in range(BATCH):
        totals = {
            tokens: sum(
                plain_next(tables, states, combine, row, tokens[:t])[token]
                for t, token in enumerate(tokens)
            )
            for tokens in finished_hypotheses(vocabulary=3)
        }
        possible = [tokens for tokens, total in totals.items() if total > -np.inf]
        possible.sort(key=totals.get, reverse=True)
        assert hypotheses(result, row)[: len(possible)] == possible
        log_probs = result["log_probs"][row, : len(possible)]
        np.testing.assert_allclose(log_probs, [totals[x] for x in possible], rtol=1e-5)


def test_attention_weights_are_the_mean_over_the_models():
    tables, states = two_languages()

    result = together(tables, states, weights=SHARES, search=greedy_search)

    for row in range(BATCH):
        (tokens,) = hypotheses(result, row)
        seen = expected_weights(tokens, states[0]["seen"][row], LENGTH)
        for t in range(len(tokens)):
            attention = ATTENTION[code_after(tables[1], states[1], row, tokens[:t])]
            expected = SHARES[0] * seen[t] + SHARES[1] * attention
            np.testing.assert_allclose(result["weights"][row, 0, t], expected, 1e-6)


def test_states_may_be_a_tuple():
    table, state = language(7)
    step = ensemble_step([make_step(ops.convert_to_tensor(table))] * 2)

    result = numpy(greedy_search(step, (to_tensors(state),) * 2, **REQUIRED))

    alone = run_greedy(table, state)
    np.testing.assert_array_equal(result["token_ids"], alone["token_ids"])


@COMBINE
def test_results_stay_finite_if_no_token_is_possible(combine):
    tables, states = two_languages()
    # Each model rules out the tokens that the other allows, and after one history the
    # second model rules out all tokens.
    states[0]["offset"][:, : VOCABULARY // 2] = -np.inf
    states[1]["offset"][:, VOCABULARY // 2 :] = -np.inf
    tables[1][code_after(tables[1], states[1], 0, ())] = -np.inf

    options = {"search": beam_search, "beam_size": BEAM}
    result = together(tables, states, combine=combine, **options)

    for name in ("scores", "log_probs", "token_log_probs", "weights"):
        assert np.isfinite(result[name]).all(), name
    steps = [make_step(table) for table in tables]
    states = to_tensors(tree.map_structure(lambda x: x[:, None], states))
    token_ids = ops.full((BATCH, 1), START, dtype="int32")
    log_probs, _, _ = ensemble_step(steps, combine=combine)(token_ids, states)
    assert not np.isnan(ops.convert_to_numpy(log_probs)).any()
    if combine == "log-probabilities":
        np.testing.assert_array_equal(result["lengths"], 0)


@pytest.mark.parametrize(
    ("count", "options", "states", "message"),
    [
        (0, {}, 0, r"steps must hold at least one step. Received: \[\]"),
        (2, {"weights": [1.0]}, 2, r"2 positive numbers.* Received: \[1.0\]"),
        (2, {"weights": [1, 0]}, 2, r"2 positive numbers.* Received: \[1, 0\]"),
        (2, {"weights": [1, np.nan]}, 2, "2 positive numbers.*nan"),
        (2, {"weights": [1, "a"]}, 2, r"2 positive numbers.*: \[1, 'a'\]"),
        (2, {"weights": [1, None]}, 2, r"2 positive numbers.*: \[1, None\]"),
        (2, {"weights": 0.5}, 2, r"2 positive numbers.* Received: 0.5"),
        (2, {"combine": "max"}, 2, "combine must be one of .*: 'max'"),
        (2, {}, 3, "state must be a list of 2 states.* Received: 3"),
    ],
)
def test_wrong_arguments_are_named_with_what_came(count, options, states, message):
    table, state = language(11)

    with pytest.raises(ValueError, match=message):
        step = ensemble_step([make_step(table)] * count, **options)
        step(ops.ones((BATCH, 1), dtype="int32"), [state] * states)


def step_of(vocabulary, positions, tensor=ops.zeros):
    def step(token_ids, state):
        shape = tuple(token_ids.shape)
        return tensor((*shape, vocabulary)), state, tensor((*shape, positions))

    return step


def test_models_of_other_shapes_are_named():
    for other, message in [
        ((13, 7), r"size of their vocabulary. Received: \[11, 13\]"),
        ((11, 5), r"size of their positions. Received: \[7, 5\]"),
    ]:
        step = ensemble_step([step_of(11, 7), step_of(*other)])
        with pytest.raises(ValueError, match=message):
            step(ops.ones((BATCH, 1), dtype="int32"), [{}, {}])


def test_a_size_may_be_unknown():
    step = ensemble_step([step_of(11, x, keras.KerasTensor) for x in (7, None)])
    outputs, _, weights = step(keras.KerasTensor((BATCH, 1), "int32"), [{}, {}])

    assert outputs.shape == (BATCH, 1, 11) and weights.shape[:2] == (BATCH, 1)
