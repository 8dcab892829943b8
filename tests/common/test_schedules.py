import numpy as np
from keras_attention_apps.common.training.schedules import warm_up_and_cosine


def test_the_rate_rises_and_falls():
    rates = [float(warm_up_and_cosine(2.0, 4, 8)(step)) for step in (0, 2, 4, 6, 8)]
    np.testing.assert_allclose(rates, [0.02, 1.01, 2.0, 1.0, 0.0], atol=1e-6)

    rates = [float(warm_up_and_cosine(2.0, 0, 8)(step)) for step in (0, 4, 8)]
    np.testing.assert_allclose(rates, [2.0, 1.0, 0.0], atol=1e-6)

    assert float(warm_up_and_cosine(2.0, 0, 0)(0)) == 2.0
