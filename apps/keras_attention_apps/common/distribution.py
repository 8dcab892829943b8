"""Training on several devices and on several hosts."""

import contextlib
import os
import re
import sys

import keras
import numpy as np
from keras import ops

from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.files import locked
from keras_attention_apps.common.network.decoder_network import computing_in, rounded_up

# Heartbeat timeout in seconds, after which JAX considers a process lost.
HEARTBEAT_TIMEOUT = 30
# Seconds within which all processes must start, and must end.
START_TIMEOUT, END_TIMEOUT = 300, 30
# Words in those errors of JAX that come from the connection to another process.
_CONNECTION_ERRORS = ("Gloo", "gloo", "UNAVAILABLE", "heartbeat", "coordination")

_ADDRESS = re.compile(r".+:\d+")


def hosts():
    """Return the index of this process, and the number of those that train together."""
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def is_first_host():
    """Return whether this process writes the files and prints the messages."""
    return hosts()[0] == 0


def rows_of_host(count):
    """Return the slice of a batch of `count` rows on which this process trains."""
    index, number = hosts()
    rows = count // number
    return slice(index * rows, (index + 1) * rows)


@contextlib.contextmanager
def without_distribution():
    """Let every process compute and create variables on its own, on JAX."""
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


def on_first_host(function, *arguments, **options):
    """Call a function that writes files, in the first process only."""
    if is_first_host():
        # Keras creates variables when it saves a model.
        with without_distribution():
            function(*arguments, **options)


def wait_for_hosts(barrier):
    """Wait until all processes have called this function with the same name."""
    if hosts()[1] > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(barrier)


def broadcast_metrics(metrics):
    """Return the metrics of the first process, a dict, in all processes.

    Different hardware rounds differently; a decision by them must be the same in all.
    """
    if hosts()[1] == 1:
        return metrics
    from jax.experimental import multihost_utils

    values = multihost_utils.broadcast_one_to_all([*map(float, metrics.values())])
    return dict(zip(metrics, map(float, values), strict=True))


@contextlib.contextmanager
def joined_hosts(addresses, index):
    """Connect the processes that train together, inside the context.

    If another process is lost, this one prints an error, and exits with code 2.
    """
    if addresses is None:
        if index is not None:
            raise UserError(f"--host-index needs --hosts. Received: {index}")
        yield
        return
    options = _options(addresses, index)
    import jax

    collectives = "jax_cpu_collectives_implementation"
    if getattr(jax.config, collectives) is None:
        jax.config.update(collectives, "gloo")
    try:
        jax.distributed.initialize(
            **options,
            initialization_timeout=START_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=END_TIMEOUT,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"cannot connect the processes of hosts={addresses!r}: {reason(error)}"
        ) from error
    with contextlib.ExitStack() as stack:
        if not is_first_host():
            silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(silent))
        try:
            yield
            wait_for_hosts("end")
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            if not any(word in str(error) for word in _CONNECTION_ERRORS):
                raise
            _end_process(reason(error))
    jax.distributed.shutdown()


def _options(addresses, index):
    """Return the arguments of `jax.distributed.initialize`."""
    if keras.backend.backend() != "jax":
        raise UserError(
            "training on several hosts needs JAX (KERAS_BACKEND=jax). Received: the "
            f"backend {keras.backend.backend()!r}"
        )
    if addresses == "auto":
        return {"process_id": index}
    host_addresses = addresses.split(",")
    if len(host_addresses) < 2 or not all(
        _ADDRESS.fullmatch(address) for address in host_addresses
    ):
        raise UserError(
            "hosts must be auto, or at least two addresses host:port, separated by "
            f"commas. Received: {addresses!r}"
        )
    if index is None or not 0 <= index < len(host_addresses):
        raise UserError(
            f"host_index must be from 0 to {len(host_addresses) - 1}, the index of "
            f"this process in hosts. Received: {index}"
        )
    options = {
        "coordinator_address": host_addresses[0],
        "num_processes": len(host_addresses),
    }
    return {**options, "process_id": index}


def _end_process(problem):
    """End this process at once, since JAX would wait for the lost one."""
    print(
        f"\nerror: another process of this training was lost: {problem}. Start all "
        "processes again with the same commands: the training continues from its last "
        "checkpoint",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)


@contextlib.contextmanager
def training_context(config):
    """Connect the hosts, lock the output, set seed and precision, and distribute.

    Yields the number of devices, of which the rows of every batch must be a multiple.
    """
    devices = config.devices
    with contextlib.ExitStack() as stack:
        stack.enter_context(joined_hosts(devices.hosts, devices.host_index))
        if is_first_host():
            stack.enter_context(locked(config.output))
        keras.utils.set_random_seed(config.seed)
        stack.enter_context(computing_in(config.precision))
        wanted = devices.distribute or devices.hosts is not None
        yield stack.enter_context(all_devices(wanted))


@contextlib.contextmanager
def all_devices(wanted=True):
    """Distribute the training of models that are built in the context to all devices.

    Each device computes the gradients of its part of the batch. Yields their number.
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
        with keras.distribution.DataParallel(auto_shard_dataset=False).scope():
            yield len(keras.distribution.list_devices())
    else:
        raise UserError(
            "training on all devices needs TensorFlow or JAX. Received: the backend "
            f"{backend!r}"
        )


def share_of_replica(count):
    """Return the share of this replica in the items of the global batch.

    The losses of all replicas, which are means over `count` items, times these shares
    add up to the mean over the global batch. Keras adds up their gradients likewise.
    """
    replica = _replica()
    if replica is None:
        return ops.ones_like(count)
    total = replica.all_reduce("SUM", count)
    return count / ops.maximum(total, 1)


class AdamW(keras.optimizers.AdamW):
    """AdamW that clips the gradient of the global batch.

    On TensorFlow, Keras clips the gradients of each replica and adds up the results;
    this optimizer clips the sum. Create it in the scope of the strategy.
    """

    def __init__(self, learning_rate, *, global_clipnorm, **options):
        # Each replica clips the mean of the gradients, and Keras adds up the results of
        # all replicas, so that the norm grows by their number.
        clipnorm = global_clipnorm / _replica_count()
        super().__init__(learning_rate, global_clipnorm=clipnorm, **options)

    def apply(self, grads, trainable_variables=None):
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            # In a sparse gradient the norm would count repeated rows one by one.
            dense = [tf.convert_to_tensor(x) for x in grads if x is not None]
            replica = _replica()
            if replica is not None:
                dense = replica.all_reduce("MEAN", dense)
            averaged = iter(dense)
            grads = [None if x is None else next(averaged) for x in grads]
        super().apply(grads, trainable_variables)


def _replica():
    """Return TensorFlow's context of this replica; `None` if there are no others."""
    if _replica_count() == 1:
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()


def _replica_count():
    """Return the number of replicas of TensorFlow's strategy; 1 elsewhere."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def with_rows(array, count):
    """Return an array with more rows, which repeat the last one."""
    missing = count - len(array)
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


def predict_rows(model, inputs, multiple=1):
    """Return the outputs of `model.predict_on_batch` for exactly the rows of a batch.

    Each device computes the whole batch; the outputs of the first are kept.
    """
    rows = len(keras.tree.flatten(inputs)[0])
    count = rounded_up(rows, multiple)
    if count > rows:
        inputs = keras.tree.map_structure(lambda x: with_rows(x, count), inputs)
    with without_distribution():
        outputs = model.predict_on_batch(inputs)
    return keras.tree.map_structure(lambda x: x[:rows], outputs)
