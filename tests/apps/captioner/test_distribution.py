import pytest

from attention_testing import distributed
from attention_testing.captioner.trainings import SIZES
from attention_testing.programs import training

# They take minutes: several processes, each of which compiles.
pytestmark = pytest.mark.slow

# On TensorFlow, dropout draws other numbers on each of several devices.
OPTIONS = {
    "backbone-weights": "none",
    "min-count": 1,
    # The last batch is padded on two devices, and so are the others.
    "batch-images": 5,
    "epochs": 3,
    "fine-tune-epochs": 1,
    "fine-tune-dropout": 0,
    "self-critical-epochs": 1,
    **{f"model.{name}": value for name, value in SIZES.items()},
    "model.image-size": 16,
    "model.max-length": 6,
    "model.dropout": 0,
}


@pytest.fixture(scope="module")
def train(squares, tmp_path_factory):
    """Function that trains on devices and hosts, and returns the figures."""

    def trained(backend, devices=1, hosts=1, **changes):
        folder = tmp_path_factory.mktemp("training")
        options = training(OPTIONS, data=squares, cache=folder, **changes)
        return distributed.trained(
            folder / "run", "captioner", options, backend, devices, hosts
        )

    return trained


@pytest.fixture(scope="module")
def on_two_hosts(train):
    return train("jax", hosts=2)


@pytest.mark.parametrize("backend", distributed.BACKENDS)
def test_two_devices_have_the_losses_of_one(backend, train, on_one_device):
    two = train(backend, devices=2)

    distributed.assert_equal(two, on_one_device[backend], 1e-4)


def test_two_hosts_have_the_losses_of_one(on_two_hosts, on_one_device):
    distributed.assert_equal(on_two_hosts, on_one_device["jax"], 1e-4)


def test_hard_attention_has_the_losses_of_one_device_on_jax(train):
    # Draws have the size of the batch, which must be a multiple of the devices.
    options = {"attention": "hard", "batch-images": 4}
    on_one_device, on_two_devices = (
        train("jax", devices, **options) for devices in (1, 2)
    )

    distributed.assert_equal(on_two_devices, on_one_device, 1e-4)


def test_hard_attention_trains_on_two_devices_of_tensorflow(train):
    assert len(train("tensorflow", 2, attention="hard")) == 5


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_host_ends_the_others_and_the_training_continues(
    victim, on_two_hosts, squares, tmp_path
):
    options = training(OPTIONS, data=squares, cache=tmp_path)
    run = tmp_path / "run", "captioner", options, "jax"

    output = distributed.killed(*run, 2, victim)
    again = distributed.trained(*run, 1, 2)

    assert "another process" in output or "another task died" in output
    distributed.assert_equal(again, on_two_hosts, 1e-5)
