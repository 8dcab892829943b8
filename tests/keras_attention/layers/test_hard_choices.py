"""Hard choices, their probabilities, and gradients around them."""

import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import softmax
from attention_testing.layers.weightings_reference import (
    DTYPES,
    POSITIONS,
    QUERIES,
    tensor,
    weights_of,
)
from keras_attention.layers import weightings
from keras_attention.layers.monotonic import monotonic_hard
from keras_attention.layers.weightings import entropy, log_probability, masked_hardmax
from keras_attention.ops.rows import LOWEST


@pytest.mark.parametrize("dtype", DTYPES)
def test_hardmax_takes_the_first_of_the_best(dtype):
    scores = [[1, 3, 2], [3, 1, 3], [-1e4, -1e4, -1e4], [9, 2, 2], [1, 2, 3]]
    mask = [[1, 1, 1], [1, 1, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]]

    weights = weights_of(scores, mask, dtype, masked_hardmax)

    expected = [[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]
    np.testing.assert_array_equal(weights, expected)


def test_choices_have_no_gradient(rng, gradients):
    scores, uniform = rng.random(size=(2, QUERIES, POSITIONS)).astype("float32")
    # Doubled where chosen: had the choice a gradient, the product rule would show it.
    choices = {
        "best": masked_hardmax,
        "drawn": lambda scores: weightings.masked_gumbel_max(scores, uniform),
        "next": lambda p: monotonic_hard(p, np.eye(QUERIES, POSITIONS)),
    }
    for choose in choices.values():
        (gradient,) = gradients(lambda x, f=choose: ops.sum(f(x) * x), [scores])
        chosen = ops.convert_to_numpy(choose(tensor(scores)))
        np.testing.assert_array_equal(gradient, chosen)


def gumbel_max_of(scores, uniform, mask=None):
    mask = None if mask is None else np.asarray(mask, "bool")
    scores, uniform = tensor(scores), tensor(uniform)
    return ops.convert_to_numpy(weightings.masked_gumbel_max(scores, uniform, mask))


def test_large_scores_do_not_round_the_noise_away(rng):
    uniform = rng.random((1009, 3))
    scores = np.broadcast_to([0, 1, 2], uniform.shape)

    choices = gumbel_max_of(scores + 2**22, uniform)

    np.testing.assert_array_equal(choices, gumbel_max_of(scores, uniform))


def test_noise_at_the_ends_of_its_range_is_safe():
    below_one = np.nextafter(np.float32(1), np.float32(0))
    uniform = [[0, 0, 0], [0, 0, below_one], [below_one] * 3, [1, 1, 1], [0, 0, 1]]
    mask = [[0, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1], [0, 0, 0]]

    choices = gumbel_max_of(np.zeros((5, 3)), uniform, mask)

    # Equal noise leaves equal scores equal, and the first is taken.
    expected = [[0, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(choices, expected)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 4.0])
def test_relaxed_choice_is_the_softmax_of_noisy_scores(rng, gradients, temperature):
    scores, uniform = rng.random(size=(2, 50, 4)).astype("float32")
    mask = np.array([1, 1, 0, 1], "bool")
    noisy = np.where(mask, scores - np.log(-np.log(uniform)), -np.inf)
    expected = softmax(noisy / temperature)

    def relaxed(scores):
        noise = tensor(uniform)
        return weightings.masked_gumbel_softmax(
            scores, noise, mask, temperature=temperature
        )

    weights = ops.convert_to_numpy(relaxed(tensor(scores)))
    (gradient,) = gradients(lambda x: ops.sum(relaxed(x)[..., 0]), [scores])

    np.testing.assert_allclose(weights, expected, atol=1e-5)
    chosen = gumbel_max_of(scores, uniform, mask).argmax(-1)
    np.testing.assert_array_equal(weights.argmax(-1), chosen)
    slope = expected[:, :1] * (np.eye(4)[:1] - expected) / temperature
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_logarithms_are_exact_where_weights_vanish(rng):
    scores = np.array([[0, -200, 0, 300], [1, 2, 3, np.nan], [np.nan] * 4], "float32")
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]], "bool")

    logs = weights_of(scores, mask, weighting=weightings.log_softmax_weights)

    total = np.log(np.exp([1, 2, 3]).sum())
    expected = [
        [-np.log(2), -200 - np.log(2), -np.log(2), LOWEST],
        [1 - total, 2 - total, 3 - total, LOWEST],
        [LOWEST] * 4,
    ]
    np.testing.assert_allclose(logs, expected, rtol=1e-6)


def test_log_probability_of_a_choice(gradients):
    scores = np.array([[1, 2, np.nan], [0, -1e4, np.nan], [np.nan] * 3], "float32")
    mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], "bool")
    choice = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]])

    actual = log_probability(tensor(scores), choice, mask)
    (gradient,) = gradients(
        lambda scores: ops.sum(log_probability(scores, choice, mask)), [scores]
    )

    # log(e / (e + e^2)); 1e4 below the other; nothing to choose from.
    first = -np.log(1 + np.e)
    np.testing.assert_allclose(
        ops.convert_to_numpy(actual), [first, -1e4, 0], rtol=1e-6
    )
    # The gradient is the choice minus the probabilities.
    share = 1 / (1 + np.e)
    expected = [[1 - share, share - 1, 0], [-1, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_choice_of_a_masked_position_has_no_probability():
    scores, mask = tensor([[1, 2]]), np.array([[True, False]])

    log_prob = log_probability(scores, np.array([[0, 1]]), mask)

    np.testing.assert_array_equal(ops.convert_to_numpy(log_prob), np.float32([LOWEST]))


def test_entropy_and_its_gradient(rng, gradients):
    scores = np.full((5, 4), np.nan, "float32")
    scores[0] = 7
    scores[1, :2] = np.log([1, 3])
    scores[2] = [1e4, 0, -1e4, 0]
    scores[3, 2] = 5
    mask = ~np.isnan(scores)

    actual = ops.convert_to_numpy(entropy(tensor(scores), mask))
    (gradient,) = gradients(lambda x: ops.sum(entropy(x, mask)), [scores])

    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    np.testing.assert_allclose(actual, [np.log(4), quarter, 0, 0, 0], atol=1e-6)
    # -w (log w + entropy), where w log w is zero for no weight.
    expected = np.zeros((5, 4))
    expected[1, :2] = [
        -0.25 * (np.log(0.25) + quarter),
        -0.75 * (np.log(0.75) + quarter),
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
