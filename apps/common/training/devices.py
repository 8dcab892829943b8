"""Hosts, devices, seeds and precision of a training."""

import contextlib

import keras
from keras_attention_apps.common.cli import UserError
from keras_attention_apps.common.hosts import is_first_host, joined_hosts
from keras_attention_apps.common.lock import locked
from keras_attention_apps.common.network.compiling import computing_in


@contextlib.contextmanager
def training_context(config):
    """Connect the hosts, lock the output, set seed and precision, and distribute.

    Args:
        config: A `TrainConfig` of either program.

    Yields:
        The number of devices. The rows of every batch must be a multiple of it.
    """
    devices = config.devices
    with contextlib.ExitStack() as stack:
        stack.enter_context(joined_hosts(devices.hosts, devices.host_index))
        if is_first_host():
            stack.enter_context(locked(config.output))
        stack.enter_context(seeded(config.seed, config.precision))
        wanted = devices.distribute or devices.hosts is not None
        yield stack.enter_context(all_devices(wanted))


@contextlib.contextmanager
def seeded(seed, precision):
    """Seed all random generators, and set the precision inside the context.

    Args:
        seed: Integer.
        precision: Name of a Keras dtype policy.
    """
    keras.utils.set_random_seed(seed)
    with computing_in(precision):
        yield


@contextlib.contextmanager
def all_devices(wanted=True):
    """Distribute the training of models that are built in the context to all devices.

    Data parallelism: each device computes the gradients of its part of the batch, and
    they are added up.

    Args:
        wanted: `False` uses the first device alone.

    Yields:
        The number of devices. The rows of every batch must be a multiple of it.

    Raises:
        UserError: On PyTorch, which Keras does not distribute.
    """
    backend = keras.backend.backend()
    if not wanted:
        yield 1
    elif backend == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        with tf.distribute.MirroredStrategy(devices).scope():
            yield len(devices)
    elif backend == "jax":
        # Every process slices the batches itself.
        distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
        try:
            yield len(keras.distribution.list_devices())
        finally:
            keras.distribution.set_distribution(None)
    else:
        raise UserError(
            "training on all devices needs TensorFlow or JAX. Received: the backend "
            f"{backend!r}"
        )
