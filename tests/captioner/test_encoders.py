import dataclasses
import json
import shutil

import keras
import numpy as np
import pytest
from keras import layers, ops
from keras_attention_apps.captioner.config import ModelConfig
from keras_attention_apps.captioner.inference import Captioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.captioner.network import backbone as backbones
from keras_attention_apps.captioner.network.backbone import Backbone, FoldedConvolution
from keras_attention_apps.captioner.network.encoders import (
    ENCODER_FILE,
    grid_model,
    is_encoder,
)
from keras_attention_apps.captioner.network.features import cached_features
from keras_attention_apps.captioner.network.recurrent import ShowAttendTell
from keras_attention_apps.captioner.text import Vocabulary
from keras_attention_apps.common.errors import UserError
from programs import training

SIZE = 16
IMAGES = np.random.default_rng(0).uniform(0, 255, (2, SIZE, SIZE, 3)).astype("float32")


def assert_close(found, expected, **tolerance):
    found, expected = map(ops.convert_to_numpy, (found, expected))
    np.testing.assert_allclose(found, expected, **tolerance)


def cnn(size=SIZE):
    """A classifier with 4 x 4 regions of depth 5 before its pooling."""
    images = keras.Input((size, size, 3))
    x = layers.Rescaling(1 / 255)(images)
    x = layers.Conv2D(7, 3, strides=2, padding="same")(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(5, 3, strides=2, padding="same", name="grid")(x)
    x = layers.Dropout(0.5)(x)
    return keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def patches(before=0, regions=16):
    """An encoder of 16 patches, or another number, after some other tokens."""
    images = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(5, 4, strides=4)(images)
    x = layers.Reshape((16, 5))(x)[:, :regions]
    return keras.Model(images, layers.ZeroPadding1D((before, 0))(x))


def pixels(images):
    return layers.AveragePooling2D(2)(images)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    return cnn()


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("encoders") / "mine.keras"
    model.save(path)
    return str(path)


@pytest.fixture(scope="module")
def backbone(file):
    return Backbone(file, SIZE, "imagenet")


def test_a_classifier_gives_the_regions_before_its_pooling(model, backbone):
    grid = keras.Model(model.inputs, model.get_layer("grid").output)(IMAGES)

    assert (backbone.rows, backbone.columns, backbone.depth) == (4, 4, 5)
    found = ops.reshape(backbone(IMAGES), grid.shape)
    assert_close(found, grid, rtol=1e-4, atol=1e-5)


def test_layers_above_the_regions_are_left_out(model, backbone):
    assert len(backbone.weights) == len(model.weights) - 2


def test_batch_normalisation_of_a_file_is_folded(backbone):
    kinds = [type(layer) for layer in backbone._folded().layers]
    assert FoldedConvolution in kinds
    assert layers.BatchNormalization not in kinds


def test_a_convolutional_network_takes_images_of_another_size(file):
    backbone = Backbone(file, 24)
    assert backbone(np.zeros((1, 24, 24, 3), "float32")).shape == (1, 36, 5)


def test_without_weights_the_file_gives_the_architecture(model, file):
    random = Backbone(file, SIZE).cnn.get_weights()
    assert not np.allclose(random[0], model.get_weights()[0])


@pytest.mark.parametrize("before", [0, 1, 2, 5, 8])
def test_class_and_register_tokens_are_left_out(before):
    model = patches(before)
    grid = grid_model(model, SIZE, "mine")(IMAGES)

    expected = ops.reshape(model(IMAGES)[:, before:], (2, 4, 4, 5))
    assert_close(grid, expected, rtol=0)


def test_a_known_patch_size_counts_the_patches():
    # Nine tokens are 3 x 3 patches, or 2 x 2 and five others.
    model = patches(5, regions=4)
    assert grid_model(model, SIZE, "mine").output_shape == (None, 3, 3, 5)
    model.patch_size = (8, 8)
    assert grid_model(model, SIZE, "mine").output_shape == (None, 2, 2, 5)


def test_the_last_output_with_regions_is_taken():
    images = keras.Input((SIZE, SIZE, 3))
    fine = pixels(images)
    coarse = pixels(fine)
    pooled = layers.GlobalAveragePooling2D(keepdims=True)(coarse)
    model = keras.Model(images, {"a": fine, "b": coarse, "c": pooled})

    assert grid_model(model, SIZE, "mine").output_shape == (None, 4, 4, 3)


@pytest.mark.parametrize("size", [SIZE, None])
def test_models_of_other_kinds_are_encoders(size):
    sequential = keras.Sequential([keras.Input((size, size, 3)), layers.Conv2D(2, 8)])
    assert grid_model(sequential, SIZE, "mine").output_shape == (None, 9, 9, 2)

    class Subclass(keras.Model):
        def call(self, images):
            return pixels(images)

    assert grid_model(Subclass(), SIZE, "mine").output_shape == (None, 8, 8, 3)


def of_images(call):
    def build():
        images = keras.Input((SIZE, SIZE, 3))
        return keras.Model(images, call(images))

    return build


def of_numbers():
    numbers = keras.Input((7,))
    return keras.Model(numbers, numbers + 1)


def of_two():
    inputs = [keras.Input((SIZE, SIZE, 3)), keras.Input((3,))]
    return keras.Model(inputs, inputs[0] + inputs[1][:, None, None])


@pytest.mark.parametrize(
    ("build", "size", "message"),
    [
        (
            lambda: patches(regions=3),
            SIZE,
            r"rows x columns.* the shape \(None, 3, 5\)",
        ),
        (
            lambda: patches(before=18),
            SIZE,
            r"rows x columns.* the shape \(None, 34, 5\)",
        ),
        (of_images(lambda x: layers.Flatten()(x)), SIZE, "must give a grid"),
        (of_images(lambda x: x * 2), SIZE, "must give a grid"),
        (of_numbers, SIZE, r"must take images.* inputs \(None, 7\)"),
        (of_two, SIZE, r"must take images.* inputs .*16, 16, 3\), \(None, 3\)"),
        (patches, 20, r"mine takes images of 16 x 16 pixels.* image_size 20"),
    ],
)
def test_a_model_without_regions_is_an_error(build, size, message):
    with pytest.raises(UserError, match=message):
        grid_model(build(), size, "mine")


class Unregistered(layers.Layer):
    def call(self, images):
        return images


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            layers.Lambda(lambda images: images),
            "Lambda layers, whose code is never run",
        ),
        (Unregistered(), "does not know the class 'Unregistered'"),
    ],
)
def test_a_file_with_code_of_its_own_is_an_error(layer, message, tmp_path):
    path = tmp_path / "mine.keras"
    keras.Sequential([keras.Input((SIZE, SIZE, 3)), layer]).save(path)
    with pytest.raises(UserError, match=message):
        Backbone(str(path), SIZE)


def test_a_file_that_is_no_model_is_an_error(tmp_path):
    path = tmp_path / "mine.keras"
    with pytest.raises(UserError, match=r"expected a \.keras file"):
        Backbone(str(path), SIZE)
    path.write_text("nothing")
    with pytest.raises(UserError, match=r"mine\.keras cannot be read as"):
        Backbone(str(path), SIZE)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("own", [0, 127.5, 255]),
        ("none", [0, 127.5, 255]),
        ("unit", [0, 0.5, 1]),
        ("tf", [-1, 0, 1]),
        ("torch", [-0.485 / 0.229, (0.5 - 0.456) / 0.224, (1 - 0.406) / 0.225]),
        ("caffe", [255 - 103.939, 127.5 - 116.779, -123.68]),
    ],
)
def test_preprocessing_can_be_chosen(mode, expected, tmp_path):
    path = tmp_path / "mine.keras"
    images = keras.Input((4, 4, 3))
    keras.Model(images, pixels(images)).save(path)
    backbone = Backbone(str(path), 4, preprocessing=mode)

    colour = np.broadcast_to(np.float32([0, 127.5, 255]), (1, 4, 4, 3))
    assert_close(backbone(colour)[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_fine_tuning_trains_a_share_of_the_weights(backbone):
    for share, count in ((1.0, 6), (0.5, 3), (0.0, 0)):
        backbone.unfreeze(share)
        assert len(backbone.trainable_weights) == count
    assert backbone.cnn.get_layer("grid").kernel is backbone.cnn.weights[-2]


def test_an_encoder_computes_in_the_current_precision(file):
    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        backbone = Backbone(file, SIZE)
    finally:
        keras.config.set_dtype_policy(policy)
    assert backbone.cnn.get_layer("grid").compute_dtype == "bfloat16"


@pytest.fixture(scope="module")
def folder(file, tmp_path_factory):
    config = ModelConfig(
        backbone="mine.keras", image_size=SIZE, units=7, attention_units=3, max_length=2
    )
    network = ShowAttendTell(
        dataclasses.replace(config, backbone=file), 6, backbone_weights="imagenet"
    )
    network.build()
    folder = tmp_path_factory.mktemp("models") / "mine"
    Captioner(config, Vocabulary(["red", "blue"]), network).save(folder)
    return folder


def test_a_model_folder_holds_its_encoder(folder, backbone):
    loaded = Captioner.from_preset(folder)

    # Weights are saved in half precision.
    expected = backbone(IMAGES)
    found = loaded.network.backbone(IMAGES)
    assert_close(found, expected, rtol=0.05, atol=0.02)
    assert loaded.network.backbone.encoder == backbone.encoder


def test_the_image_size_of_a_model_folder_can_be_changed(folder):
    loaded = Captioner.from_preset(folder, image_size=32)
    assert loaded.grid == (8, 8)


def test_averaged_models_share_their_encoder(folder):
    first, second = (Captioner.from_preset(folder) for _ in range(2))
    assert first.identity == second.identity
    backbone = second.network.backbone
    backbone.encoder = dataclasses.replace(backbone.encoder, scale=2.0)
    assert first.identity != second.identity


def test_averaged_models_may_differ_in_options_that_do_not_change_weights(folder):
    first = Captioner.from_preset(folder)
    other = Captioner.from_preset(folder, dropout=0.25, max_length=5, image_size=32)
    assert first.identity == other.identity


def test_a_model_folder_runs_no_code(folder, tmp_path):
    changed = shutil.copytree(folder, tmp_path / "changed")
    layer = layers.Lambda(lambda images: images)
    stored = json.loads((folder / ENCODER_FILE).read_text())
    stored["model"]["config"]["layers"][1] |= keras.saving.serialize_keras_object(layer)
    (changed / ENCODER_FILE).write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"backbone\.json is damaged"):
        Captioner.from_preset(changed)

    config = json.loads((folder / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps({"model": config["model"]}))
    with pytest.raises(UserError, match=r"mine\.keras cannot be built.* never run"):
        Captioner.from_preset(changed)


@pytest.mark.parametrize("name", ["mine.keras", "/mine.keras", "hub:hf://them/theirs"])
def test_a_model_folder_names_no_other_file(folder, tmp_path, monkeypatch, name):
    monkeypatch.setattr(backbones, "read_encoder", None)
    changed = shutil.copytree(folder, tmp_path / "changed")
    (changed / ENCODER_FILE).unlink()
    config = json.loads((folder / "config.json").read_text())
    model = {**config["model"], "backbone": name}
    (changed / "config.json").write_text(json.dumps({"model": model}))

    with pytest.raises(UserError, match=f"no backbone.json, which describes '{name}'"):
        Captioner.from_preset(changed)


def test_other_preprocessing_has_features_of_its_own(file, squares, tmp_path):
    paths = sorted((squares / "Images").glob("red-*.png"))[:1]
    whole, scaled = (
        cached_features(
            Backbone(file, SIZE, preprocessing=mode), paths, tmp_path, name="x"
        )
        for mode in ("own", "tf")
    )
    assert not np.array_equal(whole, scaled)


@pytest.mark.slow
def test_a_captioner_is_trained_on_a_file(file, squares, tmp_path):
    options = {
        "data": squares,
        "output": tmp_path / "run",
        "cache": tmp_path / "cache",
        "model.backbone": file,
        "model.image-size": SIZE,
        "epochs": 1,
        "fine-tune-epochs": 1,
        "self-critical-epochs": 1,
    }
    assert main(training(options)) == 0

    trained = tmp_path / "run" / "model"
    config = json.loads((trained / "config.json").read_text())
    assert config["model"]["backbone"] == "mine.keras"
    assert Captioner.from_preset(trained).caption(squares / "Images" / "red-0.png")


def test_names_of_encoders():
    assert is_encoder("folder/mine.keras")
    assert is_encoder("hub:dinov2_small")
    assert not is_encoder("MobileNetV2")
