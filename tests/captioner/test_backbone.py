import keras
import numpy as np
import pytest
from keras_attention_apps.captioner.backbone import Backbone, Coordinates
from keras_attention_apps.common.cli import UserError


def test_coordinates_are_rows_and_columns():
    grid = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    found = keras.ops.convert_to_numpy(Coordinates()(grid))

    np.testing.assert_array_equal(found[..., :4], grid)
    for row, down in enumerate((-1, 0, 1)):
        for column, across in enumerate((-1, -0.5, 0, 0.5, 1)):
            assert (found[:, row, column, 4:] == (down, across)).all()


def test_photographs_may_be_too_small_for_a_network():
    with pytest.raises(UserError, match=r"InceptionV3 .* 40 x 40 .* at least 75x75"):
        Backbone("InceptionV3", 40)


def test_every_region_of_the_small_network_knows_where_it_is():
    backbone = Backbone("SmallCNN", 32)
    regions = backbone(np.zeros((1, 32, 32, 3), "float32"))

    assert regions.shape == backbone.compute_output_shape((1, 32, 32, 3))
    assert len(np.unique(regions[0, :, -2:], axis=0)) == 16
