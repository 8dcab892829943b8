import keras
import numpy as np
import pytest
from keras_attention_apps.captioner.network.backbone import Backbone, Coordinates
from keras_attention_apps.common.cli import UserError


def test_coordinates_are_rows_and_columns():
    grid = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    found = keras.ops.convert_to_numpy(Coordinates()(grid))

    np.testing.assert_array_equal(found[..., :4], grid)
    for row, down in enumerate((-1, 0, 1)):
        for column, across in enumerate((-1, -0.5, 0, 0.5, 1)):
            assert (found[:, row, column, 4:] == (down, across)).all()


def test_images_may_be_too_small_for_a_network():
    with pytest.raises(UserError, match=r"InceptionV3 .* 40 x 40 .* at least 75x75"):
        Backbone("InceptionV3", 40)


def test_regions_of_the_small_cnn_contain_their_coordinates():
    backbone = Backbone("SmallCNN", 32)
    regions = backbone(np.zeros((1, 32, 32, 3), "float32"))

    assert regions.shape == backbone.compute_output_shape((1, 32, 32, 3))
    assert len(np.unique(regions[0, :, -2:], axis=0)) == 16


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


@pytest.mark.parametrize("name", ["__class__", "keras", "mobilenet_v2", "Mobile"])
def test_a_backbone_is_a_public_model(name):
    with pytest.raises(UserError, match=f"one of ConvNeXtBase, .*Received: '{name}'"):
        Backbone(name, 32)
