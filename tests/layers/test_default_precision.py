"""Layers in float32 where half precision is the default."""

import numpy as np
import pytest
from keras import ops

from keras_attention import LuongAttention, SelfAttention

BATCH, QUERIES, POSITIONS, DEPTH = 2, 3, 5, 7
LAYERS = {
    "local-m": lambda: LuongAttention(window="local-m", half_width=1, dtype="float32"),
    "local-p": lambda: LuongAttention(window="local-p", half_width=1, dtype="float32"),
    "t5": lambda: SelfAttention(2, 3, positions="t5", dtype="float32"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_by_default_changes_nothing(name, rng, set_floatx):
    layer = LAYERS[name]()
    query, value = (
        ops.convert_to_tensor(rng.normal(size=(BATCH, length, DEPTH)), "float32")
        for length in (QUERIES, POSITIONS)
    )
    expected = ops.convert_to_numpy(layer(query, value))

    set_floatx("bfloat16")
    found = ops.convert_to_numpy(layer(query, value))

    np.testing.assert_allclose(found, expected, atol=1e-6)
