"""Image encoders, and the folding of their normalisation."""

import keras
import numpy as np
import pytest
from keras import layers, ops

from attention_testing.arrays import assert_close
from keras_attention_apps.captioner.network.backbone import (
    Backbone,
    Coordinates,
    FoldedConvolution,
    find_application,
    fold_normalization,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import computing_in


def test_coordinates_are_rows_and_columns():
    grid = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    outputs = keras.ops.convert_to_numpy(Coordinates()(grid))

    np.testing.assert_array_equal(outputs[..., :4], grid)
    for row, down in enumerate((-1, 0, 1)):
        for column, across in enumerate((-1, -0.5, 0, 0.5, 1)):
            assert (outputs[:, row, column, 4:] == (down, across)).all()


@pytest.mark.parametrize(
    ("name", "black", "white"),
    [("SmallCNN", -1, 1), ("EfficientNetLite2", -127 / 128, 1)],
)
def test_pixels_are_scaled_as_a_network_expects_them(name, black, white):
    _, preprocess = find_application(name)
    assert_close(preprocess(np.array([0.0, 255.0])), [black, white])


def test_images_may_be_too_small_for_a_network():
    with pytest.raises(UserError, match=r"InceptionV3 .* 40 x 40 .* at least 75x75"):
        Backbone("InceptionV3", 40)


def test_regions_of_the_small_cnn_contain_their_coordinates():
    backbone = Backbone("SmallCNN", 32)
    regions = backbone(np.zeros((1, 32, 32, 3), "float32"))

    assert regions.shape == backbone.compute_output_shape((1, 32, 32, 3))
    coordinates = keras.ops.convert_to_numpy(regions)[0, :, -2:]
    assert len(np.unique(coordinates, axis=0)) == 16


def test_receptive_fields_of_the_small_cnn_are_centred():
    backbone = Backbone("SmallCNN", 64)
    images = np.random.default_rng(0).integers(256, size=(6, 64, 64, 3))
    images[1:] = images[0]
    # The cell in row 4 and column 4 of the 8 x 8 has its middle between 35 and 36.
    images[1, :17] = images[1, :, :17] = images[1, 55:] = images[1, :, 55:] = 0
    images[2, 17] = images[3, 54] = images[4, :, 17] = images[5, :, 54] = 0
    regions = keras.ops.convert_to_numpy(backbone(images))[:, 4 * 8 + 4]

    changed = (regions != regions[0]).any(axis=-1)
    assert changed.tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("name", ["__class__", "keras", "mobilenet_v2", "ResNet5"])
def test_a_backbone_is_a_public_model(name):
    with pytest.raises(UserError, match=f"such as .* others. Received: '{name}'") as e:
        Backbone(name, 32)
    suggested = "ResNet50" if name == "ResNet5" else ""
    assert (f"Did you mean '{suggested}'?" in str(e.value)) == bool(suggested)


IMAGES = np.random.default_rng(0).normal(size=(2, 9, 9, 4)).astype("float32")


def draw_weights(model):
    """Draw random values for all weights; variances are not negative."""
    random = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(random.uniform(0.5, 1.5, weight.shape))


def normalized(convolution, **options):
    """A model of a convolution and the batch normalisation after it."""
    images = keras.Input(IMAGES.shape[1:])
    outputs = layers.BatchNormalization(**options)(convolution(images))
    model = keras.Model(images, layers.ReLU()(outputs))
    draw_weights(model)
    return model


def kinds(model):
    return [type(layer) for layer in model.layers]


def run(model):
    return ops.convert_to_numpy(model(IMAGES, training=False))


@pytest.mark.parametrize(
    "options", [{}, {"use_bias": True}, {"center": False}, {"scale": False}]
)
@pytest.mark.parametrize(
    "convolution",
    [
        lambda **options: layers.Conv2D(6, 3, 2, padding="same", **options),
        lambda **options: layers.Conv2D(6, (1, 3), dilation_rate=2, **options),
        lambda **options: layers.Conv2D(6, 3, groups=2, **options),
        lambda **options: layers.DepthwiseConv2D(3, 2, depth_multiplier=3, **options),
    ],
)
def test_a_folded_model_computes_the_same(convolution, options):
    use_bias = options.get("use_bias", False)
    changes = {name: x for name, x in options.items() if name != "use_bias"}
    model = normalized(convolution(use_bias=use_bias), epsilon=0.1, **changes)
    folded = fold_normalization(model)

    assert kinds(folded) == [layers.InputLayer, FoldedConvolution, layers.ReLU]
    np.testing.assert_allclose(run(folded), run(model), atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "axis"),
    [
        (layers.Conv2D, {"activation": "relu"}, -1),
        (layers.SeparableConv2D, {}, -1),
        (layers.Conv2D, {}, 1),
    ],
)
def test_layers_that_cannot_be_folded_stay(kind, options, axis):
    model = normalized(kind(6, 3, **options), axis=axis)
    folded = fold_normalization(model)

    assert kinds(folded) == kinds(model)
    np.testing.assert_allclose(run(folded), run(model), atol=1e-6)


def test_other_layers_read_the_convolution_without_normalisation():
    images = keras.Input(IMAGES.shape[1:])
    summed = layers.Conv2D(6, 3)(images)
    first = layers.BatchNormalization()(summed)
    model = keras.Model(images, [summed, layers.BatchNormalization()(summed), first])
    draw_weights(model)

    assert_close(fold_normalization(model)(IMAGES), model(IMAGES))


def test_a_folded_model_shares_the_weights_and_follows_them(gradients):
    model = normalized(layers.Conv2D(6, 3))
    folded = fold_normalization(model)
    expected = {id(weight) for weight in model.weights}
    assert {id(weight) for weight in folded.weights} == expected

    for weight in model.weights:
        weight.assign(weight + 0.5)
    np.testing.assert_allclose(run(folded), run(model), atol=1e-5)

    pairs = [
        gradients(
            lambda network=network: ops.sum(ops.sin(network(IMAGES, training=False))),
            variables=model.trainable_variables,
        )
        for network in (model, folded)
    ]
    for expected, actual in zip(*pairs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_frozen_layers_stay_as_they_are(precision):
    with computing_in(precision):
        folded = fold_normalization(normalized(layers.Conv2D(6, 3)))
    before = ops.cast(folded(IMAGES, training=False), "float32")
    (layer,) = (x for x in folded.layers if isinstance(x, FoldedConvolution))
    layer.freeze()
    for weight in folded.weights:
        weight.assign(weight + 0.5)
    layer.freeze()

    features = folded(IMAGES, training=False)
    assert keras.backend.standardize_dtype(features.dtype) == layer.compute_dtype
    features, before = map(
        ops.convert_to_numpy, (ops.cast(features, "float32"), before)
    )
    tolerance = 1e-5 if precision == "float32" else 0.02 * before.max()
    np.testing.assert_allclose(features, before, atol=tolerance)
