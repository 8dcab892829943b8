import re
from functools import partial

import keras
import numpy as np
import pytest
from keras import ops

import keras_attention as ka
from attention_testing.losses.values import BATCH, STEPS, WORDS, loss_of, numpy


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_crossentropy_equals_that_of_keras(sentences, label_smoothing):
    token_ids, logits = sentences
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction=None
    )

    loss = loss_of(token_ids, logits, label_smoothing=label_smoothing)

    expected = reference(np.eye(WORDS, dtype="float32")[token_ids], logits)
    np.testing.assert_allclose(loss, ops.convert_to_numpy(expected), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype):
    # Summed in float16, ones stop adding up at 2048; in bfloat16 at 256.
    words = 4099
    logits = ops.cast(np.zeros((1, words)), dtype)

    loss = ka.sequence_crossentropy(np.array([3]), logits)
    spread = ka.sequence_crossentropy(np.array([3]), logits, label_smoothing=0.1)

    for value in (loss, spread):
        assert keras.backend.standardize_dtype(value.dtype) == "float32"
        assert float(value[0]) == pytest.approx(np.log(words), rel=1e-6)


def test_float64_is_kept(sentences):
    token_ids, logits = sentences
    logits = ops.cast(logits, "float64")

    loss = ka.sequence_crossentropy(ops.convert_to_tensor(token_ids), logits)

    assert loss.dtype == logits.dtype


def test_large_logits_give_finite_losses():
    logits = np.array([[1e4, -1e4, 0.0]] * 2, "float32")

    loss = loss_of(np.array([0, 1]), logits)

    np.testing.assert_allclose(loss, [0, 2e4])


def test_masked_tokens_cost_nothing_whatever_they_hold(sentences, gradients):
    token_ids, logits = sentences
    expected = loss_of(token_ids, logits, label_smoothing=0.1)
    mask = np.array([[1, 1, 0], [0, 1, 0]], "bool")
    token_ids[~mask], logits[~mask] = 10 * WORDS, np.nan

    def loss(logits):
        return ka.sequence_crossentropy(
            ops.convert_to_tensor(token_ids), logits, mask, label_smoothing=0.1
        )

    (gradient,) = gradients(lambda x: ops.sum(loss(x)), [logits])

    np.testing.assert_allclose(numpy(loss, logits), np.where(mask, expected, 0), 1e-6)
    assert (gradient[~mask] == 0).all()
    assert (gradient[mask] != 0).all()


PADDED = np.array([[3, 2, 0], [5, 0, 0]])


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sum", lambda losses: losses.sum()),
        ("sum_over_batch_size", lambda losses: losses.mean()),
        ("mean_with_sample_weight", lambda losses: losses.sum() / 3),
        (None, lambda losses: losses),
    ],
)
def test_reductions_leave_out_padding(sentences, reduction, expected):
    _, logits = sentences
    losses = np.where(PADDED == 0, 0, loss_of(PADDED, logits, label_smoothing=0.1))
    logits[PADDED == 0] = np.nan
    loss = ka.SequenceCrossentropy(pad=0, label_smoothing=0.1, reduction=reduction)

    actual = numpy(loss, PADDED, logits)

    np.testing.assert_allclose(actual, expected(losses), rtol=1e-6)


@pytest.mark.parametrize("pad", [None, -1])
def test_every_token_counts_that_is_not_padding(sentences, pad):
    token_ids, logits = sentences
    token_ids[1] = 0
    expected = loss_of(token_ids, logits)
    if pad is not None:
        token_ids[0, 1] = pad
        expected = expected[token_ids != pad]

    loss = ka.SequenceCrossentropy(pad=pad)(token_ids, logits)

    assert float(loss) == pytest.approx(expected.mean(), rel=1e-6)


def test_sample_weights_are_of_sentences_or_of_tokens(rng):
    # As many sentences as tokens: they must not be mistaken for each other.
    token_ids = rng.integers(1, WORDS, size=(3, 3))
    token_ids[0, 1:] = 0
    logits = rng.normal(size=(3, 3, WORDS)).astype("float32")
    losses = loss_of(token_ids, logits)
    loss = ka.SequenceCrossentropy(pad=0)

    for weight in (np.array([1.0, 2.0, 5.0]), rng.random((3, 3))):
        share = weight[:, None] if weight.ndim == 1 else weight
        share = share * (token_ids != 0)

        actual = loss(token_ids, logits, sample_weight=weight)
        # With one more axis, as Keras has them.
        again = loss(token_ids[..., None], logits, sample_weight=weight[..., None])

        expected = (losses * share).sum() / share.sum()
        assert float(actual) == pytest.approx(expected, rel=1e-5)
        assert float(again) == float(actual)


@pytest.mark.parametrize("shape", [(3,), (2, 1), (3, 2), (2, 3, 3)])
def test_tokens_of_another_shape_than_their_logits_are_named(sentences, shape):
    token_ids, (_, logits) = np.zeros(shape, "int32"), sentences
    message = rf" must have .*, \(2, 3\). Received: {re.escape(str(shape))}"

    with pytest.raises(ValueError, match=f"y_true{message}"):
        ka.SequenceCrossentropy()(token_ids, logits)
    with pytest.raises(ValueError, match=f"token_ids{message}"):
        ka.sequence_crossentropy(token_ids, logits)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, 3, 2)])
def test_sample_weights_of_another_shape_are_named(sentences, shape):
    with pytest.raises(ValueError, match=r"sample_weight must have.*\(2, 3\)\. Rec"):
        ka.SequenceCrossentropy()(*sentences, sample_weight=np.ones(shape))


def test_masks_of_another_shape_are_named(rng):
    # As many sentences as tokens: they must not be mistaken for each other.
    token_ids, mask = np.ones((3, 3), "int32"), np.array([True, False, True])
    x = rng.normal(size=(3, 3, WORDS)).astype("float32")
    for loss in (
        partial(ka.doubly_stochastic_penalty, x),
        partial(ka.coverage_loss, x),
        partial(ka.attention_supervision, x, x),
        partial(ka.sequence_crossentropy, token_ids, x),
        partial(ka.linear_crossentropy, token_ids, x, x[0]),
    ):
        with pytest.raises(ValueError, match=r"mask must have.*\(3, 3\). .*: \(3,\)"):
            loss(mask=mask)


def test_nothing_but_padding_costs_nothing(sentences, gradients):
    _, logits = sentences
    nothing = np.zeros((BATCH, STEPS), "int32")

    loss = ka.SequenceCrossentropy(pad=0)

    (gradient,) = gradients(lambda x: loss(nothing, x), [logits])

    assert float(loss(nothing, logits)) == 0
    assert (gradient == 0).all()


def test_loss_in_compile_honours_the_mask_of_the_model(sentences, seeded):
    inputs = np.array([[3, 2, 0], [5, 4, 1]])
    token_ids, _ = sentences
    model = keras.Sequential(
        [keras.layers.Embedding(WORDS, 11, mask_zero=True), keras.layers.Dense(WORDS)]
    )
    model.compile("adam", loss=ka.SequenceCrossentropy())

    losses = loss_of(token_ids, model.predict(inputs, verbose=0))
    evaluated = model.evaluate(inputs, token_ids, verbose=0)
    history = model.fit(inputs, token_ids, epochs=2, verbose=0).history["loss"]

    assert evaluated == pytest.approx(losses[inputs != 0].mean(), rel=1e-5)
    assert history[1] < history[0] == pytest.approx(evaluated, rel=1e-5)


def test_loss_is_rebuilt_from_its_config():
    loss = ka.SequenceCrossentropy(
        pad=3, label_smoothing=0.1, reduction="sum", name="words"
    )

    again = keras.losses.deserialize(keras.losses.serialize(loss))

    assert type(again) is ka.SequenceCrossentropy
    assert again.get_config() == loss.get_config()
    assert (again.pad, again.label_smoothing) == (3, 0.1)


@pytest.mark.parametrize("floatx", ["float16", "bfloat16"])
def test_half_precision_does_not_mix_up_tokens(floatx, set_floatx):
    logits = np.zeros((1, 1, 2503), "float32")
    logits[..., 2501] = 10
    set_floatx(floatx)

    value = ka.SequenceCrossentropy(pad=2500)(np.array([[2501]]), logits)

    assert keras.backend.standardize_dtype(value.dtype) == "float32"
    assert float(value) == pytest.approx(np.log1p(2502 * np.exp(-10)), rel=1e-4)


@pytest.mark.parametrize("reduction", ["mean_with_sample_weight", "sum", None])
def test_masked_values_may_be_nan(sentences, reduction):
    token_ids, logits = sentences
    expected = loss_of(token_ids, logits)
    expected[0, 1] = 0
    logits[0, 1] = np.nan
    weights = np.ones(token_ids.shape)
    weights[0, 1] = 0

    loss = ka.SequenceCrossentropy(reduction=reduction)
    actual = ops.convert_to_numpy(loss(token_ids, logits, sample_weight=weights))
    means = {None: expected, "sum": expected.sum()}
    wanted = means.get(reduction, expected.sum() / weights.sum())
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_all_tokens_are_divided_by_whatever_masks_them(sentences):
    inputs = np.array([[3, 2, 0], [5, 4, 1]])
    token_ids, _ = sentences
    logits = keras.layers.Embedding(WORDS, WORDS, mask_zero=True)(inputs)
    losses = loss_of(token_ids, ops.convert_to_numpy(logits))

    loss = ka.SequenceCrossentropy(reduction="sum_over_batch_size")(token_ids, logits)
    assert float(loss) == pytest.approx(losses[inputs != 0].sum() / 6, rel=1e-5)
