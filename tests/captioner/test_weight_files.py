"""Files of weights, those of PyTorch among them."""

import pathlib
import pickle
import tracemalloc

import keras
import numpy as np
import pytest
from keras import layers
from keras_attention_apps.captioner.network.weight_files import (
    load_weights,
    read_checkpoint,
)
from keras_attention_apps.common.errors import UserError

from .torch_files import MAGIC_NUMBER, write_checkpoint


@pytest.fixture
def cnn():
    return keras.Sequential(
        [
            keras.Input((5, 5, 2)),
            layers.Conv2D(3, 1, use_bias=False, name="conv_stem"),
            layers.BatchNormalization(name="bn0"),
            layers.DepthwiseConv2D(2, use_bias=False, name="blocks_0_depthwise_conv"),
        ],
        name="tiny",
    )


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    shapes = {"conv_stem/kernel": (1, 1, 2, 3)}
    for name in ("gamma", "beta", "moving_mean", "moving_variance"):
        shapes[f"bn0/{name}"] = (3,)
    shapes["blocks.0.depthwise_conv/kernel"] = (2, 2, 3, 1)
    return {name: random.random(s).astype("float32") for name, s in shapes.items()}


def check(cnn, arrays):
    for weight, array in zip(cnn.get_weights(), arrays.values(), strict=True):
        np.testing.assert_array_equal(weight, array)


def test_arrays_of_numpy(cnn, arrays, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    load_weights(cnn, tmp_path / "a.npz")
    check(cnn, arrays)


def test_a_checkpoint_of_pytorch(cnn, arrays, tmp_path):
    kernel, gamma, beta, mean, variance, depthwise = arrays.values()
    tensors = {
        # (out, in, height, width): a view of the kernel, so not contiguous.
        "_conv_stem.weight": kernel.transpose(3, 2, 0, 1),
        "_bn0.weight": gamma,
        "_bn0.bias": beta,
        "_bn0.running_mean": mean,
        "_bn0.running_var": variance,
        "_bn0.num_batches_tracked": np.array(5),
        "_blocks.0._depthwise_conv.weight": depthwise.transpose(2, 3, 0, 1),
        "_fc.bias": np.zeros(3, "float32"),
    }
    write_checkpoint(tmp_path / "a.pth", tensors)
    load_weights(cnn, tmp_path / "a.pth")
    check(cnn, arrays)


@pytest.mark.parametrize("shape", [None, (4,)])
def test_a_file_lacks_a_weight(cnn, arrays, tmp_path, shape):
    arrays.pop("bn0/beta")
    if shape:
        arrays["bn0/beta"] = np.zeros(shape)
    before = cnn.get_weights()
    np.savez(tmp_path / "a.npz", **arrays)

    with pytest.raises(UserError) as raised:
        load_weights(cnn, tmp_path / "a.npz")
    expected = r"shape (3,) for bn0/beta of tiny in "
    assert expected in str(raised.value)
    assert str(raised.value).endswith(f"Received: {shape or 'none'}")
    np.testing.assert_array_equal(cnn.get_weights()[0], before[0])


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


def test_tensors_have_offsets_and_strides(tmp_path):
    storage = np.arange(12, dtype="float32")
    write_checkpoint(
        tmp_path / "a.pth",
        {
            "rows": (storage, 1, (2, 3), (5, 1)),
            "columns": (storage, 0, (3, 2), (1, 6)),
            "count": (np.array([7]), 0, (), ()),
        },
    )
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
