"""Encoders of KerasHub with random weights, built without downloads."""

import importlib.util

import keras
import numpy as np
import pytest
from keras import ops
from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.network import encoders
from keras_attention_apps.captioner.network.backbone import Backbone
from keras_attention_apps.captioner.network.recurrent import ShowAttendTell
from keras_attention_apps.captioner.text import Vocabulary
from keras_attention_apps.common.errors import UserError

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("keras_hub"), reason="KerasHub is not installed"
)


def assert_close(found, expected, **tolerance):
    found, expected = map(ops.convert_to_numpy, (found, expected))
    np.testing.assert_allclose(found, expected, **tolerance)


def dinov2(models):
    return models.DINOV2Backbone(
        patch_size=14,
        num_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=8,
        num_register_tokens=4,
        image_shape=(28, 28, 3),
        position_embedding_shape=(42, 42, 3),
    )


def siglip(models):
    vision = models.SigLIPVisionEncoder(8, 8, 1, 2, 8, image_shape=(32, 32, 3))
    text = models.SigLIPTextEncoder(9, 8, 8, 1, 2, 8, max_sequence_length=3)
    return models.SigLIPBackbone(vision, text)


def vit(models):
    return models.ViTBackbone(
        image_shape=(32, 32, 3),
        patch_size=16,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=8,
    )


def vgg(models):
    return models.VGGBackbone([1, 1, 1], [4, 4, 8])


def bert(models):
    return models.BertBackbone(9, 1, 2, 8, 8)


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """A function that writes a preset once, and returns its folder."""
    import keras_hub

    folder = tmp_path_factory.mktemp("presets")

    def written(build):
        path = folder / build.__name__
        if not path.exists():
            keras.utils.set_random_seed(2)
            build(keras_hub.models).save_to_preset(str(path))
            if build is dinov2:
                keras_hub.layers.DINOV2ImageConverter(
                    scale=[0.01, 0.02, 0.03], offset=-1.0
                ).save_to_preset(str(path))
        return path

    return written


@pytest.fixture(scope="module")
def backbones(presets):
    """A function that loads a backbone once."""
    loaded = {}

    def load(build, size):
        if build not in loaded:
            loaded[build] = Backbone(f"hub:{presets(build)}", size, "imagenet")
        return loaded[build]

    return load


@pytest.mark.parametrize(
    ("build", "size", "side"),
    [
        (dinov2, 28, 2),
        (siglip, 32, 4),
        pytest.param(vgg, 32, 4, marks=pytest.mark.exhaustive),
    ],
)
def test_encoders_of_the_hub_give_their_regions(build, size, side, backbones, presets):
    import keras_hub

    backbone = backbones(build, size)
    images = np.random.default_rng(0).uniform(0, 255, (1, size, size, 3))
    images = images.astype("float32")
    model = keras_hub.models.Backbone.from_preset(str(presets(build)))
    if build is dinov2:
        pixels = images * np.float32([0.01, 0.02, 0.03]) - 1
        expected = model({"images": pixels})[:, 5:]
    elif build is siglip:
        vision = model.vision_encoder
        tokens = keras.Model(vision.inputs, vision.get_layer(index=-2).output)
        expected = tokens(images)
    else:
        expected = ops.reshape(model(images), (1, side**2, 8))

    assert (backbone.rows, backbone.columns, backbone.depth) == (side, side, 8)
    assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)


def test_position_embeddings_of_another_size_are_interpolated(presets):
    backbone = Backbone(f"hub:{presets(dinov2)}", 42, "imagenet")
    assert backbone(np.zeros((1, 42, 42, 3), "float32")).shape == (1, 9, 8)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (48, "takes images of 32 x 32 pixels.* 48, for which it has no position"),
        pytest.param(
            40,
            "takes images of 32 x 32 pixels.* 40.* divisible by patch size",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_an_encoder_may_have_one_size_of_images(size, message, presets):
    with pytest.raises(UserError, match=message):
        Backbone(f"hub:{presets(vit)}", size, "imagenet")


@pytest.mark.exhaustive
def test_a_model_of_texts_is_no_encoder(presets):
    with pytest.raises(UserError, match="hub:bert must take images"):
        Backbone(f"hub:{presets(bert)}", 32)


def test_an_unknown_preset_is_an_error(tmp_path):
    with pytest.raises(UserError, match="neither one of its presets nor a folder"):
        Backbone("hub:nothing", 32)
    with pytest.raises(UserError, match="cannot be loaded from KerasHub"):
        Backbone(f"hub:{tmp_path}", 32)


def test_a_model_folder_needs_the_hub_alone(backbones, presets, tmp_path, monkeypatch):
    config = ModelConfig(backbone="hub:dinov2", image_size=28, units=7, max_length=2)
    backbone = backbones(dinov2, 28)
    network = ShowAttendTell(config, 6, encoder=backbone.encoder)
    network.build()
    network.backbone.set_weights(backbone.get_weights())
    Captioner(config, Vocabulary(["red", "blue"]), network).save(tmp_path / "mine")
    loaded = Captioner.from_preset(tmp_path / "mine")

    images = np.full((1, 28, 28, 3), 99, "float32")
    expected = backbone(images)
    assert_close(loaded.network.backbone(images), expected, atol=0.05)

    monkeypatch.setattr(encoders.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install keras-hub"):
        Captioner.from_preset(tmp_path / "mine")
