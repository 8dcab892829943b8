import distributed
import pytest

pytestmark = pytest.mark.exhaustive

# On TensorFlow, dropout draws other numbers on each of several devices.
OPTIONS = {
    "pair": "en-fr",
    "vocabulary-size": 340,
    "batch-tokens": 300,
    "min-steps": 1,
    "epochs": 2,
    "self-critical-epochs": 1,
    "average": 2,
    "learning-rate": 1e-2,
    "warm-up": 3,
    "model.embedding-units": 12,
    "model.units": 14,
    "model.encoder-units": 7,
    "model.attention-units": 5,
    "model.encoder-layers": 1,
    "model.decoder-layers": 1,
    "model.max-length": 20,
    "model.dropout": 0,
}


def arguments(corpus, **changes):
    options = {"data": corpus, **OPTIONS, **changes}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ["train", *map(str, flags)]


@pytest.fixture(scope="module")
def on_one_device(corpus, tmp_path_factory):
    """A dict from backends to the figures of a training on one device."""
    folder = tmp_path_factory.mktemp("one")
    return distributed.Lazily(
        lambda backend: distributed.trained(
            folder / backend, "nmt", arguments(corpus), backend
        )
    )


@pytest.mark.parametrize("way", distributed.WAYS)
def test_all_phases_have_the_losses_of_one_device(way, on_one_device, corpus, tmp_path):
    found = distributed.trained(tmp_path / "several", "nmt", arguments(corpus), *way)

    for one, several in zip(on_one_device[way[0]], found, strict=True):
        assert several == pytest.approx(one, rel=1e-3, abs=1e-3)


@pytest.mark.slow
def test_a_killed_host_ends_the_others_and_the_training_continues(corpus, tmp_path):
    options = arguments(corpus, epochs=5)
    whole = distributed.trained(tmp_path / "whole", "nmt", options, "jax", 1, 2)

    said = distributed.killed(tmp_path / "killed", "nmt", options, "jax", 2, 1)
    again = distributed.trained(tmp_path / "killed", "nmt", options, "jax", 1, 2)

    assert "another process" in said or "another task died" in said
    for one, other in zip(whole, again, strict=True):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-5)
