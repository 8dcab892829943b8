"""NaN and infinity among log-probabilities, and dead ends."""

from functools import partial

import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import numpy
from keras_attention import beam_search, ensemble_step, greedy_search, sample_search

BEST, OTHER, END = 2, 3, 4
# Log-probabilities of the next token, after each token; token 0 starts.
LOGITS = np.log(np.array([0.05, 0.05, 0.6, 0.2, 0.1]))

SEARCHES = {
    "greedy": greedy_search,
    "sample": partial(sample_search, samples=2, top_k=1),
    "beam": partial(beam_search, beam_size=3),
    "groups": partial(beam_search, beam_size=4, beam_groups=2),
    "beam of one": partial(beam_search, beam_size=1, length_penalty=0.0),
}


def table(at=None):
    """Log-probabilities `(previous, next)`, with some of them replaced."""
    log_probs = np.tile(LOGITS, (5, 1)).astype("float32")
    for (before, after), value in (at or {}).items():
        log_probs[before, after] = value
    return log_probs


def step(token_ids, state):
    """Rows have tables of their own, as their state."""
    rows = ops.reshape(state, (-1, 5, 5))
    flat = ops.reshape(token_ids, (-1,))
    log_probs = ops.take_along_axis(rows, flat[:, None, None], axis=1)[:, 0]
    log_probs = ops.reshape(log_probs, (*ops.shape(token_ids), 5))
    return log_probs, state, ops.ones((*ops.shape(token_ids), 3))


def run(search, *tables):
    return found_by(search, step, np.stack(tables))


def found_by(search, step, state):
    return numpy(search(step, state, start=0, end=END, max_length=3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_token_that_is_not_finite_is_impossible(name, bad):
    impossible = table(at={(0, BEST): -np.inf})
    output = run(SEARCHES[name], table(at={(0, BEST): bad}), impossible)

    assert output["finite"].tolist() == [False, True]
    for result in (output[x] for x in output if x != "finite"):
        np.testing.assert_array_equal(result[0], result[1])
    assert (output["token_ids"][0, :, 0] != BEST).all()
    assert (output["lengths"] > 0).all()


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("name", SEARCHES)
def test_a_dead_end_leaves_no_hypothesis(name, bad):
    # Every sequence reaches BEST or OTHER first, and nothing follows them.
    at = {(0, token): -np.inf for token in (0, 1, END)}
    at |= {(before, after): bad for before in (BEST, OTHER) for after in range(5)}

    output = run(SEARCHES[name], table(at=at), table())

    assert output["finite"].tolist() == [not np.isnan(bad), True]
    assert (output["lengths"][0] == 0).all()
    assert (output["scores"][0] == -1e9).all()
    assert (output["token_ids"][0] == END).all()
    for key in ("weights", "token_log_probs"):
        assert (output[key][0] == 0).all()
    assert output["lengths"][1, 0] > 0


@pytest.mark.parametrize("name", SEARCHES)
def test_steps_after_the_end_may_compute_anything(name):
    # The first row ends at once; the search goes on for the other.
    at = {(0, token): -np.inf for token in range(4)}
    at |= {(END, token): np.nan for token in range(5)}

    output = run(SEARCHES[name], table(at=at), table())

    assert output["finite"].tolist() == [True, True]
    assert output["lengths"][0, 0] == 1


@pytest.mark.parametrize("combine", ["probabilities", "log-probabilities"])
def test_an_ensemble_reports_what_is_not_finite(combine):
    joint = ensemble_step([step, step], combine=combine)
    tables = np.stack([table(at={(0, BEST): np.nan}), table()])

    result = found_by(greedy_search, joint, [tables, tables[[1, 1]]])

    assert result["finite"].tolist() == [False, True]
    assert result["token_ids"][:, 0, 0].tolist() == [OTHER, BEST]
