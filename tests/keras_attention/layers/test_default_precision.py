"""Layers in float32 where half precision is the default."""

import pytest
from keras import ops

from attention_testing.arrays import assert_close, draw
from keras_attention import LuongAttention, MultiHeadAttention

BATCH, QUERIES, POSITIONS, DEPTH = 2, 3, 5, 7
LAYERS = {
    "local-m": lambda: LuongAttention(window="local-m", half_width=1, dtype="float32"),
    "local-p": lambda: LuongAttention(window="local-p", half_width=1, dtype="float32"),
    "t5": lambda: MultiHeadAttention(2, 3, positions="t5", dtype="float32"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_by_default_changes_nothing(name, rng, set_floatx):
    layer = LAYERS[name]()
    arrays = draw(rng, (BATCH, QUERIES, DEPTH), (BATCH, POSITIONS, DEPTH))
    tensors = [ops.convert_to_tensor(x, "float32") for x in arrays]
    expected = layer(*tensors)

    set_floatx("bfloat16")

    assert_close(layer(*tensors), expected, 1e-6)
