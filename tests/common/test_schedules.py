import keras
import numpy as np
import pytest
from keras_attention_apps.common.training.schedules import WarmUp


def test_the_rate_rises_and_falls():
    rates = [float(WarmUp("inverse-square-root", 2.0, 4, 99)(t)) for t in (0, 3, 15)]
    np.testing.assert_allclose(rates, [0.5, 2.0, 1.0], rtol=1e-6)

    rates = [float(WarmUp("cosine", 2.0, 4, 8)(t)) for t in (1, 3, 5, 7)]
    np.testing.assert_allclose(rates, [1.0, 2.0, 1.0, 0.0], atol=1e-6)

    rates = [float(WarmUp("constant", 2.0, 0, 8)(t)) for t in (0, 7)]
    np.testing.assert_allclose(rates, [2.0, 2.0], rtol=1e-6)


@pytest.mark.parametrize("warm_up", [0, 1, 3])
def test_from_step_zero_the_cosine_is_that_of_keras(warm_up):
    steps, peak = 7, 2.0
    schedule = WarmUp("cosine", peak, warm_up, steps, start=peak / 100, first=0)
    reference = keras.optimizers.schedules.CosineDecay(
        peak / 100, steps - warm_up, warmup_target=peak, warmup_steps=warm_up
    )

    rates = [float(schedule(step)) for step in range(steps)]
    expected = [float(reference(step)) for step in range(steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


def test_a_schedule_comes_back_from_its_config():
    schedule = WarmUp("cosine", 2.0, 3, 7, start=0.5, first=0)

    copy = WarmUp.from_config(schedule.get_config())

    rates, expected = ([float(x(step)) for step in range(7)] for x in (copy, schedule))
    assert rates == expected
