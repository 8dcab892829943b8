"""Training on several hosts, by one process or more on each, on JAX.

Every process builds the same model, from the same seed, and draws the same batches. In
a training step it computes the gradients of its rows of the batch, and JAX adds them up
over all processes. Searches are not distributed: every process computes the whole
result. Only the first process writes files and prints.
"""

import contextlib
import os
import re
import sys

import keras
from keras_attention_apps.common.cli import UserError, reason

# Heartbeat timeout in seconds, after which JAX considers a process lost.
HEARTBEAT_TIMEOUT = 30
# Seconds within which all processes must start, and must end.
START_TIMEOUT, END_TIMEOUT = 300, 30

_ADDRESS = re.compile(r".+:\d+")


def host_count():
    """Return the number of processes that train together."""
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return jax.process_count()


def host_index():
    """Return the index of this process among those that train together."""
    if keras.backend.backend() != "jax":
        return 0
    import jax

    return jax.process_index()


def is_first_host():
    """Return whether this process writes the files and prints the messages."""
    return host_index() == 0


def rows_of_host(count):
    """Return the slice of a batch of `count` rows on which this process trains."""
    rows = count // host_count()
    return slice(host_index() * rows, (host_index() + 1) * rows)


@contextlib.contextmanager
def without_distribution():
    """Disable the distribution of Keras on JAX inside the context.

    Inside it, every process computes, and creates variables, on its own, and inputs are
    not spread over the devices.
    """
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


def wait_for_hosts(place):
    """Wait until all processes have called this function for the same named place."""
    if host_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(place)


def broadcast_metrics(metrics):
    """Broadcast a dict of metrics from the first process to all, and return it.

    Different hardware rounds differently; a decision by these metrics, such as early
    stopping, must be the same in all processes.
    """
    if host_count() == 1:
        return metrics
    from jax.experimental import multihost_utils

    values = multihost_utils.broadcast_one_to_all([*map(float, metrics.values())])
    return dict(zip(metrics, map(float, values), strict=True))


@contextlib.contextmanager
def joined_hosts(addresses, index):
    """Connect the processes that train together, inside the context.

    If another process is lost, this one prints an error, and exits with code 2.

    Args:
        addresses: Addresses `host:port` of all processes, separated by commas; `auto`
            for those of a cluster that JAX detects; `None` for this process alone.
        index: Index of this process among them.

    Raises:
        UserError: If the backend is not JAX, an argument is invalid, or not all
            processes start.
    """
    if addresses is None:
        if index is not None:
            raise UserError(f"--host-index needs --hosts. Received: {index}")
        yield
        return
    options = _options(addresses, index)
    import jax

    if jax.config.jax_cpu_collectives_implementation is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
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
            if not _is_connection_error(error):
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
    hosts = addresses.split(",")
    if len(hosts) < 2 or not all(_ADDRESS.fullmatch(host) for host in hosts):
        raise UserError(
            "hosts must be auto, or at least two addresses host:port, separated by "
            f"commas. Received: {addresses!r}"
        )
    if index is None or not 0 <= index < len(hosts):
        raise UserError(
            f"host_index must be from 0 to {len(hosts) - 1}, the index of this process "
            f"in hosts. Received: {index}"
        )
    return {
        "coordinator_address": hosts[0],
        "num_processes": len(hosts),
        "process_id": index,
    }


def _is_connection_error(error):
    """Return whether an error of JAX comes from the connection to another process."""
    message = str(error)
    return any(
        word in message
        for word in ("Gloo", "gloo", "UNAVAILABLE", "heartbeat", "coordination")
    )


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
