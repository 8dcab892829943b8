import keras
import numpy as np
import pytest
from keras_attention_apps.common import distribution
from keras_attention_apps.common.distribution import all_devices
from keras_attention_apps.common.errors import UserError

TWO = "10.0.0.1:1234,10.0.0.2:1234"


def on(backend, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)


@pytest.mark.parametrize(
    ("addresses", "index", "message"),
    [
        ("10.0.0.1:1234", 0, "at least two addresses.*'10.0.0.1:1234'"),
        ("10.0.0.1:1234,10.0.0.2", 0, "at least two addresses"),
        (TWO, None, "from 0 to 1.*None"),
        (TWO, 2, "from 0 to 1.*2"),
        (None, 1, "--host-index needs --hosts.*1"),
    ],
)
def test_addresses_and_index_belong_together(addresses, index, message, monkeypatch):
    on("jax", monkeypatch)
    with (
        pytest.raises(UserError, match=message),
        distribution.joined_hosts(addresses, index),
    ):
        pass


def test_several_hosts_need_jax(monkeypatch):
    on("torch", monkeypatch)
    with pytest.raises(UserError, match="'torch'"), distribution.joined_hosts(TWO, 0):
        pass


def test_several_devices_need_tensorflow_or_jax(monkeypatch):
    on("torch", monkeypatch)
    with pytest.raises(UserError, match=r"TensorFlow or JAX.*'torch'"), all_devices():
        pass


def test_the_rows_of_all_hosts_are_the_whole_batch(monkeypatch):
    monkeypatch.setattr(distribution, "host_count", lambda: 3)
    rows = np.arange(12)
    parts = []
    for index in range(3):
        monkeypatch.setattr(distribution, "host_index", lambda index=index: index)
        parts.append(rows[distribution.rows_of_host(12)])

    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert {len(part) for part in parts} == {4}
