"""Addresses of hosts, their rows, and the optimizer on two devices."""

import os
import subprocess
import sys
from textwrap import dedent

import keras
import numpy as np
import pytest

from keras_attention_apps.common import distribution

from .conftest import refused

TWO = "10.0.0.1:1234,10.0.0.2:1234"


@pytest.mark.parametrize(
    ("backend", "addresses", "index", "message"),
    [
        ("jax", "10.0.0.1:1234", 0, "at least two addresses.*'10.0.0.1:1234'"),
        ("jax", "10.0.0.1:1234,10.0.0.2", 0, "at least two addresses"),
        ("jax", TWO, None, "from 0 to 1.*None"),
        ("jax", TWO, 2, "from 0 to 1.*2"),
        ("jax", None, 1, "--host-index needs --hosts.*1"),
        ("torch", TWO, 0, "'torch'"),
    ],
)
def test_hosts_need_jax_and_an_index(backend, addresses, index, message, monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    refused(distribution.joined_hosts(addresses, index), message)


def test_several_devices_need_tensorflow_or_jax(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    refused(distribution.all_devices(), "TensorFlow or JAX.*'torch'")


def test_the_rows_of_all_hosts_are_the_whole_batch(monkeypatch):
    parts = []
    for index in range(3):
        monkeypatch.setattr(distribution, "hosts", lambda index=index: (index, 3))
        parts.append(np.arange(12)[distribution.rows_of_host(12)])

    np.testing.assert_array_equal(parts, np.arange(12).reshape(3, 4))


# Devices can be made only before any is used. Rows and gradients of the two replicas
# differ, and the gradient is clipped.
PROGRAM = dedent(
    """
    import keras
    import numpy as np
    import tensorflow as tf
    from keras_attention_apps.common.distribution import AdamW

    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, parts)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    inputs = np.array([[1, 0], [2, 1], [0, 5], [3, 7]], "int32")
    targets = np.array([[1], [-2], [30], [40]], "float32")
    for devices in (1, 2):
        keras.utils.set_random_seed(3)
        with tf.distribute.MirroredStrategy(names[:devices]).scope():
            dense = keras.layers.Dense(1, dtype="float32")
            layers = [keras.layers.Embedding(8, 3), keras.layers.Flatten(), dense]
            model = keras.Sequential(layers)
            optimizer = AdamW(0.1, global_clipnorm=0.5, epsilon=0.1, use_ema=True)
            model.compile(optimizer, "mse")
        for _ in range(3):
            model.train_on_batch(inputs, targets)
        print(*np.concatenate([x.numpy().ravel() for x in model.trainable_variables]))
    """
)


@pytest.mark.exhaustive
def test_the_gradient_of_the_global_batch_is_clipped():
    pytest.importorskip("tensorflow")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    on_one_device, on_two_devices = (
        np.fromstring(x, sep=" ") for x in done.stdout.splitlines()[-2:]
    )

    assert len(on_one_device) == 8 * 3 + 2 * 3 + 1
    np.testing.assert_allclose(on_two_devices, on_one_device, rtol=1e-5, atol=1e-5)
