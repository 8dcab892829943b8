import numpy as np
import pytest
from keras_attention_apps.common.training.schedules import SamplingRate


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("constant", [0.3, 0.3, 0.3, 0.3]),
        ("linear", [0, 0.15, 0.3, 0.3]),
        # With k log(k) = 500, the first value is 0.3 / (1 + k).
        ("inverse-sigmoid", [0.00273, 0.15, 0.29727, 0.29999]),
    ],
)
def test_rates_worked_by_hand(kind, expected):
    rate = SamplingRate(kind, 0.3, 1000)
    found = [float(rate(step)) for step in (0, 500, 1000, 2000)]

    np.testing.assert_allclose(found, expected, atol=3e-4)


@pytest.mark.parametrize("kind", ["constant", "linear", "inverse-sigmoid"])
@pytest.mark.parametrize("steps", [1, 2, 10**6])
def test_rates_of_any_training_are_probabilities(kind, steps):
    rate = SamplingRate(kind, 1.0, steps)
    found = [float(rate(int(step))) for step in np.linspace(0, 3 * steps, 9)]

    assert np.all(np.diff(found) >= 0) and found[0] >= 0 and found[-1] <= 1
