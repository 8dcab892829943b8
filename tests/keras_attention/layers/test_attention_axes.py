"""Self-attention over some axes of inputs of more than three axes."""

import re

import keras
import numpy as np
import pytest

from attention_testing.arrays import assert_close, attend, draw
from attention_testing.layers.self_attention_reference import read
from keras_attention import MultiHeadAttention, SelfAttention

HEADS, KEY_DIM, DEPTH = 3, 4, 6
GRID, OTHER = (2, 3, 5, DEPTH), (2, 3, 7, DEPTH)


def build(axes, layer=SelfAttention, **options):
    options = {"bias_initializer": "normal", **options}
    return layer(HEADS, KEY_DIM, attention_axes=axes, **options)


def plain(layer):
    """A layer for three axes with the weights of a layer for more."""
    same = type(layer).from_config({**layer.get_config(), "attention_axes": None})
    tensors = 1 if isinstance(layer, SelfAttention) else 2
    same.build(*[(None, None, DEPTH)] * tensors)
    layer.build(*[GRID] * tensors)
    same.set_weights(layer.get_weights())
    return same


def rows_of(x, axes):
    """Return `(rows, steps, depth)`, where the steps are those of some axes."""
    x = np.moveaxis(x, axes, range(3 - len(axes), 3))
    return x.reshape(-1, np.prod(x.shape[3 - len(axes) : 3]), DEPTH)


@pytest.mark.parametrize(
    ("axes", "value_shape", "sizes"),
    [
        ((2,), OTHER, (2, 3, HEADS, 5, 7)),
        ((1, 2), GRID, (2, HEADS, 3, 5, 3, 5)),
        ((1,), GRID, (2, 5, HEADS, 3, 3)),
    ],
)
def test_every_row_is_a_sequence(rng, axes, value_shape, sizes):
    layer = build(axes, MultiHeadAttention)
    x, value = draw(rng, GRID, value_shape)

    outputs = attend(layer, x, value)

    output, weights = attend(plain(layer), rows_of(x, axes), rows_of(value, axes))
    assert_close(rows_of(outputs[0], axes), output)
    assert_close(outputs[1], weights.reshape(sizes))
    symbols = layer(
        keras.KerasTensor((None, *GRID[1:])),
        keras.KerasTensor((None, *value_shape[1:])),
        return_attention_scores=True,
    )
    for result, symbol in zip(outputs, symbols, strict=True):
        assert symbol.shape == (None, *result.shape[1:])


def test_masks_positions_and_windows_are_those_of_each_row(rng):
    options = {"causal": True, "positions": "rotary", "window_size": 3}
    layer = build([-2], num_key_value_heads=1, **options)
    x = draw(rng, GRID)
    mask = rng.random(GRID[:-1]) < 0.7
    seen = rng.random((2, 5, 5)) < 0.8
    alone = plain(layer)

    output = read(layer, x, query_mask=mask, attention_mask=seen)

    for row in range(GRID[1]):
        masks = {"query_mask": mask[:, row], "attention_mask": seen}
        expected = read(alone, x[:, row], **masks)
        np.testing.assert_allclose(output[:, row], expected, atol=1e-5)


def test_model_takes_any_size(rng):
    inputs = keras.Input((None, None, DEPTH))
    layer = build((1, 2))
    model = keras.Model(inputs, layer(inputs))
    x = draw(rng, GRID)

    outputs = model.predict(x, verbose=0)

    assert_close(rows_of(outputs, (1, 2)), plain(layer)(rows_of(x, (1, 2))))


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        ((0,), GRID, r"Received: \[0\], query \(2, 3, 5, 6\)"),
        ((3,), GRID, r"Received: \[3\], query \(2, 3, 5, 6\)"),
        ((1, -3), GRID, r"Received: \[1, -3\]"),
        ((1,), (2, DEPTH), r"Received: \[1\], query \(2, 6\)"),
    ],
)
def test_axes_that_do_not_fit_are_named(axes, shape, message):
    with pytest.raises(ValueError, match=message):
        build(axes)(np.zeros(shape, "float32"))


def test_a_value_with_other_rows_is_named():
    query, value = np.zeros(GRID, "float32"), np.zeros((2, 4, 5, 6), "float32")
    message = r"query \(2, 3, 5, 6\), value \(2, 4, 5, 6\)"
    with pytest.raises(ValueError, match=message):
        build((2,), MultiHeadAttention)(query, value)


@pytest.mark.parametrize("axes", ["height", 1.5, (), []])
def test_axes_must_be_integers_and_at_least_one(axes):
    message = "must be integers" if axes else "one axis .* or several"
    with pytest.raises(ValueError, match=f"{message}.* {re.escape(repr(axes))}"):
        build(axes)


@pytest.mark.parametrize("symbolic", [False, True])
def test_axes_of_later_calls_are_checked(rng, symbolic):
    layer = build((1, 2))
    layer.build(GRID)
    x = keras.KerasTensor((2, 3, DEPTH)) if symbolic else draw(rng, (2, 3, DEPTH))

    with pytest.raises(ValueError, match=r"Received: \[1, 2\], query \(2, 3, 6\)"):
        layer(x)


@pytest.mark.parametrize("shape", [(2, 5, 4), (5, 4), (2, 4, 5, 5)])
def test_attention_mask_of_another_shape_is_named_with_the_sizes_that_fit(shape):
    expected = r"\(2, 5, 5\) or \(5, 5\) or \(2, 3, 5, 5\)"
    received = re.escape(str(shape))
    with pytest.raises(ValueError, match=f"{expected}. Received: {received}"):
        build((2,))(np.zeros(GRID, "float32"), attention_mask=np.ones(shape, "bool"))


def test_no_cache_for_more_axes(rng):
    layer = build((1,), causal=True)

    with pytest.raises(ValueError, match=r"takes no cache. Received: .*=\[1\]"):
        layer(draw(rng, (2, 3, DEPTH)), cache=layer.get_initial_cache(2, 3))
