"""Relative positions equal those of KerasHub, where it is installed."""

import keras
import numpy as np
import pytest
from arrays import draw
from keras import ops
from layers.self_attention_reference import attend

from keras_attention import RotaryPositions, SelfAttention
from keras_attention.layers.positions import buckets_of_offsets

hub = pytest.importorskip("keras_hub")

pytestmark = pytest.mark.usefixtures("seeded")

BATCH, STEPS, HEADS, DEPTH = 2, 11, 6, 8


@pytest.mark.parametrize("factor", [1.0, 4.0])
@pytest.mark.parametrize("start", [0, 100])
def test_rotary_positions(rng, start, factor):
    x = draw(rng, (BATCH, HEADS, STEPS, DEPTH))
    peer = hub.layers.RotaryEmbedding(5_000, factor, sequence_axis=2, feature_axis=-1)

    positions = RotaryPositions(5_000, scaling_factor=factor)
    steps = start + ops.arange(STEPS, dtype="int32")[None]
    found = positions.rotate(ops.convert_to_tensor(x), steps)

    expected = ops.convert_to_numpy(peer(x, start_index=start))
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=2e-5)


def test_alibi(rng):
    layer = SelfAttention(HEADS, DEPTH, positions="alibi", causal=True)
    x = draw(rng, (BATCH, STEPS, DEPTH))
    _, weights = attend(layer, x)

    plain = SelfAttention.from_config({**layer.get_config(), "positions": None})
    plain.build(x.shape)
    plain.set_weights(layer.get_weights())
    split = (BATCH, STEPS, HEADS, DEPTH)
    query = ops.reshape(plain.step.query_projection(x), split) * DEPTH**-0.5
    key = ops.reshape(plain.memory.key_projection(x), split)
    scores = hub.layers.AlibiBias()(ops.einsum("btnd,bsnd->bnts", query, key))
    expected = keras.layers.Softmax()(scores, mask=np.tri(STEPS, dtype="bool"))

    np.testing.assert_allclose(weights, ops.convert_to_numpy(expected), atol=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_t5(bidirectional):
    from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention

    offsets = np.arange(-128, 129, dtype="int32")
    expected = T5MultiHeadAttention._relative_position_bucket(
        ops.convert_to_tensor(offsets), bidirectional
    )

    found = buckets_of_offsets(32, 128, bidirectional)

    np.testing.assert_array_equal(found, ops.convert_to_numpy(expected))
