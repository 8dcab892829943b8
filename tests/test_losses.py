import re
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import (
    doubly_stochastic_penalty,
    linear_crossentropy,
    losses,
    sequence_crossentropy,
)
from keras_attention.losses import (
    ReinforceLoss,
    SequenceCrossentropy,
    attention_supervision,
    coverage_loss,
)

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


def numpy(function, *arrays, **options):
    """The value of a function of tensors, with arrays in and out."""
    tensors = [None if x is None else ops.convert_to_tensor(x) for x in arrays]
    return ops.convert_to_numpy(function(*tensors, **options))


def test_masked_tokens_cost_nothing_whatever_they_hold(sentences, gradients):
    token_ids, logits = sentences
    expected = loss_of(token_ids, logits, label_smoothing=0.1)
    mask = np.array([[1, 1, 0], [0, 1, 0]], "bool")
    token_ids[~mask], logits[~mask] = 10 * WORDS, np.nan

    def loss(logits):
        return sequence_crossentropy(
            ops.convert_to_tensor(token_ids), logits, mask, label_smoothing=0.1
        )

    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [logits])

    np.testing.assert_allclose(numpy(loss, logits), np.where(mask, expected, 0), 1e-6)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()


@pytest.fixture
def readout(rng):
    """Token ids, what the output layer multiplies, its kernel, and a mask."""
    depth = 11
    return (
        rng.integers(WORDS, size=(BATCH, STEPS)),
        rng.normal(size=(BATCH, STEPS, depth)).astype("float32"),
        rng.normal(size=(WORDS, depth)).astype("float32"),
        np.array([[True, True, False], [True, False, False]]),
    )


@pytest.mark.parametrize("tokens_at_once", [1, 4, 100])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize(
    "weights", [None, [[2.0], [-3.0]], [[2.0, -0.5, np.nan]] * 2], ids=str
)
def test_crossentropy_in_blocks_is_that_of_all_logits(
    readout, gradients, monkeypatch, tokens_at_once, label_smoothing, weights
):
    token_ids, inputs, embeddings, mask = readout
    monkeypatch.setattr(losses, "BLOCK_ENTRIES", tokens_at_once * WORDS)
    token_ids, mask = ops.convert_to_tensor(token_ids), ops.convert_to_tensor(mask)

    known = 1.0 if weights is None else np.nan_to_num(np.array(weights, "float32"))
    known = ops.convert_to_tensor(known)
    smoothing = {"label_smoothing": label_smoothing}

    def in_blocks(inputs, embeddings):
        return 3 * linear_crossentropy(
            token_ids, inputs, embeddings, mask, weights=weights, **smoothing
        )

    def at_once(inputs, embeddings):
        logits = ops.matmul(inputs, ops.transpose(embeddings))
        loss = sequence_crossentropy(token_ids, logits, mask, **smoothing)
        return ops.sum(known * loss)  # Three tokens count.

    tensors = ops.convert_to_tensor(inputs), ops.convert_to_tensor(embeddings)
    np.testing.assert_allclose(
        *(ops.convert_to_numpy(f(*tensors)) for f in (in_blocks, at_once)), rtol=1e-5
    )
    found = gradients(in_blocks, [inputs, embeddings])
    expected = gradients(at_once, [inputs, embeddings])
    for gradient, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(gradient, reference, atol=1e-5)


def test_without_a_mask_every_token_counts(readout):
    token_ids, inputs, embeddings, _ = readout
    everywhere = np.ones((BATCH, STEPS), bool)

    loss = linear_crossentropy(token_ids, inputs, embeddings)

    expected = linear_crossentropy(token_ids, inputs, embeddings, everywhere)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    logits = inputs @ embeddings.T
    assert float(loss) == pytest.approx(loss_of(token_ids, logits).mean(), rel=1e-5)


@pytest.mark.parametrize("some", [True, False])
def test_masked_inputs_teach_nothing_whatever_they_hold(readout, gradients, some):
    token_ids, inputs, embeddings, mask = readout
    mask = mask & some
    dirty = np.where(mask[..., None], inputs, np.nan).astype("float32")
    dirty_ids = np.where(mask, token_ids, 10**6)

    def loss(token_ids):
        def function(inputs, embeddings):
            return linear_crossentropy(
                ops.convert_to_tensor(token_ids),
                inputs,
                embeddings,
                ops.convert_to_tensor(mask),
            )

        return function

    value = float(loss(dirty_ids)(ops.convert_to_tensor(dirty), embeddings))
    clean = float(loss(token_ids)(ops.convert_to_tensor(inputs), embeddings))
    assert value == clean
    assert (clean > 0) == some
    found = gradients(loss(dirty_ids), [dirty, embeddings])
    expected = gradients(loss(token_ids), [inputs, embeddings])
    for gradient, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(gradient, reference)
    np.testing.assert_array_equal(found[0][~mask], 0.0)


def test_weights_that_are_all_negative_teach_in_half_precision(readout, gradients):
    token_ids, inputs, embeddings, _ = readout
    token_ids, embeddings = map(ops.convert_to_tensor, (token_ids, embeddings))

    def loss(sign):
        def function(inputs):
            inputs = ops.cast(inputs, "float16")
            weights = np.float32(sign * 1e-6)
            return linear_crossentropy(token_ids, inputs, embeddings, weights=weights)

        return function

    (falling,), (rising,) = (gradients(loss(sign), [inputs]) for sign in (1, -1))
    np.testing.assert_allclose(rising, -falling)
    assert np.abs(rising).max() > 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_blocks_of_half_precision_are_summed_in_float32(rng, dtype):
    inputs = ops.cast(rng.normal(size=(1000, 2)), dtype)
    embeddings = np.zeros((WORDS, 2), "float32")

    loss = linear_crossentropy(np.zeros(1000, "int32"), inputs, embeddings)

    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(np.log(WORDS), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_token_that_comes_often_is_summed_in_float32(rng, gradients, dtype):
    token_ids = np.where(np.arange(2000) % 2, 3, np.arange(2000) % WORDS)
    inputs = rng.normal(size=(2000, 11)).astype("float32") + 1
    embeddings = rng.normal(size=(WORDS, 11)).astype("float32")

    def gradient_in(dtype):
        def loss(embeddings):
            return linear_crossentropy(token_ids, ops.cast(inputs, dtype), embeddings)

        return gradients(loss, [embeddings])[0]

    exact, half = gradient_in("float32"), gradient_in(dtype)
    assert np.abs(half[3] - exact[3]).sum() < 0.005 * np.abs(exact[3]).sum()


def test_no_tokens_cost_nothing():
    nothing = np.zeros((0, 5), "float32")
    loss = linear_crossentropy(np.zeros(0, "int32"), nothing, np.ones((WORDS, 5)))

    assert float(loss) == 0


def test_coverage_worked_by_hand():
    # Seen before the second step: (.5, .5, 0), before the third: (.7, .5, .8).
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.0, 0.9, 0.1]], "float32")

    assert numpy(coverage_loss, weights) == pytest.approx(0.2 + (0.5 + 0.1))


def test_coverage_follows_the_formula_for_every_sequence(weights):
    found = numpy(coverage_loss, np.stack([weights, weights[::-1]]))

    assert found.shape == (2, BATCH)
    for b in range(BATCH):
        expected, coverage = 0, np.zeros(POSITIONS)
        for t in range(STEPS):
            for s in range(POSITIONS):
                expected += min(weights[b, t, s], coverage[s])
            coverage += weights[b, t]
        assert found[0, b] == pytest.approx(expected, rel=1e-5)
        assert found[1, BATCH - 1 - b] == pytest.approx(expected, rel=1e-5)


def test_coverage_counts_what_is_read_twice():
    once, again = np.eye(POSITIONS, dtype="float32"), np.zeros((STEPS, POSITIONS))
    again[:, 1] = 1

    assert numpy(coverage_loss, once) == 0
    assert numpy(coverage_loss, again) == STEPS - 1
    assert numpy(coverage_loss, again[:1]) == 0


def test_masked_steps_neither_pay_nor_cover(weights, gradients):
    mask = np.array([[1, 0, 1], [1, 1, 0]], "bool")
    expected = [numpy(coverage_loss, weights[b][mask[b]]) for b in range(BATCH)]
    weights[~mask] = np.nan

    (gradient,) = gradients(lambda x: ops.sum(coverage_loss(x, mask)), [weights])

    np.testing.assert_allclose(numpy(coverage_loss, weights, mask), expected, rtol=1e-6)
    assert (gradient[~mask] == 0).all()
    assert np.isfinite(gradient).all() and (gradient[mask] != 0).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_coverage_of_half_precision_is_summed_in_float32(dtype):
    weights = ops.cast(np.ones((2, 4099)), dtype)

    assert float(coverage_loss(weights)) == 4099


def test_supervision_worked_by_hand():
    weights = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], "float32")
    target = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]], "float32")

    loss = numpy(attention_supervision, weights, target)

    assert loss == pytest.approx(0.75 * np.log(2) + 0.25 * np.log(4))


def test_supervision_follows_the_formula_for_every_sequence(weights, rng):
    target = rng.random(weights.shape).astype("float32")
    target[1, 2] = 0

    found = numpy(attention_supervision, weights, target)

    assert found.shape == (BATCH,)
    for b in range(BATCH):
        expected = 0
        for t in range(STEPS):
            mass = sum(target[b, t])
            for s in range(POSITIONS):
                if mass > 0:
                    expected -= target[b, t, s] / mass * np.log(weights[b, t, s])
        assert found[b] == pytest.approx(expected, rel=1e-5)


def test_targets_are_booleans_or_masses_of_any_size(weights, rng):
    target = rng.random(weights.shape) < 0.5

    of_booleans = numpy(attention_supervision, weights, target)

    for mass in (1e-6, 1.0, 1e6):
        found = numpy(attention_supervision, weights, mass * target.astype("float32"))
        np.testing.assert_allclose(found, of_booleans, rtol=1e-6)


def test_supervision_is_satisfied_where_the_weights_are_the_target(
    weights, rng, gradients
):
    # Along the simplex: the same slope everywhere.
    (gradient,) = gradients(
        lambda x: ops.sum(attention_supervision(x, ops.convert_to_tensor(weights))),
        [weights],
    )

    np.testing.assert_allclose(gradient, -np.ones_like(weights), rtol=1e-4)


def test_steps_without_a_target_or_masked_teach_nothing(weights, rng, gradients):
    target = rng.random(weights.shape).astype("float32")
    target[0, 1] = 0
    mask = np.array([[1, 1, 0], [0, 1, 1]], "bool")
    expected = numpy(
        attention_supervision, weights, np.where(mask[..., None], target, 0)
    )
    weights[~mask] = target[~mask] = np.nan

    def loss(weights):
        return attention_supervision(weights, ops.convert_to_tensor(target), mask)

    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [weights])

    np.testing.assert_allclose(numpy(loss, weights), expected, rtol=1e-6)
    teaching = mask.copy()
    teaching[0, 1] = False
    assert (gradient[~teaching] == 0).all()
    assert (gradient[teaching] < 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_zero_cost_much_and_have_finite_gradients(gradients, dtype):
    smallest = {"float16": 6e-8}.get(dtype, 1e-38)

    def loss(weights):
        return attention_supervision(ops.cast(weights, dtype), np.eye(3)[:, :2])

    weights = np.array([[0, 1], [1, smallest], [0, 1]], "float32")
    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [weights])

    found = numpy(loss, weights)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert 2 * 9 < found < 200
    assert np.isfinite(gradient).all()


def test_small_weights_have_the_slope_of_the_logarithm(gradients):
    weights = np.array([[1e-9, 1.0]], "float32")
    target = np.array([[1.0, 0.0]], "float32")

    (gradient,) = gradients(
        lambda x: attention_supervision(x, ops.convert_to_tensor(target)), [weights]
    )

    np.testing.assert_allclose(gradient, [[-1e9, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5), (1, 3, 5)])
def test_target_weights_of_another_shape_are_named(weights, shape):
    with pytest.raises(ValueError, match="same shape") as caught:
        attention_supervision(weights, np.zeros(shape, "float32"))

    assert str(caught.value).endswith(f"Received: (2, 3, 5) and {shape}")


PADDED = np.array([[3, 2, 0], [5, 0, 0]])


def test_mean_over_the_tokens_that_are_not_padding(sentences):
    _, logits = sentences
    expected = loss_of(PADDED, logits, label_smoothing=0.1)
    logits[PADDED == 0] = np.nan

    loss = SequenceCrossentropy(pad=0, label_smoothing=0.1)(PADDED, logits)

    assert float(loss) == pytest.approx(expected[PADDED != 0].mean(), rel=1e-6)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sum", lambda losses: losses.sum()),
        ("sum_over_batch_size", lambda losses: losses.mean()),
        (None, lambda losses: losses),
    ],
)
def test_other_reductions_are_those_of_keras(sentences, reduction, expected):
    _, logits = sentences
    losses = np.where(PADDED == 0, 0, loss_of(PADDED, logits))

    loss = SequenceCrossentropy(pad=0, reduction=reduction)(PADDED, logits)

    np.testing.assert_allclose(ops.convert_to_numpy(loss), expected(losses), rtol=1e-6)


@pytest.mark.parametrize("pad", [None, -1])
def test_every_token_counts_that_is_not_padding(sentences, pad):
    token_ids, logits = sentences
    token_ids[1] = 0
    expected = loss_of(token_ids, logits)
    if pad is not None:
        token_ids[0, 1] = pad
        expected = expected[token_ids != pad]

    loss = SequenceCrossentropy(pad=pad)(token_ids, logits)

    assert float(loss) == pytest.approx(expected.mean(), rel=1e-6)


def test_sample_weights_are_of_sentences_or_of_tokens(rng):
    # As many sentences as tokens: they must not be mistaken for each other.
    token_ids = rng.integers(1, WORDS, size=(3, 3))
    token_ids[0, 1:] = 0
    logits = rng.normal(size=(3, 3, WORDS)).astype("float32")
    losses = loss_of(token_ids, logits)
    loss = SequenceCrossentropy(pad=0)

    for weight in (np.array([1.0, 2.0, 5.0]), rng.random((3, 3))):
        share = weight[:, None] if weight.ndim == 1 else weight
        share = share * (token_ids != 0)

        found = loss(token_ids, logits, sample_weight=weight)
        # With one more axis, as Keras has them.
        again = loss(token_ids[..., None], logits, sample_weight=weight[..., None])

        expected = (losses * share).sum() / share.sum()
        assert float(found) == pytest.approx(expected, rel=1e-5)
        assert float(again) == float(found)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (3, 2), (2, 3, 3)])
def test_tokens_of_another_shape_than_their_logits_are_named(sentences, shape):
    token_ids, (_, logits) = np.zeros(shape, "int32"), sentences
    message = rf" must have .*, \(2, 3\). Received: {re.escape(str(shape))}"

    with pytest.raises(ValueError, match=f"y_true{message}"):
        SequenceCrossentropy()(token_ids, logits)
    with pytest.raises(ValueError, match=f"token_ids{message}"):
        sequence_crossentropy(token_ids, logits)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 3, 2)])
def test_sample_weights_of_another_shape_are_named(sentences, shape):
    with pytest.raises(ValueError, match=r"sample_weight must have.*\(2, 3\)\. Rec"):
        SequenceCrossentropy()(*sentences, sample_weight=np.ones(shape))


def test_masks_of_another_shape_are_named(rng):
    # As many sentences as tokens: they must not be mistaken for each other.
    token_ids, mask = np.ones((3, 3), "int32"), np.array([True, False, True])
    x = rng.normal(size=(3, 3, WORDS)).astype("float32")
    for loss in (
        partial(doubly_stochastic_penalty, x),
        partial(coverage_loss, x),
        partial(attention_supervision, x, x),
        partial(sequence_crossentropy, token_ids, x),
        partial(linear_crossentropy, token_ids, x, x[0]),
    ):
        with pytest.raises(ValueError, match=r"mask must have.*\(3, 3\). .*: \(3,\)"):
            loss(mask=mask)


def test_nothing_but_padding_costs_nothing(sentences, gradients):
    _, logits = sentences
    nothing = np.zeros((BATCH, STEPS), "int32")

    (gradient,) = gradients(lambda x: SequenceCrossentropy(pad=0)(nothing, x), [logits])

    assert float(SequenceCrossentropy(pad=0)(nothing, logits)) == 0
    assert (gradient == 0).all()


def test_loss_in_compile_honours_the_mask_of_the_model(sentences, seeded):
    inputs = np.array([[3, 2, 0], [5, 4, 1]])
    token_ids, _ = sentences
    model = keras.Sequential(
        [keras.layers.Embedding(WORDS, 11, mask_zero=True), keras.layers.Dense(WORDS)]
    )
    model.compile("adam", loss=SequenceCrossentropy())

    losses = loss_of(token_ids, model.predict(inputs, verbose=0))
    found = model.evaluate(inputs, token_ids, verbose=0)
    history = model.fit(inputs, token_ids, epochs=2, verbose=0).history["loss"]

    assert found == pytest.approx(losses[inputs != 0].mean(), rel=1e-5)
    assert history[1] < history[0] == pytest.approx(found, rel=1e-5)


def test_loss_is_rebuilt_from_its_config():
    loss = SequenceCrossentropy(
        pad=3, label_smoothing=0.1, reduction="sum", name="words"
    )

    again = keras.losses.deserialize(keras.losses.serialize(loss))

    assert type(again) is SequenceCrossentropy
    assert again.get_config() == loss.get_config()
    assert (again.pad, again.label_smoothing) == (3, 0.1)


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_half_precision_does_not_mix_up_tokens(floatx):
    default = keras.config.floatx()
    logits = np.zeros((1, 1, 2503), "float32")
    logits[..., 2501] = 10
    try:
        keras.config.set_floatx(floatx)
        found = SequenceCrossentropy(pad=2500)(np.array([[2501]]), logits)
    finally:
        keras.config.set_floatx(default)

    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert float(found) == pytest.approx(np.log1p(2502 * np.exp(-10)), rel=1e-4)


@pytest.mark.parametrize("label_smoothing", [-0.1, 1.0, 3])
@pytest.mark.parametrize(
    "loss",
    [
        SequenceCrossentropy,
        partial(sequence_crossentropy, np.array([1]), np.zeros((1, 2))),
        partial(linear_crossentropy, np.array([1]), np.zeros((1, 3)), np.ones((2, 3))),
    ],
)
def test_label_smoothing_beyond_its_range_is_named(loss, label_smoothing):
    with pytest.raises(ValueError, match=rf"\[0, 1\).*{label_smoothing}"):
        loss(label_smoothing=label_smoothing)


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (3,)])
def test_tokens_of_another_shape_than_their_inputs_are_named(shape):
    message = rf"token_ids must .*, \(2, 3\). Received: {re.escape(str(shape))}"

    with pytest.raises(ValueError, match=message):
        linear_crossentropy(
            np.zeros(shape, "int32"), np.zeros((2, 3, 5)), np.ones((7, 5))
        )


@pytest.fixture
def episodes(rng):
    """Log-likelihoods, log-probabilities and entropies, each `(B, T)`."""
    return [-rng.random((BATCH, STEPS)).astype("float32") for _ in range(2)] + [
        rng.random((BATCH, STEPS)).astype("float32")
    ]


def lower_bound(first, second, log_likelihood):
    """Of three regions and two steps, over all paths."""
    total = 0
    for i in range(3):
        for j in range(3):
            probability = np.exp(first[i]) / np.exp(first).sum()
            probability *= np.exp(second[i, j]) / np.exp(second[i]).sum()
            total += probability * log_likelihood[i, j]
    return total


def differences(function, arrays, step=1e-6):
    """Numerical gradients of a function of float64 arrays."""
    for array in arrays:
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            above = function(*arrays)
            array[index] = value - step
            gradient[index] = (above - function(*arrays)) / (2 * step)
            array[index] = value
        yield gradient


@pytest.mark.parametrize("baseline", [0.0, -2.5])
def test_estimate_is_on_average_the_gradient_of_the_lower_bound(
    rng, gradients, baseline
):
    arrays = [rng.normal(size=shape) for shape in ((3,), (3, 3), (3, 3))]
    layer = ReinforceLoss(reward_weight=1.0, entropy_weight=0.0, momentum=1.0)
    layer.baseline.assign(baseline)

    def expected_loss(first, second, log_likelihood):
        """Every path once, as much as it is probable."""
        first = ops.repeat(ops.log_softmax(first), 3)
        second = ops.reshape(ops.log_softmax(second, axis=-1), (9,))
        log_probability = ops.stack([first, second], axis=1)
        loss = layer(
            ops.reshape(log_likelihood, (9,)),
            log_probability,
            ops.zeros_like(log_probability),
        )
        probability = ops.exp(ops.sum(log_probability, axis=1))
        return ops.sum(ops.stop_gradient(probability) * loss)

    found = gradients(expected_loss, [x.astype("float32") for x in arrays])

    for gradient, bound in zip(found, differences(lower_bound, arrays), strict=True):
        np.testing.assert_allclose(gradient, -bound, atol=2e-6)


def test_loss_of_every_example_follows_the_formula(episodes, gradients):
    layer = ReinforceLoss(reward_weight=0.3, entropy_weight=0.7)
    layer.baseline.assign(-0.5)

    found = numpy(layer, *episodes)
    gradient = gradients(lambda *x: ops.sum(layer(*x)), episodes)

    assert found.shape == (BATCH,)
    for b in range(BATCH):
        log_likelihood, log_probability, entropy = (x[b].sum() for x in episodes)
        reward = 0.3 * (log_likelihood + 0.5)
        expected = -(log_likelihood + reward * log_probability + 0.7 * entropy)
        assert found[b] == pytest.approx(expected, rel=1e-5)
        # The reward is a constant, the same for all steps.
        for x, slope in zip(gradient, (1, reward, 0.7), strict=True):
            np.testing.assert_allclose(x[b], [-slope] * STEPS, rtol=1e-5)


def test_defaults_are_those_of_the_authors():
    config = ReinforceLoss().get_config()

    assert config["reward_weight"] == 0.1
    assert config["entropy_weight"] == 0.002
    assert config["momentum"] == 0.9


def test_steps_may_be_summed_already(episodes):
    layer = ReinforceLoss()
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    summed = [np.where(mask, x, 0).sum(axis=1) for x in episodes]

    found = numpy(layer, *episodes, mask=mask)

    np.testing.assert_allclose(found, numpy(layer, *summed), rtol=1e-6)
    mixed = numpy(layer, summed[0], *episodes[1:], mask=mask)
    np.testing.assert_allclose(found, mixed, rtol=1e-6)


def test_masked_steps_are_not_rewarded_whatever_they_hold(episodes, gradients):
    layer = ReinforceLoss()
    mask = np.array([[1, 1, 0], [1, 0, 0]], "bool")
    expected = numpy(layer, *(np.where(mask, x, 0) for x in episodes))
    for x in episodes:
        x[~mask] = np.nan

    gradient = gradients(lambda *x: ops.sum(layer(*x, mask=mask)), episodes)

    np.testing.assert_allclose(numpy(layer, *episodes, mask=mask), expected, rtol=1e-6)
    for x in gradient:
        assert (x[~mask] == 0).all()
        assert (x[mask] != 0).all()


def test_soft_examples_are_no_part_of_the_estimate(episodes, gradients):
    layer = ReinforceLoss(reward_weight=1.0)
    sampled = np.array([True, False])
    expected = numpy(layer, *episodes)
    likelihood, _, entropy = (x[1].sum() for x in episodes)
    expected[1] = -(likelihood + layer.entropy_weight * entropy)
    episodes[1][1] = -np.inf

    found = numpy(layer, *episodes, sampled=sampled, training=True)
    gradient = gradients(lambda *x: ops.sum(layer(*x, sampled=sampled)), episodes)

    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert float(layer.baseline) == pytest.approx(0.1 * episodes[0][0].sum(), rel=1e-5)
    assert (gradient[1][1] == 0).all()
    assert (gradient[1][0] != 0).all()
    # Nothing was drawn in this batch.
    before = float(layer.baseline)
    layer(*episodes, sampled=np.zeros(BATCH, "bool"), training=True)
    assert float(layer.baseline) == before


def test_baseline_follows_the_mean_reward_in_training_only(episodes):
    layer = ReinforceLoss(momentum=0.7)
    mean = episodes[0].sum(axis=1).mean()

    first = numpy(layer, *episodes, training=True)
    after_one = float(layer.baseline)
    numpy(layer, *episodes)
    numpy(layer, *episodes, training=False)
    unchanged = float(layer.baseline)
    second = numpy(layer, *episodes, training=True)

    assert after_one == unchanged == pytest.approx(0.3 * mean, rel=1e-5)
    assert float(layer.baseline) == pytest.approx(0.51 * mean, rel=1e-5)
    # An update is used from the next step on.
    change = layer.reward_weight * after_one * episodes[1].sum(axis=1)
    np.testing.assert_allclose(second - first, change, rtol=1e-4)


def test_momentum_of_one_keeps_the_baseline(episodes):
    layer = ReinforceLoss(momentum=1.0)
    layer.baseline.assign(-3.0)

    layer(*episodes, training=True)

    assert float(layer.baseline) == -3


REGIONS = 3


class Pointer(keras.layers.Layer):
    """Learns which of a few regions is best, from draws that it is given."""

    def __init__(self, adds_loss):
        super().__init__()
        self.adds_loss = adds_loss
        self.reinforce = ReinforceLoss(reward_weight=1.0)
        self.scores = self.add_weight(shape=(REGIONS,), initializer="zeros")
        self.built = True

    def call(self, draws, training=None):
        position, log_likelihood = ops.cast(draws[:, 0], "int32"), draws[:, 1]
        log_weights = ops.log_softmax(ops.convert_to_tensor(self.scores))
        entropy = -ops.sum(ops.exp(log_weights) * log_weights)
        loss = self.reinforce(
            log_likelihood,
            ops.take(log_weights, position),
            ops.broadcast_to(entropy, ops.shape(log_likelihood)),
            training=training,
        )
        if self.adds_loss:
            self.add_loss(ops.mean(loss))
        return loss


class PointerModel(keras.Model):
    def __init__(self, where):
        super().__init__()
        self.where = where
        self.pointer = Pointer(where == "add_loss")

    def call(self, draws, training=None):
        if self.where == "compute_loss":
            return draws
        return self.pointer(draws, training=training)

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        if self.where == "add_loss":
            return sum(self.losses)
        if self.where == "call":
            return ops.mean(y_pred)
        return ops.mean(self.pointer(x, training=training))


@pytest.mark.parametrize("where", ["call", "compute_loss", "add_loss"])
def test_fit_moves_the_baseline_and_points_to_the_reward(where):
    # Region 1 has the better words.
    draws = np.array([[0, -3.0], [1, -1.0], [2, -3.0], [1, -1.0]] * 2, "float32")
    model = PointerModel(where)
    model(draws[:1])
    model.compile(keras.optimizers.SGD(0.1))

    model.fit(draws, np.zeros(8), batch_size=4, epochs=2, shuffle=False, verbose=0)

    # Four batches whose mean reward is -2.
    baseline = float(model.pointer.reinforce.baseline)
    assert baseline == pytest.approx(-2 * (1 - 0.9**4), rel=1e-4)
    scores = ops.convert_to_numpy(model.pointer.scores)
    assert scores[1] > scores[0] == pytest.approx(scores[2], abs=1e-6)
    model.evaluate(draws, np.zeros(8), verbose=0)
    assert float(model.pointer.reinforce.baseline) == baseline


def test_saved_model_keeps_the_baseline(episodes, tmp_path):
    inputs = [keras.Input((STEPS,)) for _ in range(3)]
    layer = ReinforceLoss(reward_weight=0.3, entropy_weight=0.7, momentum=0.5)
    model = keras.Model(inputs, layer(*inputs))
    layer.baseline.assign(-7.5)

    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")

    reloaded = again.layers[-1]
    assert type(reloaded) is ReinforceLoss
    assert reloaded.get_config() == layer.get_config()
    assert float(reloaded.baseline) == -7.5
    assert reloaded.trainable_variables == []
    np.testing.assert_array_equal(
        again.predict(episodes, verbose=0), model.predict(episodes, verbose=0)
    )


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16", "mixed_bfloat16"])
def test_rewards_keep_their_precision(dtype):
    layer = ReinforceLoss(dtype=dtype, reward_weight=0.0, entropy_weight=0.0)
    log_likelihood = np.array([-100_000.5], "float32")
    nothing = np.zeros(1, "float32")

    loss = layer(*map(ops.convert_to_tensor, (log_likelihood, nothing, nothing)))
    layer(log_likelihood, nothing, nothing, training=True)

    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss[0]) == 100_000.5
    assert float(layer.baseline) == pytest.approx(-10_000.05)


@pytest.mark.parametrize("momentum", [-0.1, 1.5])
def test_momentum_beyond_its_range_is_named(momentum):
    with pytest.raises(ValueError, match=rf"\[0, 1\].*{momentum}"):
        ReinforceLoss(momentum=momentum)


@pytest.mark.parametrize("position", range(3))
def test_reinforce_names_the_argument_of_the_wrong_shape(episodes, position):
    episodes[position] = episodes[position][..., None]
    name = ("log_likelihood", "log_probability", "entropy")[position]

    with pytest.raises(ValueError, match=rf"{name} must .* Received: \(2, 3, 1\)"):
        ReinforceLoss()(*episodes)


@pytest.mark.parametrize("name, shape", [("sampled", (2, 1)), ("mask", (2,))])
def test_reinforce_names_what_would_be_broadcast(episodes, name, shape):
    with pytest.raises(ValueError, match=rf"{name} must have the shape \(batch,.*Rec"):
        ReinforceLoss()(*episodes, **{name: np.ones(shape, "bool")})


@pytest.mark.parametrize("reduction", ["mean_with_sample_weight", "sum", None])
def test_what_does_not_count_may_be_nan(sentences, reduction):
    token_ids, logits = sentences
    expected = loss_of(token_ids, logits)
    expected[0, 1] = 0
    logits[0, 1] = np.nan
    weights = np.ones(token_ids.shape)
    weights[0, 1] = 0

    loss = SequenceCrossentropy(reduction=reduction)
    found = ops.convert_to_numpy(loss(token_ids, logits, sample_weight=weights))
    means = {None: expected, "sum": expected.sum()}
    wanted = means.get(reduction, expected.sum() / weights.sum())
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_all_tokens_are_divided_by_whatever_masks_them(sentences):
    inputs = np.array([[3, 2, 0], [5, 4, 1]])
    token_ids, _ = sentences
    logits = keras.layers.Embedding(WORDS, WORDS, mask_zero=True)(inputs)
    losses = loss_of(token_ids, ops.convert_to_numpy(logits))

    loss = SequenceCrossentropy(reduction="sum_over_batch_size")(token_ids, logits)
    assert float(loss) == pytest.approx(losses[inputs != 0].sum() / 6, rel=1e-5)


def test_gradients_of_many_tokens_do_not_vanish_in_half_precision(rng, gradients):
    tokens, words, depth = 4096, 8192, 4
    token_ids = rng.integers(16, size=tokens)
    inputs = (rng.normal(size=(tokens, depth)) / 2).astype("float32")
    embeddings = rng.normal(size=(words, depth), loc=1.0).astype("float32")

    def gradients_in(dtype):
        def scaled(*tensors):
            tensors = [ops.cast(x, dtype) for x in tensors]
            return 8192 * linear_crossentropy(token_ids, *tensors)

        return gradients(scaled, [inputs, embeddings])

    for exact, half in zip(
        gradients_in("float32"), gradients_in("float16"), strict=True
    ):
        assert np.abs(half - exact).sum() < 0.02 * np.abs(exact).sum()
