"""Trainings in processes of their own, on several devices or as several hosts."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from textwrap import dedent

import pytest

BACKENDS = ["tensorflow", "jax"]

# Devices can be made only before any is used.
PROGRAM = dedent(
    """
    import sys
    import keras
    from keras_attention_apps.{}.main import main

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * {}
        tf.config.set_logical_device_configuration(cpu, parts)
    sys.exit(main(sys.argv[1:]))
    """
)


class Lazily(dict):
    """A dict that computes each value from its key at the first access."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, key):
        self[key] = self.make(key)
        return self[key]


@pytest.fixture(scope="module")
def on_one_device(train):
    """A dict from backends to the figures of a training on one device.

    The fixture `train` trains on a backend.
    """
    return Lazily(train)


def assert_equal(actual, expected, tolerance):
    """Compare the figures of all epochs of two trainings."""
    for figure, reference in zip(actual, expected, strict=True):
        same = figure == pytest.approx(reference, rel=tolerance, abs=tolerance)
        assert same, f"{figure} != {reference}"


def environment(backend, devices):
    """Return the environment of a process that makes devices of the processor."""
    pytest.importorskip(backend)
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        # Threads of JAX. With only one per device, a step may wait for ever.
        "NPROC": "8",
    }


def start(program, arguments, backend, devices=1, hosts=1):
    """Start the processes of a training, and return them."""
    arguments = [*arguments, *(["--distribute"] if devices > 1 else [])]
    if hosts > 1:
        names = ",".join(f"localhost:{free_port()}" for _ in range(hosts))
        arguments += ["--hosts", names]
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM.format(program, devices), *arguments),
                *(["--host-index", str(index)] if hosts > 1 else []),
            ],
            env=environment(backend, devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(hosts)
    ]


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def history(output):
    """Return the figures of all epochs of a training."""
    progress = (output / "checkpoints" / "progress.json").read_text()
    return json.loads(progress)["history"]


def trained(output, program, arguments, *way):
    """Train until the end, and return the figures of all epochs."""
    for process in start(program, [*arguments, "--output", str(output)], *way):
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
    return history(output)


def killed(output, program, arguments, backend, hosts, victim):
    """Kill one of several hosts in the middle; return what the last one says."""
    arguments = [*arguments, "--output", str(output)]
    processes = start(program, arguments, backend, 1, hosts)
    until = time.monotonic() + 400
    while not (output / "checkpoints" / "previous.json").exists():
        assert time.monotonic() < until
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    processes.pop(victim).send_signal(signal.SIGKILL)
    [other] = processes
    _, errors = other.communicate(timeout=60)
    assert other.returncode != 0
    return errors
