import importlib

import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, softmax
from attention_testing.combinations import covering
from attention_testing.losses.values import BATCH, STEPS, WORDS, loss_of
from attention_testing.rounding import UNIT_ROUNDOFF
from keras_attention import linear_crossentropy, sequence_crossentropy


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


@pytest.mark.parametrize(
    ("tokens_at_once", "label_smoothing", "weights"),
    covering(
        [1, 4, 100],
        [0.0, 0.2],
        [
            pytest.param(None, id="no weights"),
            pytest.param([[2.0], [-3.0]], id="a weight for each sentence"),
            pytest.param([[2.0, -0.5, np.nan]] * 2, id="a weight for each token"),
        ],
        strength=1,
    ),
)
def test_crossentropy_in_blocks_is_that_of_all_logits(
    readout, gradients, monkeypatch, tokens_at_once, label_smoothing, weights
):
    token_ids, inputs, embeddings, mask = readout
    module = importlib.import_module("keras_attention.losses.linear_crossentropy")
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", tokens_at_once * WORDS)
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
    assert float(in_blocks(*tensors)) == pytest.approx(float(at_once(*tensors)), 1e-5)
    actual = gradients(in_blocks, [inputs, embeddings])
    expected = gradients(at_once, [inputs, embeddings])
    assert_close(actual, expected)


def test_a_mask_broadcasts(readout):
    token_ids, inputs, embeddings, mask = readout

    loss = linear_crossentropy(token_ids, inputs, embeddings, mask[:1])

    whole = np.repeat(mask[:1], BATCH, axis=0)
    expected = linear_crossentropy(token_ids, inputs, embeddings, whole)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_without_a_mask_every_token_counts(readout):
    token_ids, inputs, embeddings, _ = readout

    loss = linear_crossentropy(token_ids, inputs, embeddings)

    expected = loss_of(token_ids, inputs @ embeddings.T).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("some", [True, False])
def test_masked_inputs_teach_nothing_whatever_they_hold(readout, gradients, some):
    token_ids, inputs, embeddings, mask = readout
    mask = mask & some
    dirty = np.where(mask[..., None], inputs, np.nan).astype("float32")
    dirty_ids = np.where(mask, token_ids, 10**6)

    def loss(token_ids):
        first, last = map(ops.convert_to_tensor, (token_ids, mask))
        return lambda *tensors: linear_crossentropy(first, *tensors, last)

    value = float(loss(dirty_ids)(ops.convert_to_tensor(dirty), embeddings))
    clean = float(loss(token_ids)(ops.convert_to_tensor(inputs), embeddings))
    assert value == clean
    assert (clean > 0) == some
    actual = gradients(loss(dirty_ids), [dirty, embeddings])
    expected = gradients(loss(token_ids), [inputs, embeddings])
    for gradient, reference in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(gradient, reference)
    np.testing.assert_array_equal(actual[0][~mask], 0.0)


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
    # Summed in bfloat16, terms of equal size stop adding up at 256.
    count = 2003
    token_ids = np.where(np.arange(count) % 2, 3, np.arange(count) % WORDS)
    inputs = rng.uniform(0.5, 1, size=(count, 11)).astype("float32")
    embeddings = rng.uniform(-0.1, 0.1, size=(WORDS, 11)).astype("float32")

    def gradient_in(dtype):
        def loss(embeddings):
            return linear_crossentropy(token_ids, ops.cast(inputs, dtype), embeddings)

        return gradients(loss, [embeddings])[0]

    exact, half = gradient_in("float32"), gradient_in(dtype)

    # Each probability and each target, times the inputs, in the mean over tokens.
    targets = np.eye(WORDS)[token_ids]
    terms = (softmax(inputs @ embeddings.T) + targets).T @ inputs / count
    error = relative_error(dtype, inputs, embeddings)
    assert (np.abs(half - exact) <= error * terms).all()


def relative_error(dtype, inputs, embeddings):
    """Bound of the relative error of each term of a gradient in half precision.

    Inputs, embeddings and logits are rounded once each. This changes a logit by at most
    three units times the sum of the absolute products. A probability is a quotient of
    exponentials, so it changes by twice as much, relative to itself. The term, its
    factors and the sum are rounded, too: four times.
    """
    unit = UNIT_ROUNDOFF[dtype]
    products = np.abs(inputs) @ np.abs(embeddings).T
    return np.expm1(2 * 3 * unit * products.max() + 4 * unit)


def test_small_gradients_do_not_vanish_in_half_precision(rng, gradients):
    # A probability of 1/31, divided by 61 tokens and 1e5, is zero in float16.
    words, depth, scale = 31, 5, 1e5
    token_ids = rng.integers(WORDS, size=61)
    inputs = rng.uniform(0.5, 1, size=(61, depth)).astype("float32")
    embeddings = rng.uniform(-0.2, 0.2, size=(words, depth)).astype("float32")

    def gradients_in(dtype):
        def scaled(*tensors):
            tensors = [ops.cast(x, dtype) for x in tensors]
            weights = np.float32(1 / scale)
            return scale * linear_crossentropy(token_ids, *tensors, weights=weights)

        return gradients(scaled, [inputs, embeddings])

    exact, half = gradients_in("float32"), gradients_in("float16")

    error = relative_error("float16", inputs, embeddings)
    terms = (softmax(inputs @ embeddings.T) + np.eye(words)[token_ids]) / 61
    sums = terms @ np.abs(embeddings), terms.T @ inputs
    for actual, expected, terms in zip(half, exact, sums, strict=True):
        assert (np.abs(actual - expected) <= error * terms).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_ids": np.zeros((2, 1), "int32")}, r"token_ids .*3\)\. .*\(2, 1\)"),
        ({"token_ids": np.zeros((1, 3), "int32")}, r"token_ids .*3\)\. .*\(1, 3\)"),
        ({"token_ids": np.zeros(3, "int32")}, r"token_ids .*3\)\. Received: \(3,\)"),
        ({"embeddings": np.ones((WORDS, 4))}, r"embeddings .*\(None, 5\)\. .*, 4\)"),
        ({"weights": np.ones((3, 2))}, r"weights .*\(2, 3\)\. Received: \(3, 2\)"),
        ({"weights": np.ones(2)}, r"weights .*\(3,\)\. Received: \(2,\)"),
        ({"weights": np.ones((1, 2, 3))}, r"weights .*Received: \(1, 2, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(options, message):
    arguments = {
        "token_ids": np.zeros((2, 3), "int32"),
        "inputs": np.ones((2, 3, 5)),
        "embeddings": np.ones((WORDS, 5)),
    }

    with pytest.raises(ValueError, match=message):
        linear_crossentropy(**{**arguments, **options})
