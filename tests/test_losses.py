import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import doubly_stochastic_penalty, sequence_crossentropy

# Every dimension is a different prime, so that no two axes can be confused.
BATCH, STEPS, POSITIONS, WORDS = 2, 3, 5, 7


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.fixture
def weights(rng):
    return rng.dirichlet(np.ones(POSITIONS), size=(BATCH, STEPS)).astype("float32")


@pytest.fixture
def sentences(rng):
    token_ids = rng.integers(WORDS, size=(BATCH, STEPS))
    return token_ids, rng.normal(size=(BATCH, STEPS, WORDS)).astype("float32")


def penalty_of(*arguments):
    tensors = [ops.convert_to_tensor(x) for x in arguments]
    return ops.convert_to_numpy(doubly_stochastic_penalty(*tensors))


def loss_of(token_ids, logits, **options):
    tensors = [ops.convert_to_tensor(x) for x in (token_ids, logits)]
    return ops.convert_to_numpy(sequence_crossentropy(*tensors, **options))


def test_penalty_worked_by_hand():
    # Over time the three positions receive 1.5, 0.5 and 0: (0.5, 0.5, 1) squared.
    weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], "float32")

    assert penalty_of(weights) == pytest.approx(0.25 + 0.25 + 1)


def test_penalty_is_zero_where_everything_is_seen_once():
    assert penalty_of(np.eye(POSITIONS, dtype="float32")) == pytest.approx(0)
    even = np.full((POSITIONS, POSITIONS), 1 / POSITIONS, "float32")
    assert penalty_of(even) == pytest.approx(0, abs=1e-6)


def test_penalty_follows_the_formula_for_every_sequence(weights):
    found = penalty_of(np.stack([weights, weights[::-1]]))

    assert found.shape == (2, BATCH)
    for b in range(BATCH):
        expected = 0
        for s in range(POSITIONS):
            expected += (1 - sum(weights[b, t, s] for t in range(STEPS))) ** 2
        assert found[0, b] == pytest.approx(expected, rel=1e-5)
        assert found[1, BATCH - 1 - b] == pytest.approx(expected, rel=1e-5)


def test_masked_steps_do_not_count_whatever_they_hold(weights, gradients):
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    expected = [penalty_of(weights[0, :2]), penalty_of(weights[1, :1])]
    weights[~mask] = np.nan

    found = penalty_of(weights, mask)
    (gradient,) = gradients(
        lambda x: ops.sum(doubly_stochastic_penalty(x, mask)), [weights]
    )

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()


def test_penalty_without_any_step_is_the_number_of_positions(weights):
    nothing = np.zeros((BATCH, STEPS), "bool")

    np.testing.assert_array_equal(penalty_of(weights, nothing), [POSITIONS] * BATCH)


def test_crossentropy_worked_by_hand():
    logits = np.log(np.array([[1.0, 3.0, 4.0], [2.0, 2.0, 4.0]], "float32"))

    loss = loss_of(np.array([1, 2]), logits)

    np.testing.assert_allclose(loss, [np.log(8 / 3), np.log(2)], rtol=1e-6)


def test_smoothing_worked_by_hand():
    # Of the logits (0, ln 3), the probabilities are 1/4 and 3/4.
    logits = np.array([[0.0, np.log(3.0)]], "float32")

    loss = loss_of(np.array([1]), logits, label_smoothing=0.2)

    expected = 0.8 * np.log(4 / 3) + 0.1 * (np.log(4) + np.log(4 / 3))
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_crossentropy_equals_that_of_keras(sentences, label_smoothing):
    token_ids, logits = sentences
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction=None
    )

    loss = loss_of(token_ids, logits, label_smoothing=label_smoothing)

    expected = reference(np.eye(WORDS, dtype="float32")[token_ids], logits)
    assert loss.shape == (BATCH, STEPS)
    np.testing.assert_allclose(loss, ops.convert_to_numpy(expected), rtol=1e-5)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_gradient_is_the_probability_minus_the_target(
    sentences, gradients, label_smoothing
):
    token_ids, logits = sentences

    def total(logits):
        loss = sequence_crossentropy(
            ops.convert_to_tensor(token_ids), logits, label_smoothing=label_smoothing
        )
        return ops.sum(loss)

    (gradient,) = gradients(total, [logits])

    odds = np.exp(logits)
    target = (1 - label_smoothing) * np.eye(WORDS)[token_ids] + label_smoothing / WORDS
    expected = odds / odds.sum(-1, keepdims=True) - target
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype):
    # Summed in float16, ones stop adding up at 2048; in bfloat16 at 256.
    words = 4099
    logits = ops.cast(np.zeros((1, words)), dtype)

    loss = sequence_crossentropy(ops.convert_to_tensor([3]), logits)
    spread = sequence_crossentropy(
        ops.convert_to_tensor([3]), logits, label_smoothing=0.1
    )

    for found in (loss, spread):
        assert keras.backend.standardize_dtype(found.dtype) == "float32"
        assert float(found[0]) == pytest.approx(np.log(words), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_penalty_of_half_precision_is_summed_in_float32(dtype):
    # 4099 positions that were never looked at.
    weights = ops.cast(np.zeros((STEPS, 4099)), dtype)

    assert float(doubly_stochastic_penalty(weights)) == 4099


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_float64_is_kept(sentences):
    token_ids, logits = sentences
    logits = ops.cast(logits, "float64")

    loss = sequence_crossentropy(ops.convert_to_tensor(token_ids), logits)

    assert loss.dtype == logits.dtype


def test_large_logits_give_finite_losses():
    logits = np.array([[1e4, -1e4, 0.0]] * 2, "float32")

    loss = loss_of(np.array([0, 1]), logits)

    np.testing.assert_allclose(loss, [0, 2e4])
