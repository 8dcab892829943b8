import hypothesis
import keras
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as array_strategies
from keras import ops

from attention_testing.arrays import assert_close, softmax
from attention_testing.layers.weightings_reference import (
    DTYPES,
    POSITIONS,
    QUERIES,
    SPARSE,
    WEIGHTINGS,
    tensor,
    weights_of,
)
from attention_testing.models import compiled, needs_tensorflow
from attention_testing.rounding import rounding_bound
from keras_attention.layers import monotonic, weightings
from keras_attention.layers.weightings import masked_hardmax, softmax_weights
from keras_attention.loops import scan


@hypothesis.settings(max_examples=25, derandomize=True, deadline=None, database=None)
@hypothesis.given(
    scores=array_strategies.arrays(
        "float32", (QUERIES, POSITIONS), elements=strategies.floats(-1e4, 1e4, width=32)
    ),
    mask=array_strategies.arrays("bool", (QUERIES, POSITIONS)),
)
def test_rows_sum_to_one_or_to_zero(scores, mask):
    weights = weights_of(scores, mask)
    valid = np.where(mask, np.float64(scores), -np.inf)
    expected = softmax(np.where(mask.any(-1, keepdims=True), valid, 0), mask)

    assert (weights[~mask] == 0).all()
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=1e-5)
    np.testing.assert_allclose(weights, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_masked_places_weigh_exactly_zero_whatever_they_hold(weighting, dtype):
    for stored in (np.nan, np.inf, -np.inf, 1e4, -1e4):
        scores, mask = [[2, stored, 2], [stored] * 3], [[1, 0, 1], [0, 0, 0]]

        weights = weights_of(scores, mask, dtype, weighting)

        equals = [1, 0, 0] if weighting is masked_hardmax else [0.5, 0, 0.5]
        np.testing.assert_allclose(weights, [equals, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_positions_do_not_affect_the_gradient(dtype, gradients):
    anything = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4], "float32")
    scores = np.full((2, 5, 4), anything[:, None])
    scores[0][:, [0, 2, 3]] = [1, 2, 3]
    mask = np.zeros(scores.shape, "bool")
    mask[0][:, [0, 2, 3]] = True
    readout = np.array([1, 5, 7, 11], "float32")

    def read(scores):
        weights = softmax_weights(tensor(scores, dtype), mask)
        return ops.sum(ops.multiply(ops.cast(weights, "float32"), readout))

    (gradient,) = gradients(read, [scores])

    # The softmax of 1, 2, 3 and its Jacobian, diag(w) - w w^T.
    weights = np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()
    expected = weights * (readout[[0, 2, 3]] - weights @ readout[[0, 2, 3]])
    # The gradient, at most 2, is rounded once.
    tolerance = rounding_bound(dtype, 1, magnitude=2) if "16" in dtype else 1e-5
    assert_close(gradient[0][:, [0, 2, 3]], np.tile(expected, (5, 1)), tolerance)
    np.testing.assert_array_equal(gradient[0][:, 1], 0)
    np.testing.assert_array_equal(gradient[1], 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("weighting", [softmax_weights, *SPARSE])
def test_extreme_scores_neither_overflow_nor_vanish(weighting, masked, dtype):
    scores = [[1e4, -1e4, 0], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4]]
    mask = np.ones((4, 3)) if masked else None

    weights = weights_of(scores, mask, dtype, weighting)

    third = 1 / 3
    expected = [[1, 0, 0], [0.5, 0.5, 0], [third] * 3, [third] * 3]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_score_of_minus_infinity_weighs_nothing(gradients):
    scores = np.array([[-np.inf, 1, 1], [-np.inf, -np.inf, 1]], "float32")
    expected = [[0, 0.5, 0.5], [0, 0, 1]]

    for mask in (None, np.ones(scores.shape, "bool")):
        np.testing.assert_array_equal(weights_of(scores, mask), expected)

        def first_column(scores, mask=mask):
            return ops.sum(softmax_weights(scores, mask)[:, 1])

        (gradient,) = gradients(first_column, [scores])
        np.testing.assert_allclose(gradient, [[0, 0.25, -0.25], [0, 0, 0]])


@pytest.mark.parametrize(
    "mask", [[[True, True, True]], [[True, True, False]]], ids=repr
)
def test_row_of_minus_infinity_has_no_valid_position(mask, gradients):
    scores = np.full((1, 3), -np.inf, "float32")
    mask = np.array(mask)

    (gradient,) = gradients(lambda x: softmax_weights(x, mask)[0, 0], [scores])

    np.testing.assert_array_equal(weights_of(scores, mask), [[0, 0, 0]])
    np.testing.assert_array_equal(gradient, [[0, 0, 0]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_in_float32_at_least(dtype):
    x = tensor(np.zeros((QUERIES, POSITIONS)), dtype)
    mask = np.ones((1, POSITIONS), "bool")
    actual = [
        *(weighting(x, m) for weighting in WEIGHTINGS for m in (None, mask)),
        weightings.masked_gumbel_max(x, x),
        weightings.masked_gumbel_softmax(x, x),
        weightings.log_softmax_weights(x),
        weightings.log_probability(x, x),
        weightings.entropy(x),
        monotonic.masked_sigmoid(x),
        monotonic.monotonic_recursive(x, x),
        monotonic.monotonic_parallel(x, x),
        monotonic.monotonic_hard(x, x),
        monotonic.chunkwise(x, x, 2),
    ]

    # The dtype of float64 tensors on JAX depends on its configuration.
    expected = "float32" if "16" in dtype else keras.backend.standardize_dtype(x.dtype)
    assert {keras.backend.standardize_dtype(y.dtype) for y in actual} == {expected}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_rows_in_half_precision_sum_to_one(dtype, masked):
    # Summed in float16, ones stop adding up at 2048; in bfloat16 at 256.
    length = 4099
    mask = np.ones((1, length)) if masked else None

    weights = weights_of(np.zeros((1, length)), mask, dtype)

    np.testing.assert_allclose(weights, np.full((1, length), 1 / length), rtol=1e-5)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_nan_propagates(weighting):
    assert np.isnan(weights_of([[1, np.nan, 2]], weighting=weighting)).any()
    assert np.isnan(
        weights_of([[1, np.nan, 2]], [[1, 1, 0]], weighting=weighting)
    ).any()


def test_masked_sigmoid(gradients):
    scores = np.array(
        [[0, 100, -100, np.nan], [np.inf, -np.inf, np.log(3), 1]], "float32"
    )
    mask = np.array([[1, 1, 1, 0], [0, 1, 1, 0]], "bool")

    p = weights_of(scores, mask, weighting=monotonic.masked_sigmoid)
    (gradient,) = gradients(
        lambda x: ops.sum(monotonic.masked_sigmoid(x, mask)), [scores]
    )

    expected = np.array([[0.5, 1, 0, 0], [0, 0, 0.75, 0]])
    np.testing.assert_allclose(p, expected, atol=1e-6)
    np.testing.assert_array_equal(p[~mask], 0)
    np.testing.assert_allclose(gradient, expected * (1 - expected), atol=1e-6)


@needs_tensorflow
@pytest.mark.exhaustive
@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiles_with_gradients_in_a_loop_where_sizes_are_unknown(
    jit_compile, rng, gradients
):
    import tensorflow as tf

    uniform = rng.random((2, QUERIES, POSITIONS)).astype("float32")
    start = np.eye(QUERIES, POSITIONS, dtype="float32")

    def step(before, scores):
        soft = softmax_weights(scores)
        drawn = weightings.masked_gumbel_max(scores, scores)
        p = monotonic.masked_sigmoid(scores)
        recursive = monotonic.monotonic_recursive(p, before["recursive"])
        hard = monotonic.monotonic_hard(p, before["hard"])
        others = [
            monotonic.monotonic_parallel(p, before["recursive"]),
            weightings.masked_sparsemax(scores),
            weightings.masked_entmax15(scores),
            weightings.straight_through(drawn, soft),
            soft * weightings.log_probability(scores, drawn)[..., None],
            soft * weightings.entropy(scores)[..., None],
        ]
        after = {"recursive": recursive, "hard": hard}
        return after, ops.stack([recursive, hard, *others])

    def read(scores, start):
        _, outputs = scan(step, {"recursive": start, "hard": start}, scores)
        return ops.sum(ops.square(outputs)), outputs

    def differentiated(scores, start):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            result, outputs = read(scores, start)
        return tape.gradient(result, scores), outputs

    # Under XLA, the gradient of a loop needs its length.
    signature = [keras.KerasTensor((2, None, None)), keras.KerasTensor((None, None))]
    run = compiled(differentiated, signature, xla=jit_compile)
    gradient, outputs = run(uniform, start)

    tensors = ops.convert_to_tensor(uniform), ops.convert_to_tensor(start)
    np.testing.assert_allclose(outputs, read(*tensors)[1], atol=1e-5)
    expected = gradients(lambda scores: read(scores, tensors[1])[0], [uniform])[0]
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
