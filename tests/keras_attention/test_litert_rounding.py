"""Rounding of kernels by the inputs of their convolutions."""

import itertools

import numpy as np
import pytest

from keras_attention.litert_rounding import patches_of, products_of, rounded

HEIGHT, WIDTH, DEPTH, FILTERS = 7, 11, 3, 5


@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (3, 3), (5, 3), (2, 2)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (2, 3)])
def test_patches_times_kernel_are_the_convolution(rng, size, strides, is_padded):
    keras = pytest.importorskip("keras")
    images = rng.normal(size=(2, HEIGHT, WIDTH, DEPTH)).astype("float32")
    kernel = rng.normal(size=(*size, DEPTH, FILTERS)).astype("float32")
    if is_padded and strides[0] != strides[1]:
        pytest.skip("no backend has this padding with different strides")

    patches = patches_of(images, size, strides, is_padded)

    expected = keras.ops.conv(images, kernel, strides, "same" if is_padded else "valid")
    expected = keras.ops.convert_to_numpy(expected).reshape(-1, FILTERS)
    actual = patches.reshape(len(patches), -1) @ kernel.reshape(-1, FILTERS)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_patches_are_drawn_from_all_positions():
    rows, columns = np.indices((64, 48))
    image = np.stack([rows, columns], axis=-1)[None]

    patches = patches_of(image, (1, 1), (1, 1), False)[:, 0]

    assert len(patches) == 256
    # Nearly all rows and columns occur.
    assert len({*patches[:, 0]}) > 56 and len({*patches[:, 1]}) > 44


def errors(weights, integers, patches, is_depthwise):
    """Return the squared error of the outputs, by a loop over the patches."""
    total = 0.0
    for patch in patches:
        if is_depthwise:
            groups = [patch[:, channel] for channel in range(patch.shape[1])]
        else:
            groups = [patch.reshape(-1)]
        for inputs, exact, integer in zip(groups, weights, integers, strict=True):
            total += (((exact - integer) @ inputs) ** 2).sum()
    return total


@pytest.mark.parametrize("is_depthwise", [True, False])
def test_outputs_are_closer_than_with_the_nearest_integers(rng, is_depthwise):
    # Neighbouring inputs are alike, as those of images are.
    common = rng.normal(size=(53, 1, DEPTH))
    patches = common + 0.3 * rng.normal(size=(53, 9, DEPTH))
    shape = (DEPTH, 2, 9) if is_depthwise else (1, FILTERS, 9 * DEPTH)
    weights = rng.normal(size=shape) * 8

    products = products_of(patches, is_depthwise)
    integers = rounded(weights, products)

    assert (integers == np.round(integers)).all()
    # No weight moves far from its value.
    assert np.abs(integers - weights).max() < 3
    rounding_errors, nearest = (
        errors(weights, x, patches, is_depthwise) for x in (integers, np.round(weights))
    )
    assert rounding_errors < 0.5 * nearest


def test_two_weights_are_rounded_as_well_as_possible():
    # Both inputs are equal, so that the sum of the weights counts: 0.4 + 0.4 is 1.
    products = np.ones((1, 2, 2)) + 1e-3 * np.eye(2)
    integers = rounded(np.array([[[0.4, 0.4]]]), products)

    assert sorted(integers[0, 0]) == [0, 1]
    best = min(
        itertools.product((0, 1), repeat=2), key=lambda pair: abs(sum(pair) - 0.8)
    )
    assert sum(best) == integers.sum()


def test_inputs_that_are_always_zero_have_the_nearest_integers():
    integers = rounded(np.array([[[0.6, -2.4, 200.0]]]), np.zeros((1, 3, 3)))

    assert integers.tolist() == [[[1, -2, 127]]]
