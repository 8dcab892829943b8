import distributed
import pytest

pytestmark = pytest.mark.exhaustive

# On TensorFlow, dropout draws other numbers on each of several devices.
OPTIONS = {
    "backbone-weights": "none",
    "min-count": 1,
    "batch-images": 4,
    "epochs": 2,
    "fine-tune-epochs": 1,
    "fine-tune-dropout": 0,
    "self-critical-epochs": 1,
    "model.backbone": "SmallCNN",
    "model.image-size": 16,
    "model.region-units": 11,
    "model.embedding-units": 7,
    "model.units": 13,
    "model.attention-units": 5,
    "model.max-length": 6,
    "model.dropout": 0,
}


def arguments(squares, folder, **changes):
    options = {"data": squares, "cache": folder / "cache", **OPTIONS, **changes}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ["train", *map(str, flags)]


@pytest.fixture(scope="module")
def on_one_device(squares, tmp_path_factory):
    """A dict from backends to the figures of a training on one device."""
    folder = tmp_path_factory.mktemp("one")
    return distributed.Lazily(
        lambda backend: distributed.trained(
            folder / backend, "captioner", arguments(squares, folder), backend
        )
    )


@pytest.mark.parametrize("way", distributed.WAYS)
def test_all_phases_have_the_losses_of_one_device(
    way, on_one_device, squares, tmp_path
):
    options = arguments(squares, tmp_path)

    found = distributed.trained(tmp_path / "several", "captioner", options, *way)

    for one, several in zip(on_one_device[way[0]], found, strict=True):
        assert several == pytest.approx(one, rel=1e-4, abs=1e-4)


def test_hard_attention_has_the_losses_of_one_device_on_jax(squares, tmp_path):
    options = arguments(squares, tmp_path, attention="hard", epochs=1)

    one = distributed.trained(tmp_path / "one", "captioner", options, "jax")
    two = distributed.trained(tmp_path / "two", "captioner", options, "jax", 2)

    for first, second in zip(one, two, strict=True):
        assert second == pytest.approx(first, rel=1e-4, abs=1e-4)


def test_hard_attention_learns_on_two_devices_of_tensorflow(squares, tmp_path):
    options = arguments(squares, tmp_path, attention="hard", epochs=1)

    found = distributed.trained(tmp_path / "two", "captioner", options, "tensorflow", 2)

    assert len(found) == 3


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_host_ends_the_others_and_the_training_continues(
    victim, squares, tmp_path
):
    options = arguments(squares, tmp_path, epochs=5)
    whole = distributed.trained(tmp_path / "whole", "captioner", options, "jax", 1, 2)

    said = distributed.killed(
        tmp_path / "killed", "captioner", options, "jax", 2, victim
    )
    again = distributed.trained(tmp_path / "killed", "captioner", options, "jax", 1, 2)

    assert "another process" in said or "another task died" in said
    for one, other in zip(whole, again, strict=True):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-5)
