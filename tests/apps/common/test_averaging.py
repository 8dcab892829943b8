"""Models averaged: the mean of their weights, of one kind only."""

from pathlib import Path

import numpy as np
import pytest

from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.task import average_models


class Model:
    """A stand-in for a `Task`, with a network and an identity."""

    def __init__(self, weights, units=7):
        self.identity = {"layers": 2, "units": units}
        self.network = self
        self.set_weights(weights)

    def check_single(self, purpose):
        """It is never an ensemble."""

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = [np.asarray(x, "float32") for x in weights]


@pytest.fixture
def models():
    return {
        "a": Model([[1.0, 2.0], 3.0]),
        "b": Model([[3.0, 4.0], 6.0]),
        "c": Model([[5.0, 9.0], 0.0]),
        "large": Model([[1.0, 2.0], 3.0], units=11),
    }


def test_the_mean_of_the_weights(models):
    vector, scalar = average_models(["a", "b", "c"], models.get).network.get_weights()
    assert [*vector, scalar] == pytest.approx([3.0, 5.0, 3.0])
    assert vector.dtype == np.float32


def test_sums_are_more_exact_than_the_weights():
    numbers = {str(i): Model([[x]]) for i, x in enumerate([1e8, 1.0, -1e8])}
    mean = average_models(list(numbers), numbers.get)
    assert mean.network.get_weights()[0] == pytest.approx(1 / 3, rel=1e-6)


def test_another_kind_and_no_models_are_refused(models):
    with pytest.raises(UserError, match="large and a differ in units: 11 and 7"):
        average_models([Path("a"), Path("large")], lambda path: models[path.name])
    assert models["a"].weights[1] == 3.0
    with pytest.raises(UserError, match="at least one folder of a model"):
        average_models([], models.get)
