import pytest
from keras_attention_apps.common.training import ema_momentum


@pytest.mark.parametrize(
    "steps_per_epoch, momentum",
    [(1, 0.5), (5, 0.9), (50, 0.99), (250, 0.998), (10_000, 0.998)],
)
def test_the_moving_average_does_not_outlast_two_epochs(steps_per_epoch, momentum):
    assert ema_momentum(None, steps_per_epoch, 500) == pytest.approx(momentum)
    assert ema_momentum(0.0, steps_per_epoch, 500) == 0.0
