import pytest

from attention_testing import distributed
from attention_testing.nmt.trainings import PLAN, SIZES
from attention_testing.programs import training

# They take minutes: several processes, each of which compiles.
pytestmark = pytest.mark.slow

# On TensorFlow, dropout draws other numbers on each of several devices.
NO_DROPOUT = {f"model.{x}": 0 for x in ("dropout", "context-dropout", "output-dropout")}
OPTIONS = {"pair": "en-fr", **SIZES, **PLAN, **NO_DROPOUT}
OPTIONS |= {"epochs": 2, "self-critical-epochs": 1}


@pytest.fixture(scope="module")
def train(corpus, tmp_path_factory):
    """Function that trains on devices and hosts, and returns the figures."""

    def trained(backend, devices=1, hosts=1):
        folder = tmp_path_factory.mktemp("training")
        options = training(OPTIONS, data=corpus)
        return distributed.trained(
            folder / "run", "nmt", options, backend, devices, hosts
        )

    return trained


@pytest.mark.parametrize("backend", distributed.BACKENDS)
def test_two_devices_have_the_losses_of_one(backend, train, on_one_device):
    two = train(backend, devices=2)
    # On JAX, rounding may change a sample of self-critical training.
    tolerance = 1e-4 if backend == "tensorflow" else 1e-3
    distributed.assert_equal(two, on_one_device[backend], tolerance)


def test_two_hosts_have_the_losses_of_one(train, on_one_device):
    distributed.assert_equal(train("jax", hosts=2), on_one_device["jax"], 1e-3)
