"""Layers in float32 where half precision is the default."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_attention import LuongAttention, SelfAttention

pytestmark = pytest.mark.usefixtures("seeded")

BATCH, QUERIES, POSITIONS, DEPTH = 2, 3, 5, 7
LAYERS = {
    "local-m": lambda: LuongAttention(window="local-m", half_width=1, dtype="float32"),
    "local-p": lambda: LuongAttention(window="local-p", half_width=1, dtype="float32"),
    "t5": lambda: SelfAttention(2, 3, positions="t5", dtype="float32"),
}


@pytest.fixture
def half_precision():
    """A function that makes bfloat16 the default until the test ends."""
    default = keras.config.floatx()
    yield lambda: keras.config.set_floatx("bfloat16")
    keras.config.set_floatx(default)


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_by_default_changes_nothing(name, rng, half_precision):
    layer = LAYERS[name]()
    query, value = (
        ops.convert_to_tensor(rng.normal(size=(BATCH, length, DEPTH)), "float32")
        for length in (QUERIES, POSITIONS)
    )
    expected = ops.convert_to_numpy(layer(query, value))

    half_precision()
    found = ops.convert_to_numpy(layer(query, value))

    np.testing.assert_allclose(found, expected, atol=1e-6)
