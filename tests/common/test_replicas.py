"""The optimizer on two devices, in a process of its own."""

import os
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

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
            model = keras.Sequential(
                [
                    keras.layers.Embedding(8, 3),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, dtype="float32"),
                ]
            )
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
    one, two = (np.fromstring(x, sep=" ") for x in done.stdout.splitlines()[-2:])

    assert len(one) == 8 * 3 + 2 * 3 + 1
    np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)
