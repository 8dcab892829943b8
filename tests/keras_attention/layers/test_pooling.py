import keras
import numpy as np
import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw, numpy, random_fixture, softmax
from keras_attention import AttentionPooling

BATCH, SENTENCES, POSITIONS, DEPTH, UNITS = 2, 3, 5, 7, 11

value = random_fixture(BATCH, POSITIONS, DEPTH)


def test_follows_yang(value):
    layer = AttentionPooling(UNITS, bias_initializer="ones")

    pooled, weights = layer(value, return_attention_scores=True)

    scale, kernel, bias = numpy([layer.scale, layer.hidden.kernel, layer.hidden.bias])
    expected = softmax(np.tanh(value @ kernel + bias) @ scale[:, 0])
    np.testing.assert_allclose(numpy(weights), expected, 1e-4)
    assert_close(pooled, np.einsum("bs,bsd->bd", expected, value))


def test_follows_zhou(value):
    layer = AttentionPooling(activation="tanh")

    pooled = layer(value)

    expected = softmax(np.tanh(value) @ numpy(layer.scale)[:, 0])
    assert_close(pooled, np.tanh(np.einsum("bs,bsd->bd", expected, value)))


def test_hops_read_a_vector_each(value):
    layer = AttentionPooling(hops=3, penalty=0.5)

    pooled, weights = layer(value, return_attention_scores=True)

    rows = softmax((np.tanh(value) @ numpy(layer.scale)).swapaxes(1, 2))
    np.testing.assert_allclose(numpy(weights), rows, rtol=1e-4)
    assert_close(pooled, rows @ value)
    overlap = rows @ rows.swapaxes(1, 2) - np.eye(3)
    penalty = 0.5 * (overlap**2).sum() / BATCH
    np.testing.assert_allclose(numpy(layer.losses[0]), penalty, 1e-4)


def test_sentences_are_pooled_one_by_one(rng):
    layer = AttentionPooling(UNITS)
    words = draw(rng, (BATCH, SENTENCES, POSITIONS, DEPTH))
    mask = rng.random((BATCH, SENTENCES, POSITIONS)) < 0.6

    pooled, weights = layer(words, value_mask=mask, return_attention_scores=True)

    assert tuple(weights.shape) == (BATCH, SENTENCES, POSITIONS)
    for s in range(SENTENCES):
        assert_close(pooled[:, s], layer(words[:, s], value_mask=mask[:, s]), 1e-6)


def test_hierarchy_ignores_sentences_without_words(rng):
    # Words, then sentences: an empty sentence must not count in the second pooling.
    ids = keras.Input((SENTENCES, POSITIONS), dtype="int32")
    embedded = keras.layers.Embedding(13, DEPTH, mask_zero=True)(ids)
    sentences = AttentionPooling(UNITS)(embedded)
    _, weights = AttentionPooling(UNITS, name="document")(
        sentences, return_attention_scores=True
    )
    model = keras.Model(ids, weights)
    data = rng.integers(1, 13, size=(BATCH, SENTENCES, POSITIONS))
    data[0, 1] = 0

    outputs = model.predict(data, verbose=0)

    assert outputs[0, 1] == 0
    np.testing.assert_allclose(outputs.sum(axis=-1), 1, rtol=1e-6)
    assert (outputs[1] > 0).all()


def test_an_explicit_mask_wins_over_an_implicit_one(rng):
    embed = keras.layers.Embedding(13, DEPTH, mask_zero=True)
    data = rng.integers(1, 13, size=(BATCH, POSITIONS))
    data[:, -1] = 0
    mask = np.array([[1, 0, 1, 1, 1], [0, 1, 1, 0, 0]], "bool")
    layer = AttentionPooling(UNITS)
    value = embed(data)
    expected = layer(ops.copy(value), value_mask=mask)
    ids, mask_input = (
        keras.Input((POSITIONS,), dtype="int32"),
        keras.Input((POSITIONS,)),
    )
    model = keras.Model([ids, mask_input], layer(embed(ids), mask=mask_input))

    for actual in (layer(value, mask=mask), model([data, np.float32(mask)])):
        assert_close(actual, expected, 1e-6)


def test_pooling_has_no_monotonic_weighting():
    with pytest.raises(ValueError, match=r"no sequence of queries.*'monotonic'"):
        AttentionPooling(weighting="monotonic")


@pytest.mark.parametrize("shape", [(POSITIONS, BATCH), (BATCH,), (BATCH, 1)])
def test_a_mask_of_another_shape_is_named(shape):
    value = np.zeros((BATCH, POSITIONS, DEPTH), "float32")

    with pytest.raises(ValueError, match=r"value_mask must .* Received: \("):
        AttentionPooling(4)(value, value_mask=np.ones(shape, "bool"))


def test_a_grid_is_pooled_row_by_row_with_a_warning():
    for grid in (np.zeros((2, 8, 8, 3), "float32"), keras.Input((8, 8, 3))):
        with pytest.warns(UserWarning, match=r"\(None, 8, 3\).*Reshape\(\(-1, 3\)\)"):
            pooled = AttentionPooling(4)(grid)
        assert tuple(pooled.shape[1:]) == (8, 3)
