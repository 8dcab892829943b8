import pathlib
import pickle
import tracemalloc

import numpy as np
import pytest
from keras_attention_apps.captioner.network.weight_files import read_checkpoint

from .torch_files import MAGIC_NUMBER, write_checkpoint


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
