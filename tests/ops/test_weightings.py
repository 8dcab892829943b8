import itertools
import warnings

import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as array_strategies
from keras import ops

from keras_attention.loops import scan
from keras_attention.ops.weightings import (
    LOWEST,
    entropy,
    log_probability,
    masked_entmax15,
    masked_gumbel_max,
    masked_gumbel_softmax,
    masked_hardmax,
    masked_log_softmax,
    masked_sigmoid,
    masked_softmax,
    masked_sparsemax,
    monotonic_hard,
    monotonic_parallel,
    monotonic_recursive,
    straight_through,
)

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, QUERIES, POSITIONS = 2, 3, 5
DTYPES = ["float16", "bfloat16", "float32", "float64"]
INF, NAN = np.inf, np.nan
# JAX has no float64 by default.
EXACT = keras.backend.backend() != "jax"
SPARSE = [masked_sparsemax, masked_entmax15]
WEIGHTINGS = [masked_softmax, *SPARSE, masked_hardmax]


def tensor(array, dtype="float32"):
    with warnings.catch_warnings():
        # JAX has no float64 by default, says so, and computes in float32.
        warnings.filterwarnings("ignore", "Explicitly requested dtype")
        return ops.cast(array, dtype)


def weights_of(scores, mask=None, dtype="float32", weighting=masked_softmax):
    mask = None if mask is None else np.asarray(mask, "bool")
    return ops.convert_to_numpy(weighting(tensor(scores, dtype), mask))


def by_the_formula(scores, mask):
    """The softmax of the valid scores of every row, one row at a time."""
    weights = np.zeros(scores.shape)
    for row in np.ndindex(*scores.shape[:-1]):
        valid = mask[row]
        if valid.any():
            odds = np.exp(scores[row][valid] - scores[row][valid].max())
            weights[row][valid] = odds / odds.sum()
    return weights


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_worked_by_hand(dtype):
    scores = np.log([[1.0, 3.0, 4.0], [2.0, 2.0, 4.0]])

    np.testing.assert_allclose(
        weights_of(scores, dtype=dtype),
        [[0.125, 0.375, 0.5], [0.25, 0.25, 0.5]],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        weights_of(scores, [[1, 1, 0], [1, 0, 1]], dtype),
        [[0.25, 0.75, 0], [1 / 3, 0, 2 / 3]],
        rtol=1e-6,
    )


def test_follows_the_formula(rng):
    scores = rng.normal(scale=3, size=(BATCH, QUERIES, POSITIONS))
    mask = rng.random(scores.shape) < 0.5

    weights = weights_of(scores, mask)

    np.testing.assert_allclose(weights, by_the_formula(scores, mask), atol=1e-6)


@hypothesis.settings(max_examples=25, derandomize=True, deadline=None, database=None)
@hypothesis.given(
    scores=array_strategies.arrays(
        "float32", (QUERIES, POSITIONS), elements=strategies.floats(-1e4, 1e4, width=32)
    ),
    mask=array_strategies.arrays("bool", (QUERIES, POSITIONS)),
)
def test_any_scores_and_mask_give_a_distribution_or_nothing(scores, mask):
    weights = weights_of(scores, mask)

    assert (weights[~mask] == 0).all()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-5)
    np.testing.assert_allclose(
        weights, by_the_formula(scores.astype("float64"), mask), atol=1e-6
    )


def test_without_a_mask_every_position_is_valid(rng):
    scores = rng.normal(size=(QUERIES, POSITIONS))
    everything = np.ones(scores.shape)

    np.testing.assert_allclose(
        weights_of(scores), weights_of(scores, everything), rtol=1e-6
    )
    np.testing.assert_allclose(weights_of(scores).sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("weighting", [masked_softmax, *SPARSE])
@pytest.mark.parametrize("shape", [(0, POSITIONS), (BATCH, 0)])
def test_where_there_is_nothing_to_weigh_there_are_no_weights(weighting, shape):
    for mask in (None, np.ones(shape, "bool")):
        found = weights_of(np.ones(shape), mask, weighting=weighting)
        assert found.shape == shape


def test_adding_a_number_to_a_row_changes_nothing(rng):
    scores = rng.normal(size=(QUERIES, POSITIONS))
    mask = rng.random(scores.shape) < 0.7

    shifted = scores + np.array([[-70], [0], [70]])

    np.testing.assert_allclose(
        weights_of(shifted, mask), weights_of(scores, mask), rtol=1e-4
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_permuting_the_positions_permutes_the_weights(rng, weighting):
    scores = rng.normal(size=(QUERIES, POSITIONS))
    mask = rng.random(scores.shape) < 0.7
    order = rng.permutation(POSITIONS)

    np.testing.assert_allclose(
        weights_of(scores[:, order], mask[:, order], weighting=weighting),
        weights_of(scores, mask, weighting=weighting)[:, order],
        atol=1e-6,
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_masking_is_the_same_as_leaving_out(rng, weighting):
    scores = rng.normal(size=(QUERIES, POSITIONS))
    mask = np.array([1, 0, 1, 1, 0], "bool")

    weights = weights_of(scores, mask, weighting=weighting)

    left = weights_of(scores[:, mask], weighting=weighting)
    np.testing.assert_allclose(weights[:, mask], left, atol=1e-6)
    np.testing.assert_array_equal(weights[:, ~mask], 0)


def test_mask_is_broadcast_to_the_scores(rng):
    scores = rng.normal(size=(BATCH, QUERIES, POSITIONS))
    of_the_memory = rng.random((BATCH, 1, POSITIONS)) < 0.5
    of_the_query = rng.random((BATCH, QUERIES, 1)) < 0.5

    for mask in (of_the_memory, of_the_query):
        np.testing.assert_array_equal(
            weights_of(scores, mask),
            weights_of(scores, np.broadcast_to(mask, scores.shape)),
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_masked_places_weigh_exactly_zero_whatever_they_hold(weighting, dtype):
    for stored in (NAN, INF, -INF, 1e4, -1e4):
        scores, mask = [[2, stored, 2], [stored] * 3], [[1, 0, 1], [0, 0, 0]]

        weights = weights_of(scores, mask, dtype, weighting)

        equals = [1, 0, 0] if weighting is masked_hardmax else [0.5, 0, 0.5]
        np.testing.assert_allclose(weights, [equals, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_places_leave_no_trace_in_the_gradient(dtype, gradients):
    anything = np.array([NAN, INF, -INF, 1e4, -1e4], "float32")
    scores = np.full((2, 5, 4), anything[:, None])
    scores[0][:, [0, 2, 3]] = [1, 2, 3]
    mask = np.zeros(scores.shape, "bool")
    mask[0][:, [0, 2, 3]] = True
    readout = np.array([1, 5, 7, 11], "float32")

    def read(scores):
        weights = masked_softmax(tensor(scores, dtype), mask)
        return ops.sum(ops.multiply(ops.cast(weights, "float32"), readout))

    (gradient,) = gradients(read, [scores])

    # The softmax of 1, 2, 3 and its Jacobian, diag(w) - w w^T.
    weights = np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()
    expected = weights * (readout[[0, 2, 3]] - weights @ readout[[0, 2, 3]])
    tolerance = 2e-2 if "16" in dtype else 1e-5
    np.testing.assert_allclose(
        gradient[0][:, [0, 2, 3]], np.tile(expected, (5, 1)), atol=tolerance
    )
    np.testing.assert_array_equal(gradient[0][:, 1], 0)
    np.testing.assert_array_equal(gradient[1], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighting", [masked_softmax, *SPARSE])
def test_extreme_scores_neither_overflow_nor_vanish(weighting, masked, dtype):
    scores = [[1e4, -1e4, 0], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4]]
    mask = np.ones((4, 3)) if masked else None

    weights = weights_of(scores, mask, dtype, weighting)

    third = 1 / 3
    expected = [[1, 0, 0], [0.5, 0.5, 0], [third] * 3, [third] * 3]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_score_of_minus_infinity_weighs_nothing(gradients):
    scores = np.array([[-INF, 1, 1], [-INF, -INF, 1]], "float32")
    expected = [[0, 0.5, 0.5], [0, 0, 1]]

    for mask in (None, np.ones(scores.shape, "bool")):
        np.testing.assert_array_equal(weights_of(scores, mask), expected)

        def first_column(scores, mask=mask):
            return ops.sum(masked_softmax(scores, mask)[:, 1])

        (gradient,) = gradients(first_column, [scores])
        np.testing.assert_allclose(gradient, [[0, 0.25, -0.25], [0, 0, 0]])


@pytest.mark.parametrize(
    "mask", [[[True, True, True]], [[True, True, False]]], ids=repr
)
def test_row_of_minus_infinity_has_no_valid_position(mask, gradients):
    scores = np.full((1, 3), -INF, "float32")
    mask = np.array(mask)

    (gradient,) = gradients(lambda x: masked_softmax(x, mask)[0, 0], [scores])

    np.testing.assert_array_equal(weights_of(scores, mask), [[0, 0, 0]])
    np.testing.assert_array_equal(gradient, [[0, 0, 0]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_in_float32_at_least(dtype):
    x = tensor(np.zeros((QUERIES, POSITIONS)), dtype)
    mask = np.ones((1, POSITIONS), "bool")
    found = [
        *(weighting(x, m) for weighting in WEIGHTINGS for m in (None, mask)),
        masked_gumbel_max(x, x),
        masked_gumbel_softmax(x, x),
        masked_log_softmax(x),
        log_probability(x, x),
        entropy(x),
        masked_sigmoid(x),
        monotonic_recursive(x, x),
        monotonic_parallel(x, x),
        monotonic_hard(x, x),
    ]

    # What JAX makes of float64 depends on its configuration.
    expected = "float32" if "16" in dtype else keras.backend.standardize_dtype(x.dtype)
    assert {keras.backend.standardize_dtype(y.dtype) for y in found} == {expected}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_rows_in_half_precision_sum_to_one(dtype, masked):
    # Summed in float16, ones stop adding up at 2048; in bfloat16 at 256.
    length = 4099
    mask = np.ones((1, length)) if masked else None

    weights = weights_of(np.zeros((1, length)), mask, dtype)

    np.testing.assert_allclose(weights, np.full((1, length), 1 / length), rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_gradient_follows_the_formula(masked, rng, gradients):
    scores, readout = rng.normal(size=(2, 1, POSITIONS)).astype("float32")
    mask = np.array([[1, 1, 0, 1, 1]], "bool") if masked else None
    weights = weights_of(scores, mask)

    (gradient,) = gradients(
        lambda x: ops.sum(ops.multiply(masked_softmax(x, mask), readout)), [scores]
    )

    expected = weights * (readout - (weights * readout).sum())
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_score_that_is_not_a_number_does_not_pass_unnoticed(weighting):
    assert np.isnan(weights_of([[1, NAN, 2]], weighting=weighting)).any()
    assert np.isnan(weights_of([[1, NAN, 2]], [[1, 1, 0]], weighting=weighting)).any()


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_single_position_takes_everything(weighting):
    for scores, mask in [([[-7.0], [7.0]], None), ([[7.0], [7.0]], [[1], [0]])]:
        weights = weights_of(scores, mask, weighting=weighting)
        np.testing.assert_array_equal(weights, [[1], [1]] if mask is None else mask)


def sparsemax_of_the_paper(z):
    """Algorithm 1: sort, find the support, find the threshold."""
    total, threshold = 0, None
    for k, z_k in enumerate(sorted(z, reverse=True), start=1):
        total += z_k
        if 1 + k * z_k > total:
            threshold = (total - 1) / k
    return np.maximum(z - threshold, 0)


def entmax_of_the_paper(z):
    """The root of sum [z / 2 - threshold]_+^2 = 1, by bisection."""
    low, high = z.max() / 2 - 1, z.max() / 2
    for _ in range(60):
        threshold = (low + high) / 2
        if (np.maximum(z / 2 - threshold, 0) ** 2).sum() > 1:
            low = threshold
        else:
            high = threshold
    return np.maximum(z / 2 - low, 0) ** 2


OF_THE_PAPER = {
    masked_sparsemax: sparsemax_of_the_paper,
    masked_entmax15: entmax_of_the_paper,
}


def by_the_paper(weighting, scores, mask):
    weights = np.zeros(scores.shape)
    for row in np.ndindex(*scores.shape[:-1]):
        if mask[row].any():
            weights[row][mask[row]] = OF_THE_PAPER[weighting](scores[row][mask[row]])
    return weights


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sparse_values_worked_by_hand(dtype):
    scores = [[-2, 0, 0.5], [3, 3, 1], [1, 1, 1], [-3, 0, -1.8]]
    third = [1 / 3] * 3

    sparse = weights_of(scores, dtype=dtype, weighting=masked_sparsemax)
    between = weights_of(scores, dtype=dtype, weighting=masked_entmax15)

    expected = [[0, 0.25, 0.75], [0.5, 0.5, 0], third, [0, 1, 0]]
    np.testing.assert_allclose(sparse, expected)
    # The square roots of two weights differ by half of what the scores differ by.
    low, lower = ((np.sqrt(2 - d**2) - d) / 2 for d in (0.25, 0.9))
    expected = [
        [0, low**2, (low + 0.25) ** 2],
        [0.5, 0.5, 0],
        third,
        [0, (lower + 0.9) ** 2, lower**2],
    ]
    tolerance = 1e-3 if dtype == "float16" else 2e-6
    np.testing.assert_allclose(between, expected, rtol=tolerance, atol=tolerance / 10)
    assert expected[0] == pytest.approx([0, 0.326, 0.674], abs=5e-4)


@pytest.mark.parametrize("weighting", SPARSE)
def test_sparse_weights_follow_the_paper(weighting, rng):
    scores = rng.normal(size=(7, BATCH, QUERIES, POSITIONS))
    # From nearly equal scores to nearly one-hot weights, and equal ones among them.
    scores *= np.array([0.1, 0.5, 1, 2, 5, 20, 0.5]).reshape(7, 1, 1, 1)
    scores[-1] = np.round(scores[-1])
    mask = rng.random(scores.shape) < 0.7

    weights = weights_of(scores, mask, weighting=weighting)

    expected = by_the_paper(weighting, scores, mask)
    np.testing.assert_allclose(weights, expected, atol=2e-6)
    np.testing.assert_array_equal(weights[~mask], 0)
    assert ((weights == 0) & mask).any()


@pytest.mark.parametrize("weighting", SPARSE)
def test_long_rows_are_as_exact_as_short_ones(weighting, rng):
    # One high score, and a thousand others that share what it leaves.
    scores = rng.normal(size=(3, 1009)) * np.array([[1e-5], [1e-3], [1]])
    scores[:2, 500] += np.array([0.9, 1.7]) if weighting is masked_entmax15 else 0.9
    scores = scores.astype("float32")

    weights = weights_of(scores, weighting=weighting)

    everything = np.ones(scores.shape, "bool")
    expected = by_the_paper(weighting, scores.astype("float64"), everything)
    np.testing.assert_allclose(weights, expected, atol=3e-7)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_sparsemax_attends_to_less_than_entmax_to_less_than_softmax(rng):
    scores = 2 * rng.normal(size=(BATCH, 101, POSITIONS))

    seen = [weights_of(scores, weighting=w) > 0 for w in (*SPARSE, masked_softmax)]

    assert (seen[0] <= seen[1]).all()
    assert seen[0].sum() < seen[1].sum() < seen[2].sum() == scores.size


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("weighting", SPARSE)
def test_sparse_gradients_equal_finite_differences(weighting, rng, gradients):
    scores = rng.normal(size=(7, POSITIONS))
    # All equal, two equal at the top, one far above the others.
    scores[:3] = [[1] * 5, [3, 3, 2.25, -4, -5], [90, 0, 1, 2, 3]]
    mask = np.ones(scores.shape, "bool")
    mask[4, [1, 3]] = mask[5, :4] = mask[6] = False
    readout = rng.normal(size=scores.shape)

    def read(scores):
        return ops.sum(ops.multiply(weighting(scores, mask), readout))

    def read_the_paper(scores):
        return (by_the_paper(weighting, scores, mask) * readout).sum()

    spoilt = np.where(mask, scores, NAN).astype("float64" if EXACT else "float32")
    (gradient,) = gradients(read, [spoilt])

    expected = finite_differences(read_the_paper, scores)
    np.testing.assert_allclose(gradient, expected, atol=1e-6 if EXACT else 1e-5)
    np.testing.assert_array_equal(gradient[~mask], 0)
    assert (gradient[2:6][mask[2:6]] == 0).any()


def finite_differences(function, point, step=1e-5):
    """The gradient of a scalar function of a float64 array, entry by entry."""
    gradient = np.zeros(point.shape)
    for place in np.ndindex(*point.shape):
        ends = []
        for sign in (1, -1):
            moved = point.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


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
        "drawn": lambda scores: masked_gumbel_max(scores, uniform),
        "next": lambda p: monotonic_hard(p, np.eye(QUERIES, POSITIONS)),
    }
    for choose in choices.values():
        (gradient,) = gradients(lambda x, f=choose: ops.sum(f(x) * x), [scores])
        chosen = ops.convert_to_numpy(choose(tensor(scores)))
        np.testing.assert_array_equal(gradient, chosen)


def gumbel_max_of(scores, uniform, mask=None):
    mask = None if mask is None else np.asarray(mask, "bool")
    scores, uniform = tensor(scores), tensor(uniform)
    return ops.convert_to_numpy(masked_gumbel_max(scores, uniform, mask))


def test_frequency_of_every_choice_is_its_softmax_weight():
    # Every combination of 30 evenly spaced values takes the place of random noise.
    steps = (np.arange(30) + 0.5) / 30
    uniform = np.array(list(itertools.product(steps, steps, [0.999], steps)))
    scores = np.broadcast_to(np.log([1, 2, 5, 4]), uniform.shape)

    choices = gumbel_max_of(scores, uniform, [[1, 1, 0, 1]])

    np.testing.assert_array_equal(choices.sum(-1), 1)
    expected = [1 / 7, 2 / 7, 0, 4 / 7]
    np.testing.assert_allclose(choices.mean(0), expected, atol=5e-3)


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
    noisy = np.where(mask, scores - np.log(-np.log(uniform)), -np.inf) / temperature
    odds = np.exp(noisy - noisy.max(-1, keepdims=True))
    expected = odds / odds.sum(-1, keepdims=True)

    def relaxed(scores):
        noise = tensor(uniform)
        return masked_gumbel_softmax(scores, noise, mask, temperature=temperature)

    weights = ops.convert_to_numpy(relaxed(tensor(scores)))
    (gradient,) = gradients(lambda x: ops.sum(relaxed(x)[..., 0]), [scores])

    np.testing.assert_allclose(weights, expected, atol=1e-5)
    chosen = gumbel_max_of(scores, uniform, mask).argmax(-1)
    np.testing.assert_array_equal(weights.argmax(-1), chosen)
    slope = expected[:, :1] * (np.eye(4)[:1] - expected) / temperature
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_logarithms_are_exact_where_weights_vanish(rng):
    scores = np.array([[0, -200, 0, 300], [1, 2, 3, NAN], [NAN] * 4], "float32")
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]], "bool")

    logs = weights_of(scores, mask, weighting=masked_log_softmax)

    total = np.log(np.exp([1, 2, 3]).sum())
    expected = [
        [-np.log(2), -200 - np.log(2), -np.log(2), LOWEST],
        [1 - total, 2 - total, 3 - total, LOWEST],
        [LOWEST] * 4,
    ]
    np.testing.assert_allclose(logs, expected, rtol=1e-6)


def test_log_probability_of_a_choice(gradients):
    scores = np.array([[1, 2, NAN], [0, -1e4, NAN], [NAN] * 3], "float32")
    mask = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]], "bool")
    choice = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]])

    found = log_probability(tensor(scores), choice, mask)
    (gradient,) = gradients(
        lambda scores: ops.sum(log_probability(scores, choice, mask)), [scores]
    )

    # log(e / (e + e^2)); 1e4 below the other; nothing to choose from.
    first = -np.log(1 + np.e)
    np.testing.assert_allclose(ops.convert_to_numpy(found), [first, -1e4, 0], rtol=1e-6)
    # The choice less the probabilities.
    share = 1 / (1 + np.e)
    expected = [[1 - share, share - 1, 0], [-1, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_choice_of_a_masked_position_has_no_probability():
    scores, mask = tensor([[1, 2]]), np.array([[True, False]])

    found = log_probability(scores, np.array([[0, 1]]), mask)

    np.testing.assert_array_equal(ops.convert_to_numpy(found), np.float32([LOWEST]))


def test_entropy_and_its_gradient(rng, gradients):
    scores = np.full((5, 4), NAN, "float32")
    scores[0] = 7
    scores[1, :2] = np.log([1, 3])
    scores[2] = [1e4, 0, -1e4, 0]
    scores[3, 2] = 5
    mask = ~np.isnan(scores)

    found = ops.convert_to_numpy(entropy(tensor(scores), mask))
    (gradient,) = gradients(lambda x: ops.sum(entropy(x, mask)), [scores])

    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    np.testing.assert_allclose(found, [np.log(4), quarter, 0, 0, 0], atol=1e-6)
    # -w (log w + entropy), where w log w is zero for no weight.
    expected = np.zeros((5, 4))
    expected[1, :2] = [
        -0.25 * (np.log(0.25) + quarter),
        -0.75 * (np.log(0.75) + quarter),
    ]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_straight_through_is_hard_ahead_and_soft_behind(rng, gradients):
    scores = rng.normal(scale=5, size=(101, POSITIONS)).astype("float32")
    readout = rng.normal(size=scores.shape).astype("float32")

    def read(scores, soft_only=False):
        soft = masked_softmax(scores)
        hard = soft if soft_only else straight_through(masked_hardmax(scores), soft)
        return ops.sum(ops.multiply(hard, readout))

    # Any weights can be the hard ones, not only zeros and ones.
    hard, soft = rng.random((2, 101, POSITIONS)).astype("float32")
    used = ops.convert_to_numpy(straight_through(tensor(hard), tensor(soft)))
    np.testing.assert_array_equal(used, hard)

    (gradient,) = gradients(read, [scores])
    (expected,) = gradients(lambda x: read(x, soft_only=True), [scores])
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    assert (expected != 0).all()


def test_masked_sigmoid(gradients):
    scores = np.array([[0, 100, -100, NAN], [INF, -INF, np.log(3), 1]], "float32")
    mask = np.array([[1, 1, 1, 0], [0, 1, 1, 0]], "bool")

    p = weights_of(scores, mask, weighting=masked_sigmoid)
    (gradient,) = gradients(lambda x: ops.sum(masked_sigmoid(x, mask)), [scores])

    expected = np.array([[0.5, 1, 0, 0], [0, 0, 0.75, 0]])
    np.testing.assert_allclose(p, expected, atol=1e-6)
    np.testing.assert_array_equal(p[~mask], 0)
    np.testing.assert_allclose(gradient, expected * (1 - expected), atol=1e-6)


def monotonic(function, p, previous, dtype="float32"):
    if keras.backend.backend() == "jax":
        import jax

        # Otherwise the loop is compiled in every call.
        function = jax.jit(function)
    return ops.convert_to_numpy(function(tensor(p, dtype), tensor(previous, dtype)))


def recurrence_of_the_paper(p, previous):
    weights = np.zeros(p.shape)
    for row in np.ndindex(*p.shape[:-1]):
        q = 0.0
        for j in range(p.shape[-1]):
            passed = 1 - p[row][j - 1] if j > 0 else 0
            q = passed * q + previous[row][j]
            weights[row][j] = p[row][j] * q
    return weights


def draw_monotonic(rng, *shape):
    """Probabilities, a few of them zero or one, and the weights of a step before."""
    p = rng.random(shape) ** 2
    p[rng.random(shape) < 0.15] = 0
    p[rng.random(shape) < 0.15] = 1
    previous = rng.random(shape)
    return p, previous / previous.sum(-1, keepdims=True) * rng.random((*shape[:-1], 1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [monotonic_recursive, monotonic_parallel])
def test_monotonic_value_worked_by_hand(function, dtype):
    # From position 0: stop with 0.2, else with 0.5, else with 0.9, ...; from 1 or 2.
    p = [[0.2, 0.5, 0.9, 0.1]] * 2
    previous = [[1, 0, 0, 0], [0, 0.5, 0.25, 0]]

    weights = monotonic(function, p, previous, dtype)

    from_one = [0, 0.25, (0.25 + 0.25) * 0.9, (0.25 + 0.25) * 0.1 * 0.1]
    expected = [[0.2, 0.4, 0.36, 0.004], from_one]
    tolerance = 1e-2 if "16" in dtype else 1e-6
    np.testing.assert_allclose(weights, expected, atol=tolerance)


@pytest.mark.parametrize("positions", [1, 2, 7, 16, 37])
def test_recursive_form_follows_the_paper(positions, rng):
    p, previous = draw_monotonic(rng, BATCH, QUERIES, positions)

    weights = monotonic(monotonic_recursive, p, previous)

    expected = recurrence_of_the_paper(p, previous)
    np.testing.assert_allclose(weights, expected, rtol=3e-6, atol=1e-30)


def test_recursive_form_is_the_expectation_of_the_hard_choice(rng):
    p = rng.random(POSITIONS)
    start = np.eye(POSITIONS)[1]
    stops = np.array(list(itertools.product([0, 1], repeat=POSITIONS)))
    chances = np.where(stops, p, 1 - p).prod(-1)

    choices = monotonic(monotonic_hard, stops, np.tile(start, (len(stops), 1)))
    weights = monotonic(monotonic_recursive, p, start)

    np.testing.assert_allclose(weights, chances @ choices, atol=1e-6)
    np.testing.assert_allclose(
        monotonic(monotonic_recursive, stops, np.tile(start, (len(stops), 1))), choices
    )


def test_parallel_form_agrees_for_moderate_probabilities_only(rng):
    p, previous = 0.3 * rng.random((2, QUERIES, 37))
    np.testing.assert_allclose(
        monotonic(monotonic_parallel, p, previous),
        recurrence_of_the_paper(p, previous),
        rtol=1e-4,
    )

    p, previous = np.full(37, 0.9), np.eye(37)[30]
    exact = monotonic(monotonic_recursive, p, previous)
    np.testing.assert_array_equal(exact[:30], 0)
    np.testing.assert_allclose(exact[30:], 0.9 * 0.1 ** np.arange(7), rtol=1e-5)
    lost = monotonic(monotonic_parallel, p, previous)
    np.testing.assert_allclose(lost[30], 9e-21, rtol=1e-3)


def test_position_with_no_probability_is_as_good_as_absent(rng):
    p, previous = draw_monotonic(rng, QUERIES, POSITIONS)
    mask = np.array([1, 0, 1, 1, 0], "bool")
    previous[:, ~mask] = 0
    p[:, ~mask] = 0

    for function in (monotonic_recursive, monotonic_parallel, monotonic_hard):
        weights = monotonic(function, p, previous)
        left = monotonic(function, p[:, mask], previous[:, mask])
        np.testing.assert_array_equal(weights[:, ~mask], 0)
        np.testing.assert_allclose(weights[:, mask], left, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("function", [monotonic_recursive, monotonic_parallel])
def test_monotonic_gradients_equal_finite_differences(function, rng, gradients):
    p, previous = draw_monotonic(rng, QUERIES, 7)
    if function is monotonic_parallel:
        p = 0.5 * p
    readout = rng.normal(size=p.shape)

    def read(p, previous):
        return ops.sum(ops.multiply(function(p, previous), readout))

    dtype = "float64" if EXACT else "float32"
    found = gradients(read, [p.astype(dtype), previous.astype(dtype)])

    def of_p(p):
        return (recurrence_of_the_paper(p, previous) * readout).sum()

    def of_previous(previous):
        return (recurrence_of_the_paper(p, previous) * readout).sum()

    expected = finite_differences(of_p, p), finite_differences(of_previous, previous)
    # The parallel form adds with `ops.cumsum`, in float32 on PyTorch.
    exact = EXACT and (
        function is monotonic_recursive or keras.backend.backend() == "tensorflow"
    )
    for gradient, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-8 if exact else 1e-5)


def test_parallel_form_has_finite_gradients_where_it_is_lost(gradients):
    p = np.array([[0.9] * 37, [1.0] * 37, [0.0] * 37], "float32")
    previous = np.tile(np.eye(37, dtype="float32")[30], (3, 1))

    found = gradients(lambda *x: ops.sum(monotonic_parallel(*x)), [p, previous])

    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_hard_choice_moves_on_to_the_next_position_that_stops(dtype):
    p = [0.9, 0.25, 0.5, 0.75, 1, 0]
    starts = np.concatenate([np.eye(6), np.zeros((1, 6))])

    weights = monotonic(monotonic_hard, np.tile(p, (7, 1)), starts, dtype)

    # A half does not stop; past the last position, and from nowhere, is nowhere.
    expected = [np.eye(6)[stop] for stop in (0, 3, 3, 3, 4)] + [np.zeros(6)] * 2
    np.testing.assert_array_equal(weights, expected)


def test_probability_that_is_not_a_number_does_not_pass_unnoticed():
    p, previous = [0.1, NAN, 0.2, 0.9], [1, 0, 0, 0]

    for function in (monotonic_recursive, monotonic_parallel, monotonic_hard):
        assert np.isnan(monotonic(function, p, previous)).any()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiles_with_gradients_in_a_loop_where_sizes_are_unknown(
    jit_compile, rng, gradients
):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("only TensorFlow has graphs of unknown sizes")
    import tensorflow as tf

    uniform = rng.random((2, QUERIES, POSITIONS)).astype("float32")
    start = np.eye(QUERIES, POSITIONS, dtype="float32")

    def step(before, scores):
        soft, drawn = masked_softmax(scores), masked_gumbel_max(scores, scores)
        p = masked_sigmoid(scores)
        recursive = monotonic_recursive(p, before["recursive"])
        hard = monotonic_hard(p, before["hard"])
        others = [
            monotonic_parallel(p, before["recursive"]),
            masked_sparsemax(scores),
            masked_entmax15(scores),
            straight_through(drawn, soft),
            soft * log_probability(scores, drawn)[..., None],
            soft * entropy(scores)[..., None],
        ]
        after = {"recursive": recursive, "hard": hard}
        return after, ops.stack([recursive, hard, *others])

    def read(scores, start):
        _, outputs = scan(step, {"recursive": start, "hard": start}, scores)
        return ops.sum(ops.square(outputs)), outputs

    # Under XLA, the gradient of a loop needs its length.
    @tf.function(
        input_signature=[tf.TensorSpec((2, None, None)), tf.TensorSpec((None, None))],
        jit_compile=jit_compile,
    )
    def compiled(scores, start):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            result, outputs = read(scores, start)
        return tape.gradient(result, scores), outputs

    gradient, outputs = compiled(uniform, start)

    tensors = ops.convert_to_tensor(uniform), ops.convert_to_tensor(start)
    np.testing.assert_allclose(outputs, read(*tensors)[1], atol=1e-5)
    expected = gradients(lambda scores: read(scores, tensors[1])[0], [uniform])[0]
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
