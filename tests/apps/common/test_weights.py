import io
import zipfile

import keras
import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.files import at_most
from keras_attention_apps.common.models import loading
from keras_attention_apps.common.network.weights import (
    check_weights,
    load_model,
    save_model,
)


def small_model():
    dense = [keras.layers.Dense(7), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((3,)), *dense])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.weights.npz"
    save_model(small_model(), path)
    return path


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_half_precision_weights_load_into_a_full_precision_model(saved):
    model = small_model()
    # A value beyond float16, one that rounding would carry beyond it, and a tie.
    extreme = np.array([1e6, -65504, 65503, 0, 1 + 1 / 256, 1 + 3 / 256, 1e-7])
    first, bias, *rest = model.get_weights()
    model.set_weights([first, extreme.astype(bias.dtype), *rest])
    save_model(model, saved)
    again = small_model()
    load_model(again, saved)

    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        assert theirs.dtype == ours.dtype
        normal = np.abs(ours) < 65000
        # Half a unit of the eighth bit, and before that of the eleventh.
        rtol = 1 / 256 + 1 / 2048
        np.testing.assert_allclose(theirs[normal], ours[normal], rtol=rtol, atol=1e-6)
    expected = [np.inf, -65504, 65504, 0, 1, 1 + 4 / 256, 0]
    np.testing.assert_array_equal(again.get_weights()[1], expected)
    assert [p.name for p in saved.parent.iterdir()] == ["model.weights.npz"]


def test_numpy_reads_the_bytes_of_the_weights_without_the_optimizer(saved):
    model = small_model()
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    # 1.5 and -2 are 0x3e00 and 0xc000 in float16.
    model.set_weights([*model.get_weights()[:3], np.array([1.5, -2])])
    save_model(model, saved)

    with np.load(saved, allow_pickle=False) as file:
        assert list(file) == ["0000", "0001", "0002", "0003"]
        *others, last = file.values()
    # One array for the high bytes, and one for the low bytes.
    assert [x.shape for x in others] == [(2, 3, 7), (2, 7), (2, 7, 2)]
    assert last.dtype == "uint8" and last.tolist() == [[0x3E, 0xC0], [0, 0]]


def test_equal_weights_are_equal_files(saved, monkeypatch):
    model = small_model()
    load_model(model, saved)
    before = saved.read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    save_model(model, saved)

    assert saved.read_bytes() == before


def test_a_model_on_a_full_disk_leaves_no_file(tmp_path, full_disk):
    with full_disk(), pytest.raises(OSError) as reported:
        save_model(small_model(), tmp_path / "model.weights.npz")
    assert reported.value.errno
    assert list(tmp_path.iterdir()) == []


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BIAS = np.zeros((2, 2), "uint8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0003.npy": None}, "0003.npy of 132 bytes. Received: none in model.weights"),
        ({"0004.npy": npy(BIAS)}, "none. Received: 0004.npy of 132 bytes"),
        ({"0003.npy": None, "mine.npy": npy(BIAS)}, "Received: mine.npy of 132 bytes"),
        ({"0003.npy": npy(BIAS[:, :1])}, "0003.npy of 132 bytes.*3.npy of 130 bytes"),
        # A bomb of a few kilobytes.
        ({"0003.npy": bytes(9_000_000)}, "Received: 0003.npy of 9,000,000 bytes"),
        ({"0003.npy": npy(BIAS.reshape(1, 4))}, "'shape': .2, 2.*'shape': .1, 4"),
        ({"0003.npy": npy(BIAS.view("int8"))}, "Received: .*'descr': '.i1'"),
        ({"0003.npy": npy(BIAS[0].view("float16")).ljust(132)}, "Received: .*<f2"),
    ],
)
def test_an_archive_of_other_arrays_is_one_line(saved, changes, message):
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**members, **changes}.items():
            if content is not None:
                archive.writestr(name, content)

    with pytest.raises(UserError, match=message):
        load_model(small_model(), saved)


def test_a_flipped_bit_is_one_line_or_harmless(saved):
    content, model = saved.read_bytes(), small_model()
    load_model(model, saved)
    expected = model.get_weights()
    # Every third byte, and every bit of a byte in turn.
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        saved.write_bytes(damaged)
        try:
            # As every model is loaded: errors of the system, too, are one line.
            with loading(saved, "parser"):
                load_model(model, saved)
        except UserError:
            continue
        # Dates and permissions, for example.
        for ours, theirs in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_weights_are_counted_before_a_network_is_built(saved):
    check_weights(saved, fewest=44)
    with pytest.raises(UserError, match=r"at least 45 weights.* Received: 44 in model"):
        check_weights(saved, fewest=45)


def test_the_limit_holds_for_what_an_archive_expands_to(saved):
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0000.npy", bytes(100_000))
    assert saved.stat().st_size < 1000
    with at_most(99_999), pytest.raises(UserError, match="has more than 99,999 bytes"):
        check_weights(saved)
