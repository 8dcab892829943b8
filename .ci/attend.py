"""Smoke test: call one layer of the installed library, on any backend."""

import numpy as np

from keras_attention import AdditiveAttention

query, value = np.ones((2, 3, 5), "float32"), np.ones((2, 7, 11), "float32")
context = AdditiveAttention(13)(query, value)
np.testing.assert_allclose(context, np.ones((2, 3, 11)), rtol=1e-6)
